"""The files around the package say the same, and the workflow does what the README promises.

The workflow is tested in a checkout of its own, with notebooks that only leave a mark that they ran.
"""

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import subnet_utils
from subnet_utils.core.notebook import ABOUT_EXPERIMENTS
from subnet_utils.core.study import Study

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DEPENDENCIES = [Requirement(line) for line in PROJECT["project"]["dependencies"]]
TEST_EXTRA = [Requirement(line) for line in PROJECT["project"]["optional-dependencies"]["test"]]
BUILD = [Requirement(line) for line in PROJECT["build-system"]["requires"]]
LOCK_LINES = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
LOCK = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in LOCK_LINES)}
GPU_LIBRARY = re.compile(r"(nvidia|cuda|triton)\b")
MACHINE_PATH = re.compile(rb"(?<![\w.:/>~*-])/(?:home|root|Users|work|tmp)/\w")


def closure(roots: Iterable[Requirement]) -> set[str]:
    """Names of everything that installed packages say `roots` need here, without the GPU libraries of torch."""
    todo, seen = list(roots), set()
    while todo:
        wanted = todo.pop()
        name, extras = canonicalize_name(wanted.name), frozenset(wanted.extras)
        if (name, extras) in seen or GPU_LIBRARY.match(name):
            continue
        seen.add((name, extras))
        needs = [Requirement(line) for line in metadata.requires(name) or ()]
        todo += [need for need in needs if applies(need, extras)]
    return {name for name, _ in seen}


def applies(need: Requirement, extras: Iterable[str]) -> bool:
    return need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def imported(folder: str) -> set[str]:
    """Top-level names of the modules that the Python files of a folder import."""
    nodes = [n for path in (ROOT / folder).rglob("*.py") for n in ast.walk(ast.parse(path.read_text()))]
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    froms = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level}
    return {name.partition(".")[0] for name in plain | froms}


# The files around the package


def test_lock_holds_exact_portable_versions_only():
    assert list(LOCK) == sorted(LOCK)
    assert [line for line in LOCK_LINES if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", line)] == []
    assert len(LOCK) == len(LOCK_LINES)
    assert [name for name in LOCK if GPU_LIBRARY.match(name)] == []


@pytest.mark.parametrize("requirement", DEPENDENCIES + TEST_EXTRA + BUILD, ids=lambda requirement: requirement.name)
def test_lock_satisfies_pyproject(requirement: Requirement):
    version = LOCK.get(canonicalize_name(requirement.name))
    assert version is not None, f"{requirement.name} is not in requirements.lock"
    assert requirement.specifier.contains(version)


def test_environment_is_the_lock():
    installed = {name: Version(metadata.version(name)).public for name in LOCK}
    assert installed == LOCK


@pytest.mark.skipif(
    sys.platform != "linux" or sys.version_info[:2] != (3, 11),
    reason="the lock is the closure for Python 3.11 on Linux; run there to check that it is complete",
)
def test_lock_is_complete_and_has_nothing_superfluous():
    assert closure(DEPENDENCIES + TEST_EXTRA + BUILD) == set(LOCK)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="only the versions for Python 3.11 are in the lock")
def test_lock_can_be_installed_on_the_oldest_python_that_pyproject_allows():
    """Debian 12 has 3.11.2; what asks for a later patch stops an installation there."""
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=") + ".0"
    asked = {name: metadata.metadata(name).get("Requires-Python") or ">=3" for name in LOCK}
    assert [name for name, pythons in asked.items() if oldest not in SpecifierSet(pythons)] == []


def test_conda_environment_is_the_lock_on_a_python_that_pyproject_allows():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, pip, packages = environment["dependencies"]
    assert SpecifierSet(PROJECT["project"]["requires-python"]).contains(python.removeprefix("python="))
    assert (pip, packages) == ("pip", {"pip": ["-r requirements.lock", "-e ."]})
    assert environment["name"] == PROJECT["project"]["name"]


