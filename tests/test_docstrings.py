"""Examples in docstrings: they run, and say what comes out."""

import doctest
import importlib
from unittest.mock import patch

import pytest

import subnet_utils
from subnet_utils.core.sections import ROOT
from subnet_utils.masks.masking import METHODS

PATHS = [path for path in sorted((ROOT / "subnet_utils").rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]
MODULES = [".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in PATHS]


@pytest.mark.parametrize("name", MODULES)
@patch.dict(METHODS)  # an example adds a method
def test_examples_in_docstrings_are_true(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0 < found.attempted


@pytest.mark.parametrize("name", subnet_utils.__all__)
def test_what_the_package_gives_has_an_example(name):
    assert ">>> " in getattr(subnet_utils, name).__doc__
