"""The two page templates of the report and their style. Everything put into them is escaped unless marked safe.

The content security policy lets a page show its own styles and pictures and nothing else: no script runs and nothing is
requested from another machine, whatever a notebook's output contains.
"""

from jinja2 import DictLoader, Environment, StrictUndefined

STYLE = """
:root { --ink: #1d2327; --soft: #5c6670; --line: #d9dee3; --paper: #ffffff; --ground: #f4f6f8; --link: #0b5cad; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif; }
main { max-width: 80rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.35rem; margin: 2.6rem 0 .6rem; padding-top: .4rem; border-top: 2px solid var(--line); }
h3 { font-size: 1.08rem; margin: 0 0 .3rem; }
a { color: var(--link); text-decoration-thickness: 1px; text-underline-offset: 2px; }
p { margin: .5rem 0; }
code, pre { font: .86em/1.45 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.soft { color: var(--soft); font-size: .92rem; }
.card { background: var(--paper); border: 1px solid var(--line); border-radius: 8px; padding: 1.1rem 1.25rem;
  margin: 1.1rem 0; overflow: hidden; }
.card > img { display: block; max-width: 100%; height: auto; margin: .8rem auto; }
.label { display: inline-block; font-size: .8rem; font-weight: 600; padding: .1rem .55rem; border-radius: 1rem;
  background: #e6ecf2; color: #33414e; margin-right: .35rem; }
.agrees { background: #d9efe4; color: #0b5a3c; } .differs { background: #fbe0d8; color: #8c2a10; }
.not-comparable { background: #eceff2; color: #4b5560; }
.warning { background: #fff3d6; border-left: 4px solid #d39b1c; padding: .5rem .8rem; margin: .6rem 0; }
.scroll { overflow: auto; max-height: 30rem; margin: .8rem 0; }
table { border-collapse: collapse; font-size: .82rem; font-variant-numeric: tabular-nums; }
th { text-align: left; background: #eef2f5; position: sticky; top: 0; }
table, th, td { border: 0; }
th, td { padding: .28rem .42rem; border-bottom: 1px solid var(--line); vertical-align: top; white-space: nowrap; }
.places { overflow-x: auto; margin: .8rem 0; }
.places th, .places td { white-space: normal; } .places td.number { white-space: nowrap; }
.places td.place { min-width: 4.4rem; }
.places td.warning { padding: .28rem .8rem; } .places .soft { font-size: inherit; }
.places a { text-decoration: none; } .places a:hover { text-decoration: underline; }
.places .label { font-size: .74rem; margin-bottom: .15rem; } .places .title { min-width: 12rem; }
.number { text-align: right; } td.long, td.not-comparable { white-space: normal; min-width: 8.5rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: .6rem 0 0; font-size: .88rem; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
summary { cursor: pointer; color: var(--soft); font-size: .92rem; }
"""

NOTEBOOK_STYLE = """
main { max-width: 58rem; background: var(--paper); min-height: 100vh; }
h2 { border-top: 0; margin-top: 1.8rem; }
.input { margin: 1rem 0 .4rem; } .prompt { display: none; }
.highlight { background: #f6f8fa; border: 1px solid var(--line); border-radius: 6px; }
.highlight pre { margin: 0; padding: .6rem .8rem; overflow-x: auto; }
.output_area { margin: .4rem 0; overflow-x: auto; }
.output_area pre { margin: 0; padding: .2rem .8rem; white-space: pre-wrap; overflow-wrap: anywhere; }
.output_stderr { background: #fdf3f1; } .output_area img { max-width: 100%; height: auto; }
div.formula { text-align: center; margin: .8rem 0; }
blockquote { margin: .8rem 0; padding: .1rem 1rem; border-left: 3px solid var(--line); color: var(--soft); }
"""

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src 'self' file: data:; style-src 'unsafe-inline'">
<title>{{ title }}</title>
<style>{{ style|safe }}</style>
</head>
<body><main>
{% block main %}{% endblock %}
</main></body>
</html>
"""

INDEX = """{% extends "page" %}
{% macro badges(verdicts) %}{% for verdict, count in verdicts.items() %}
<span class="label {{ styles.get(verdict, "") }}" title="{{ verdict }}">
{{- verdict|replace(" at this profile", "") }}: {{ count }}</span>{% endfor %}{% endmacro %}
{% block main %}
<h1>Report of the profile “{{ profile }}”</h1>
<p class="soft">{{ totals.figures }} figures and {{ totals.tables }} tables from {{ notebooks|length }} notebooks,
 each with what it was made from.</p>
{% if totals.verdicts %}<p>The paper’s values against ours: {{ badges(totals.verdicts) }}</p>{% endif %}
{% for warning in warnings %}<p class="warning">{{ warning }}</p>{% endfor %}
<h2>From the paper to this report</h2>
<p class="soft">{{ missing }} figures and tables of the papers are missing at this profile. Figure 2, a drawing of the
 design, is left out. The means are over those rows of a table in which the paper and we have a number; the verdicts
 are on single values.</p>
