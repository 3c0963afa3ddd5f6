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
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

import subnet_utils
from subnet_utils.core.papers import notebooks, papers
from tests import toy_paper

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DEPENDENCIES = [Requirement(line) for line in PROJECT["project"]["dependencies"]]
EXTRAS = PROJECT["project"]["optional-dependencies"]
COMPANION, TEST_EXTRA = ([Requirement(line) for line in EXTRAS[name]] for name in ("companion", "test"))
BUILD = [Requirement(line) for line in PROJECT["build-system"]["requires"]]
LOCK_LINES = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
LOCK = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in LOCK_LINES)}
GPU_LIBRARY = re.compile(r"(nvidia|cuda|triton)\b")
MACHINE_PATH = re.compile(rb"(?<![\w.:/>~*-])/(?:home|root|Users|work|tmp)/\w")


def closure(roots: Iterable[Requirement]) -> set[str]:
    """Names of everything that installed packages say `roots` need here, without the GPU libraries of torch."""
    todo, seen = list(roots), set()
    while todo:
        requirement = todo.pop()
        name, extras = canonicalize_name(requirement.name), frozenset(requirement.extras)
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


@pytest.mark.parametrize(
    "requirement", DEPENDENCIES + COMPANION + TEST_EXTRA + BUILD, ids=lambda requirement: requirement.name
)
def test_lock_satisfies_pyproject(requirement: Requirement):
    version = LOCK.get(canonicalize_name(requirement.name))
    assert version is not None, f"{requirement.name} is not in requirements.lock"
    assert requirement.specifier.contains(version)


