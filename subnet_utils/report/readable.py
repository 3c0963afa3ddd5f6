"""Tables and captions as the reader of a notebook sees them. The files keep every digit and every row."""

import re
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

ROWS, OPEN, WIDE = 25, 6, 15
"""Rows of a table that are there; those above the fold; columns from which heads stand upright in the report."""
HIDDEN = ("key", "keys")
"""Columns with keys of artefacts, which tell a reader nothing."""


def table(frame: pd.DataFrame, digits: int = 3, *, folded: bool = False) -> str:
    """A frame as HTML: its first rows, heads in words, numbers with `digits` decimals (`number`), nothing for NaN.

    An index that says more than the number of a row becomes columns. folded: all rows are below the fold.
    """
    if any(frame.index.names) or not pd.api.types.is_integer_dtype(frame.index):
        frame = frame.reset_index(names=[name or "" for name in frame.index.names])
    shown = frame.drop(columns=list(HIDDEN), errors="ignore").apply(_whole).head(ROWS)
    shown = shown.astype(object).map(number, digits=digits).rename(columns=head)
    if len(shown) <= OPEN + 2 and not folded:
        return _html(shown)
    above, more, first = ("", "", 0) if folded else (f"{_html(shown[:OPEN])}\n", "more ", OPEN)
    below = f"{len(frame) - first:,} {more}rows" + (f", {len(shown) - first} of them here" if len(frame) > ROWS else "")
    return f"{above}<details><summary>{below}</summary>{_html(shown[first:])}</details>"


def _html(frame: pd.DataFrame) -> str:
    with pd.option_context("display.max_colwidth", None):
        html = frame.to_html(index=False, border=0, classes=["wide"] if frame.shape[1] > WIDE else None)
    return re.sub(r"\n\s*", "", html)


def _whole(column: pd.Series) -> pd.Series:
    """Whole numbers as such, which a NaN among them made floats."""
    return column.astype("Int64") if column.dtype.kind == "f" and (column.dropna() % 1 == 0).all() else column


def head(name: Any) -> str:
    """A column's name in words."""
    return " ".join(map(head, name)).strip() if isinstance(name, tuple) else str(name).replace("_", " ")


def number(value: Any, digits: int) -> str:
    """A value in few characters: two significant digits where `digits` decimals show none, a comma at thousands."""
    if isinstance(value, bool | str) or not pd.api.types.is_number(value):
        return "" if pd.api.types.is_scalar(value) and pd.isna(value) else str(value)
    if pd.isna(value) or pd.api.types.is_integer(value):
        return "" if pd.isna(value) else f"{value:,}"
    return f"{value:.1e}" if 0 < abs(value) < 10.0**-digits else f"{value:,.{digits}f}"


def caption(text: str, labels: Sequence[str]) -> str:
    """A caption as HTML, after what it is called in the paper."""
    bold = Markup("<b>{}.</b> ").format(", ".join(labels)) if labels else ""
    return Markup("<p>{}{}</p>").format(bold, text)


def show(thing: pd.DataFrame | Figure, said: str) -> None:
    """Show a table or figure that no file keeps, and its caption under it."""
    from IPython.display import display  # takes a while to import outside notebooks

    if isinstance(thing, Figure):
        plt.close(thing)  # or else the inline backend would draw it once more
    display(thing)
    put_caption(said)


def put_caption(text: str, labels: Sequence[str] = ()) -> None:
    """Put a caption under what was shown last."""
    from IPython.display import display

    display({"text/html": caption(text, labels), "text/plain": text}, raw=True)
