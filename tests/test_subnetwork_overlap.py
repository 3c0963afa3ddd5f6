"""The tables of notebook 06, recomputed from the stored masks by a few lines of numpy."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import hypergeom

from subnet_utils.core.lab import Lab
from subnet_utils.masks.overlap import OVERALL
from subnet_utils.papers.break_it_down import subnetwork_overlap, tables
from tests import micro


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab.open(micro.study(precision="float32"), tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def layers(lab):
    return subnetwork_overlap.by_layer(lab)


def masks_of(lab, base_model: str, task: str) -> dict[str, list[dict[str, np.ndarray]]]:
    found: dict = {}
    for mask in tables.used_masks(lab):
        about = tables.identity(mask.base)
        if (about["base_model"], about["task"]) == (base_model, task):
            masks = {name: entries.numpy() for name, entries in mask.load(lab).masks.items()}
            found.setdefault(mask.subroutine, []).append(masks)
    return found


def test_every_base_has_its_tables_recomputed_by_numpy(lab, layers):
    checked = 0
    for (base_model, task), rows in layers.groupby(["base_model", "task"]):
        found = masks_of(lab, base_model, task)
        within = {f"within {name}": several for name, several in found.items()}
        for row in rows[rows["layer"] != OVERALL].itertuples():
            if row.comparison == "between":
                sides = [np.logical_and.reduce([m[row.layer] for m in several]) for several in found.values()]
            else:
                sides = [m[row.layer] for m in within[row.comparison]]
                last = sides[-1].sum()
                printed = np.logical_and.reduce(sides).sum() / last if last else np.nan
                assert row.as_printed == pytest.approx(printed, nan_ok=True)
            union = np.logical_or.reduce(sides).sum()
            expected = np.logical_and.reduce(sides).sum() / union if union else np.nan
            assert row.iou == pytest.approx(expected, nan_ok=True)
            checked += 1
    assert checked > 100


def test_pairs_are_all_pairs_of_a_base(lab):
    pairs = subnetwork_overlap.pairs(lab)
    assert set(pairs.groupby(["base_model", "task"]).size()) == {6}  # of four masks: two subroutines, two seeds
    assert set(pairs.groupby(["base_model", "task", "comparison"]).size()) == {1, 4}
    assert pairs["iou"].dropna().between(0, 1).all()


def test_chance_between_subroutines_is_that_of_sets_as_large_as_the_intersections(lab, layers):
    rows = layers[(layers["comparison"] == "between") & (layers["layer"] != OVERALL)]
    checked = 0
    for row in rows.iloc[::3].itertuples():
        masks = masks_of(lab, row.base_model, row.task).values()
        first, second = (int(np.logical_and.reduce([m[row.layer] for m in several]).sum()) for several in masks)
        if first and second:
            (total,) = {m[row.layer].size for several in masks for m in several}
            shared = np.arange(min(first, second) + 1)
            overlap = shared / (first + second - shared)
            mean = (hypergeom.pmf(shared, total, first, second) * overlap).sum()
            assert row.expected == pytest.approx(mean, rel=0.05, abs=0.01)
            checked += 1
    assert checked > 10


def overlaps(between: list[float], within: list[float], expected: float = 0.0, **columns) -> pd.DataFrame:
    """expected: for the comparison between; within .05."""
    rows = [
        {"layer": f"l{i}", "comparison": comparison, "iou": iou, "expected": chance, "as_printed": iou}
        for comparison, values, chance in (
            ("between", between, expected), ("within a", within, 0.05), ("within b", [1.0] * len(within), 0.05)
        )
        for i, iou in enumerate(values)
    ]  # fmt: skip
    about = {"paper_model": "resnet50", "task": "inside-number", "number": "", "base_model": "0", "base_accuracy": 1.0}
    return pd.DataFrame(rows).assign(**(about | columns))


def test_the_claim_counts_layers_in_which_subroutines_share_less():
    def of(*bases: list[float]) -> tuple:
        tables = [overlaps(own, [0.5] * len(own), base_model=str(i)) for i, own in enumerate(bases)]
        (row,) = subnetwork_overlap.claim(pd.concat(tables)).to_dict("records")
        return row["layers"], row["lower"], row["verdict"]

    assert of([0.1, 0.2, 0.9], [0.1, 0.9, 0.2]) == (6, 4, "differs")
    assert of([0.1, 0.2], [0.1, 0.2], [0.1, 0.2]) == (6, 6, "agrees")
    assert of([0.1, 0.2], [0.1, 0.2], [0.1, 0.9]) == (6, 5, "cannot be told")
    assert of([0.1, 0.2]) == (2, 2, "cannot be told")  # one base model has no interval
    assert subnetwork_overlap.claim(overlaps([0.1], [0.5], base_accuracy=0.5)).empty


def test_the_claim_is_asked_of_overlap_corrected_for_chance_too():
    # within .5 is .47 when corrected; between .5 and .6 are .33 and .47, with a chance of .25
    (row,) = subnetwork_overlap.claim(overlaps([0.5, 0.6, 0.2], [0.5, 0.5, 0.5], 0.25)).to_dict("records")
    assert (row["lower"], row["lower_corrected"], row["above_chance"]) == (1, 3, 2)
    (row,) = subnetwork_overlap.claim(overlaps([0.5], [0.6], 0.0)).to_dict("records")
    assert (row["lower"], row["lower_corrected"], row["above_chance"]) == (1, 1, 1)


def test_the_claim_is_of_layers_where_all_three_overlaps_are():
    (row,) = subnetwork_overlap.claim(overlaps([0.1, 0.1], [0.5, np.nan])).to_dict("records")
    assert (row["layers"], row["lower"]) == (1, 1)
    for kept in (["between"], ["between", "within a"], ["within a", "within b"]):  # one mask a subroutine
        table = overlaps([0.1], [0.5])
        (row,) = subnetwork_overlap.claim(table[table["comparison"].isin(kept)]).to_dict("records")
        assert (row["layers"], row["above_chance"], row["verdict"]) == (0, 0, "not comparable at this profile")


def test_the_papers_means_stand_beside_ours_and_are_judged_at_its_own_size_only():
    names = {"within a": "within number", "within b": "within inside"}
    layers = overlaps([0.1] * 12, [0.3] * 12).replace(names)
    small = subnetwork_overlap.compared(layers, "laptop").set_index("comparison")
    assert small["paper"].round(2).to_dict() == {"between": 0.10, "within inside": 0.97, "within number": 0.27}
    assert set(small["verdict"]) == {"not comparable at this profile"}
    assert set(subnetwork_overlap.compared(layers, "paper")["verdict"]) == {"cannot be told"}  # of one base model
    both = pd.concat([layers, layers.assign(base_model="1", as_printed=layers["as_printed"] + 0.02)])
    paper = subnetwork_overlap.compared(both, "paper").set_index("comparison")
    assert set(paper["verdict"]) == {"agrees", "cannot be told"} and paper.loc["between", "verdict"] == "agrees"
    assert (paper["low"] <= paper["high"]).all()
    wide = pd.concat([layers, layers.assign(base_model="1", iou=0.9, as_printed=0.1)])
    ends = subnetwork_overlap.compared(wide, "paper")
    assert (ends["low"] == 0).all() and (ends["high"] == 1).all(), "no share is below 0 or above 1"
    fewer = subnetwork_overlap.compared(layers[layers["layer"] != "l0"], "paper")
    assert set(fewer["verdict"]) == {"not comparable at this profile"}


def test_heads_of_every_base_with_attention(lab):
    table = subnetwork_overlap.by_head(lab)
    (about,) = table.groupby(["model", "task", "number"]).groups
    assert about == ("bert_micro", "sv-agreement", "singular")
    assert set(table.groupby("base_model").size()) == {2 * 2}  # two layers of two heads
    found = masks_of(lab, table["base_model"][0], "sv-agreement")
    assert table["subroutines"][0] == ", ".join(found)
    for column, several in zip(("first", "second"), found.values(), strict=True):
        for row in table[table["base_model"] == table["base_model"][0]].itertuples():
            own = slice((row.head - 1) * 8, row.head * 8)
            outputs = [f"stages.{row.layer}.attention.self.{name}.weight" for name in ("query", "key", "value")]
            inputs = f"stages.{row.layer}.attention.output.dense.weight"
            kept = [
                np.concatenate([*(m[name][own].ravel() for name in outputs), m[inputs][:, own].ravel()]).mean()
                for m in several
            ]
            assert getattr(row, column) == pytest.approx(np.mean(kept))


def heads_of(first, second, base_model="singular-0", accuracy=1.0) -> pd.DataFrame:
    positions = {
        "layer": [f"layer_{1 + i // 4}" for i in range(len(first))],
        "head": [1 + i % 4 for i in range(len(first))],
    }
    about = {"paper_model": "bert_small", "task": "anaphora", "base_model": base_model, "base_accuracy": accuracy}
    return pd.DataFrame(positions | {"first": first, "second": second}).assign(**about)


def test_a_division_of_heads_is_a_negative_correlation_within_layers():
    rng = np.random.default_rng(0)
    shares = rng.uniform(0.1, 0.4, 8)
    levels = np.repeat([0.0, 0.5], 4)  # layers that differ for both subroutines are no sign that they share heads
    divided = heads_of(shares + levels, 0.5 - shares + levels)
    shared = heads_of(shares, shares + levels, "plural-0")
    alike = heads_of(np.full(8, 0.2), shares, "plural-1")
    unlearned = heads_of(shares, shares, "plural-2", accuracy=0.5)
    (row,) = subnetwork_overlap.division(pd.concat([divided, shared, alike, unlearned])).itertuples()
    assert (row.n_bases, row.below) == (2, 1), "heads that are all alike tell nothing"
    assert row.correlation == pytest.approx(0) and -1 <= row.low < -0.99, "no correlation is below -1"
    (row,) = subnetwork_overlap.division(divided).itertuples()
    assert (row.n_bases, row.below) == (1, 1) and row.correlation == pytest.approx(-1, abs=0.001) and np.isnan(row.low)
    (row,) = subnetwork_overlap.division(alike).itertuples()
    assert row.n_bases == 0 and np.isnan(row.correlation)
