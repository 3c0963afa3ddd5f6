"""Executed notebooks and tables as HTML that asks nothing of any other machine.

nbconvert's own pages load MathJax and require.js from content delivery networks. Here its `basic` template gives the
notebook's content alone, and matplotlib draws the formulas, which are embedded.
"""

import base64
import io
import json
import re
from collections.abc import Collection
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape
from matplotlib import rc_context
from matplotlib.font_manager import FontProperties
from matplotlib.mathtext import math_to_image
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbformat import NotebookNode
from pygments.formatters import HtmlFormatter

from subnet_utils.report import readable
from subnet_utils.report.comparison import AGREES, DIFFERS, FAILS, HOLDS, NOT_COMPARABLE, OPEN

LONG = 24
"""Cells of tables with more characters than this may take several lines."""
RIGHT = [{"selector": "", "props": "text-align: right"}]
NAME_CELL = re.compile(r"(?<=<td>)\w+(?=</td>)")
FILE_LINK = re.compile(r'<a href="\.\./[^"]*">(.*?)</a>')
NOTEBOOK_LINK = re.compile(r'<a href="(\w+)\.ipynb">(.*?)</a>')
CODE_STYLE = "{}@media (prefers-color-scheme: dark) {{{}}}".format(
    *(HtmlFormatter(style=style).get_style_defs(".highlight") for style in ("default", "github-dark"))
)
FORMULA = {"mathtext.fontset": "stix", "svg.hashsalt": "formula", "savefig.transparent": True}
CELL_STYLES = {
    **dict.fromkeys((AGREES, HOLDS), "background: var(--good); color: var(--good-ink)"),
    **dict.fromkeys((DIFFERS, FAILS), "background: var(--bad); color: var(--bad-ink)"),
    OPEN: "background: var(--chip); color: var(--chip-ink)",
    NOT_COMPARABLE: "background: var(--chip); color: var(--chip-ink); min-width: 5.5rem",
}


class FormulaRenderer(IPythonRenderer):
    """Markdown to HTML with formulas as embedded pictures."""

    def inline_math(self, body: str) -> str:
        """A formula in running text."""
        return formula(body)

    def heading(self, text: str, level: int, **attrs: Any) -> str:
        """A heading with the name that JupyterLab gives it, which links may lead to."""
        return f'<h{level} id="{text.replace(" ", "-")}">{text}</h{level}>\n'

    def block_math(self, body: str) -> str:
        """A formula on a line of its own."""
        return f'<div class="formula">{formula(body)}</div>'


def formula(tex: str) -> str:
    """An `<img>` of a formula (TeX without dollar signs) on the text's baseline. What cannot be drawn stays TeX."""
    svg = io.BytesIO()
    try:
        with rc_context(FORMULA):
            depth = math_to_image(f"${' '.join(tex.split())}$", svg, FontProperties(size=13), format="svg")
    except ValueError:
        return f"<code>{escape(tex)}</code>"
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg.getvalue()).decode()}"
    return f'<img class="formula" alt="{escape(tex.strip())}" style="vertical-align:{-depth:.2f}pt" src="{source}">'


def is_done(path: Path) -> bool:
    """Whether papermill ran this notebook to its end: a killed or failed run leaves a notebook that looks valid."""
    try:
        record = json.loads(path.read_text())["metadata"]["papermill"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return record.get("end_time") is not None and not record.get("exception")


def notebook_body(notebook: NotebookNode, pages: Collection[str] = ()) -> str:
    """The cells of a notebook as HTML, pictures of its outputs embedded, without page, styles or links to scripts.

    pages: names of the notebooks that have a page. A link to another one is left out, as is one to a file of the
    checkout.
    """
    body, _ = _exporter().from_notebook_node(notebook)
    body = NAME_CELL.sub(lambda name: name[0].replace("_", "_<wbr>"), FILE_LINK.sub(r"\1", body))
    return NOTEBOOK_LINK.sub(partial(_linked, pages), body)


@cache
def _exporter() -> HTMLExporter:
    """One for all notebooks: each would compile the templates again."""
    exporter = HTMLExporter(template_name="basic", embed_images=True, exclude_anchor_links=True)
    exporter.register_filter("markdown2html", _markdown)
    return exporter


def table_html(path: Path, digits: int) -> str:
    """A csv file as an HTML table `in_words`, all its rows: numbers to the right, verdicts in their colors."""
    frame = readable.saved(path)
    right = {readable.head(name): RIGHT for name in frame.select_dtypes("number")}
    shown = readable.in_words(frame, digits)
    styler = shown.style.hide(axis="index").format(lambda text: escape(text).replace("_", Markup("_<wbr>")))
    styler = styler.format_index(axis=1, escape="html").map(_cell_style).set_table_styles(right)
    if len(shown.columns) > readable.WIDE:
        styler = styler.set_table_attributes('class="wide"')
    return styler.set_uuid(path.stem).to_html(cell_ids=False) if len(shown) else shown.to_html(index=False, border=0)


def _cell_style(value: Any) -> str:
    text = str(value)
    return CELL_STYLES.get(text, "min-width: 8.5rem" if len(text) > LONG else "")


def _linked(pages: Collection[str], link: re.Match) -> str:
    name, text = link.groups()
    return f'<a href="{name}.html">{text}</a>' if name in pages else text


@pass_context
def _markdown(context: Context, source: str) -> str:
    """The filter that nbconvert applies to Markdown cells, with the cell's own attachments."""
    attachments = context.get("cell", {}).get("attachments", {})
    renderer = FormulaRenderer(escape=False, attachments=attachments, exclude_anchor_links=True)
    return MarkdownWithMath(renderer=renderer).render(source)
