"""The numbers that the papers print, and those behind their figures, as tidy tables to compare ours with.

Every paper has its own in a package `reference`, one csv file a table. All values are transcriptions. Accuracies,
differences and densities are fractions (the papers print accuracies in percent); `number` is the empty string where a
task has no grammatical number; `base` and `mask` count from 1.
"""

from importlib import resources

import pandas as pd

from subnet_utils.core.messages import nearest


def names(package: str) -> tuple[str, ...]:
    """The names of a package's tables, sorted."""
    files = (entry.name for entry in resources.files(package).iterdir())
    return tuple(sorted(name.removesuffix(".csv") for name in files if name.endswith(".csv")))


def load(package: str, name: str) -> pd.DataFrame:
    """One reference table of a package as a fresh DataFrame.

    Empty cells (no grammatical number, no significance stars) are empty strings, so that grouping and merging on them
    keeps every row. Raises ValueError for an unknown name.
    """
    known = names(package)
    if name not in known:
        raise ValueError(f"unknown reference table {name!r}; {nearest(name, known)}")
    with resources.files(package).joinpath(f"{name}.csv").open("rb") as file:
        return pd.read_csv(file, keep_default_na=False)
