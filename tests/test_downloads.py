"""What a study takes from elsewhere is listed before anything is fetched."""

import os
import re
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from subnet_utils import check
from subnet_utils.core import downloads
from subnet_utils.core.downloads import external, table
from subnet_utils.core.papers import notebooks
from subnet_utils.core.sections import ROOT, Elsewhere, Place, Section
from subnet_utils.core.study import Study

PROFILES = sorted(path.stem for path in (ROOT / "params").glob("*.yaml"))


@pytest.fixture(autouse=True)
def separate(monkeypatch):
    """What a test says of the network does not outlive it."""
    monkeypatch.setattr(os, "environ", os.environ.copy())


class Leaf(Section):
    weights: Place | None = None
    data: Elsewhere = "hub:someone/sentences:own:train"
    title: str = "some/title"


class Tree(Section):
    leaf: Leaf
    leaves: tuple[Leaf, ...]


def test_every_place_of_every_section_is_found(tmp_path):
    full, empty = tmp_path / "full", tmp_path / "empty"
    (full / "inner").mkdir(parents=True)
    empty.mkdir()
    leaves = (Leaf(weights=str(full)), Leaf(weights="someone/network", data=str(empty)))
    found = list(external(Tree(leaf=Leaf(weights="torchvision"), leaves=leaves)))
    assert [one.name for one in found] == [
        "torchvision", "someone/sentences", str(full), "someone/network", str(empty),
    ]  # fmt: skip
    assert [one.fetched for one in found] == [True, True, False, True, False]
    assert {one.name: one.is_here for one in found[2:]} == {
        str(full): True, "someone/network": False, str(empty): False,
    }  # fmt: skip
    rows = [re.split("  +", line) for line in table(found).splitlines()]
    assert rows[0] == ["name", "size", "license", "state", "place"]
    assert [row[3] for row in rows[3:]] == ["here", "to be downloaded", "missing: put it there"]
    assert rows[4][:3] == ["someone/network", "not known", "not known"], "nothing is made up"
    assert rows[1][1:3] == ["45 MB", "not known"]


@pytest.mark.parametrize("profile", PROFILES)
def test_what_a_profile_names_is_all_listed(profile):
    """Against the text of the profile: what looks like a name on a hub, or a path in data/."""
    text = re.sub(r"(?m)^\s*#.*$", "", (ROOT / "params" / f"{profile}.yaml").read_text())
    words = re.findall(r"hub:[\w/-]+|\bdata/[\w/.-]+|(?<=weights: )\S+/[\w.-]+|(?<=pretrained: )[\w/.-]+", text)
    expected = {word.removeprefix("hub:").removeprefix(f"{ROOT}/") for word in words}
    assert {one.name.removeprefix(f"{ROOT}/") for one in external(Study.load(profile))} == expected
    assert bool(expected) == (
        profile.startswith(("paper", "minilm")) and profile not in ("paper_arithmetic", "paper_anaphora")
    )


def test_list_fetches_nothing(monkeypatch, capsys):
    def fetch(study):
        raise AssertionError("this would fetch")

    monkeypatch.setattr(check, "require", fetch)
    assert check.main(["--list", "paper_roberta", "tiny"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == ["name", "FacebookAI/roberta-base", "nyu-mll/multi_nli",
                                                    "jhu-cogsci/hans", "nothing"]  # fmt: skip
    with pytest.raises(AssertionError):
        check.main(["tiny"])


@pytest.mark.parametrize("changes", [{}, {"XDG_CACHE_HOME": "/x"}, {"HF_HOME": "/y"}, {"HF_HUB_CACHE": "/z/w"}])
def test_names_on_the_hub_lie_where_its_client_puts_them(changes):
    """Against the client itself, which reads these variables when it is imported."""
    for name in ("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE"):
        os.environ.pop(name, None)
    os.environ.update(changes)
    code = "from huggingface_hub.constants import HF_HUB_CACHE; print(HF_HUB_CACHE)"
    said = subprocess.check_output([sys.executable, "-c", code], text=True, env=os.environ)
    (found,) = external(Leaf(data="someone/network"))
    assert str(found.place) == f"{said.strip()}/models--someone--network/snapshots"


@pytest.mark.parametrize(("reachable", "said"), [(True, None), (False, "1")])
def test_without_network_the_hub_is_not_asked(monkeypatch, reachable, said):
    asked = []

    def look_up(host, port):
        asked.append((host, port))
        if not reachable:
            raise socket.gaierror("Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(downloads, "getproxies", dict)
    os.environ.pop("HF_HUB_OFFLINE", None)
    os.environ["HF_ENDPOINT"] = "https://mirror.example"
    downloads.go_offline_without_network()
    assert asked == [("mirror.example", 443)] and os.environ.get("HF_HUB_OFFLINE") == said


def test_what_looks_for_a_notebooks_needs_asks_for_a_network_first(monkeypatch):
    """Every way into a study: a check, a plan, a list of shards, a notebook."""
    asked = []
    monkeypatch.setattr("subnet_utils.core.papers.go_offline_without_network", lambda: asked.append("network"))
    paper, notebook = notebooks()["05_pretraining"]
    monkeypatch.setattr(type(paper), "resolve", lambda self, name: lambda lab: asked.append(name))
    paper.require(notebook, SimpleNamespace(study=Study.load("tiny")))
    assert asked == ["network", notebook.requires]
