"""The report: verdicts by rule, books whose manifest comes last, and a site that asks no other machine."""

import base64
import hashlib
import io
import json
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd
import pytest
import torch
from bs4 import BeautifulSoup
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from subnet_utils.core.papers import papers
from subnet_utils.core.provenance import checkout_state
from subnet_utils.core.sections import ROOT
from subnet_utils.papers.break_it_down import reference
from subnet_utils.plots import style as figures
from subnet_utils.report import AGREES, DIFFERS, NOT_COMPARABLE, VERDICTS, Results, compare, readable, verdict
from subnet_utils.report import __main__ as command
from subnet_utils.report.committed import cells_of, made_in
from subnet_utils.report.comparison import (
    COLUMNS,
    FAILS,
    FINDING,
    HOLDS,
    OPEN,
    PAPER_PROFILES,
    POSITIVE,
    at_paper_size,
    direction,
)
from subnet_utils.report.pages import formula, is_done, notebook_body, table_html
from subnet_utils.report.results import provenance_rows
from subnet_utils.report.site import Site, expected, significant, site_folder
from tests.browser import needs_browser

EXPECTED = expected()
PLACES = [*papers()["break_it_down"].reproduces, "Appendix 9", "Appendix 10", *EXPECTED]


def runs_of(means, *, spread: float = 0.0, accuracy=0.99, value: str = "difference") -> pd.DataFrame:
    """Two runs for each base model, `spread` apart around its mean."""
    accuracies = np.broadcast_to(accuracy, len(means))
    rows = [
        {"task": "t", "base_model": str(base), "base_accuracy": accuracies[base], value: mean + sign * spread / 2}
        for base, mean in enumerate(means)
        for sign in (-1, 1)
    ]
    return pd.DataFrame(rows)


def paper_of(mean: float, sd: float = 0.0, *, n_bases: int = 3, value: str = "difference") -> pd.DataFrame:
    return pd.DataFrame([{"task": "t", f"{value}_mean": mean, f"{value}_sd": sd, "n_bases": n_bases}])


def row_of(ours: pd.DataFrame, paper: pd.DataFrame, *, profile: str = "tiny", value: str = "difference", **more):
    table = compare(ours, paper, by=["task"], value=value, profile=profile, **more)
    assert len(table) == 1
    return table.iloc[0]


# -- paper versus ours -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "claim", "value", "finding"),
    [
        ((0.1, 0.3), (0.0, 1.0), AGREES, HOLDS),
        ((-0.1, 0.3), (0.0, 1.0), OPEN, OPEN),
        ((0.0, 0.3), POSITIVE, OPEN, OPEN),  # its end is not above 0
        ((0.1, np.inf), POSITIVE, AGREES, HOLDS),  # a claim without an end
        ((-0.3, -0.1), POSITIVE, DIFFERS, FAILS),
        ((0.2, 0.4), (0.4, 0.4), OPEN, OPEN),
        ((0.2, 0.2), (0.4, 0.4), DIFFERS, FAILS),
        ((0.4, 0.4), (0.4, 0.4), AGREES, HOLDS),
        ((0.2, np.nan), (0.4, 0.4), NOT_COMPARABLE, OPEN),
        ((0.2, 0.3), (np.nan, 1.0), NOT_COMPARABLE, OPEN),
    ],
)
def test_one_rule_gives_all_verdicts(ours, claim, value, finding):
    assert [verdict(*ours, claim, *words) for words in ((), (FINDING,))] == [value, finding]
    assert verdict(*ours, claim, comparable=False) == NOT_COMPARABLE


def test_what_is_beyond_the_margin_does_not_agree():
    """Around .5 with a margin of .05: near, too wide at either end, and narrow but elsewhere."""
    ours = (0.46, 0.54), (0.44, 0.54), (0.46, 0.56), (0.51, 0.52)
    assert [verdict(*one, (0.5, 0.5), margin=0.05) for one in ours] == [AGREES, OPEN, OPEN, DIFFERS]


def test_a_test_tells_a_direction_or_none():
    found = [direction(effect, p) for effect, p in ((0.2, 0.01), (-0.2, 0.049), (0.2, 0.05), (0.2, np.nan))]
    assert found[:3] == [1, -1, 0] and np.isnan(found[3])


def test_paper_and_ours_keep_to_their_own_columns():
    ours = runs_of([0.4, 0.5, 0.66], spread=0.1)
    table = compare(ours, paper_of(0.55, 0.2), by=["task"], value="difference", profile="tiny")
    assert list(table) == ["task", *COLUMNS]
    row = table.iloc[0]
    assert (row["paper"], row["paper_sd"]) == (0.55, 0.2)
    expected = stats.t.interval(0.95, 2, loc=0.52, scale=stats.sem([0.4, 0.5, 0.66]))
    assert (row["ours_low"], row["ours_high"]) == pytest.approx(expected)
    assert row["ours"] == pytest.approx(0.52)
    assert (row["n_runs"], row["n_bases"]) == (6, 3)


def test_only_bases_from_90_percent_on_count_unless_there_are_none():
    row = row_of(runs_of([0.5, 0.6, -0.7], accuracy=[0.9, 0.95, 0.89]), paper_of(0.5))
    assert (row["ours"], row["n_runs"], row["n_bases"]) == (pytest.approx(0.55), 4, 2)
    row = row_of(runs_of([0.5, 0.6], accuracy=0.8), paper_of(0.5))
    assert (row["ours"], row["verdict"]) == (pytest.approx(0.55), NOT_COMPARABLE)
    assert row["reason"] == "no base model reaches 90%"


@pytest.mark.parametrize(
    ("paper", "ours", "verdict"),
    [
        (paper_of(0.5), [0.3, 0.31, 0.32], AGREES),
        (paper_of(0.5), [0.05, 0.07, 0.09], AGREES),  # surely on the same side, and more than no effect
        (paper_of(0.5), [0.03, 0.031, 0.032], DIFFERS),  # surely no effect, as its bound of .05 has it
        (paper_of(0.5), [0.03, 0.045, 0.06], OPEN),
        (paper_of(0.5), [-0.2, 0.1, 0.6], OPEN),  # the same way, and could be chance
        (paper_of(0.5), [-0.6, -0.1, 0.2], OPEN),
        (paper_of(0.5), [-0.01, 0.0, 0.01], DIFFERS),  # surely no effect where the paper has one
        (paper_of(0.5), [-0.1, 0.04, 0.15], OPEN),
        (paper_of(0.5), [0.3], OPEN),  # one base: no interval
        (paper_of(-0.343), [-0.022, -0.028, -0.034], DIFFERS),
        (paper_of(-0.4), [0.3, 0.31, 0.32], DIFFERS),
        (paper_of(0.02), [-0.01, 0.0, 0.01], AGREES),  # the paper finds no effect
        (paper_of(0.02), [-0.2, 0.0, 0.2], OPEN),
        (paper_of(0.02), [0.3, 0.31, 0.32], DIFFERS),
        (paper_of(0.13, 0.38), [-0.3, -0.31, -0.32], NOT_COMPARABLE),  # the paper's own noise
        (paper_of(0.13, 0.2), [-0.3, -0.31, -0.32], DIFFERS),
    ],
)
def test_verdict_by_sign(paper, ours, verdict):
    row = row_of(runs_of(ours), paper)
    assert (row["criterion"], row["verdict"]) == ("sign", verdict)
    assert bool(row["reason"]) == (verdict == NOT_COMPARABLE or len(ours) == 1)