def test_one_version_everywhere():
    version = PROJECT["project"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert (
        version == subnet_utils.__version__ == citation["version"] == newest[1] == metadata.version("subnet-companion")
    )
    assert citation["license"] == PROJECT["project"]["license"] == "MIT"


@pytest.mark.parametrize(
    ("folder", "requirements"), [("subnet_utils", DEPENDENCIES), ("tests", DEPENDENCIES + TEST_EXTRA)]
)
def test_every_import_is_declared(folder: str, requirements: list[Requirement]):
    owners = metadata.packages_distributions()
    # NeuroSurgeon runs in an environment of its own; datasets is an extra that nothing here needs
    own = {"subnet_utils", "tests", "NeuroSurgeon", "datasets"}
    declared = {canonicalize_name(requirement.name) for requirement in requirements}
    foreign = imported(folder) - sys.stdlib_module_names - own
    assert {name for name in foreign if not declared & {canonicalize_name(o) for o in owners.get(name, [])}} == set()


def test_package_contains_the_reference_tables():
    assert list((ROOT / "subnet_utils").rglob("*.csv")) == list((ROOT / "subnet_utils/reference").glob("*.csv"))
    assert PROJECT["tool"]["setuptools"]["package-data"] == {"subnet_utils": ["reference/*.csv"]}


@pytest.mark.parametrize("profile", ["tiny", "laptop", "paper"])
def test_profile_is_called_like_its_file(profile: str):
    content = yaml.safe_load((ROOT / "params" / f"{profile}.yaml").read_text())
    assert list(content) == ["study"]
    assert content["study"]["name"] == profile


def test_one_rule_per_notebook():
    notebooks = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    (listed,) = re.findall(r"^NOTEBOOKS = \(.*?\)$", (ROOT / "Snakefile").read_text(), re.MULTILINE | re.DOTALL)
    assert sorted(re.findall(r'"(\w+)"', listed)) == sorted(notebooks) == sorted(NAMES)


def test_no_file_names_a_path_of_one_machine():
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout: clone the repository to check its files")
    files = [ROOT / name.decode() for name in listed.stdout.split(b"\0") if name]
    found = {path: match[0] for path in files if path.is_file() and (match := MACHINE_PATH.search(path.read_bytes()))}
    assert found == {}


# The workflow

NOTEBOOK = """\
import pathlib, time
with open("ran.txt", "a") as ran:
    print("{name}", file=ran)
while pathlib.Path("hold-{name}").exists():
    time.sleep(0.1)
folder = pathlib.Path("figures") / study["name"]
folder.mkdir(parents=True, exist_ok=True)
(folder / "{name}.json").write_text("[]")
"""
NAMES = [
    "01_train_bases", "02_discover_masks", "03_ablations", "04_random_controls", "05_pretraining", "06_overlap",
    "07_subtask_induction", "07b_shape_bias", "08_heuristic_core", "11_cost_of_a_study",
]  # fmt: skip


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with this one's Makefile, Snakefile and environment; there is a space in its path."""
    folder = tmp_path / "a checkout"
    for name in ("notebooks", "params", "subnet_utils"):
        (folder / name).mkdir(parents=True)
    for name in ("Makefile", "Snakefile", "params/tiny.yaml", "params/laptop.yaml"):
        (folder / name).write_text((ROOT / name).read_text())
    (folder / "subnet_utils/report.py").write_text("import sys\n\nprint('report of', *sys.argv[1:])\n")
    for name in NAMES:
        write_notebook(folder / f"notebooks/{name}.ipynb", NOTEBOOK.format(name=name))
    (folder / ".venv").symlink_to(sys.prefix)
    return folder


def write_notebook(path: Path, code: str) -> None:
    parameters = nbformat.v4.new_code_cell("study: dict = {}", metadata={"tags": ["parameters"]})
    notebook = nbformat.v4.new_notebook(cells=[parameters, nbformat.v4.new_code_cell(code)])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)