<div class="places"><table><thead><tr><th>Paper</th><th>What it shows</th><th>Here</th><th>Notebook</th>
<th class="number">Paper’s mean</th><th class="number">Our mean</th><th class="number">Rows</th>
<th class="number">Our runs</th><th>Verdicts</th></tr></thead>
{% for place in places %}<tbody>
{% for item in place["items"] %}<tr>
{% if loop.first %}<td class="place" rowspan="{{ loop.length }}">{{ place.label }}</td>
<td class="title" rowspan="{{ loop.length }}">{{ place.title }}</td>{% endif %}
<td><a href="#{{ item.anchor }}">{{ item.name }}</a>
{%- if item.also %} <span class="soft">also {{ item.also }}</span>{% endif %}</td>
<td>{% if item.page %}<a href="{{ item.page }}">{{ item.notebook }}</a>{% else %}{{ item.notebook }}{% endif %}</td>
{% for number in (item.paper, item.ours, item.rows, item.runs) %}<td class="number">{{ number }}</td>{% endfor %}
<td>{{ badges(item.verdicts) }}</td></tr>
{% else %}<tr><td class="place">{{ place.label }}</td><td class="title">{{ place.title }}</td>
<td class="warning" colspan="7">Missing: no finished notebook of this profile makes it.</td></tr>
{% endfor %}</tbody>
{% endfor %}</table></div>
{% for notebook in notebooks %}
<section id="{{ notebook.name }}">
<h2>{{ notebook.name }}</h2>
<p class="soft">{% if notebook.page %}<a href="{{ notebook.page }}">The executed notebook</a>
{% else %}No finished executed notebook in this checkout{% endif %} · {{ notebook.facts.seconds }} s on
 {{ notebook.facts.device }} · code: {{ notebook.facts.commit }}</p>
<details><summary>Provenance</summary><dl>
{% for fact, text in notebook.facts.items() %}<dt>{{ fact }}</dt><dd>{{ text }}</dd>{% endfor %}
</dl></details>
{% for item in notebook.cards %}
<article class="card" id="{{ item.anchor }}">
<h3>{% for label in item.paper %}<span class="label">{{ label }}</span>{% endfor %}{{ item.name }}</h3>
<p>{{ item.caption }}</p>
{% for damage in item.damages %}<p class="warning">{{ damage }}</p>{% endfor %}
{% if item.verdicts %}<p>{{ badges(item.verdicts) }}</p>{% endif %}
{% if item.image %}<img src="{{ item.image }}" alt="{{ item.caption }}">{% endif %}
{% if item.columns %}<div class="scroll"><table><thead><tr>
{% for column in item.columns %}<th{% if column.style %} class="{{ column.style }}"{% endif %}>
{{- column.text }}</th>{% endfor %}</tr></thead><tbody>
{% for row in item.rows %}<tr>{% for cell in row %}<td{% if cell.style %} class="{{ cell.style }}"{% endif %}>
{{- cell.text }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>{% endif %}
<p class="soft">{% for file in item.links %}<a href="{{ file.href }}">{{ file.name }}</a> · {% endfor %}made by
{% if notebook.page %}<a href="{{ notebook.page }}">{{ notebook.name }}</a>{% else %}{{ notebook.name }}{% endif %}</p>
{% if item.sources %}<details><summary>Made from {{ item.sources|length }} artefacts</summary>
<p class="soft"><code>{{ item.sources|join(", ") }}</code></p></details>{% endif %}
</article>
{% endfor %}
</section>
{% endfor %}
{% if others %}<h2>Other executed notebooks</h2>
<ul>{% for other in others %}<li><a href="{{ other.page }}">{{ other.name }}</a></li>{% endfor %}</ul>{% endif %}
{% endblock %}"""

NOTEBOOK = """{% extends "page" %}{% block main %}
<p class="soft"><a href="index.html">Report of the profile “{{ profile }}”</a> · {{ title }}</p>
{{ body|safe }}
{% endblock %}"""


PAGES = Environment(
    loader=DictLoader({"page": PAGE, "index": INDEX, "notebook": NOTEBOOK}), autoescape=True, undefined=StrictUndefined
)