def test_uv_has_the_same_versions_with_hashes():
    packages = {one["name"]: one for one in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    own = packages.pop("subnet-companion")["metadata"]["requires-dist"]
    assert LOCK.items() <= {name: one["version"] for name, one in packages.items()}.items()
    files = [file for one in packages.values() for file in [*one.get("wheels", []), one.get("sdist")] if file]
    assert all(file["hash"].startswith("sha256:") for file in files)
    assert {urlsplit(file["url"]).hostname for file in files} == {"files.pythonhosted.org"}
    asked = {(one["name"], one["specifier"], one.get("marker", "")) for one in own}
    extras = {"": PROJECT["project"]["dependencies"]} | {f"extra == '{name}'": own for name, own in EXTRAS.items()}
    ours = {(one.name, str(one.specifier), extra) for extra, own in extras.items() for one in map(Requirement, own)}
    assert asked == ours, "renew uv.lock as the first lines of requirements.lock say"


def test_environment_is_the_lock():
    installed = {name: Version(metadata.version(name)).public for name in LOCK}
    assert installed == LOCK


@pytest.mark.skipif(
    sys.platform != "linux" or sys.version_info[:2] != (3, 11),
    reason="the lock is the closure for Python 3.11 on Linux; run there to check that it is complete",
)
def test_lock_is_complete_and_has_nothing_superfluous():
    assert closure(DEPENDENCIES + COMPANION + TEST_EXTRA + BUILD) == set(LOCK)


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
    newest = re.search(r"^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert (
        version == subnet_utils.__version__ == citation["version"] == newest[1] == metadata.version("subnet-companion")
    )
    assert citation["license"] == PROJECT["project"]["license"] == "MIT"


def test_papers_are_cited_by_their_titles():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {paper.title for paper in papers().values()} == {one["title"] for one in citation["references"]}


@pytest.mark.parametrize(
    ("folder", "requirements"),
    [("subnet_utils", DEPENDENCIES + COMPANION), ("tests", DEPENDENCIES + COMPANION + TEST_EXTRA)],
)
def test_every_import_is_declared(folder: str, requirements: list[Requirement]):
    owners = metadata.packages_distributions()
    # NeuroSurgeon runs in an environment of its own; datasets is an extra that nothing here needs
    own = {"subnet_utils", "tests", "NeuroSurgeon", "datasets"}
    declared = {canonicalize_name(requirement.name) for requirement in requirements}
    foreign = imported(folder) - sys.stdlib_module_names - own
    assert {name for name in foreign if not declared & {canonicalize_name(o) for o in owners.get(name, [])}} == set()


CORE = """
import sys
from importlib.machinery import PathFinder

class CoreAlone(PathFinder):
    def find_spec(name, *arguments):
        return None if name in sys.argv[2:] else PathFinder.find_spec(name, *arguments)

sys.meta_path = [CoreAlone if one is PathFinder else one for one in sys.meta_path]
import torch
from subnet_utils import *
from subnet_utils.masks.identify import MaskSteps
from subnet_utils.masks.masking import METHODS

network, inputs = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)), torch.ones(9, 4)
task, options = Task(inputs, torch.arange(9) % 2), {"training": MaskSteps(3), "before": lambda: network}
for method in METHODS.keys() - {"spectral_clusters"}:
    found = identify(network, task, method, **options).subnetwork
    found.save(sys.argv[1])
    assert torch.equal(Subnetwork.load(sys.argv[1]).apply(network)(inputs), found.apply(network)(inputs))
    print(method)
for needs in (lambda: identify(network, task, "spectral_clusters"), lambda: zoo.load("cnn")):
    try:
        needs()
    except ModuleNotFoundError as error:
        print(error)
"""


def test_the_core_installation_is_enough_for_a_network_of_ones_own(tmp_path: Path):
    """In a process that finds nothing but the core installation, with what its packages need."""
    core, owners = closure(DEPENDENCIES) | {"subnet-companion"}, metadata.packages_distributions()
    others = [name for name in owners if not core & {canonicalize_name(owner) for owner in owners[name]}]
    command = [sys.executable, "-c", CORE, str(tmp_path / "mask.safetensors"), *others]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *methods, scipy, matplotlib = done.stdout.splitlines()
    assert len(methods) >= 9 and "jupyterlab" in others
    said = "is not in the core installation; in the checkout: pip install -e '.[companion]'"
    assert (scipy, matplotlib) == (f"scipy {said}", f"matplotlib {said}")


def test_package_contains_the_reference_tables_and_the_templates():
    package = ROOT / "subnet_utils"
    named = {
        path for one in PROJECT["tool"]["setuptools"]["package-data"]["subnet_utils"] for path in package.glob(one)
    }
    assert {path for path in package.rglob("*.*") if path.suffix in (".csv", ".html", ".css", ".js", ".j2")} == named


def test_every_notebook_is_of_a_paper_or_of_none():
    """Those of none: by hand, and what a study costs."""
    files = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert set(notebooks()) <= files and {name[:2] for name in files - set(notebooks())} <= {"00", "11"}
    for paper, notebook in notebooks().values():
        assert set(notebook.after) < {one.name for one in paper.notebooks}


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

MARK = """
import time
from pathlib import Path
from subnet_utils.core.sections import ROOT
with open("ran.txt", "a") as ran:
    print("{name}", file=ran)
while Path("hold-{name}").exists():
    time.sleep(0.1)
folder = ROOT / "figures" / study["name"]
folder.mkdir(parents=True, exist_ok=True)
(folder / "{name}.json").write_text("[]")
"""
NAMES = ["20_toy", "21_toy", "22_toy"]
NAME = f"marks-from-a-test-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"
"""A profile. Figures lie in the checkout, so each process of the tests has its own."""
NOTEBOOKS = """(
        Notebook("20_toy", folder=Path(__file__).parent),
        Notebook("21_toy", folder=Path(__file__).parent, after=("20_toy",)),
        Notebook("22_toy", folder=Path(__file__).parent, after=("21_toy",)),
    ),"""
PYTHON = """#!/bin/sh
if [ "$2" = subnet_utils.report ]; then echo "report of $3"; else exec "{python}" "$@"; fi
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkout with this one's Makefile and Snakefile, and a paper whose notebooks only leave a mark that they ran.

    There is a space in its path.
    """
    folder = tmp_path / "a checkout"
    (folder / "params").mkdir(parents=True)
    for name in ("Makefile", "Snakefile", "params/tiny.yaml", "params/laptop.yaml"):
        (folder / name).write_text((ROOT / name).read_text())
    room = toy_paper.write_room(folder / "rooms") / "toy"
    init = re.sub(r"\(Notebook\(.*\),\),", lambda _: NOTEBOOKS, (room / "__init__.py").read_text())
    (room / "__init__.py").write_text(init)
    for name in NAMES:
        write_notebook(room / f"{name}.ipynb", MARK.format(name=name))
    toy_paper.write_profile(folder / "params" / f"{NAME}.yaml", toy={})
    (folder / "python").write_text(PYTHON.format(python=sys.executable))
    (folder / "python").chmod(0o755)
    for name, value in (("PYTHONPATH", ROOT), ("SUBNET_PAPERS", folder / "rooms"), ("SUBNET_ARTIFACTS", tmp_path)):
        monkeypatch.setenv(name, str(value))
    yield folder
    shutil.rmtree(ROOT / "figures" / NAME, ignore_errors=True)


def write_notebook(path: Path, code: str) -> None:
    toy_paper.write_notebook(path, "", "study: dict = {}", code)


def start(*command: str, folder: Path) -> subprocess.Popen:
    """Start a command in a process group of its own, without what a surrounding `make` leaves in the environment."""
    plain = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=folder, env=plain, text=True, start_new_session=True, **streams)