def test_a_profile_of_the_papers_size_is_one_of_ours():
    """A file that a user adds to params/ is not judged, although its name begins alike."""
    assert {path.stem for path in (ROOT / "params").glob("paper*.yaml")} >= set(PAPER_PROFILES)
    assert not any(at_paper_size(name) for name in ("paper_toy", "laptop")) and at_paper_size("paper")


@pytest.mark.parametrize(
    ("paper", "ours", "verdict"),
    [
        (paper_of(0.5, 0.1), [0.48, 0.5, 0.52], AGREES),
        (paper_of(0.5, 0.1), [0.1, 0.5, 0.9], OPEN),  # our interval covers nearly everything
        (paper_of(0.5, 0.1), [0.57, 0.58, 0.59], AGREES),  # it ends less than .05 beyond the band
        (paper_of(0.5, 0.1), [0.68, 0.69, 0.7], DIFFERS),
        (paper_of(0.5, 0.1), [0.3, 0.31, 0.32], DIFFERS),
        (paper_of(0.5, np.nan), [0.49, 0.5, 0.51], AGREES),  # no sd printed: only the mean counts
        (paper_of(0.5, np.nan), [0.46, 0.5, 0.54], OPEN),
        (paper_of(0.5, np.nan), [0.53, 0.54, 0.55], DIFFERS),
        (paper_of(1.0, 0.0), [1.0, 1.0, 1.0], AGREES),
        (paper_of(0.5, 0.1), [0.5], OPEN),
        (paper_of(-0.1, 0.3), [0.15, 0.16, 0.17], OPEN),  # within its sd, and the other way
        (paper_of(-0.04, 0.3), [0.01, 0.02, 0.03], AGREES),  # it has no direction
    ],
)
def test_verdict_by_value(paper, ours, verdict):
    row = row_of(runs_of(ours), paper, profile="paper")
    assert (row["criterion"], row["verdict"]) == ("value", verdict)


# Off the grid of hundredths, so that no mean of up to four of them meets a threshold exactly.
DIFFERENCES = st.integers(-70, 70).map(lambda hundredths: hundredths / 100 + 0.0037)
PROFILES = st.sampled_from(["tiny", "paper"])


@settings(deadline=None, max_examples=60)
@given(
    DIFFERENCES, st.floats(0, 0.4), st.lists(DIFFERENCES, min_size=1, max_size=4), st.sampled_from(["tiny", "paper"])
)
def test_a_verdict_does_not_care_which_subroutine_is_the_target(mean, sd, ours, profile):
    """Swapping Test Target and Test Other negates all differences: same verdict."""
    one = row_of(runs_of(ours), paper_of(mean, sd), profile=profile)
    other = row_of(runs_of([-x for x in ours]), paper_of(-mean, sd), profile=profile)
    assert one["verdict"] == other["verdict"] and one["verdict"] in VERDICTS
    assert bool(one["reason"]) == (one["verdict"] == NOT_COMPARABLE or len(ours) == 1)


def test_what_depends_on_size_is_compared_at_the_papers_profile_only():
    ours, paper = runs_of([0.02, 0.024, 0.028], value="density"), paper_of(0.025, 0.01, value="density")
    row = row_of(ours, paper, value="density", profile="laptop")
    assert (row["criterion"], row["verdict"]) == ("none", NOT_COMPARABLE)
    assert row["reason"] == "density depends on the size of network and data"
    assert row_of(ours, paper, value="density", profile="paper")["verdict"] == AGREES
    wide = runs_of([0.01, 0.02, 0.045], value="density")  # it ends less than .05 away, and more than a quarter
    assert row_of(wide, paper, value="density", profile="paper")["verdict"] == OPEN


def test_a_table_of_the_papers_runs_is_summarized():
    """Table 2 has one row per base model, not a mean and sd."""
    paper = pd.DataFrame({"task": ["t"] * 3, "accuracy": [1.0, 0.994, 0.998]})
    row = row_of(runs_of([0.99, 0.995, 1.0], value="accuracy"), paper, value="accuracy", profile="paper")
    low, _ = stats.t.interval(0.95, 2, loc=0.995, scale=stats.sem([0.99, 0.995, 1.0]))
    assert (row["ours_low"], row["ours_high"]) == (pytest.approx(low), 1.0), "no accuracy is above 1"
    assert (row["paper"], row["paper_sd"]) == pytest.approx((0.9973333, np.std([1, 0.994, 0.998], ddof=1)))
    assert row["verdict"] == AGREES


def test_every_row_of_ours_stays_and_no_row_of_the_paper_is_added():
    """Vision has no grammatical number: '' in our tables, missing where pandas read the paper's csv file."""
    ours = pd.concat([runs_of([0.4, 0.5]), runs_of([0.1, 0.2]).assign(task="ours only")]).assign(number="")
    paper = pd.concat([paper_of(0.4), paper_of(0.5).assign(task="theirs only")]).assign(number=np.nan)
    table = compare(ours, paper, by=["task", "number"], value="difference", profile="tiny")
    assert list(table["task"]) == ["t", "ours only"]
    assert list(table["reason"]) == ["", "the paper reports no such value"]
    assert table["paper"].isna().tolist() == [False, True]


def test_the_reference_effects_compare_with_themselves():
    """The authors' means as our runs, in vision (no number) and language alike."""
    paper = reference.load("effects")
    paper = paper[(paper["condition"] == "trained") & paper["model"].isin(["resnet50", "bert_small"])]
    by = ["model", "task", "number", "subroutine", "network"]
    shifts = pd.DataFrame({"base_model": ["0", "1", "2"], "shift": [-0.01, 0.0, 0.01]})
    ours = paper.merge(shifts, how="cross")
    ours["difference"] = ours["difference_mean"] + ours["shift"]
    table = compare(ours, paper, by=by, value="difference", profile="paper")
    assert len(table) == len(paper) == 28
    assert set(table["verdict"]) == {AGREES}
    by_sign = compare(ours, paper, by=by, value="difference", profile="tiny")
    assert by_sign["verdict"].value_counts().to_dict() == {AGREES: 27, NOT_COMPARABLE: 1}
    unsure = by_sign[by_sign["verdict"] == NOT_COMPARABLE].iloc[0]
    assert (unsure["task"], unsure["subroutine"], unsure["network"]) == ("inside-contact", "inside", "ablated")