def start(*command: str, folder: Path) -> subprocess.Popen:
    """Start a command in a process group of its own, without what a surrounding `make` leaves in the environment."""
    plain = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    return subprocess.Popen(
        command,
        cwd=folder,
        env=plain,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def finish(process: subprocess.Popen) -> tuple[int, str]:
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def reproduce(folder: Path, profile: str = "tiny") -> subprocess.Popen:
    """`make reproduce` with the environment taken as installed."""
    return start("make", "-o", ".venv/.installed", "reproduce", f"PROFILE={profile}", "CORES=1", folder=folder)


def ran(folder: Path) -> list[str]:
    path = folder / "ran.txt"
    return path.read_text().split() if path.exists() else []


def wait_for_second_notebook(folder: Path) -> None:
    limit = time.monotonic() + 60
    while ran(folder) != NAMES[:2]:
        assert time.monotonic() < limit, "the second notebook did not start"
        time.sleep(0.1)


def test_reproduce_goes_on_after_a_kill_and_does_nothing_twice(checkout: Path):
    (checkout / "hold-02_discover_masks").touch()
    killed = reproduce(checkout)
    wait_for_second_notebook(checkout)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert (checkout / "runs/tiny/02_discover_masks.ipynb").exists()  # papermill's half-executed notebook
    assert not (checkout / "runs/tiny/02_discover_masks.done").exists()

    (checkout / "hold-02_discover_masks").unlink()
    code, output = finish(reproduce(checkout))
    assert (code, output.splitlines()[-1]) == (0, "report of tiny")
    assert ran(checkout) == [NAMES[0], NAMES[1], *NAMES[1:]]

    code, output = finish(reproduce(checkout))
    assert (code, len(ran(checkout))) == (0, len(NAMES) + 1), output
    assert output.splitlines()[-1] == "report of tiny"


def test_a_committed_manifest_does_not_count_as_a_run(checkout: Path):
    (checkout / "figures/laptop").mkdir(parents=True)
    for name in NAMES:
        (checkout / f"figures/laptop/{name}.json").write_text("[]")
    dry_run = start(sys.executable, "-m", "snakemake", "-n", "--config", "profile=laptop", folder=checkout)
    code, output = finish(dry_run)
    assert code == 0
    assert re.findall(r"^Job \d+: (\w+)", output, re.MULTILINE)[: len(NAMES)] == NAMES


def test_notebooks_about_sections_that_a_profile_lacks_are_left_out(checkout: Path):
    profile = yaml.safe_load((checkout / "params/tiny.yaml").read_text())
    for section in ("pretrained", "arithmetic", "images", "inference"):
        del profile["study"][section]
    profile["study"]["name"] = "small"
    (checkout / "params/small.yaml").write_text(yaml.safe_dump(profile))
    dry_run = start(sys.executable, "-m", "snakemake", "-n", "--config", "profile=small", folder=checkout)
    code, output = finish(dry_run)
    assert code == 0
    left_out = ("05_pretraining", "07_subtask_induction", "07b_shape_bias", "08_heuristic_core")
    kept = [name for name in NAMES if name not in left_out]
    assert re.findall(r"^Job \d+: (\w+)", output, re.MULTILINE)[: len(kept)] == kept
    assert "05_pretraining" not in output


def test_every_notebook_of_a_profile_without_experiments_takes_it(checkout: Path):
    shutil.copy(ROOT / "params/minilm.yaml", checkout / "params/minilm.yaml")
    dry_run = start(sys.executable, "-m", "snakemake", "-n", "--config", "profile=minilm", folder=checkout)
    code, output = finish(dry_run)
    scheduled = [name for name in re.findall(r"^Job \d+: (\w+)", output, re.MULTILINE) if name in NAMES]
    assert code == 0 and scheduled == ["08_heuristic_core", "11_cost_of_a_study"]
    assert not [name for name in scheduled if name.split("_")[0] in ABOUT_EXPERIMENTS]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("study: {name: tiny}", "params/mine.yaml: study.name is 'tiny'; make it 'mine'"),
        ("[study]", "params/mine.yaml has no 'study'; look at params/tiny.yaml"),
        ("", "params/mine.yaml has no 'study'; look at params/tiny.yaml"),
    ],
)
def test_a_profile_that_would_write_into_anothers_figures_is_not_run(checkout: Path, text: str, said: str):
    (checkout / "params/mine.yaml").write_text(text)
    code, output = finish(start(sys.executable, "-m", "snakemake", "-n", "--config", "profile=mine", folder=checkout))
    assert code != 0 and said in output and "Traceback" not in output


