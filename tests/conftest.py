"""What the whole suite shares: one thread, no windows, repeatable examples, and artefacts that are not the user's."""

from collections.abc import Iterator
from pathlib import Path

import hypothesis
import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch

from subnet_utils.masks.memory import TOO_MANY
from subnet_utils.plots import style as figures
from tests.browser import browser  # noqa: F401 - a fixture

# In this process only, not in the environment: the notebooks' kernels, which pytest starts, choose for themselves.
torch.set_num_threads(1)
matplotlib.use("Agg")

# The same examples every time, and no deadline: a busy machine is not a failure.
hypothesis.settings.register_profile("suite", derandomize=True, deadline=None)
hypothesis.settings.load_profile("suite")


@pytest.fixture(autouse=True, scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A fresh artefact folder for each test module, in place of the checkout's `artifacts/`."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("artifacts")
        patch.setenv("SUBNET_ARTIFACTS", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """How many masks were too many in a test in which memory ran out is not known in the next one."""
    yield
    TOO_MANY.clear()


@pytest.fixture
def paper_style() -> Iterator[None]:
    """The project's style for one test, whose figures are closed after it."""
    with plt.rc_context():
        figures.style()
        yield
        plt.close("all")
