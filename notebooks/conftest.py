"""What nbval does with these notebooks: run them on the profile `check`, in minutes, in place of `tiny`."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the command line name another profile."""
    parser.addoption("--study", default="params/check.yaml", help="profile that the notebooks are run on")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give every notebook's parameters cell the study of the command line, as papermill would."""
    for item in items:
        cell = getattr(item, "cell", None)
        if cell is not None and "parameters" in cell.metadata.get("tags", []):
            cell.source = f"study = {config.getoption('study')!r}"