@pytest.mark.parametrize(
    ("ours", "paper", "message"),
    [
        (runs_of([0.1]).drop(columns="base_model"), paper_of(0.1), "ours has no column base_model; it has: task,"),
        (runs_of([0.1]), paper_of(0.1).drop(columns="task"), "paper has no column task"),
        (runs_of([0.1]), paper_of(0.1, value="density"), "paper has no column difference"),
        (runs_of([0.1]), pd.concat([paper_of(0.1)] * 2), "several rows for {'task': 't'}; select one condition"),
        (runs_of([0.1]).iloc[:0], paper_of(0.1), "ours has no runs"),
    ],
)
def test_tables_that_cannot_be_compared(ours, paper, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        compare(ours, paper, by=["task"], value="difference", profile="tiny")


# -- the results -----------------------------------------------------------------------------------------------------


def picture():
    figure, ax = plt.subplots(figsize=(3, 2))
    ax.plot([0, 1], [0, 1], color=figures.CONDITIONS["subnetwork"].color, lw=12)
    plt.close(figure)
    return figure


def verdicts() -> pd.DataFrame:
    return pd.DataFrame({
        "task": ["inside-contact", "<b>bold</b>"], "weights": [12845056, 3], "learning_rate": [0.00012, 0.01],
        "ours": [0.123456, np.nan], "verdict": [AGREES, DIFFERS],
    })  # fmt: skip


def values() -> pd.DataFrame:
    """The paper's values beside ours, with two verdicts a row; only the first two rows have both numbers."""
    return pd.DataFrame({
        "paper": [0.4, 0.6, np.nan, 0.9], "ours": [0.3, 0.5, 0.9, np.nan], "n_runs": [9, 6, 3, 0],
        "effect_verdict": [AGREES, AGREES, np.nan, NOT_COMPARABLE],
        "size_verdict": [DIFFERS, AGREES, np.nan, NOT_COMPARABLE],
    })  # fmt: skip


def facts(results: Results) -> dict[str, str]:
    """What is known of a notebook's run when it is closed."""
    results.close()
    return provenance_rows(json.loads(results.manifest.read_text()))


def recorded(root: Path, frame: pd.DataFrame) -> dict:
    """What the manifest says of a table."""
    results = Results("tiny", "nb", root=root)
    results.table(frame, "table", caption="T.", paper="Table 5")
    results.close()
    return json.loads(results.manifest.read_text())["items"][0]


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"paper": pd.array([7, None], "Int64"), "ours": [8, 9]}, {"paper": 7, "ours": 8, "rows": 1, "runs": None}),
        ({"paper": [np.inf, 2.0], "ours": [1.0, 1.0]}, {"paper": 2, "ours": 1, "rows": 1, "runs": None}),
        ({"paper": [-0.5, 0.4], "ours": [0.1, 0.2]}, {"paper": None, "ours": None, "rows": 2, "runs": None}),
        ({"paper": [-0.5, 0.0], "ours": [0.25, 0.5]}, {"paper": -0.25, "ours": 0.375, "rows": 2, "runs": None}),
        ({"paper": [None, 0.2], "ours": [0.1, None], "n_runs": [3, 3]}, None),
        ({"paper_random_z": [2.0], "ours": [1.0]}, None),
    ],
)
def test_only_rows_with_both_numbers_are_summed_up(tmp_path, columns, found):
    assert recorded(tmp_path, pd.DataFrame(columns))["summary"] == found
    item = recorded(tmp_path, values())
    assert item["verdicts"] == {AGREES: 3, NOT_COMPARABLE: 2, DIFFERS: 1}
    assert item["summary"] == {"paper": pytest.approx(0.5), "ours": pytest.approx(0.4), "rows": 2, "runs": 15}


def test_the_manifest_comes_last_and_names_every_file(tmp_path, capsys):
    results = Results("tiny", "03_ablations", root=tmp_path, used={"mask/b", "base/a"})
    results.figure(picture(), "figure_4", caption="Differences.", paper="Figure 4")
    results.table(verdicts(), "table_1", caption="Tests.", paper=["Table 1", "Table 12"])
    folder = tmp_path / "figures" / "tiny"
    assert {path.name for path in folder.iterdir()} == {"figure_4.png", "figure_4.pdf", "table_1.csv"}
    results.close()
    record = json.loads((folder / "03_ablations.json").read_text())
    figure, table = record["items"]
    assert (figure["paper"], figure["caption"], record["sources"]) == (
        ["Figure 4"],
        "Differences.",
        ["base/a", "mask/b"],
    )
    assert (table["paper"], table["rows"], table["verdicts"]) == (["Table 1", "Table 12"], 2, {AGREES: 1, DIFFERS: 1})
    for item in record["items"]:
        for file in item["files"]:
            assert hashlib.sha256((folder / file["name"]).read_bytes()).hexdigest() == file["sha256"]
    assert record["git"] is None
    assert record["versions"]["numpy"] == np.__version__
    assert record["seconds"] >= 0
    facts = provenance_rows(record)
    assert (facts["artefacts"], facts["commit"]) == ("2", "not in git")
    assert "core" in facts["device"] or "NVIDIA" in facts["device"]
    assert "1 figures, 1 tables from 2 artefacts" in capsys.readouterr().out


def test_the_first_file_that_is_replaced_withdraws_the_manifest(tmp_path):
    Results("tiny", "01_train_bases", root=tmp_path).close()
    manifest = tmp_path / "figures/tiny/01_train_bases.json"
    again = Results("tiny", "01_train_bases", root=tmp_path)
    assert manifest.is_file(), "a run that fails before it draws anything leaves all as it was"
    again.table(verdicts(), "table_1", caption="Tests.")
    assert not manifest.exists()


def test_the_same_drawing_gives_the_same_bytes(tmp_path):
    runs = [Results("tiny", "nb", root=tmp_path / name) for name in ("first", "second")]
    for results in runs:
        results.figure(picture(), "line", caption="A line.")
    for form in ("png", "pdf"):
        first, second = ((results.folder / f"line.{form}").read_bytes() for results in runs)
        assert first == second and b"CreationDate" not in first


def test_what_stands_out_of_a_figure_is_in_its_png_and_its_pdf(tmp_path):
    figure = picture()
    figure.text(1.5, 0.5, "beside the figure")
    Results("tiny", "nb", root=tmp_path).figure(figure, "line", caption="A line.")
    folder, inches = tmp_path / "figures/tiny", figure.get_tightbbox().size
    numbers = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", (folder / "line.pdf").read_bytes()).groups()
    dpi = plt.rcParams["savefig.dpi"]
    size = np.array(plt.imread(folder / "line.png").shape[1::-1])
    pdf, png = np.array(numbers, dtype=float) / 72, size / (figure.dpi if dpi == "figure" else dpi)
    assert inches[0] > 1.5 * figure.get_figwidth()
    for size in (pdf, png):
        assert (np.abs(size - inches - 2 * plt.rcParams["savefig.pad_inches"]) < 0.02).all()


@pytest.fixture
def shown(monkeypatch) -> list[tuple[dict, dict | None]]:
    """What a notebook shows, with metadata."""
    shown = []
    monkeypatch.setattr("matplotlib.get_backend", lambda: "module://matplotlib_inline.backend_inline")
    monkeypatch.setattr("IPython.display.display", lambda data, raw, metadata=None: shown.append((data, metadata)))
    return shown


def test_a_notebook_shows_what_was_saved_and_its_caption(tmp_path, shown):
    figure = plt.figure(figsize=(3, 2), layout="constrained")
    figure.subplots().plot([0, 1], [0, 1])
    layout = figure.get_layout_engine()
    Results("tiny", "nb", root=tmp_path).figure(figure, "line", caption="A < B.", paper=["Figure 1", "Figure 2"])
    saved = (tmp_path / "figures/tiny/line.png").read_bytes()
    (picture, metadata), (caption, _) = shown
    assert metadata["image/png"]["width"] == pytest.approx(96 * 3, rel=0.1), "as wide as on paper"
    assert picture == {"image/png": saved, "text/plain": repr(figure)}
    assert caption == {"text/html": "<p><b>Figure 1, Figure 2.</b> A &lt; B.</p>", "text/plain": "A < B."}
    assert not plt.fignum_exists(figure.number)
    assert figure.get_layout_engine() is layout