def finish(process: subprocess.Popen) -> tuple[int, str]:
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def reproduce(folder: Path, profile: str = NAME) -> subprocess.Popen:
    """`make reproduce` with the environment taken as installed."""
    own = ["VENV_PYTHON=./python", f"PROFILE={profile}", "CORES=1", f"PYTHON={sys.executable}"]
    return start("make", "-o", ".venv/.installed", "reproduce", *own, folder=folder)


def planned(folder: Path, *config: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "snakemake", "-n", "--cores", "2", "--config", *config]
    return finish(start(*command, folder=folder))


def jobs(output: str) -> list[str]:
    return sorted(set(re.findall(r"^Job \d+: (\w+), ", output, re.MULTILINE)))


def ran(folder: Path) -> list[str]:
    path = folder / "ran.txt"
    return path.read_text().split() if path.exists() else []


def wait_for_second_notebook(folder: Path) -> None:
    limit = time.monotonic() + 120
    while ran(folder) != NAMES[:2]:
        assert time.monotonic() < limit, "the second notebook did not start"
        time.sleep(0.1)


def test_reproduce_goes_on_after_a_kill_and_does_nothing_twice(checkout: Path):
    (checkout / "hold-21_toy").touch()
    killed = reproduce(checkout)
    wait_for_second_notebook(checkout)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert (checkout / f"runs/{NAME}/21_toy.ipynb").exists()  # papermill's half-executed notebook
    assert not (checkout / f"runs/{NAME}/21_toy.done").exists()

    (checkout / "hold-21_toy").unlink()
    code, output = finish(reproduce(checkout))
    assert (code, output.splitlines()[-1]) == (0, f"report of {NAME}"), output
    assert ran(checkout) == [NAMES[0], NAMES[1], *NAMES[1:]], output

    code, output = finish(reproduce(checkout))
    assert (code, len(ran(checkout))) == (0, len(NAMES) + 1), output
    assert output.splitlines()[-1] == f"report of {NAME}"


def test_a_failing_cell_stops_the_run_and_keeps_its_notebook(checkout: Path):
    write_notebook(checkout / "rooms/toy/20_toy.ipynb", "raise ValueError('lr: write 0.001')")
    code, output = finish(reproduce(checkout, f"params/{NAME}.yaml"))
    assert code != 0
    assert "ValueError: lr: write 0.001" in output.splitlines()
    assert ran(checkout) == [] and (checkout / f"runs/{NAME}/20_toy.ipynb").exists()


