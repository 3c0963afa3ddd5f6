"""Executed notebooks as HTML pages that ask nothing of any other machine.

nbconvert's own pages load MathJax and require.js from content delivery networks. Ours are its `basic` template, which
is the notebook's content alone, inside our own page; formulas are drawn by matplotlib and embedded as SVG.
"""

import base64
import io
import json
import re
from functools import partial
from pathlib import Path

from jinja2 import pass_context
from jinja2.runtime import Context
from markupsafe import escape
from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.mathtext import MathTextParser
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments.formatters import HtmlFormatter

FORMULA_POINTS = 12
POINTS_PER_EM = 11
"""A little fewer than the formula's own points: its letters are smaller than the sans serif text around it."""


LONG = 24
"""Cells of tables with more characters than this may take several lines."""
NOTEBOOK_LINK = re.compile(r'<a href="(\w+)\.ipynb">(.*?)</a>')
LONG_CELL = re.compile(rf"<td>([^<]{{{LONG + 1},}})</td>")


class FormulaRenderer(IPythonRenderer):
    """Markdown to HTML with formulas as embedded pictures; what matplotlib cannot draw stays readable as TeX."""

    def inline_math(self, body: str) -> str:
        """A formula in running text."""
        return formula(body)

    def block_math(self, body: str) -> str:
        """A formula on a line of its own."""
        return f'<div class="formula">{formula(body)}</div>'


def is_done(path: Path) -> bool:
    """Whether papermill ran this notebook to its end: a killed or failed run leaves a notebook that looks valid."""
    try:
        record = json.loads(path.read_text())["metadata"]["papermill"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return record.get("end_time") is not None and not record.get("exception")


def notebook_body(path: Path) -> str:
    """The cells of an executed notebook as HTML, pictures embedded, without page, styles or links to scripts.

    A link to another notebook leads to its page, or is none if that was not run; one to a page in figures/ is made to
    start at the report.
    """
    exporter = HTMLExporter(template_name="basic", embed_images=True, exclude_anchor_links=True)
    exporter.register_filter("markdown2html", _markdown)
    body, _ = exporter.from_filename(str(path))
    body = body.replace('href="../figures/', 'href="../../')
    return LONG_CELL.sub(r'<td class="long">\1</td>', NOTEBOOK_LINK.sub(partial(_linked, path.parent), body))


def code_styles() -> str:
    """The style rules for highlighted code."""
    return HtmlFormatter(style="default").get_style_defs(".highlight")


def formula(tex: str) -> str:
    """An <img> of a formula (TeX without dollar signs) that sits on the text's baseline, or <code> if undrawable."""
    text = tex.strip().replace("\n", " ")
    try:
        with rc_context({"mathtext.fontset": "stix", "svg.hashsalt": "formula"}):
            svg, height, depth = _drawn(f"${text}$")
    except ValueError:
        return f"<code>{escape(tex)}</code>"
    data = base64.b64encode(svg).decode()
    style = f"height:{height / POINTS_PER_EM:.3f}em;vertical-align:{-depth / POINTS_PER_EM:.3f}em"
    return f'<img class="formula" alt="{escape(text)}" style="{style}" src="data:image/svg+xml;base64,{data}">'


def _drawn(text: str) -> tuple[bytes, float, float]:
    """SVG of a mathtext string, its height and its depth below the baseline, in points."""
    font = FontProperties(size=FORMULA_POINTS)
    width, height, depth, *_ = MathTextParser("path").parse(text, dpi=72, prop=font)
    figure = Figure(figsize=(width / 72, height / 72))
    figure.text(0, depth / height, text, fontproperties=font)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return buffer.getvalue(), height, depth


def _linked(folder: Path, link: re.Match) -> str:
    name, text = link.groups()
    return f'<a href="{name}.html">{text}</a>' if is_done(folder / f"{name}.ipynb") else text


@pass_context
def _markdown(context: Context, source: str) -> str:
    """The filter that nbconvert applies to Markdown cells, with the cell's own attachments."""
    attachments = context.get("cell", {}).get("attachments", {})
    renderer = FormulaRenderer(escape=False, attachments=attachments, exclude_anchor_links=True)
    return MarkdownWithMath(renderer=renderer).render(source)
