"""Tables and captions as the reader of a notebook sees them. The files keep every digit and every row."""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

ROWS, OPEN, WIDE = 25, 6, 15
"""Rows of a table that are there; those above the fold; columns beyond which heads stand upright in the report."""
HIDDEN = ("key", "keys")
"""Columns with keys of artefacts, which tell a reader nothing."""
NAMES = ("name", "model", "paper_model", "family", "title", "token")
"""Columns with names that a reader may have to write: they stay as they are."""
WORDS = {
    "auroc": "AUROC", "bases": "base models", "bh": "Benjamini-Hochberg", "chi2": "χ²", "cmd": "CMD", "cpr": "CPR",
    "cpu": "CPU", "fisher": "Fisher", "gflop": "GFLOP", "gib": "GiB", "gpu": "GPU", "holm": "Holm", "iomin": "IoMin",
    "iou": "IoU", "l0": "L0", "mlps": "MLPs", "n": "", "s": "seconds", "sd": "SD", "std": "SD", "tflop": "TFLOP",
}  # fmt: skip
"""Words of columns' names that are written otherwise. A name of one letter stays."""
P_VALUE = re.compile(r"(^|_)p(_|$)")
SNAKE = re.compile(r"^[a-z]+(_[a-z]+)+$")


def saved(path: Path) -> pd.DataFrame:
    """A table from its csv file, words such as 'NA' as they are. A file without columns is an empty one."""
    try:
        return pd.read_csv(path, keep_default_na=False, na_values=[""])
    except pd.errors.EmptyDataError:
        return pd.DataFrame()


def table(frame: pd.DataFrame, digits: int = 3, *, folded: bool = False) -> str:
    """A frame as HTML: its first rows, `in_words`.

    An index that says more than the number of a row becomes columns. folded: all rows are below the fold.
    """
    if any(frame.index.names) or not pd.api.types.is_integer_dtype(frame.index):
        frame = frame.reset_index(names=[name or "" for name in frame.index.names])
    shown = in_words(frame, digits, ROWS)
    if len(shown) <= OPEN + 2 and not folded:
        return _html(shown)
    above, more, first = ("", "", 0) if folded else (f"{_html(shown[:OPEN])}\n", "more ", OPEN)
    below = f"{len(frame) - first:,} {more}rows" + (f", {len(shown) - first} of them here" if len(frame) > ROWS else "")
    return f"{above}<details><summary>{below}</summary>{_html(shown[first:])}</details>"


def in_words(frame: pd.DataFrame, digits: int, rows: int | None = None) -> pd.DataFrame:
    """Texts for a reader: heads and names in words, numbers with `digits` decimals (`number`), nothing for NaN.

    Columns with keys are left out, and those with nothing in any row. rows: how many, by default all.
    """
    frame = frame.drop(columns=list(HIDDEN), errors="ignore")
    if not len(frame):
        return frame.rename(columns=head)
    frame = frame.loc[:, (frame.notna() & frame.ne("")).any().to_numpy()]
    heads = frame.columns.map(head)
    return frame.apply(_texts, digits=digits, rows=rows).set_axis(
        frame.columns if heads.has_duplicates else heads, axis=1
    )


def _texts(column: pd.Series, digits: int, rows: int | None) -> pd.Series:
    """The first values of a column as `in_words` has them."""
    name, values = str(column.name), column[:rows].astype(object)
    if P_VALUE.search(name) and column.dtype.kind == "f":
        return values.map(lambda p: "<.001" if p < 0.001 else number(p, digits))
    counts = False  # whole numbers, among which NaN or shares made floats of them
    if column.dtype.kind == "f":
        whole, known = column % 1 == 0, np.isfinite(column)
        counts = whole[known].all() or (whole & column.abs().gt(1)).sum() > known.sum() / 4
    texts = values.map(lambda value: number(int(value) if counts and value % 1 == 0 else value, digits))
    return texts if name in NAMES else texts.str.replace(SNAKE, lambda words: words[0].replace("_", " "), regex=True)


def _html(frame: pd.DataFrame) -> str:
    with pd.option_context("display.max_colwidth", None):
        html = frame.to_html(index=False, border=0, classes=["wide"] if frame.shape[1] > WIDE else None)
    return re.sub(r"\n\s*", "", html)


def head(name: Any) -> str:
    """A column's name in words."""
    if isinstance(name, tuple):
        return " ".join(map(head, name)).strip()
    words = str(name).split("_")
    return " ".join(filter(None, (WORDS.get(word, word) for word in words))) if len(str(name)) > 1 else str(name)


def title(name: str) -> str:
    """A notebook's, a figure's or a table's name in words.

    >>> title("03_ablations"), title("figure_4_values")
    ('03 · Ablations', 'Figure 4 values')
    """
    number, words = re.fullmatch(r"(\d+[a-z]?_)?(.*)", name).groups("")
    words = head(words)
    return f"{number.rstrip('_')} · ".lstrip(" ·") + words[:1].upper() + words[1:]


def number(value: Any, digits: int) -> str:
    """A value in few characters: two significant digits where `digits` decimals show none, a comma at thousands."""
    if isinstance(value, bool | str) or not pd.api.types.is_number(value):
        return "" if pd.api.types.is_scalar(value) and pd.isna(value) else str(value)
    if pd.isna(value) or pd.api.types.is_integer(value):
        return "" if pd.isna(value) else f"{value:,}"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
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
