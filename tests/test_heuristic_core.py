"""The published numbers of The Heuristic Core: effective sizes and claims against a few lines by hand."""

import csv
import itertools
import math
from collections import defaultdict

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from subnet_utils import heuristic_core, heuristic_figures
from subnet_utils.heuristic_figures import DOMAINS, LOOKS, PATTERN_COLORS
from subnet_utils.study import ROOT
from tests.test_figures import MACHADO, _lab, _linear, assert_readable


def rows_of(name: str) -> list[dict[str, str]]:
    with (ROOT / "subnet_utils/reference" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def test_every_network_is_there_with_its_full_networks_accuracy():
    for task, sparsities, names in (("mnli", (0.5, 0.7), 5), ("qqp", (0.3, 0.6), 2)):
        table = heuristic_core.subnetworks(task)
        assert len(table) == 12 * 2 * names and set(table["target_sparsity"]) == set(sparsities)
        assert set(table["seed"]) == set(range(42, 54))
        for _, group in table.groupby(["target_sparsity", "name"]):
            assert group["full"].nunique() == 1
    assert len(heuristic_core.subnetworks("mnli", every_subcase=True)) == 12 * 2 * 32


def test_effective_sizes_are_those_of_a_few_lines_by_hand():
    inside = "validation_matched"
    outside = set(heuristic_core.SUBCASES)
    full, pruned = defaultdict(dict), defaultdict(dict)
    for row in rows_of("heuristic_core_sparsity_grid"):
        if row["task"] != "mnli" or row["evaluation_set"] not in outside | {inside}:
            continue
        step, accuracy = row["finetuning_step"], float(row["accuracy"])
        if accuracy < 0:  # a run that is missing
            continue
        if row["network"] == "full":
            full[float(step)][row["evaluation_set"]] = accuracy
        elif row["network"] == "pruned checkpoint":
            key = float(step), row["seed"], int(row["sparsity_percent"])
            pruned[key][row["evaluation_set"]] = accuracy

    def domains(found):
        out = np.mean([found[name] for name in outside])
        return {"in domain": found[inside], "out of domain": out, "mixed": (found[inside] + out) / 2}

    sizes = heuristic_core.effective_sizes("mnli").set_index(["step", "domain"])
    for step, own in full.items():
        for domain, accuracy in domains(own).items():
            largest = []
            for seed in {key[1] for key in pruned if key[0] == step}:
                grid = {key[2]: domains(found)[domain] for key, found in pruned.items()
                        if key[:2] == (step, seed) and set(found) == outside | {inside}}  # fmt: skip
                largest.append(max([s for s, a in grid.items() if a > accuracy - 0.03], default=0))
            expected = 1 - np.mean(largest) / 100
            assert sizes.loc[(int(step), domain), "effective_size"] == pytest.approx(expected)
            assert sizes.loc[(int(step), domain), "accuracy"] == pytest.approx(accuracy)


def test_the_papers_slips_are_found_and_its_findings_hold():
    claims = heuristic_core.claims().set_index("claim")["holds"]
    wrong = {"MNLI at 50%: largest loss of accuracy in domain", "subnetwork 8, SO-Swap", "subnetwork 5, SO-Swap",
             "full network, Embed-If", "full network, Embed-Verb",
             "MNLI, out of domain: the same from 16% accuracy on", "QQP: heads in all 24 networks",
             "QQP at 30%: MLPs pruned in the twelve networks",
             "QQP at 60%: MLPs pruned in the twelve networks",
             *(f"{name}: loss without L2.H5+L3.H7+L4.H0 at once, less the sum of their losses"
               for name in ("Embed-If", "Embed-Verb"))}  # fmt: skip
    assert set(claims[~claims].index) == wrong
    assert claims.index.is_unique and len(claims) == 36


def test_losses_of_three_heads_at_once_are_held_against_their_sum():
    """Table 3 by hand: 83.1 - (16.4 + 18.1 + 41.3) for SO-Swap, 28.7 - (9.8 + 10.4 + 20.7) for Embed-Verb."""
    found = heuristic_core.claims().set_index("claim")["recomputed"]
    end = ": loss without L2.H5+L3.H7+L4.H0 at once, less the sum of their losses"
    assert found[f"SO-Swap{end}"] == pytest.approx(0.073) and found[f"Embed-Verb{end}"] == pytest.approx(-0.122)


def test_what_is_recomputed_here_is_told_from_what_was_counted_elsewhere():
    claims = heuristic_core.claims()
    counted = claims[claims["basis"] == "masks"]
    assert counted["recomputed"].tolist() == [float(row["counted"]) for row in rows_of("heuristic_core_mask_counts")]
    assert counted["holds"].tolist() == [True, False, True, True, False, False]
    assert set(claims["basis"]) == {"accuracies", "masks"}


def test_spread_is_over_twelve_seeds():
    table = heuristic_core.spread("mnli").set_index(["target_sparsity", "name"])
    own = [float(row["accuracy"]) for row in rows_of("heuristic_core_subnetworks")
           if row["task"] == "mnli" and row["target_sparsity"] == "0.5" and row["seed"] != "full"
           and row["evaluation_set"] == "constituent_cn_embedded_under_if"]  # fmt: skip
    row = table.loc[(0.5, "Embed-If")]
    assert row["n_runs"] == 12 == len(own) and row["full"] == 0.334
    assert row["std"] == pytest.approx(np.std(own, ddof=1)) and row["max"] == max(own) == 0.502


def test_mean_sizes_keep_the_range_of_the_seeds():
    sizes = pd.DataFrame({"step": 5, "domain": "mixed", "seed": [0, 1, 2], "accuracy": 0.8,
                          "effective_size": [0.5, 0.9, 1.0], "smallest_possible": 0.3})  # fmt: skip
    row = heuristic_core.mean_sizes(sizes).iloc[0]
    assert (row["size_min"], row["effective_size"], row["size_max"]) == (0.5, pytest.approx(0.8), 1.0)
    assert (row["n_runs"], row["accuracy"], row["smallest_possible"]) == (3, 0.8, 0.3)


OWN = ("in domain", "SO-Swap", "Prep", "PP-Subj", "Rel-Subj", "Embed-If", "After-If", "Embed-Verb", "Adverb",
       "entailed", "Rel-Clause", "Embed-Since")  # fmt: skip
TOGETHER = {
    "our network": [LOOKS[name][0] for name in OWN],
    "questions": [LOOKS[name][0] for name in ("QQP", "PAWS (adv.)", "PAWS (equivalent)", "entailed")],
    "domains": [color for color, _ in DOMAINS.values()],
    "attention": [*PATTERN_COLORS.values()],
}
"""Colors of one figure."""


@pytest.mark.parametrize("deficiency", [None, *MACHADO])
@pytest.mark.parametrize("colors", TOGETHER.values(), ids=TOGETHER)
def test_colors_of_one_figure_differ_for_every_eye(colors, deficiency):
    matrix = np.eye(3) if deficiency is None else np.array(MACHADO[deficiency])
    seen = {color: _lab(np.clip(matrix @ _linear(to_rgb(color)), 0, 1)) for color in colors}
    assert len(seen) == len(colors)
    for one, other in itertools.combinations(seen, 2):
        assert np.linalg.norm(seen[one] - seen[other]) > 10, (one, other)  # CIE76; 2.3 is a just noticeable difference


def test_every_set_of_one_figure_has_a_marker_of_its_own():
    for looks in ([LOOKS[name] for name in OWN], list(DOMAINS.values())):
        assert len({marker for _, marker in looks}) == len(looks)


def accuracies(names, seeds: int = 3) -> pd.DataFrame:
    """Of networks pruned to 0.2 and 0.5."""
    return pd.DataFrame({"name": name, "set": name, "target_sparsity": sparsity, "seed": seed, "full": 0.9,
                         "accuracy": 0.9 - sparsity - seed / 50}
                        for name in names for sparsity in (0.2, 0.5) for seed in range(seeds))  # fmt: skip


@pytest.mark.usefixtures("paper_style")
def test_figures_are_drawn():
    table = heuristic_core.subnetworks("mnli")
    figure, axes = plt.subplots(2, 2, figsize=(7.2, 4.8))
    heuristic_figures.dots(axes[0, 0], table[table["target_sparsity"] == 0.5])
    assert [tick.get_text() for tick in axes[0, 0].get_xticklabels()][:2] == ["MNLI", "SO-Swap"]
    heuristic_figures.bars(axes[0, 1], heuristic_core.differing())
    assert [tick.get_text() for tick in axes[0, 1].get_xticklabels()] == ["seed 43", "seed 46", "seed 49"]
    heuristic_figures.over_sparsity(axes[1, 0], heuristic_core.by_sparsity("qqp"))
    figure.canvas.draw()
    figure, axes = plt.subplots(1, 2, figsize=(7, 2.8))
    heuristic_figures.training(axes, heuristic_core.effective_sizes("qqp"))
    assert_readable(heuristic_figures.legend(figure))


@pytest.mark.usefixtures("paper_style")
def test_dots_and_lines_are_named_once_and_only_outer_panels_have_a_label():
    figure, axes = plt.subplots(2, 2, figsize=(7, 4), sharey=True)
    for ax in axes.flat:
        heuristic_figures.dots(ax, accuracies(["in domain", "Prep"]))
    assert_readable(heuristic_figures.legend(figure))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["pruned networks", "full network"]
    assert [ax.get_ylabel() for ax in axes.flat] == ["accuracy", "", "accuracy", ""]


KINDS = ("constituent_cn_adverb", "subsequence_se_PP_on_obj", "in domain", "lexical_overlap_ln_subject-object_swap",
         "constituent_ce_adverb", "lexical_overlap_le_passive", "lexical_overlap_ln_passive")  # fmt: skip


@pytest.mark.usefixtures("paper_style")
@pytest.mark.parametrize("names", [KINDS, KINDS[::-1]])
def test_subcases_stand_in_one_order_and_have_names_that_can_be_read(names):
    figure = heuristic_figures.every_subcase(accuracies(names))
    found = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert found == ["in domain", "entailed: the heuristic is right", "lexical overlap: passive",
                     "subsequence: PP on object", "constituent: adverb", "not entailed: the heuristic is wrong",
                     "lexical overlap: passive", "lexical overlap: subject-object swap (SO-Swap)",
                     "constituent: adverb (Adverb)"]  # fmt: skip
    assert_readable(figure)


@pytest.mark.usefixtures("paper_style")
def test_all_30_subcases_of_the_paper_are_drawn():
    published = heuristic_core.subnetworks("mnli", every_subcase=True).rename(columns={"evaluation_set": "set"})
    figure = heuristic_figures.every_subcase(published)
    found = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    assert len(found) == 34 and found[:2] == ["MNLI matched", "MNLI mismatched"]
    assert found.index("not entailed: the heuristic is wrong") == 18
    assert_readable(figure)


def by_sparsity(names) -> pd.DataFrame:
    """The whole network, then means of two sparsities with a range, the same for all sets."""
    return pd.DataFrame({"name": name, "sparsity": sparsity, "mean": mean, "min": low, "max": high} for name in names
                        for sparsity, mean, low, high in ((0, 0.9, 0.9, 0.9), (0.2, 0.8, 0.5, 0.9),
                                                          (0.5, 0.4, 0.1, 0.6)))  # fmt: skip


def ranges(ax) -> list[list[float]]:
    """[x, low, high] of every bar of range."""
    return [[bar[0][0], bar[0][1], bar[1][1]] for lines in ax.collections for bar in lines.get_segments()]


def test_lines_that_coincide_stand_side_by_side_with_their_ranges():
    _, ax = plt.subplots()
    heuristic_figures.over_sparsity(ax, by_sparsity(["in domain", "SO-Swap", "Prep"]))
    places = np.array([line.get_xdata() for line in ax.lines])
    assert (np.diff(places, axis=0) > 0).all() and np.abs(places - [0, 20, 50]).max() < 5
    assert [line.get_marker() for line in ax.lines] == ["o", "s", "^"]
    found = np.array(ranges(ax)).reshape(3, 3, 3)
    assert (found[:, :, 0] == places).all() and (found[:, 0, 1] == found[:, 0, 2]).all()  # the whole one has no range
    assert (found[:, 1, 1:] == [0.5, 0.9]).all()
    plt.close("all")


@pytest.mark.usefixtures("paper_style")
@pytest.mark.parametrize("names", [OWN[:10], ("in domain", "Prep", "constituent_cn_disjunction", "entailed")])
def test_a_panel_for_every_heuristic_and_one_legend(names):
    figure = heuristic_figures.by_heuristic(heuristic_figures.over_sparsity, by_sparsity(names))
    own = ["lexical overlap", "subsequence", "constituent", "entailed"]
    assert {ax.get_title() for ax in figure.axes} == (set(own) if len(names) == 10 else set(own) - {"subsequence"})
    assert all("in domain" in ax.get_legend_handles_labels()[1] for ax in figure.axes)
    assert sorted(text.get_text() for text in figure.legends[0].get_texts()) == sorted(names)
    assert_readable(figure)
    questions = ["in domain", "PAWS (adv.)", "entailed"]
    figure = heuristic_figures.by_heuristic(heuristic_figures.over_sparsity, by_sparsity(questions))
    assert [ax.get_title() for ax in figure.axes] == ["PAWS (adv.)", "entailed"]


@pytest.mark.usefixtures("paper_style")
def test_what_is_learned_at_the_same_time_is_seen_in_lines_of_different_width():
    table = pd.DataFrame({"name": name, "step": step, "accuracy": 1.0} for name in OWN[:10] for step in range(3))
    figure = heuristic_figures.by_heuristic(heuristic_figures.learning, table)
    assert_readable(figure)
    for ax in figure.axes:
        lines = sorted(ax.lines, key=lambda line: line.get_zorder())
        assert (np.diff([line.get_linewidth() for line in lines]) < 0).all() and lines[-1].get_label() == "in domain"


def test_effective_sizes_have_their_range_and_accuracies_none():
    sizes = pd.DataFrame({"step": step, "domain": domain, "accuracy": 0.8, "effective_size": 0.7, "size_min": 0.5,
                          "size_max": 0.9, "smallest_possible": 0.5}
                         for step in (100, 200, 900) for domain in DOMAINS)  # fmt: skip
    _, axes = plt.subplots(1, 2)
    heuristic_figures.training(axes, sizes)
    assert {(low, high) for _, low, high in ranges(axes[1])} == {(0.5, 0.9)}
    assert {(low, high) for _, low, high in ranges(axes[0])} == {(0.8, 0.8)}
    assert len({x for x, _, _ in ranges(axes[1])}) == 3 * len(DOMAINS)
    plt.close("all")


def labels(ax) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def ablated(core: int) -> pd.DataFrame:
    """Heads that cost 1, 2, ... hundredths, the last ones are the core; one brings something."""
    rows = [{"ablated": f"L0.H{i}", "layer": 0, "head": i, "in_core": i >= 6 - core, "in_domain": i / 100,
             "out_of_domain": 0.0} for i in range(6)]  # fmt: skip
    rows.append({"ablated": "L1.H0", "layer": 1, "head": 0, "in_core": False, "in_domain": 0.0, "out_of_domain": -0.5})
    groups = [("core", 0.5), ("others", 0.1)] if core else []
    return pd.DataFrame(rows + [{"ablated": name, "in_core": name == "core", "in_domain": lost, "out_of_domain": lost}
                                for name, lost in groups])  # fmt: skip


@pytest.mark.usefixtures("paper_style")
def test_ablations_name_the_extreme_heads_and_no_group_that_is_empty():
    figure, ax = plt.subplots(figsize=(6, 3))
    heuristic_figures.without_heads(ax, ablated(2), named=2)
    assert {text.get_text() for text in ax.texts} == {"L1.H0", "L0.H5"}
    assert labels(ax) == ["as many others at once", "the core at once", "other heads", "heads of the core"]
    assert_readable(figure)
    _, ax = plt.subplots()
    heuristic_figures.without_heads(ax, ablated(0))
    assert labels(ax) == ["other heads"]


@pytest.mark.usefixtures("paper_style")
def test_names_of_heads_that_change_alike_are_not_written_over_each_other():
    figure, ax = plt.subplots(figsize=(6, 3))
    alike = ablated(0)
    alike["in_domain"], alike["out_of_domain"] = [0.2, 0.2001, 0.2002, 0.0, 0.0, 0.0, -0.1], 0.01
    heuristic_figures.without_heads(ax, alike, named=4)
    assert [text.get_text() for text in ax.texts] == ["L0.H2", "L1.H0"]
    assert_readable(figure)


def test_checkpoints_without_a_core_show_other_heads_alone():
    table = pd.DataFrame({"step": [4, 4, 10, 10], "core": [0.5, 1.0, 1.0, 1.0], "others": [0.3, 0.5, 0.4, 0.4]})
    _, ax = plt.subplots()
    heuristic_figures.core_over_training(ax, table)
    assert labels(ax) == ["heads of the core", "other heads"]
    assert [line.get_ydata().tolist() for line in ax.lines] == [[0.75, 1.0], [0.4, 0.4]]
    assert [bar[1:] for bar in ranges(ax)] == [[0.5, 1.0], [1.0, 1.0], [0.3, 0.5], [0.4, 0.4]]
    _, ax = plt.subplots()
    heuristic_figures.core_over_training(ax, table.assign(core=math.nan))
    assert labels(ax) == ["other heads"]
    plt.close("all")


@pytest.mark.usefixtures("paper_style")
def test_frequencies_say_the_sparsities():
    rows = [{"layer": 0, "head": i, "head_name": f"L0.H{i}", "lower": 2, "higher": min(i, 2), "n_lower": 2,
             "n_higher": 2, "in_core": i >= 2} for i in range(4)]  # fmt: skip
    figure, axes = plt.subplots(1, 2, figsize=(7, 3))
    heuristic_figures.shared_heads(axes[0], pd.DataFrame(rows), (0.2, 0.5))
    assert "50%" in axes[0].get_xlabel() and "20%" in axes[0].get_ylabel()
    counts = {(text.get_position(), text.get_text()) for text in axes[0].texts}
    assert counts == {((0, 2), "1"), ((1, 2), "1"), ((2, 2), "2")}
    heuristic_figures.head_frequencies(axes[1], pd.DataFrame(rows), (0.2, 0.5))
    assert labels(axes[1]) == ["20% sparsity", "50% sparsity"]
    assert [text.get_text() for text in axes[1].texts] == ["0"]  # of the head that no network at 50% has
    assert_readable(figure)


@pytest.mark.usefixtures("paper_style")
def test_a_share_of_nothing_is_marked_and_the_half_explained():
    figure, ax = plt.subplots(figsize=(3.5, 2.5))
    table = pd.DataFrame({"head_name": ["L0.H0", "L0.H1"], "repeated": [0.6, 0.1], "previous": [0.0, 0.2],
                          "next": [0.1, 0.004], "separator": 0.1})  # fmt: skip
    heuristic_figures.attention_shares(ax, table)
    assert sorted(text.get_text() for text in ax.texts) == ["0", "0", "half:\nits category"]
    assert_readable(figure)
