"""Examples in docstrings run and say what comes out; pages are made of docstrings."""

import doctest
import importlib
import shlex
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

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


@pytest.fixture(scope="module")
def api(tmp_path_factory) -> Path:
    """The folder of API pages, as `make site` makes them, but of one module."""
    folder = tmp_path_factory.mktemp("site") / "api"
    (line,) = (line for line in (ROOT / "Makefile").read_text().splitlines() if "-m pdoc subnet_utils " in line)
    options = shlex.split(line)[shlex.split(line).index("-d") : -1]
    command = [sys.executable, "-m", "pdoc", "subnet_utils.masks.overlap", *options, folder]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


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
