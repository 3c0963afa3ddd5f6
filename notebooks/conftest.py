"""What nbval does with these notebooks: run them on the profile `check`, in minutes, in place of `tiny`."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the command line name another profile."""
    parser.addoption("--study", default="params/check.yaml", help="profile that the notebooks are run on")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give the parameters cell of every notebook that has a study the one of the command line, as papermill would."""
    for item in items:
        cell = getattr(item, "cell", None)
        if cell is not None and cell.source.startswith("study:"):
            cell.source = f"study = {config.getoption('study')!r}"