def test_a_table_is_saved_in_full_and_shown_rounded_with_its_caption(tmp_path, shown):
    frame = verdicts().assign(key="0123456789abcdef", p=[0.0, np.nan], learned=[True, False])
    Results("tiny", "nb", root=tmp_path).table(frame, "table", caption="T.", digits=2)
    saved = pd.read_csv(tmp_path / "figures/tiny/table.csv")
    assert saved["ours"][0] == 0.123456 and "key" in saved
    table, caption = (BeautifulSoup(one["text/html"], "html.parser") for one, _ in shown)
    assert [cell.text for cell in table.find_all("th")] == [
        "task",
        "weights",
        "learning rate",
        "ours",
        "verdict",
        "p",
        "learned",
    ]
    rows = [[cell.text for cell in row.find_all("td")] for row in table.find_all("tr")[1:]]
    assert rows == [
        ["inside-contact", "12,845,056", "1.2e-04", "0.12", AGREES, "<.001", "True"],
        ["<b>bold</b>", "3", "0.01", "", DIFFERS, "", "False"],
    ]
    assert caption.text == "T."
    assert not list((tmp_path / "figures/tiny").glob(".*"))


def test_a_table_without_columns_is_an_empty_one(tmp_path):
    (tmp_path / "a.csv").write_text(pd.DataFrame().to_csv(index=False, lineterminator="\n"))
    assert readable.saved(tmp_path / "a.csv").shape == (0, 0)
    assert "<table" in table_html(tmp_path / "a.csv", 3)


def test_of_a_long_table_the_first_rows_are_shown_and_an_index_is_a_column():
    html = readable.table(pd.DataFrame({"own_task": range(30)}))
    above, below = html.split("<details><summary>24 more rows, 19 of them here</summary>")
    assert above.count("<td>") == readable.OPEN and below.count("<td>") == readable.ROWS - readable.OPEN
    assert "<details>" not in readable.table(pd.DataFrame({"own_task": range(readable.OPEN + 2)}))
    folded = readable.table(pd.DataFrame({"own_task": range(3)}), folded=True)
    assert folded.startswith("<details><summary>3 rows</summary><table") and folded.count("<td>") == 3
    html = readable.table(pd.DataFrame({"a": [1.0], "b": [0.5]}, index=pd.Index(["x"], name="base_model")))
    assert re.findall("<t[hd]>(.*?)</t[hd]>", html) == ["base model", "a", "b", "x", "1", "0.500"]
    html = readable.table(pd.DataFrame({"rows": [1.0, np.nan, np.inf, 2.5]})[1:])  # the number of a row says nothing
    assert re.findall("<t[hd]>(.*?)</t[hd]>", html) == ["rows", "", "∞", "2.500"]


def test_tables_are_in_words():
    """Heads were names of columns, p values had exponents, and columns without a value were shown."""
    frame = pd.DataFrame({
        "n_runs": [6.0, np.nan, np.inf], "other_iou": [0.25, -np.inf, 0.0001], "intercept_t_p": [0.0, 0.02, np.nan],
        "method": ["continuous_sparsification", "bert_2x128", "a, b_c"], "model": ["bert_small", "", "x"],
        "reason": ["", None, ""], "value": [256.0, 0.05, 1.0],
    })  # fmt: skip
    shown = readable.in_words(frame, 3)
    assert shown.to_dict("list") == {
        "runs": ["6", "", "∞"], "other IoU": ["0.250", "-∞", "1.0e-04"], "intercept t p": ["<.001", "0.020", ""],
        "method": ["continuous sparsification", "bert_2x128", "a, b_c"], "model": ["bert_small", "", "x"],
        "value": ["256", "0.050", "1"],  # of several settings
    }  # fmt: skip
    assert list(readable.in_words(frame.assign(runs=1), 3))[0] == "n_runs", "two heads alike say less"
    assert list(readable.in_words(frame[:0], 3))[-2] == "reason", "without rows it is not known"


def test_no_two_heads_of_a_table_are_alike():
    for path in (ROOT / "figures").glob("*/*.csv"):
        heads = [readable.head(name) for name in readable.saved(path)]
        assert len({*heads}) == len(heads) and not any("_" in head for head in heads), path


def test_captions_come_from_the_paper(tmp_path):
    known = {"line": ("A line of {seeds} seeds.", ["Figure 1", "Figure 2"]), "map_*": ("A map.", [])}
    results = Results("tiny", "nb", root=tmp_path, captions=known)
    results.place = {"Figure 1": "Figure 7", "Figure 2": None}.get
    results.figure(picture(), "line", seeds=3)
    results.figure(picture(), "map_bert", paper="Figure 3")
    said = [(item["caption"], item["paper"]) for item in results.items]
    assert said == [("A line of 3 seeds.", ["Figure 7"]), ("A map.", ["Figure 3"])]
    with pytest.raises(ValueError, match="'other' has no caption; add it to captions.csv"):
        results.figure(picture(), "other")
    assert not (tmp_path / "figures/tiny/other.png").exists()


def test_a_name_is_plain_and_used_once(tmp_path):
    results = Results("tiny", "nb", root=tmp_path)
    results.figure(picture(), "line", caption="A line.")
    with pytest.raises(ValueError, match="'line' is already"):
        results.table(verdicts(), "line", caption="A table.")
    for name in ("", "a/b", "../a", "a b", ".hidden", "a.png"):
        with pytest.raises(ValueError, match="plain file name"):
            results.table(verdicts(), name, caption="T.")
        with pytest.raises(ValueError, match="plain file name"):
            Results(name, "nb", root=tmp_path)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed; install it to run this test")