def test_a_committed_manifest_does_not_count_as_a_run(checkout: Path):
    (ROOT / "figures" / NAME).mkdir(parents=True)
    for name in NAMES:
        (ROOT / "figures" / NAME / f"{name}.json").write_text("[]")
    code, output = planned(checkout, f"profile={NAME}")
    assert (code, jobs(output)) == (0, NAMES)


def test_notebooks_about_what_a_profile_lacks_are_left_out(checkout: Path):
    profile = toy_paper.write_profile(checkout / "half.yaml", subtask_induction={"arithmetic": {}})
    code, output = planned(checkout, f"profile={profile}")
    assert (code, jobs(output)) == (0, ["07_subtask_induction"])


def test_a_profile_that_would_write_into_anothers_figures_is_not_run(checkout: Path):
    (checkout / "params/mine.yaml").write_text((checkout / f"params/{NAME}.yaml").read_text())
    code, output = planned(checkout, "profile=mine")
    assert code != 0 and f"mine.yaml: study.name is '{NAME}'; make it 'mine'" in output and "Traceback" not in output


def test_slurm_profile(checkout: Path):
    options = ["--workflow-profile", str(ROOT / "params/slurm"), "--config", f"profile={NAME}", "shards=1"]
    code, output = finish(start(sys.executable, "-m", "snakemake", "-n", *options, folder=checkout))
    assert code == 0 and re.search(r"^shard +4$", output, re.MULTILINE), output
    profile = yaml.safe_load((ROOT / "params/slurm/config.yaml").read_text())
    assert profile["executor"] == "slurm" and profile["retries"] >= 1
    assert profile["cores"] >= 1  # a dry run does without, a real one with an executor does not


def test_papermill_waits_neither_for_a_grammar_nor_for_a_kernel_that_has_nothing_to_do():
    code = "from subnet_utils.execute import PapermillNotebookClient as Client; import jsonschema, sys"
    code += "; print(sys.modules['rfc3987_syntax'], Client.shutdown_kernel, *Client.extra_arguments)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "None immediate --log-level=ERROR"


def test_unknown_profile_is_one_line_with_the_nearest_name(checkout: Path):
    for code, output in (finish(reproduce(checkout, "labtop")), planned(checkout, "profile=labtop")):
        (line,) = [line for line in output.splitlines() if "filesystem usage" not in line]
        assert code != 0 and "no profile 'labtop'; did you mean 'laptop'? valid: " in line


@pytest.mark.parametrize(
    ("config", "what"),
    [("profle=laptop", "--config profle=: unknown key; did you mean 'profile'? valid: "),
     ("batch=abc", "batch=abc is not valid; give a whole number, 1 or more"),
     ("shards=yes", "shards=yes is not valid; give a whole number, 0 or more")],
)  # fmt: skip
def test_a_config_that_is_not_valid_is_one_line(checkout: Path, config: str, what: str):
    code, output = planned(checkout, config)
    assert code != 0 and what in output and "Traceback" not in output


def test_a_profile_is_no_code_for_a_shell(checkout: Path):
    """Neither where it is looked up, as by `make -n`, nor in a recipe."""
    (checkout / "x';>ran;'.yaml").touch()
    own = [f"PYTHON={sys.executable}", "-o", ".venv/.installed", "VENV_PYTHON=:"]
    code, output = finish(start("make", "-n", "reproduce", "PROFILE=x';touch ran;'", *own, folder=checkout))
    assert code != 0 and "no profile" in output and not (checkout / "ran").exists()
    for goal in ("reproduce", "site", "cost", "rehearse"):
        code, output = finish(start("make", goal, "PROFILE=x';>ran;'.yaml", *own, folder=checkout))
        assert code == 0 and not (checkout / "ran").exists(), output


@pytest.mark.parametrize("name", ["tiny laptop", "ti%", "", "nowhere.yaml"])
def test_a_profile_is_one_whole_name(checkout: Path, name: str):
    code, output = finish(reproduce(checkout, name))
    assert code != 0 and f"no profile '{name}'" in output


