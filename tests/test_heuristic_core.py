"""The published numbers of The Heuristic Core: effective sizes and claims against a few lines by hand."""

import csv
import re
from collections import defaultdict

import numpy as np
import pytest

from subnet_utils.core.sections import ROOT
from subnet_utils.core.study import Study
from subnet_utils.papers.heuristic_core import published, tables


def rows_of(name: str) -> list[dict[str, str]]:
    with (ROOT / "subnet_utils/papers/heuristic_core/reference" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def test_every_network_is_there_with_its_full_networks_accuracy():
    for task, sparsities, names in (("mnli", (0.5, 0.7), 5), ("qqp", (0.3, 0.6), 2)):
        table = published.subnetworks(task)
        assert len(table) == 12 * 2 * names and set(table["target_sparsity"]) == set(sparsities)
        assert set(table["seed"]) == set(range(42, 54))
        for _, group in table.groupby(["target_sparsity", "name"]):
            assert group["full"].nunique() == 1
    assert len(published.subnetworks("mnli", every_subcase=True)) == 12 * 2 * 32


def test_effective_sizes_are_those_of_a_few_lines_by_hand():
    inside = "validation_matched"
    outside = set(published.SUBCASES)
    full, pruned = defaultdict(dict), defaultdict(dict)
    for row in rows_of("sparsity_grid"):
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

    sizes = published.effective_sizes("mnli").set_index(["step", "domain"])
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
    claims = published.claims().set_index("claim")["as_printed"]
    wrong = {"MNLI at 50%: largest loss of accuracy in domain", "subnetwork 8, SO-Swap", "subnetwork 5, SO-Swap",
             "full network, Embed-If", "full network, Embed-Verb",
             "MNLI, out of domain: the same from 16% accuracy on", "QQP: heads in all 24 networks",
             "QQP at 30%: MLPs pruned in the twelve networks",
             "QQP at 60%: MLPs pruned in the twelve networks",
             *(f"{name}: loss without L2.H5+L3.H7+L4.H0 at once, less the sum of their losses"
               for name in ("Embed-If", "Embed-Verb"))}  # fmt: skip
    assert set(claims[~claims].index) == wrong
    assert claims.index.is_unique and len(claims) == 36
    assert published.claims()["basis"].value_counts().to_dict() == {"accuracies": 30, "heat maps": 6}


def test_shared_heads_are_those_of_the_heat_maps():
    """9 and 6, not 8; the p of rho that the paper prints comes out; 144 x .5^12 x .3^12 by chance."""
    table = published.shared_heads().set_index("task")
    assert table["in_all"].to_dict() == {"MNLI": 9, "QQP": 6} and table["in_all_printed"].to_dict()["QQP"] == 8
    assert table["rho"].to_dict() == {"MNLI": 0.8218, "QQP": 0.7361}
    assert table["rho_p"].tolist() == pytest.approx([1.6e-36, 7.7e-26], rel=0.05)
    assert table["by_chance"]["MNLI"] == pytest.approx(144 * 0.15**12)
    assert table["mlps_pruned"].to_dict() == {"MNLI": "", "QQP": "12 and 12"}


def test_losses_of_three_heads_at_once_are_held_against_their_sum():
    """Table 3 by hand: 83.1 - (16.4 + 18.1 + 41.3) for SO-Swap, 28.7 - (9.8 + 10.4 + 20.7) for Embed-Verb."""
    found = published.claims().set_index("claim")["recomputed"]
    end = ": loss without L2.H5+L3.H7+L4.H0 at once, less the sum of their losses"
    assert found[f"SO-Swap{end}"] == pytest.approx(0.073) and found[f"Embed-Verb{end}"] == pytest.approx(-0.122)


def test_the_ledger_says_what_text_code_and_ours_do():
    rows = rows_of("ledger")
    assert list(rows[0]) == ["where", "printed", "released", "ours"]
    assert len({row["where"] for row in rows}) == len(rows) == 19
    assert all(value.strip() for row in rows for value in row.values())
    (mixed,) = (row["released"] for row in rows if "(mixed)" in row["where"])
    smallest, names = [], {*published.SUBCASES, "validation_matched", "validation_mismatched"}
    full, pruned = defaultdict(list), defaultdict(list)
    for row in rows_of("sparsity_grid"):
        if row["task"] == "mnli" and row["finetuning_step"] in ("12500", "12500.0") and row["evaluation_set"] in names:
            where = full["full"] if row["network"] == "full" else pruned[row["seed"], int(row["sparsity_percent"])]
            where.append(float(row["accuracy"]))
    whole = np.mean(full["full"])
    for seed in {seed for seed, _ in pruned}:
        sparsities = [at for (own, at), sets in pruned.items() if own == seed and np.mean(sets) > whole - 0.03]
        smallest.append(1 - max(sparsities, default=0) / 100)
    sizes = published.effective_sizes("mnli").set_index(["step", "domain"])["effective_size"]
    assert f"is {np.mean(smallest):.2f}, not {sizes[12500, 'mixed']:.2f}".replace(" 0", " ") in mixed
    (found,) = (row["ours"] for row in rows if "(QQP, MLPs)" in row["where"])
    assert found.strip("counted (`)") in dir(tables)


def test_the_ledger_says_what_the_paper_profiles_do():
    ledger = {row["where"]: row for row in rows_of("ledger")}
    ours = {where.partition("(")[2].strip(")"): row["ours"] for where, row in ledger.items()}
    for name, said in zip(("paper", "paper_qqp"), ours["checkpoints"].split("; "), strict=True):
        section = Study.load(name).heuristic_core
        named = [int(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\d", said)]
        steps = [*section.finetuning.checkpoints, section.finetuning.steps]
        assert named[:3] == steps[:3] and named[-2:] == steps[-2:] and set(named) <= set(steps)
        assert ours["seeds"] == f"{len(section.pruning.grid_seeds)} seeds at the paper profiles"
        assert (section.finetuning.clip, ours["clipping"]) == (None, "not clipped")
        floor = f"{1 - max(section.pruning.grid_sparsities):.2g}".lstrip("0")
        assert floor in ledger["Section 4, Figure 6 (size)"]["released"]
        assert f"warm-up of {section.pruning.rate_warmup} steps" in ledger["Appendix A (learning rate)"]["released"]
    assert ours["QQP batch"] == str(section.finetuning.batch_size)


def test_spread_is_over_twelve_seeds():
    table = published.spread("mnli").set_index(["target_sparsity", "name"])
    own = [float(row["accuracy"]) for row in rows_of("subnetworks")
           if row["task"] == "mnli" and row["target_sparsity"] == "0.5" and row["seed"] != "full"
           and row["evaluation_set"] == "constituent_cn_embedded_under_if"]  # fmt: skip
    row = table.loc[(0.5, "Embed-If")]
    assert row["n_runs"] == 12 == len(own) and row["full"] == 0.334
    assert row["std"] == pytest.approx(np.std(own, ddof=1)) and row["max"] == max(own) == 0.502
