"""Whole figures: which panels there are, in which order, under which names."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from subnet_utils.papers.break_it_down import paper_tables, reference
from subnet_utils.papers.break_it_down.figures import panels
from subnet_utils.plots.style import CONDITIONS
from tests.test_figures import assert_readable, markers

pytestmark = pytest.mark.usefixtures("paper_style")
STARS = pd.DataFrame({"model": ["resnet50"], "task": ["number-contact"], "subroutine": ["number"],
                      "network": ["ablated"], "stars": ["*"]})  # fmt: skip


def effects(*tasks: tuple[str, str], model: str = "resnet_4x16", paper_model: str = "resnet50") -> pd.DataFrame:
    """Two bases, two networks, one subroutine of each task; task and number."""
    rows = [
        {"model": model, "paper_model": paper_model, "condition": "trained", "task": task, "number": number,
         "subroutine": "subject" if number else task.split("-")[0], "network": network, "base_model": str(base),
         "base_accuracy": 0.95, "mask_seed": 0, "difference": sign * (0.3 + 0.1 * base), "target_accuracy": 0.6,
         "other_accuracy": 0.4}
        for task, number in tasks for base in range(2) for network, sign in (("subnetwork", 1), ("ablated", -1))
    ]  # fmt: skip
    return pd.DataFrame(rows)


def titles(figure: plt.Figure) -> list[str]:
    return [ax.get_title() for ax in figure.axes if ax.get_title()]


def test_tasks_are_in_the_same_order_in_every_figure_whatever_that_of_the_profile():
    tasks = [("number-contact", ""), ("inside-contact", ""), ("inside-number", "")]
    ordered = ["inside-contact", "inside-number", "number-contact"]
    table = effects(*tasks)
    assert titles(panels.differences(table, STARS)) == titles(panels.accuracies(table)) == ordered
    language = effects(("sv-agreement", "singular"), ("sv-agreement", "plural"), paper_model="bert_small")
    both = titles(panels.differences(pd.concat([table, language]), STARS))
    assert both == ["sv-agreement singular", "sv-agreement plural", *ordered]


def test_an_effect_without_a_test_has_no_stars_but_says_so():
    p = {"intercept_p": [0.2, np.nan], "ablated_p": [0.001, np.nan]}
    stars = {"intercept_stars": "", "ablated_stars": ["***", ""]}
    table = pd.DataFrame({"model": "resnet50", "task": "inside-number", "subroutine": ["inside", "number"]} | p | stars)
    assert list(paper_tables.stars(table)["stars"]) == ["", "n/a", "***", "n/a"]


def test_accuracies_have_subnetworks_above_ablated_models():
    figure = panels.accuracies(effects(("inside-number", ""), ("number-contact", "")))
    above, below = np.reshape([ax for ax in figure.axes if ax.get_title() or ax.lines], (2, 2))
    for row, network in ((above, "subnetwork"), (below, "ablated")):
        for ax in row:
            assert {line.get_markerfacecolor() for line in markers(ax)} == {CONDITIONS[network].color, "none"}
    assert above[0].get_ylabel() == "subnetwork: accuracy" and above[1].get_ylabel() == ""


def test_networks_from_scratch_stand_above_those_that_were_pretrained():
    scratch = effects(("number-contact", ""), ("inside-number", ""))
    own = effects(("number-contact", ""), model="resnet_4x16_simclr", paper_model="resnet50_simclr")
    chosen = paper_tables.starts_of("resnet50", scratch, own)
    assert {start: list(rows["task"].unique()) for start, rows in chosen.items()} == {
        "from scratch": ["number-contact"], "pretrained": ["number-contact"],
    }  # fmt: skip
    figure = panels.by_start({start: (rows, STARS) for start, rows in chosen.items()})
    assert titles(figure) == ["number-contact"]
    above, below = figure.axes
    assert above.get_ylabel().startswith("from scratch\n") and below.get_ylabel().startswith("pretrained\n")
    assert [text.get_text() for text in above.texts] == ["n/a", "*"]
    assert [text.get_text() for text in below.texts] == ["n/a"] * 2, "the stars are of the other networks"
    assert set(paper_tables.starts_of("bert_small", scratch, own)) == set()
    assert set(paper_tables.starts_of("resnet50", scratch.iloc[:0], own)) == {"pretrained"}


def test_a_heat_map_by_start_shows_each_mean_where_it_belongs():
    starts = {"paper_scratch": 0.1, "paper_pretrained": 0.2, "ours_scratch": 0.3, "ours_pretrained": -0.4}
    rows = [{"family": "bert_small", "task": task, "number": number, "subroutine": subroutine, "network": network}
            | {name: sign * value for name, value in starts.items()}
            for task, number in (("anaphora", "plural"), ("anaphora", "singular"), ("sv-agreement", "plural"))
            for subroutine in "ab" for network, sign in (("ablated", -1), ("subnetwork", 1))]  # fmt: skip
    figure = panels.start_heatmaps(pd.DataFrame(rows))
    assert titles(figure) == ["sv-agreement plural", "anaphora singular", "anaphora plural"]
    for ax in [ax for ax in figure.axes if ax.get_title()]:
        labels = [label.get_text() for label in ax.get_yticklabels()]
        assert labels == ["a, subnetwork", "a, ablated", "b, subnetwork", "b, ablated"]
        cells = np.reshape(ax.collections[0].get_array(), (4, 4))
        assert np.allclose(cells, np.outer([1, -1] * 2, list(starts.values())))
        assert ax.collections[0].get_clim() == (-0.75, 0.75) and ax.texts[3].get_text() == "−0.40"
    assert_readable(figure)


def test_the_papers_overlap_stands_beside_ours():
    """Its layers are in the order of the network and by the names that ours have."""
    about = {"model": "m", "task": "inside-number", "number": "", "base_model": "0", "base_accuracy": 0.95}
    names = [f"stages.{name}.weight" for name in ("stage_4.0.conv1", "stage_4.0.conv2", "head.embedding")]
    layers = pd.DataFrame({"layer": names, "iou": [0.1, 0.2, 0.3], "expected": 0.05, "comparison": "between"} | about)
    figure = panels.overlaps(layers)
    assert titles(figure) == ["m\ninside-number", "the paper's resnet50\ninside-number"]
    ours, theirs = ({line.get_label(): list(line.get_ydata()) for line in ax.lines} for ax in figure.axes[:2])
    assert ours["between"] == [0.1, 0.2, 0.3] and len(theirs) == 4  # three comparisons, and chance, which is unknown
    for label, number in (("as printed: inside", 13), ("as printed: number", 14), ("between", 15)):
        assert sorted(theirs[label]) == sorted(reference.load(f"table{number}")["iou"])
    assert (theirs["between"][0], theirs["between"][-1]) == (0.122, 0.321)
    ticks = [[label.get_text() for label in ax.get_xticklabels()] for ax in figure.axes[:2]]
    assert set(ticks[0]) < set(ticks[1]) and len(ticks[1]) == 12
    assert_readable(figure)
    several = pd.concat([layers.assign(task=task) for task in ("number-contact", "inside-number")])
    shown = [title.split("\n") for title in titles(panels.overlaps(several))]
    assert shown == [["m", "inside-number"], ["the paper's resnet50", "inside-number"], ["m", "number-contact"]]


def test_bases_that_did_not_learn_are_counted_as_trained():
    table = effects(("inside-contact", "")).assign(mask_seed=0)
    more = table.assign(base_model=table["base_model"] + "x", base_accuracy=0.8)
    both = pd.concat([table, more, effects(("inside-number", ""))])
    power = paper_tables.power(both)
    counts = power.groupby("task")[["n_bases", "n_trained"]].first()
    assert counts.loc["inside-contact"].tolist() == [2, 4] and counts.loc["inside-number"].tolist() == [2, 2]
    (ax,) = panels.needed(power, both).axes
    noted = [label.get_text().endswith("(2 of 4)") for label in ax.get_yticklabels()]
    assert noted == list(power["task"] == "inside-contact")


def test_our_networks_have_their_own_names():
    """Nothing of ours is called ResNet50 that is none."""
    draws = pd.DataFrame({"model": "resnet_4x16", "paper_model": "resnet50", "task": "number-contact",
                          "subroutine": "number", "kind": "random", "draw": range(9), "base_accuracy": 0.95,
                          "difference": np.linspace(-0.1, 0.1, 9)})  # fmt: skip
    tests = draws.iloc[:1].assign(observed=-0.3, p=0.1, n_masks=3)
    more = [frame.assign(subroutine="contact") for frame in (draws, tests.assign(observed=-0.6))]
    figure = panels.null_distributions(pd.concat([draws, more[0]]), pd.concat([tests, more[1]]))
    assert titles(figure) == ["resnet_4x16\nnumber-contact\nnumber", "resnet_4x16\nnumber-contact\ncontact"]
    limits = {ax.get_xlim() for ax in figure.axes if ax.get_title()}
    assert len(limits) == 1, "a small effect looks small beside a large one"
    names = panels._both_names(pd.DataFrame({"paper_model": ["resnet50", "vit"], "model": ["resnet_4x16", "vit"]}))
    assert names == {"resnet50": "resnet_4x16 (paper: resnet50)", "vit": "vit"}


def test_a_figure_alone_says_which_networks_it_shows():
    pruned = effects(("number-contact", "")).assign(condition="pruned")
    name = "resnet_4x16 (paper: resnet50), pruned"
    for figure in (panels.differences(pruned, STARS), panels.accuracies(pruned)):
        assert figure.get_suptitle() == name and titles(figure) == ["number-contact"]
    assert panels.described(pruned).startswith(f"{name}: accuracy on Test Target minus Test Other, each at least .25")
    assert "Gray" not in panels.described(pruned) and "means over 2 base models with 95% t" in panels.described(pruned)
    failed = pruned.assign(base_accuracy=pruned["base_model"].map({"0": 0.95, "1": 0.8}))
    assert "Gray: base model below 90%. Ticks: means over 1 base models" in panels.described(failed)
    control = failed.assign(condition="random")
    assert "Gray: untrained twin of a base model below 90%." in panels.described(control, absolute=True)
    for figure in (panels.differences(control, STARS), panels.accuracies(control)):
        named = [text.get_text() for text in figure.legends[0].get_texts()]
        assert "untrained twin of a base model below 90%" in named and "base model below 90%" not in named
    own = effects(("inside-number", ""), model="resnet_4x16_simclr", paper_model="resnet50_simclr")
    both = pd.concat([effects(("number-contact", "")), own])
    assert panels._networks(both) == [
        "resnet_4x16 (paper: resnet50), trained from scratch",
        "resnet_4x16_simclr (paper: resnet50_simclr), pretrained",
    ]  # fmt: skip
    assert panels._panel_title(both, own) == "resnet_4x16_simclr\ninside-number"


def test_every_p_value_has_the_line_that_it_is_about():
    """The controls outside the subnetworks are of fewer masks where one keeps too much: another observed mean."""
    draws = pd.DataFrame({"model": "m", "task": "number-contact", "subroutine": "number", "draw": range(9),
                          "base_accuracy": 0.95, "difference": np.linspace(-0.02, 0.02, 9)})  # fmt: skip
    draws = pd.concat([draws.assign(kind=kind) for kind in ("complement", "random")])
    tests = draws.groupby("kind", sort=False).head(1).assign(observed=[-0.2, -0.3], p=[0.2, 0.1], n_masks=[1, 3])
    (ax,) = panels.null_distributions(draws, tests).axes
    lines = {line.get_label(): line for line in ax.lines if line.get_linewidth() == 2}
    assert {label: line.get_xdata()[0] for label, line in lines.items()} == {
        "without the subnetwork, 3 masks": -0.3, "the same, 1 mask with room outside": -0.2,
    }  # fmt: skip
    colors = [CONDITIONS[kind].color for kind in ("ablated", "complement")]
    assert [line.get_color() for line in lines.values()] == colors
    (ax,) = panels.null_distributions(draws, tests.assign(observed=-0.3)).axes
    assert [line.get_xdata()[0] for line in ax.lines if line.get_linewidth() == 2] == [-0.3]
    alone = (table[table["kind"] == "random"] for table in (draws, tests))
    (ax,) = panels.null_distributions(*alone).axes
    assert "(no room for a control outside it)" in [text.get_text() for text in ax.get_legend().get_texts()]


def test_times_of_all_models_are_to_one_scale_and_rows_of_one_height():
    times = pd.DataFrame([("m", "float32", "all weights, no mask", 80.0), ("m", "float32", "stage_3", 20.0),
                          ("m", "float32", "stage_4", 10.0), ("v", "float32", "all weights, no mask", 5.0)],
                         columns=["model", "precision", "trained", "ms"])  # fmt: skip
    figure = panels.step_times(times)
    large, small = figure.axes
    assert large.get_xlim() == small.get_xlim()
    names = [label.get_text() for label in large.get_yticklabels()]
    assert names == ["all weights, no mask", "masks from stage 3 on", "masks from stage 4 on"]
    assert len(small.get_yticks()) == 1
    figure.draw_without_rendering()
    heights = [ax.patches[0].get_window_extent().height for ax in (large, small)]
    assert heights[0] == pytest.approx(heights[1], rel=0.05)
    assert_readable(figure)


def searched(*subroutines: str) -> pd.DataFrame:
    """The mask search of two bases, with two settings each."""
    return pd.DataFrame([
        {"model": "m", "task": "inside-number", "number": "", "subroutine": subroutine, "base_model": str(base),
         "learning_rate": 0.01, "mask_init": init, "start": "stem", "score": 0.1 * base, "own_task_accuracy": 0.95}
        for subroutine in subroutines for base in range(2) for init in (0.0, 0.05)
    ])  # fmt: skip


def test_the_legend_of_the_search_names_only_frames_that_are_drawn():
    search, kinds = (
        searched("inside"),
        ["own task below 90%, or no score", "selected", "selected, though none reaches 90%"],
    )
    bases = search[["model", "task", "number", "base_model"]].drop_duplicates().assign(test_accuracy=0.95)
    for accuracies, shown in (([0.95, 0.95], kinds[1:2]), ([0.5, 0.95], kinds[:2]), ([0.5, 0.5], kinds[::2])):
        figure = panels.heatmaps(search.assign(own_task_accuracy=[*accuracies] * 2), bases)
        assert [text.get_text() for text in figure.legends[0].get_texts()] == shown


def test_the_search_that_is_shown_is_of_a_base_that_has_learned():
    search = searched("inside")
    bases = search[["model", "task", "number", "base_model"]].drop_duplicates()
    shown = panels.heatmaps(search, bases.assign(test_accuracy=[0.7, 0.95]))
    assert titles(shown) == ["m\ninside-number\ninside, base 1"]
    none = panels.heatmaps(search, bases.assign(test_accuracy=[0.7, 0.8]))
    assert titles(none) == ["m\ninside-number\ninside, base 0 (below 90%)"]
