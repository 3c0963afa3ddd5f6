"""Tables and captions as the reader of a notebook sees them. The files keep every digit and every row."""

import re
from collections.abc import Sequence
from typing import Any

import pandas as pd
from markupsafe import Markup

ROWS = 25
"""So many rows of a table are shown."""
HIDDEN = ("key", "keys")
"""Columns with keys of artefacts, which tell a reader nothing."""


def table(frame: pd.DataFrame, digits: int = 3) -> str:
    """A frame as HTML: its first rows, heads in words, numbers with `digits` decimals (`number`), nothing for NaN.

    An index that says more than the number of a row becomes columns.
    """
    if any(frame.index.names) or not pd.api.types.is_integer_dtype(frame.index):
        frame = frame.reset_index(names=[name or "" for name in frame.index.names])
    left_out = len(frame) - ROWS
    frame = frame.drop(columns=list(HIDDEN), errors="ignore").apply(_whole).head(ROWS)
    frame = frame.astype(object).map(number, digits=digits).rename(columns=head)
    with pd.option_context("display.max_colwidth", None):
        html = re.sub(r"\s*\n\s*(?!<tr)", "", frame.to_html(index=False, border=0))  # a row a line
    return html if left_out <= 0 else f"{html}\n<p>… and {left_out:,} more rows</p>"


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
