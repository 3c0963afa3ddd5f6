"""Masks that differ in lambda alone, what their ablations do, and how many of them take nothing away."""

import numpy as np
import pandas as pd
import pytest

from subnet_utils.core.lab import Lab
from subnet_utils.papers.break_it_down import mask_sizes, tables
from subnet_utils.papers.break_it_down.figures import panels
from tests import micro

SAME = ("own_task_accuracy", "subnetwork"), ("target_accuracy", "ablated"), ("other_accuracy", "ablated")


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab.open(micro.whole_study(precision="float32"), tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def table(lab):
    return mask_sizes.effects_by_size(lab)


def test_masks_differ_in_lambda_alone(lab, table):
    about = [*mask_sizes.OF_A_PANEL, "base_model", "mask_seed"]
    usual, other = (table[table["factor"] == factor].set_index(about) for factor in (1.0, 100.0))
    assert len(usual) == len(other) == len(table) / 2 and set(usual.index) == set(other.index)
    assert np.allclose(other["l0"], 100 * usual["l0"].loc[other.index])
    assert (other["density"] < usual["density"].loc[other.index]).all()
    for key_of_one, key_of_other in zip(usual["key"], other["key"].loc[usual.index], strict=True):
        one, two = (lab.store.root / "break_it_down-effect" / key / "spec.json" for key in (key_of_one, key_of_other))
        assert one.read_text() != two.read_text()


def test_those_of_lambda_itself_are_the_masks_that_count(lab, table):
    effects = tables.effects(lab).set_index(["key", "network"])
    own = table[table["factor"] == 1]
    assert set(own["mask_seed"]) == {0}
    for row in own.itertuples():
        for (column, network), name in zip(SAME, ("own_task", "target", "other"), strict=True):
            assert getattr(row, name) == effects.loc[(row.key, network), column]
        assert row.density == effects.loc[(row.key, "subnetwork"), "density"]


def with_(controls: dict, masking: dict | None = None) -> dict:
    study = micro.whole_study(precision="float32")
    both = [one | {"masks": one["masks"] | {"masking": masking or {}}}
            for one in study["break_it_down"]["experiments"]]  # fmt: skip
    return micro.but(study, controls={"draws": 4, "seeds": [0]} | controls, experiments=both)


def test_without_factors_there_are_those_alone(lab):
    found = mask_sizes.effects_by_size(Lab.open(with_({}), lab.store.root))
    assert set(found["factor"]) == {1.0}
    assert mask_sizes.factors(Lab.open(with_({"l0_factors": [1, 2]}), lab.store.root)) == [1.0, 2.0]


@pytest.mark.parametrize("masking", [{"l0": 0.0}, {"method": "magnitude"}])
def test_without_a_penalty_masks_are_the_same_whatever_it_is_multiplied_by(lab, masking):
    found = mask_sizes.effects_by_size(Lab.open(with_({"l0_factors": [100.0]}, masking), lab.store.root))
    one, other = (found[found["factor"] == factor]["density"].tolist() for factor in (1.0, 100.0))
    assert one == other and len(one) > 0


def test_no_penalty_but_a_positive_one():
    for factors in ([0.0], [-1.0], [], [2.0, 2.0]):
        with pytest.raises(ValueError, match="break_it_down.controls.l0_factors"):
            Lab.open(with_({"l0_factors": factors}))


def rows(*masks: tuple) -> pd.DataFrame:
    common = {"model": "m", "paper_model": "p", "task": "number-contact", "number": "", "subroutine": "number",
              "mask_seed": 0, "key": "k", "l0": 1e-6}  # fmt: skip
    columns = ["base_model", "base_accuracy", "factor", "density", "own_task", "target", "other"]
    return pd.DataFrame([common | dict(zip(columns, mask, strict=True)) for mask in masks])


def test_means_are_over_bases_that_learned_and_count_what_is_spared():
    found = mask_sizes.by_size(rows(
        ("0", 1.0, 10.0, 0.05, 1.0, 0.98, 0.9),  # solves its task, and is not missed
        ("1", 1.0, 10.0, 0.07, 0.8, 1.0, 0.9),  # is not missed, but does not solve it
        ("2", 0.9, 10.0, 0.09, 0.9, 0.9, 0.6),  # just so
        ("3", 0.8, 10.0, 0.99, 1.0, 1.0, 1.0),  # of a base that has not learned
        ("0", 1.0, 1.0, 0.2, 1.0, 0.3, 0.9),
    )).set_index("factor")  # fmt: skip
    assert found.loc[10.0, ["solved", "spared", "n_bases"]].tolist() == [2, 2, 3]
    assert np.isclose(found.loc[10.0, "density"], 0.07) and np.isclose(found.loc[10.0, "other"], 0.8)
    assert found.loc[1.0, ["solved", "spared", "n_bases"]].tolist() == [1, 0, 1]


def test_changes_are_of_the_same_masks_with_lambda_itself():
    table = rows(
        ("0", 1.0, 10.0, 0.05, 1.0, 0.9, 0.9),
        ("0", 1.0, 1.0, 0.2, 1.0, 0.3, 0.8),
        ("1", 1.0, 1.0, 0.2, 1.0, 0.5, 1.0),
        ("1", 1.0, 10.0, 0.1, 1.0, 0.9, 0.9),
        ("2", 1.0, 10.0, 0.1, 1.0, 0.0, 0.0),  # without a twin
        ("3", 0.8, 10.0, 0.1, 1.0, 0.0, 0.0),  # of a base that has not learned
        ("3", 0.8, 1.0, 0.1, 1.0, 1.0, 1.0),
    )
    found = mask_sizes.changes(table).set_index(["factor", "accuracy"])
    assert found.loc[(10.0, "target"), ["change", "n_bases", "n_masks"]].tolist() == pytest.approx([0.5, 2, 2])
    interval = found.loc[(10.0, "target"), ["low", "high"]].tolist()
    assert interval == pytest.approx([0.5 - 1.2706, 0.5 + 1.2706], abs=1e-3)
    assert found.loc[(10.0, "other"), "change"] == pytest.approx(0)
    assert found.loc[(10.0, "own_task"), ["change", "low", "high"]].tolist() == [0, 0, 0]
    twice = pd.concat([table, table.assign(subroutine="contact")])
    again = mask_sizes.changes(twice).set_index(["factor", "accuracy"])
    assert again.loc[(10.0, "target"), ["n_bases", "n_masks"]].tolist() == [2, 4]
    assert again.loc[(10.0, "target"), "low"] == pytest.approx(found.loc[(10.0, "target"), "low"])
    assert mask_sizes.changes(table[table["factor"] == 1]).empty


def test_a_panel_for_each_subroutine_of_bases_that_learned(table):
    figure = panels.by_size(table)  # none has learned: all are shown
    assert len([ax for ax in figure.axes if ax.has_data()]) == 4
    learned = rows(("0", 1.0, 1.0, 0.2, 1.0, 0.3, 0.9), ("3", 0.8, 1.0, 0.99, 1.0, 1.0, 1.0))
    (ax,) = panels.by_size(learned).axes
    assert ax.get_title() == "m\nnumber-contact\nnumber"
    assert [len(line.get_xdata()) for line in ax.lines if line.get_linewidth() == 0.5] == [1, 1, 1]
