"""Committed notebooks as pages of a profile: its figures and tables stand where the notebook makes them. Nothing runs.

The committed outputs are those of `tiny`. They are left out: a page of `laptop` should show no number of another
profile. Where a cell shows a network of the zoo, or the method, they stay.
"""

import ast
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import nbformat
from IPython.core.inputtransformer2 import TransformerManager
from markupsafe import Markup
from nbformat import NotebookNode
from PIL import Image

from subnet_utils.report import readable

PIXELS = 96
"""Of a page, to an inch."""
MADE_BY = ("results.figure", "results.table")
OF_NO_PROFILE = "sliders.show(", "schematic.steps("
"""Cells with these show a network of the zoo, or the method. Both are the same at every profile."""
OUTPUTS = re.compile(r" The outputs below are of the small profile `tiny`; [^.]*\(\.\./figures/laptop\)\.")
"""What a notebook says of its committed outputs, which its page does not show."""
EXERCISES = "## Exercises\n"


def names(source: str) -> dict[str, bool]:
    """Names of the figures and tables that a cell makes, with a star for what an f-string fills in: is it folded?"""
    code = TransformerManager().transform_cell(source)  # magics as Python
    calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call) and len(node.args) == 2]
    made = {ast.unparse(call.args[1]): call.keywords for call in calls if ast.unparse(call.func) in MADE_BY}
    shown = {re.sub(r"{.*?}", "*", name.removeprefix("f").strip("'\"")): options for name, options in made.items()}
    return {name: any(option.arg == "folded" for option in options) for name, options in shown.items()}


def made_in(notebook: NotebookNode) -> dict[int, dict[str, bool]]:
    """The `names` of each code cell, by its number."""
    return {i: names(cell.source) for i, cell in enumerate(notebook.cells) if cell.cell_type == "code"}


def needs_profile(notebook: NotebookNode) -> bool:
    """Whether a notebook has a study as its parameter. The outputs of others are the same at every profile."""
    return any(cell.source.startswith("study:") for cell in notebook.cells)


def readdress(notebook: NotebookNode, address: str) -> None:
    """Change what a notebook of a study says of its outputs into what is true of its page.

    address: where the notebook with its committed outputs is.
    """
    said = f"{EXERCISES}\nAll outputs of `tiny` are in [the notebook itself]({address}).\n"
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = OUTPUTS.sub("", cell.source)
            if "tiny" in cell.source:
                cell.source = cell.source.replace(EXERCISES, said)


def cells_of(notebook: NotebookNode, items: Sequence[str]) -> dict[str, int]:
    """The number of the cell that makes each figure or table; those that no cell makes any more are left out.

    items: names in the order in which they were made. It decides where several cells make such names.
    """
    made = made_in(notebook)
    found, last = {}, 0
    for item in items:
        fitting = [i for i in made if item in made[i]]
        fitting = fitting or [i for i in made if any(fnmatchcase(item, name) for name in made[i])]
        if fitting:
            found[item] = last = next((i for i in fitting if i >= last), fitting[-1])
    return found


def show(cards: Sequence[Mapping[str, Any]], notebook: NotebookNode, folder: Path) -> set[str]:
    """Put figures and tables of a profile in place of a notebook's outputs. Returns the names of those that it makes.

    cards: what `Site` knows of each; folder: where their files are.
    """
    for cell in notebook.cells:
        if cell.cell_type == "code" and not any(call in cell.source for call in OF_NO_PROFILE):
            cell.outputs = []
    where, loops = cells_of(notebook, [card["name"] for card in cards]), set()
    for card in cards:
        if card["name"] in where:
            cell = notebook.cells[where[card["name"]]]
            own = names(cell.source)
            looped = card["name"] not in own
            # of the figures that a cell makes in a loop the first is seen before a click: there may be many networks
            closed = looped and cell.id in loops
            loops |= {cell.id} if looped else set()
            caption = "" if closed else readable.caption(card["caption"], card["labels"])
            shown = _html(card, folder, folded=own.get(card["name"], False))
            html = Markup('<div id="{}">{}{}</div>').format(card["name"], shown, caption)
            if closed:
                html = Markup("<details><summary>{}</summary>{}</details>").format(
                    ". ".join([*card["labels"], card["caption"]]), html
                )
            cell.outputs.append(nbformat.v4.new_output("display_data", data={"text/html": html}))
    return set(where)


def _html(card: Mapping[str, Any], folder: Path, *, folded: bool) -> str:
    """A figure or table, as in a notebook that was run."""
    parts = [Markup('<p class="warning">{}</p>').format(damage) for damage in card["damages"]]
    if card["image"]:
        with Image.open(folder / card["image"]) as image:
            width, height = (round(dots / image.info["dpi"][0] * PIXELS) for dots in image.size)
        shown = Markup(
            '<a href="files/{0}"><img src="files/{0}" alt="{1}" width="{2}" height="{3}" loading="lazy"></a>'
        )
        parts.append(shown.format(card["image"], card["caption"], width, height))
    if card["table"]:
        parts.append(readable.table(readable.saved(folder / f"{card['name']}.csv"), card["digits"], folded=folded))
    return Markup("".join(parts))
