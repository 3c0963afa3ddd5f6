"""Examples in docstrings run and say what comes out; pages are made of docstrings."""

import doctest
import importlib
import os
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup

import subnet_utils
from subnet_utils.core.sections import ROOT
from subnet_utils.masks.masking import METHODS
from tests.browser import needs_browser

PATHS = [path for path in sorted((ROOT / "subnet_utils").rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]
MODULES = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in PATHS]


@pytest.mark.parametrize("name", MODULES)
@patch.dict(METHODS)  # an example adds a method
def test_examples_in_docstrings_are_true(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0 < found.attempted


@pytest.mark.parametrize("name", subnet_utils.EXPORTS)
def test_what_the_package_gives_has_an_example(name):
    assert ">>> " in getattr(subnet_utils, name).__doc__


def recipe() -> list[list[str]]:
    """The commands of `make site`, word by word."""
    command = ["make", "-n", "-o", ".venv/.installed", "site"]
    # without what a surrounding `make` leaves: it would say which directory it enters
    plain = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    said = subprocess.run(command, cwd=ROOT, env=plain, check=True, capture_output=True, text=True).stdout
    return [shlex.split(line) for line in said.replace("\\\n", "").splitlines()]


@pytest.fixture(scope="module")
def api(tmp_path_factory) -> Path:
    """The folder of API pages, as `make site` makes them."""
    folder = tmp_path_factory.mktemp("site") / "api"
    (words,) = (words for words in recipe() if "pdoc" in words)
    subprocess.run([sys.executable, *words[1:-1], folder], cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def documents(api) -> dict[Path, BeautifulSoup]:
    return {path.resolve(): BeautifulSoup(path.read_text(), "html.parser") for path in api.rglob("*.html")}


def test_the_site_takes_its_network_from_the_zoo():
    """It was trained on a fresh checkout."""
    modules = [words[words.index("-m") + 1 :] for words in recipe()]
    first = modules.index(["subnet_utils.zoo", "unpack"])
    assert "network_page" in modules[first + 1][0]


def test_api_pages_begin_with_what_the_package_gives(api, documents):
    """It is found when asked for, so pdoc showed bars without a word."""
    page = documents[(api / "subnet_utils.html").resolve()]
    said = {one.text.strip(): one.find_next_sibling("dd").text.strip() for one in page.find_all("dt")}
    assert [*said][: len(subnet_utils.EXPORTS)] == [*subnet_utils.EXPORTS] and all(said.values())
    assert {f"subnet_utils.{name}" for name in ("masks", "models", "tasks", "statistics", "core.lab")} <= said.keys()


def test_no_link_of_the_api_pages_is_dead(api, documents):
    """The study's base was private, and had no page to which the study could link."""
    anchors = {path: {one["id"] for one in page.find_all(id=True)} for path, page in documents.items()}
    for path, page in documents.items():
        for link in (urlsplit(one["href"]) for one in page.find_all("a", href=True)):
            target = (path.parent / link.path).resolve() if link.path else path
            if not link.scheme and target.is_relative_to(api.resolve()):
                assert unquote(link.fragment) in {"", *anchors[target]}, (path, link)


@needs_browser
@pytest.mark.parametrize("dark", [False, True])
def test_api_pages_fit_and_ask_no_other_machine(api, browser, dark):
    for width in (400, 1280):
        browser.open(api / "subnet_utils/masks/overlap.html", width=width, dark=dark)
        assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
        code = "[...document.querySelectorAll('pre')].filter(one => one.clientWidth)"
        assert browser.evaluate(f"{code}.length > 2 && {code}.every(one => one.scrollWidth <= one.clientWidth + 1)")
        assert all(address.startswith(("file:", "data:")) for address in browser.requests) and not browser.errors
        color = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"
        assert (max(browser.evaluate(color)) < 60) == dark
        links = browser.evaluate("[...document.querySelectorAll('nav a')].map(one => one.href)")
        assert (api.parent / "index.html").as_uri() in links