def test_a_dry_run_leaves_what_jobs_are_waiting_for(checkout: Path):
    (checkout / f"runs/{NAME}").mkdir(parents=True)
    for name in ("shards.json", "absent.json"):
        (checkout / f"runs/{NAME}" / name).write_text("{}")
    code, output = planned(checkout, f"profile={NAME}", "shards=1")
    assert code == 0 and " shard, shards_toy" in output
    assert {path.read_text() for path in (checkout / f"runs/{NAME}").glob("*.json")} == {"{}"}


def test_a_path_with_a_space_is_named(checkout: Path):
    (checkout / "my own.yaml").touch()
    code, output = finish(reproduce(checkout, "my own.yaml"))
    assert code != 0 and "no profile 'my own.yaml': give one file, and one whose path has no space" in output


def test_show_is_a_page_beside_the_report_and_runs_the_notebook_once(checkout: Path):
    (checkout / "notebooks").mkdir()
    write_notebook(checkout / "notebooks/00c_zoo.ipynb", "")
    (checkout / "python").write_text('#!/bin/sh\necho "$@"\nif [ "$2" = subnet_utils.execute ]; then touch "$4"; fi\n')
    own = ["-o", ".venv/.installed", "show", "VENV_PYTHON=./python"]
    code, output = finish(start("make", *own, folder=checkout))
    unpacked, runs, report, page = [line for line in output.splitlines() if line.startswith("-m ")]
    assert code == 0 and unpacked == "-m subnet_utils.zoo unpack"
    assert runs.startswith("-m subnet_utils.execute notebooks/00c_zoo.ipynb runs/00c_zoo.ipynb")
    assert report == "-m subnet_utils.report laptop" and (checkout / "runs/laptop/00c_zoo.ipynb").exists()
    assert page.endswith(f"file://{checkout}/site/laptop/00c_zoo.html")
    code, output = finish(start("make", *own, folder=checkout))
    assert code == 0 and "subnet_utils.execute" not in output


@pytest.mark.parametrize("direction", ["push", "pull"])
def test_push_and_pull_ask_for_a_repository(checkout: Path, direction: str):
    code, output = finish(start("make", "-o", ".venv/.installed", direction, folder=checkout))
    assert code != 0 and f"make {direction} REPO=OWNER/NAME" in output
    (checkout / "python").write_text('#!/bin/sh\necho "$@"\n')
    own = ["VENV_PYTHON=./python", "REPO=owner/name"]
    code, output = finish(start("make", "-o", ".venv/.installed", direction, *own, folder=checkout))
    assert output.splitlines()[-1] == f"-m subnet_utils.core.hub {direction} owner/name"


def test_uv_installs_where_it_is_there_and_pip_elsewhere(checkout: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("requirements.lock", "pyproject.toml"):
        (checkout / name).touch()
    (checkout / "uv").write_text('#!/bin/sh\nmkdir .venv && echo "$*" >asked.txt\n')
    (checkout / "uv").chmod(0o755)
    monkeypatch.delenv("UV", raising=False)
    monkeypatch.setenv("PATH", f"{checkout}{os.pathsep}{os.environ['PATH']}")
    code, output = finish(start("make", ".venv/.installed", "PYTHON=python3", folder=checkout))
    assert code == 0 and (checkout / ".venv/.installed").exists(), output
    asked = "sync --locked --inexact --python python3 --extra companion --extra test"
    assert (checkout / "asked.txt").read_text() == f"{asked}\n"
    code, output = finish(start("make", "-n", "-B", "UV=", ".venv/.installed", folder=checkout))
    assert code == 0 and "pip install --no-compile -r requirements.lock" in output and "sync" not in output


def test_old_python_is_refused_with_the_remedy(checkout: Path):
    for name in ("requirements.lock", "pyproject.toml"):
        (checkout / name).touch()
    code, output = finish(start("make", "test", "PYTHON=false", folder=checkout))
    assert code != 0
    assert output.startswith("Python 3.11 or newer is needed; name one with: make PYTHON=")
    assert not (checkout / ".venv").exists()