def test_parts_run_before_the_notebooks(checkout: Path):
    parts = ["--config", "profile=tiny", "parts=1"]
    code, output = finish(start(sys.executable, "-m", "snakemake", "-n", "--cores", "2", *parts, folder=checkout))
    assert code == 0
    jobs = re.findall(r"^Job \d+: (.*), tiny profile", output, re.MULTILINE)
    assert sorted(jobs[:7]) == sorted(Study.load("tiny").parts()) and jobs[7 : 7 + len(NAMES)] == NAMES


def test_slurm_profile_asks_for_a_gpu_a_part(checkout: Path):
    shutil.copy(ROOT / "params/paper.yaml", checkout / "params/paper.yaml")
    options = ["--workflow-profile", str(ROOT / "params/slurm"), "--config", "profile=paper", "parts=1"]
    code, output = finish(start(sys.executable, "-m", "snakemake", "-n", *options, folder=checkout))
    assert code == 0, output
    assert re.search(r"^part +51$", output, re.MULTILINE)
    profile = yaml.safe_load((ROOT / "params/slurm/config.yaml").read_text())
    assert profile["cores"] >= 1  # a dry run does without, a real one with an executor does not
    assert profile["executor"] == "slurm" and "part:gpu=1" in profile["set-resources"]
    rules = {name.partition("=")[0] for name in profile["set-threads"]}
    assert rules == {"part", *(name.partition("_")[2] for name in NAMES)}
    # what trains networks that are no parts does so on a GPU, and is given longer than the default two hours
    for rule in ("train_bases", "ablations", "subtask_induction", "shape_bias", "heuristic_core"):
        minutes = [int(text.split("=")[1]) for text in profile["set-resources"] if text.startswith(f"{rule}:runtime=")]
        assert f"{rule}:gpu=1" in profile["set-resources"] and minutes and minutes[0] >= 600


def test_papermill_waits_neither_for_a_grammar_nor_for_a_kernel_that_has_nothing_to_do():
    code = "from subnet_utils.headless import PapermillNotebookClient as Client; import jsonschema, sys"
    code += "; print(sys.modules['rfc3987_syntax'], Client.shutdown_kernel, *Client.extra_arguments)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None immediate --log-level=ERROR"


def test_a_failing_cell_stops_the_run_and_keeps_its_notebook(checkout: Path):
    write_notebook(checkout / "notebooks/01_train_bases.ipynb", "raise ValueError('lr: write 0.001')")
    code, output = finish(reproduce(checkout))
    assert code != 0
    assert "ValueError: lr: write 0.001" in output.splitlines()
    assert ran(checkout) == []
    assert (checkout / "runs/tiny/01_train_bases.ipynb").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["make", "reproduce", "PROFILE=labtop"],
        [sys.executable, "-m", "snakemake", "--cores", "1", "--config", "profile=labtop"],
    ],
    ids=["make", "snakemake"],
)
def test_unknown_profile_is_one_line_with_the_nearest_name(checkout: Path, command: list[str]):
    code, output = finish(start(*command, folder=checkout))
    assert code != 0
    assert len(output.splitlines()) == 1
    assert re.search(r"no profile 'labtop'; did you mean 'laptop'\? valid: laptop,? tiny", output)


@pytest.mark.parametrize("name", ["tiny laptop", "ti%", ""])
def test_a_profile_is_one_whole_name(checkout: Path, name: str):
    code, output = finish(start("make", "reproduce", f"PROFILE={name}", folder=checkout))
    assert code != 0 and f"no profile '{name}'" in output


def test_old_python_is_refused_with_the_remedy(checkout: Path):
    (checkout / ".venv").unlink()
    for name in ("requirements.lock", "pyproject.toml"):
        (checkout / name).touch()
    code, output = finish(start("make", "test", "PYTHON=false", folder=checkout))
    assert code != 0
    assert output.startswith("Python 3.11 or newer is needed; name one with: make PYTHON=")
    assert not (checkout / ".venv").exists()
