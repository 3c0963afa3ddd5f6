"""What the paper says of its own networks is read from the right rows, and never stands in for a number it lacks."""

import csv
import math
import re
from importlib import resources

import pytest

from subnet_utils.core.papers import papers
from subnet_utils.core.study import Study
from subnet_utils.papers.heuristic_core import published_cores, reference

TABLES = "tables.csv"


def printed(place: str, row: str) -> dict[str, float]:
    """A printed row, read without the package's own code."""
    with resources.files(reference).joinpath(TABLES).open() as file:
        return {one["name"]: float(one["accuracy"]) for one in csv.DictReader(file)
                if one["place"] == place and one["row"] == row}  # fmt: skip


def test_printed_rows_are_whole():
    heads = {"Table 3": (9, 5), "Table 4": (8, 2), "Table 6": (11, 5), "Table 8": (12, 4)}
    table = reference.load("tables")
    for place, (number, sets) in heads.items():
        own = table[(table["place"] == place) & table["row"].str.fullmatch(r"L\d+\.H\d+")]
        assert own["row"].nunique() == number and len(own) == number * sets
    assert table["accuracy"].between(0, 1).all()
    assert not table.duplicated(["place", "target_sparsity", "row", "name"]).any()
    assert published_cores.findings("bert_mnli")["core"] == heads["Table 3"][0]
    assert published_cores.findings("gpt2_mnli")["core"] == heads["Table 8"][0]


def test_rows_that_the_paper_prints_with_a_loss_have_that_loss():
    """The arrows of Tables 3, 4, 6 and 8, a few of them: accuracy without the head is full accuracy less the loss."""
    for place, row, name, loss in (
        ("Table 3", "L4.H0", "SO-Swap", 0.413), ("Table 3", "L10.H10", "Embed-If", -0.081),
        ("Table 3", "L2.H5+L3.H7+L4.H0", "SO-Swap", 0.831), ("Table 4", "L2.H5", "PAWS (adv.)", 0.049),
        ("Table 6", "L7.H10", "Embed-Verb", 0.137), ("Table 8", "L5.H5", "Embed-If", -0.102),
    ):  # fmt: skip
        assert printed(place, "none")[name] - printed(place, row)[name] == pytest.approx(loss, abs=1e-9)


def test_losses_are_means_over_heads_and_over_sets_out_of_domain():
    table = published_cores.ablations("gpt2_mnli").set_index("ablated")
    others = table.loc["one other head, mean"]
    assert others["paper_in_domain"] == pytest.approx(0.001) and others["paper_out_of_domain"] == pytest.approx(0.002)
    heads = [0.494, 0.468, 0.345, 0.482, 0.516, 0.345, 0.545, 0.576, 0.442, 0.406, 0.525, 0.445]
    mean = table.loc["one head of the core, mean", "paper_out_of_domain"]
    assert mean == pytest.approx(0.474 - sum(heads) / 12)
    questions = published_cores.ablations("bert_qqp").set_index("ablated")
    assert math.isnan(questions.loc[published_cores.OTHERS, "paper_in_domain"])


def test_the_three_strongest_heads_stand_beside_ours():
    """Table 3 by hand, and no such row where the paper ablates none at once."""
    table = published_cores.ablations("bert_mnli").set_index("ablated")["paper_out_of_domain"]
    none, at_once = (printed("Table 3", row) for row in ("none", "L2.H5+L3.H7+L4.H0"))
    each = [printed("Table 3", row) for row in ("L2.H5", "L3.H7", "L4.H0")]
    outside = [name for name in none if name != "MNLI"]
    lost = [none[name] - at_once[name] for name in outside]
    beyond = [one - sum(none[name] - row[name] for row in each) for one, name in zip(lost, outside, strict=True)]
    assert table[published_cores.STRONGEST] == pytest.approx(sum(lost) / 4)
    assert table[published_cores.BEYOND] == pytest.approx(sum(beyond) / 4)
    assert published_cores.STRONGEST not in set(published_cores.ablations("gpt2_mnli")["ablated"])


def test_findings_have_no_number_that_the_paper_lacks():
    bert = published_cores.findings("bert_mnli")
    assert bert["spread out of domain 0"] > 10 and bert["size from onset"] == pytest.approx(-0.2)
    assert set(published_cores.findings("gpt2_mnli")) == {"lost out of domain", "core", "heuristic"}
    assert bert["heuristic"] == pytest.approx((0.0 + 0.000417 + 0.04325 + 0.0) / 4, abs=1e-6)
    assert math.isnan(published_cores.findings("roberta_mnli")["heuristic"])
    assert math.isnan(published_cores.findings("roberta_mnli")["core"])  # of one sparsity, so not the same thing
    assert published_cores.findings("bert_qqp")["core"] == 6


def test_mismatched_pairs_of_gpt2_are_as_table_7_prints_them_and_no_heuristic():
    table = published_cores.spread("gpt2_mnli").query("name == 'mismatched'").set_index("rank")
    columns = ["paper_full", "paper_mean", "paper_std"]
    assert table[columns].to_numpy().tolist() == [[0.822, 0.801, 0.005], [0.822, 0.763, 0.011]]
    assert published_cores.findings("gpt2_mnli")["heuristic"] == pytest.approx(0.339)  # Embed-If alone


@pytest.mark.parametrize("network", ["bert_mnli", "bert_qqp", "roberta_mnli", "gpt2_mnli"])
def test_spreads_begin_with_the_lower_sparsity(network):
    table = published_cores.spread(network)
    lower = table[table["rank"] == 0]
    assert lower["paper_sparsity"].nunique() == 1 and lower["paper_sparsity"].min() == table["paper_sparsity"].min()
    assert "in domain" in set(lower["name"]) and table[["paper_full", "paper_mean"]].le(1).all(axis=None)


def test_places_of_other_networks_and_an_unknown_one():
    positions = {("Figure 6", "roberta_mnli"): "Figure 15", ("Figure 6", "bert_qqp"): "Figure 6",
              ("Table 3", "bert_mnli"): "Table 3", ("Figure 5", "gpt2_mnli"): None,
              **{(f"Figure {number}", "bert_qqp"): None for number in (3, 9, 10, 12)}}  # fmt: skip
    for (label, network), there in positions.items():  # captions of those without a place speak of MNLI and HANS
        found = published_cores.place(f"Heuristic Core, {label}", network)
        assert found == (f"Heuristic Core, {there}" if there else None)
    for label, why in papers()["heuristic_core"].elsewhere.items():
        if found := re.fullmatch(r"the profile (\w+) makes it", why):
            network = Study.load(found[1]).heuristic_core.paper_network
            makes = {published_cores.place(f"Heuristic Core, {kind} {number}", network)
                     for kind in ("Figure", "Table") for number in range(1, 17)}  # fmt: skip
            assert label in makes
    with pytest.raises(ValueError, match="no network 'bert'; valid: bert_mnli"):
        published_cores.findings("bert")