def test_the_commit_is_recorded_and_figures_do_not_make_it_dirty(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        said = subprocess.run(["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        return said.stdout.strip()

    git("init")
    (tmp_path / "code.py").write_text("a = 1\n")
    git("add", ".")
    git("commit", "-m", "first")
    results = Results("tiny", "nb", root=tmp_path)
    results.figure(picture(), "line", caption="A line.")
    commit = facts(results)["commit"]
    assert re.fullmatch("[0-9a-f]{12}", commit)
    assert git("rev-parse", "HEAD").startswith(commit)
    (tmp_path / "code.py").write_text("a = 2\n")
    assert facts(Results("tiny", "nb", root=tmp_path))["commit"] == f"{commit} with uncommitted changes"
    git("checkout", "code.py")
    assert not checkout_state(tmp_path)["dirty"]
    (tmp_path / ".git" / "index").write_bytes(b"damaged")
    assert checkout_state(tmp_path)["dirty"], "git cannot say, so nobody knows"
    inside = tmp_path / "unpacked"  # a folder inside another repository has no commit of its own
    inside.mkdir()
    assert checkout_state(tmp_path)["commit"] and checkout_state(inside) is None
    assert facts(Results("tiny", "nb", root=inside))["commit"] == "not in git"


# -- the site ----------------------------------------------------------------------------------------------------------


def write_notebook(path: Path, *, end_time="2025-01-01T00:00:00", exception=None) -> None:
    """An executed notebook as papermill leaves it, with prose, a formula, code, text, a table and a picture."""
    cell = nbformat.v4
    prose = "# Ablations\n\nA mask is $m = \\sigma(\\beta s)$, at most\n\n$$\\beta_{max} = 200$$\n\n[Paper](https://example.org/a)."
    path.parent.mkdir(parents=True, exist_ok=True)
    file = io.BytesIO()
    picture().savefig(file)
    png = base64.b64encode(file.getvalue()).decode()
    outputs = [
        cell.new_output("stream", name="stdout", text="three < four\n"),
        cell.new_output("display_data", data={"text/html": verdicts().to_html(), "text/plain": "table"}),
        cell.new_output("display_data", data={"image/png": png, "text/plain": "picture"}),
    ]
    code = cell.new_code_cell("figures.differences(ax, effects)", outputs=outputs, execution_count=1)
    notebook = cell.new_notebook(cells=[cell.new_markdown_cell(prose), code])
    notebook.metadata["papermill"] = {"end_time": end_time, "exception": exception}
    nbformat.write(notebook, path)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A checkout in which one notebook is done, one was killed, one failed, and one made nothing."""
    root = tmp_path_factory.mktemp("checkout")
    for notebook, label in (("03_ablations", "Figure 13"), ("02_discover_masks", "Figure 4")):
        results = Results("tiny", notebook, root=root)
        caption = 'A "line" & <script>alert(1)</script>'
        results.figure(picture(), f"line_{notebook[:2]}", caption=caption, paper=label)
        results.table(verdicts(), f"table_{notebook[:2]}", caption="Tests.", paper="Table 1")
        if notebook == "03_ablations":
            results.table(values(), "values", caption="Values.", paper=["Figure 13", "Appendix 9", "Appendix 10"])
        results.close()
    runs = root / "runs" / "tiny"
    write_notebook(runs / "03_ablations.ipynb")
    write_notebook(runs / "04_other.ipynb")
    write_notebook(runs / "02_discover_masks.ipynb", end_time=None)
    write_notebook(runs / "01_train_bases.ipynb", exception=True)
    folder = site_folder("tiny", root)
    folder.mkdir(parents=True)
    (folder / "02_discover_masks.html").write_text("an earlier run")
    (folder / "network.html").write_text("<title>a page of a paper's own</title>")
    Site("tiny", root=root).build()
    return root


@pytest.fixture(scope="module")
def index(root) -> Path:
    return root / "site/tiny/index.html"


def soup(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(), "html.parser")


def pages(index: Path) -> dict[str, BeautifulSoup]:
    return {path.name: soup(path) for path in sorted(index.parent.glob("*.html")) if path.name != "network.html"}


def every(page: BeautifulSoup, tag: str, attribute: str) -> list[str]:
    return [found[attribute] for found in page.find_all(tag, **{attribute: True})]


def test_only_finished_notebooks_get_a_page(index):
    results = {"results_02_discover_masks.html", "results_03_ablations.html"}
    assert set(pages(index)) == {"index.html", "03_ablations.html", "04_other.html"} | results
    text = soup(index).text
    assert "Unfinished: 01_train_bases." in text
    assert "Unfinished: 02_discover_masks; what is shown below is from an earlier run." in text


def test_every_link_leads_somewhere(index):
    found = pages(index)
    links = [(name, urlsplit(href)) for name, page in found.items() for href in every(page, "a", "href")]
    inside = [(name, link) for name, link in links if link.netloc != "example.org"]
    assert len(inside) > 10
    for name, link in inside:
        assert link.scheme == link.netloc == ""
        target = index.parent / (unquote(link.path) or name)
        assert target.is_file(), link
        assert not link.fragment or found[target.name].find(id=link.fragment), link
    hrefs = {
        "results_03_ablations.html#table_03",
        "results_02_discover_masks.html",
        "03_ablations.html",
        "04_other.html",
    }
    assert hrefs | {"network.html"} <= set(every(found["index.html"], "a", "href"))
    files = {"files/line_03.png", "files/line_03.pdf", "files/table_03.csv", "results_02_discover_masks.html"}
    assert files <= set(every(found["results_03_ablations.html"], "a", "href"))
    assert all("index.html" in every(page, "a", "href") for page in found.values())


def test_nothing_is_requested_from_another_machine(index):
    for name, page in pages(index).items():
        assert not page.find_all(["link", "iframe", "object", "embed", "base", "source"])
        assert not [href for href in every(page, "img", "src") if not href.startswith(("data:", "files/"))]
        assert not re.search(r"@import|url\(", str(page))
        policy = "default-src 'none'; img-src 'self' file: data:; style-src 'unsafe-inline'"
        scripts = [script.string for script in page.find_all("script")]
        assert len(scripts) == (name == "index.html")
        digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
        allowed = "".join(f"; script-src 'sha256-{digest}'" for digest in digests)
        assert [tag["content"] for tag in page.find_all("meta", {"http-equiv": True})] == [policy + allowed]


def test_a_heading_can_be_linked_to():
    cell = nbformat.v4.new_markdown_cell("[down](#The-claim,-again?)\n\n## The claim, again?")
    page = BeautifulSoup(notebook_body(nbformat.v4.new_notebook(cells=[cell])), "html.parser")
    assert page.find(id=unquote(page.find("a")["href"][1:])).text == "The claim, again?"


def test_what_notebooks_say_is_escaped(index):
    page = pages(index)["results_03_ablations.html"]
    assert 'A "line" & <script>alert(1)</script>' in page.text
    assert 'A "line" & <script>alert(1)</script>' in every(page, "img", "alt")
    assert "<b>bold</b>" in page.text and not page.find("b")


def rows_of(index: Path) -> dict[str, list[list[str]]]:
    """The index's rows by the figure or table of a paper that they are about: for each row the texts of its cells."""
    shown = {}
    for row in soup(index).select(".shown tbody tr"):
        first, *more = (" ".join(cell.text.split()) for cell in row.find_all("td"))
        shown.setdefault(first, []).append(more)
    return shown


def named(label: str) -> str:
    """A label with its paper."""
    return label if any(label.startswith(paper.label) for paper in papers().values()) else f"Break It Down, {label}"


def test_every_figure_and_table_of_the_papers_is_listed_with_values_and_verdicts(index):
    shown = rows_of(index)
    assert [*shown] == [*dict.fromkeys(map(named, PLACES))]
    assert shown["Break It Down, Figure 4"] == [[EXPECTED["Figure 4"], "Line 02", "", "", "", "", ""]]
    counts = "agrees: 3 differs: 1 not comparable: 2"
    title = EXPECTED["Figure 13"]
    assert shown["Break It Down, Figure 13"] == [
        [title, "Line 03", "", "", "", "", ""],
        [title, "Values also Break It Down, Appendix 9, 10", "0.500", "0.400", "2", "15", counts],
    ]
    assert shown["Break It Down, Table 1"] == [
        [EXPECTED["Table 1"], "Table 02", "", "", "", "", "agrees: 1 differs: 1"],
        [EXPECTED["Table 1"], "Table 03", "", "", "", "", "agrees: 1 differs: 1"],
    ]
    also = "Break It Down, Figure 13, Break It Down, Appendix 10"
    assert shown["Break It Down, Appendix 9"] == [["", f"Values also {also}", "0.500", "0.400", "2", "15", counts]]
    heads = [head.text for head in soup(index).find(class_="shown").find_all("th")]
    assert heads == [
        "Of the paper",
        "What it shows",
        "Here",
        "Paper’s mean",
        "Our mean",
        "Rows",
        "Our runs",
        "Verdicts",
    ]


def test_results_have_titles_and_labels_in_words(index):
    """The first paper's labels were without its name."""
    page = pages(index)["results_03_ablations.html"]
    assert page.h1.text == "03 · Ablations" and page.title.text == "03 · Ablations"
    labels = [label.text for label in page.select("article h3 .label")]
    assert labels == [
        f"Break It Down, {one}" for one in ("Figure 13", "Table 1", "Figure 13", "Appendix 9", "Appendix 10")
    ]
    titles = [entry.a.text for entry in page.select(".contents li")]
    assert titles == ["Line 03", "Table 03", "Values"]
    assert [picture.parent["href"] for picture in page.find_all("img")] == ["files/line_03.png"]


def test_what_is_missing_is_named_in_the_index(root, index):
    missing = Site("tiny", root=root).missing
    assert missing == [place for place in EXPECTED if place not in ("Figure 4", "Figure 13", "Table 1")]
    shown, usual = rows_of(index), "no finished notebook of this profile makes it"
    elsewhere = {label: why for paper in papers().values() for label, why in paper.elsewhere.items()}
    for place in missing:
        assert shown[named(place)] == [[EXPECTED[place], f"Missing: {elsewhere.get(place, usual)}."]]
    assert shown["Heuristic Core, Table 8"][0][1] == "Missing: the profile paper_gpt2 makes it."
    text = " ".join(soup(index).text.split())
    assert f"{len(missing)} of {len(EXPECTED)} figures and tables of the papers are missing" in text


def test_labels_beside_those_of_a_paper_have_its_title(tmp_path):
    label, title = next(one for paper in papers().values() for one in paper.also_shows.items())
    results = Results("tiny", "nb", root=tmp_path)
    results.table(values(), "values", caption="V.", paper=label)
    results.close()
    (row,) = rows_of(Site("tiny", root=tmp_path).build())[named(label)]
    assert row[:2] == [title, "Values"]


def test_a_table_of_no_place_of_a_paper_is_listed_if_it_has_verdicts(tmp_path):
    results = Results("tiny", "10a_identification_methods", root=tmp_path)
    results.table(verdicts(), "table", caption="Tests.")
    results.table(values().drop(columns=["effect_verdict", "size_verdict"]), "values", caption="V.")
    results.close()
    shown = rows_of(Site("tiny", root=tmp_path).build())
    assert shown["Identification Methods, beyond it"] == [["Tests.", "Table", "", "", "", "", "agrees: 1 differs: 1"]]


def test_the_report_begins_with_findings(tmp_path):
    kinds = ["subnetwork", "subnetwork", "ablated"]
    frame = pd.DataFrame({"network": kinds, "ours_low": [0.1, -0.1, -0.5], "ours_high": [0.5, 0.9, -0.1]})
    results = Results("tiny", "03_ablations", root=tmp_path)
    results.table(frame, "figure_4_values", caption="V.")
    results.figure(picture(), "figure_4", caption="A line.")
    results.close()
    found = soup(Site("tiny", root=tmp_path).build()).select(".finding")
    better, lost = (" ".join(one.text.split()) for one in found)
    assert better == "A subnetwork solves its own subroutine better than the other one: 1 of 2"
    assert lost == "Without its subnetwork a network loses this subroutine more: 1 of 1"
    assert found[0].img["src"] == "files/figure_4.png" and found[1].img is None


def test_findings_are_of_tables_and_figures_that_laptop_has():
    site = Site("laptop")
    names = {item["name"] for item in site.items}
    for finding in (finding for paper in papers().values() for finding in paper.findings):
        assert {finding.table, finding.figure} <= names
        rows = pd.read_csv(site.folder / f"{finding.table}.csv")
        rows = rows.query(finding.among) if finding.among else rows
        assert 0 <= len(rows.query(finding.holds)) <= len(rows) > 0, finding


def test_numbers_in_the_index_have_three_significant_digits():
    values = (0.15441, 0.094029, -0.5, 1, 0, 99.96, 1234.5, 27911360, 0.000012, None)
    texts = ["0.154", "0.0940", "-0.500", "1.00", "0.00", "100", "1,230", "27,900,000", "1.20e-05", ""]
    assert [significant(value) for value in values] == texts


def test_tables_are_shown_with_their_digits_and_verdicts(index):
    page = pages(index)["results_02_discover_masks.html"]
    table = page.find(id="T_table_02")
    assert [head.text for head in table.find_all("th")] == ["task", "weights", "learning rate", "ours", "verdict"]
    first, second = ([cell.text for cell in row.find_all("td")] for row in table.tbody.find_all("tr"))
    assert first == ["inside-contact", "12,845,056", "1.2e-04", "0.123", "agrees"]
    assert second == ["<b>bold</b>", "3", "0.010", "", "differs"]
    badges = {(badge["title"], *badge["class"], badge.text) for badge in soup(index).find_all("span", title=True)}
    assert (AGREES, "label", "agrees", "agrees: 5") in badges
    assert (NOT_COMPARABLE, "label", "not-comparable", "not comparable: 2") in badges


def test_provenance_and_formulas_are_shown(index):
    assert "not in git" in pages(index)["results_03_ablations.html"].text
    page = pages(index)["03_ablations.html"]
    assert "m = \\sigma(\\beta s)" in every(page, "img", "alt")
    assert "three < four" in page.text
    assert "https://example.org/a" in every(page, "a", "href")
    assert formula("\\begin{cases} a < b \\end{cases}") == "<code>\\begin{cases} a &lt; b \\end{cases}</code>"


def test_links_to_other_notebooks_lead_to_their_pages():
    links = "[one](07_one.ipynb), [two](08_two.ipynb), [all](https://example.org) and [more](../figures/README.md#more)"
    cell = nbformat.v4.new_markdown_cell(f"See {links}.")
    body = notebook_body(nbformat.v4.new_notebook(cells=[cell]), {"07_one"})
    assert 'See <a href="07_one.html">one</a>, two, <a href="https://example.org"' in body
    assert "and more." in body  # a site has no files of the checkout


def commit_notebook(path: Path, *sources: str) -> None:
    """A notebook whose code cells have printed something at another profile."""
    said = nbformat.v4.new_output("stream", name="stdout", text="printed by tiny\n")
    code = [nbformat.v4.new_code_cell(source, outputs=[said]) for source in sources]
    path.parent.mkdir(exist_ok=True)
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Committed"), *code]), path)


@pytest.mark.parametrize("repository", ["owner/name", None])
def test_a_notebook_opens_in_colab_where_the_repository_is_known(tmp_path, monkeypatch, repository):
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    if repository:
        monkeypatch.setenv("GITHUB_REPOSITORY", repository)
    Results("tiny", "01_train_bases", root=tmp_path).close()
    commit_notebook(tmp_path / "notebooks/01_train_bases.ipynb", 'study: str = "params/tiny.yaml"')
    page = pages(Site("tiny", root=tmp_path).build())["01_train_bases.html"]
    there = [link["href"] for link in page.find_all("a", string="Open in Colab")]
    address = "https://colab.research.google.com/github/owner/name/blob/main/notebooks/01_train_bases.ipynb"
    assert there == ([address] if repository else [])
    assert ("git clone -q https://github.com/owner/name companion" in page.text) == bool(repository)


def test_a_notebook_that_was_not_run_here_shows_the_profiles_figures_where_it_makes_them(tmp_path):
    results = Results("tiny", "03_ablations", root=tmp_path)
    for name in ("line_4", "line_6"):
        results.figure(picture(), name, caption="A < B.", paper="Figure 4")
    results.table(verdicts().assign(key="0123456789abcdef", most=[3.0, np.inf]), "table", caption="Tests.")
    results.figure(picture(), "line_8", caption="Late.")
    results.figure(picture(), "gone", caption="Of a cell that is gone.")
    results.figure(picture(), "line_9", caption="Moved to another notebook since.")
    results.close()
    Results("tiny", "04_random_controls", root=tmp_path).close()
    loop = 'for n in {}:\n    results.figure(plot(n), f"line_{{n}}")'
    path = tmp_path / "notebooks/03_ablations.ipynb"
    study = 'study: str = "params/tiny.yaml"'
    table, zoo = 'results.table(frame, "table", folded=True)', "sliders.show(draw)"
    commit_notebook(path, study, loop.format((4, 6)), table, loop.format((8,)), zoo)
    commit_notebook(path.with_name("04_random_controls.ipynb"), study, 'results.figure(plot(9), "line_9")')
    commit_notebook(path.with_name("01_not_of_this_profile.ipynb"), study)
    commit_notebook(path.with_name("00_by_hand.ipynb"), "1")
    index = Site("tiny", root=tmp_path).build()
    found = pages(index)
    assert {name for name in found if "results" not in name and "index" not in name} == {
        f"{name}.html" for name in ("00_by_hand", "03_ablations", "04_random_controls")
    }
    page, text = found["03_ablations.html"], " ".join(found["03_ablations.html"].text.split())
    cells = [[one["id"] for one in cell.select("div[id]")] for cell in page.select(".code_cell, .cell:has(.highlight)")]
    assert [ids for ids in cells if ids] == [["line_4", "line_6"], ["table"], ["line_8"]]
    folded = [one["id"] for one in page.select("details > div[id]")]
    assert folded == ["line_6"], "the second one of a loop is seen after a click"
    files = [f"files/line_{n}.png" for n in (4, 6, 8)]
    assert every(page, "img", "src") == files == [picture.parent["href"] for picture in page.find_all("img")]
    assert int(page.img["width"]) / 96 == pytest.approx(3, rel=0.1), "as wide as on paper"
    assert page.find(id="line_4").text == "Break It Down, Figure 4. A < B." and "0123456789abcdef" not in text
    assert [cell.text for cell in page.find(id="table").select("td:last-child")] == ["3", "∞"]
    assert "those of the profile “tiny”. They were made on 2" in text and "commit not in git" in text
    assert page.find(id="table").details.summary.text == "2 rows"
    assert text.count("printed by tiny") == 1, "where the zoo is shown"
    assert "printed by tiny" in found["00_by_hand.html"].text
    assert "are not shown" not in found["00_by_hand.html"].text
    links = every(found["results_03_ablations.html"], "a", "href")
    assert [one for one in links if ".html#" in one] == [
        *(f"03_ablations.html#{name}" for name in ("line_4", "line_6", "table", "line_8")),
        "04_random_controls.html#line_9",
    ]
    assert found["04_random_controls.html"].find(id="line_9")
    write_notebook(tmp_path / "runs/tiny/03_ablations.ipynb")
    Site("tiny", root=tmp_path).build()
    assert "three < four" in soup(index.with_name("03_ablations.html")).text, "what was run here comes first"


@pytest.mark.parametrize("repository", ["owner/name", None])
def test_a_page_does_not_say_that_its_outputs_are_of_another_profile(tmp_path, monkeypatch, repository):
    """The committed notebook says so of its own, and asks about them."""
    monkeypatch.delenv("GITHUB_REPOSITORY", raising=False)
    if repository:
        monkeypatch.setenv("GITHUB_REPOSITORY", repository)
    names, figures = ("03_ablations", "08_heuristic_core"), ROOT / "figures/laptop"
    for folder in ("notebooks", "figures/laptop"):
        (tmp_path / folder).mkdir(parents=True)
    for name in names:
        shutil.copyfile(ROOT / f"notebooks/{name}.ipynb", tmp_path / f"notebooks/{name}.ipynb")
        shutil.copyfile(figures / f"{name}.json", tmp_path / f"figures/laptop/{name}.json")
        for item in json.loads((figures / f"{name}.json").read_text())["items"]:
            for file in item["files"]:
                (tmp_path / "figures/laptop" / file["name"]).symlink_to(figures / file["name"])
    index = Site("laptop", root=tmp_path).build()
    for name, page in ((name, pages(index)[f"{name}.html"]) for name in names):
        assert "outputs below" not in page.text and "The notebook itself has all outputs" in page.text
        address = f"https://github.com/{repository}/blob/main/notebooks/" if repository else "./files/"
        links = page.find_all("a", string=re.compile("the notebook itself", re.IGNORECASE))
        assert {link["href"] for link in links} == {f"{address}{name}.ipynb"}
        assert len(links) == (2 if name == "03_ablations" else 1), "the other one's exercises need no outputs"
        assert repository or (index.parent / links[0]["href"]).is_file()


def test_the_notebooks_still_make_all_that_laptop_has():
    site, left = Site("laptop"), set()
    for record in site.records:
        names = [item["name"] for item in record["items"]]
        left |= set(names) - set(cells_of(site.notebooks[record["notebook"]], names))
    left -= {name for notebook in site.notebooks.values() for cell in made_in(notebook).values() for name in cell}
    assert not left


def test_a_file_changed_or_lost_since_is_named(tmp_path):
    results = Results("tiny", "nb", root=tmp_path)
    results.figure(picture(), "line", caption="A line.")
    results.table(verdicts(), "table", caption="A table.")
    results.close()
    folder = tmp_path / "figures/tiny"
    (folder / "table.csv").write_text("task,verdict\nt,agrees\n")
    (folder / "line.png").unlink()
    page = pages(Site("tiny", root=tmp_path).build())["results_nb.html"]
    assert "table.csv was changed after the notebook made it." in page.text
    assert "line.png is missing." in page.text
    assert not page.find("img")


def test_a_run_is_done_with_an_end_and_without_exception(tmp_path):
    path, end = tmp_path / "nb.ipynb", {"end_time": "2025-01-01"}
    for papermill, done in ((end, True), (end | {"exception": None}, True), (end | {"exception": True}, False),
                            ({"end_time": None}, False), ({}, False)):  # fmt: skip
        path.write_text(json.dumps({"metadata": {"papermill": papermill}}))
        assert is_done(path) is done
    path.write_text(path.read_text()[:-5])
    assert not is_done(path) and not is_done(tmp_path / "none.ipynb")


def test_the_command_builds_the_site_and_says_where_all_is(root, index, monkeypatch, capsys):
    index.unlink()
    monkeypatch.setattr("subnet_utils.report.site.ROOT", root)
    monkeypatch.setattr("sys.argv", ["report", "tiny"])
    assert command.main() == 0
    folder, lines = root / "figures" / "tiny", capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1) for line in lines] == [
        ["figures", f"{folder}  (2, each png and pdf)"],
        ["tables", f"{folder}  (3, csv)"],
        ["report", str(index)],
        ["verdicts", f"5 agrees, 3 differs, 2 {NOT_COMPARABLE}"],
        ["unfinished", "01_train_bases, 02_discover_masks"],
        ["missing", ", ".join(place for place in EXPECTED if place not in ("Figure 4", "Figure 13", "Table 1"))],
    ]
    assert index.is_file()


def test_an_unknown_profile_is_one_line_that_names_the_nearest(root, monkeypatch, capsys):
    monkeypatch.setattr("subnet_utils.report.site.ROOT", root)
    monkeypatch.setattr("sys.argv", ["report", "tinny"])
    assert command.main() == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "no finished notebook for profile 'tinny'" in said
    assert "did you mean 'tiny'?" in said


def test_a_damaged_manifest_is_one_line(tmp_path):
    Results("tiny", "nb", root=tmp_path).close()
    (tmp_path / "figures/tiny/note.json").write_text('{"what": "a note, no manifest"}')
    assert [record["notebook"] for record in Site("tiny", root=tmp_path).records] == ["nb"]
    (tmp_path / "figures/tiny/nb.json").write_text("{")
    with pytest.raises(ValueError, match=r"nb\.json is no manifest of a notebook; delete it and run nb again"):
        Site("tiny", root=tmp_path)


def test_a_study_on_the_processor_is_not_said_to_be_of_the_accelerator(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a GPU")
    for device, of_gpu in ((torch.device("cpu"), False), (torch.device("cuda"), True)):
        assert (facts(Results("tiny", "nb", root=tmp_path, device=device))["device"] == "a GPU") == of_gpu


# -- the site in a browser ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def laptop(tmp_path_factory) -> Path:
    """The report of the committed figures, with notebooks, one of them executed."""
    root = tmp_path_factory.mktemp("laptop")
    for folder in ("figures", "notebooks"):
        (root / folder).symlink_to(ROOT / folder)
    write_notebook(root / "runs" / "laptop" / "03_ablations.ipynb")
    return Site("laptop", root=root).build()


@needs_browser
def test_no_page_scrolls_sideways_or_is_too_high_and_no_table_is_cut_off(laptop, browser):
    of_notebooks = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    for path in laptop.parent.glob("*.html"):
        browser.open(path, width=1280)
        boxes = "[...document.querySelectorAll('.scroll, .output_area, pre')].filter(one => one.clientWidth)"
        assert not browser.evaluate(f"{boxes}.filter(one => one.scrollWidth > one.clientWidth + 1).length"), path.name
        if path.stem in of_notebooks:
            assert browser.evaluate("document.documentElement.scrollHeight") <= 12_000, path.name
        for width in (1280, 1000, 800, 400):
            browser.resize(width)
            inner, needed = browser.evaluate("[innerWidth, document.documentElement.scrollWidth]")
            assert needed <= inner == width, path.name
        assert all(address.startswith(("file:", "data:")) for address in browser.requests) and not browser.errors


VISIBLE = "[...document.querySelectorAll('{}')].filter(one => one.checkVisibility())"


@needs_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_the_index_is_short_and_filters(laptop, browser, width):
    browser.open(laptop, width=width)
    assert browser.evaluate("document.documentElement.scrollHeight") <= 5 * 900
    rows, cards = VISIBLE.format(".shown tbody tr"), VISIBLE.format(".finding")
    assert browser.evaluate(f"{rows}.length") == 0, "sections are closed"
    there = browser.evaluate(f"{cards}.length")
    browser.click("#differs")
    texts = browser.evaluate(f"{rows}.map(row => row.textContent)")
    assert len(texts) > 5 and all("differs:" in text or "does not hold:" in text for text in texts)
    assert 0 < browser.evaluate(f"{cards}.length") < there
    shown = "one => (box => box.left >= 0 && box.right <= innerWidth)(one.getBoundingClientRect())"
    assert browser.evaluate(f"{VISIBLE.format('.shown .label')}.every({shown})"), "verdicts are in the window"
    assert not browser.evaluate(f"{rows}.some(row => row.closest('.scroll'))"), "no scroller cuts a row"
    above = "row => Math.min(...[...row.cells].filter(one => one.clientHeight).map(one => one.offsetTop))"
    if width == 400:
        assert browser.evaluate(f"{rows}.every(row => row.lastElementChild.offsetTop === ({above})(row))"), "first"
    browser.click("#differs")
    assert browser.evaluate(f"[{rows}.length, {cards}.length]") == [0, there]
    browser.click("summary")
    assert browser.evaluate(f"{rows}.every(row => row.cells[0].textContent.startsWith('Break It Down, '))")
    browser.click("nav a[href='#Heuristic-Core']")
    assert abs(browser.evaluate("document.getElementById('Heuristic-Core').getBoundingClientRect().top")) < 200


@needs_browser
def test_upright_heads_stand_over_their_columns(laptop, browser):
    for name in ("04_random_controls.html", "results_04_random_controls.html"):
        browser.open(laptop.with_name(name))
        beside = browser.evaluate("""[...document.querySelectorAll('table.wide')].filter(one => one.clientWidth).map(
            one => [...one.rows[0].cells].map((head, i) => {
                const range = document.createRange();
                range.selectNodeContents(head);
                const text = range.getBoundingClientRect(), cell = one.rows[1].cells[i].getBoundingClientRect();
                return Math.abs(text.left + text.right - cell.left - cell.right) / 2;
            })).flat()""")
        assert max(beside) < 3, name


@needs_browser
def test_pictures_are_softer_in_the_dark(laptop, browser):
    softness = "getComputedStyle(document.querySelector('article img')).filter"
    for dark, said in ((False, "none"), (True, "brightness(0.82)")):
        browser.open(laptop.with_name("results_03_ablations.html"), dark=dark)
        assert browser.evaluate(softness) == said


@needs_browser
def test_pages_are_light_or_dark(laptop, browser):
    for dark in (False, True):
        for name in ("index.html", "03_ablations.html", "results_03_ablations.html"):
            browser.open(laptop.with_name(name), dark=dark)
            color = "getComputedStyle(document.querySelector('{}')).{}.match(/\\d+/g).map(Number)"
            paper, ink = (browser.evaluate(color.format("body", of)) for of in ("backgroundColor", "color"))
            assert (max(paper) < 60 and min(ink) > 180) if dark else (min(paper) > 200 and max(ink) < 60), name


def test_rows_on_a_figure_are_counted_there(tmp_path):
    """Means of settings in several units mean nothing, and the index has none."""
    frame = pd.DataFrame({
        "place": ["Figure 1", "Figure 2", "Figure 2"], "paper": [3.8, np.nan, np.nan], "ours": [2.1, 0.3, 0.4],
        "n_runs": [5, 5, 3], "verdict": [HOLDS, HOLDS, OPEN],
    })  # fmt: skip
    claims = recorded(tmp_path, frame)["claims"]
    assert claims["Figure 1"] == {
        "verdicts": {HOLDS: 1}, "summary": {"paper": 3.8, "ours": 2.1, "rows": 1, "runs": 5},
    }  # fmt: skip
    assert claims["Figure 2"]["verdicts"] == {HOLDS: 1, OPEN: 1}
    assert claims["Figure 2"]["summary"] == {"paper": None, "ours": None, "rows": 2, "runs": 8}
    assert recorded(tmp_path, frame.iloc[1:2])["claims"]["Figure 2"]["summary"]["ours"] == 0.3
    assert recorded(tmp_path, frame.assign(setting="batch"))["summary"] is None
    assert "claims" not in recorded(tmp_path, frame.drop(columns="ours"))
