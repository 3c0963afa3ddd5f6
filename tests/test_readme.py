"""What the README says of notebook 08's results is in the tables that it links."""

import re

import pandas as pd
import pytest

from subnet_utils.study import ROOT

LAPTOP = ROOT / "figures" / "laptop"


@pytest.fixture(scope="module")
def paragraph() -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.search(r"^Do all subnetworks share a core\?.*$", text, flags=re.MULTILINE)[0]


def short(value: float, digits: int = 2) -> str:
    """.05 and not 0.05."""
    return f"{value:.{digits}f}".replace("0.", ".", 1)


def finding(beginning: str) -> pd.Series:
    """The first row whose statistic begins so."""
    table = pd.read_csv(LAPTOP / "core_own_findings.csv")
    return table[table["statistic"].str.startswith(beginning)].iloc[0]


def lower_sparsity(name: str) -> pd.Series:
    table = pd.read_csv(LAPTOP / "core_own_spread.csv")
    return table[table["target_sparsity"] == table["target_sparsity"].min()].set_index("name").loc[name]


def test_accuracies_are_those_of_the_table(paragraph):
    inside = lower_sparsity("in domain")
    assert f"right on {inside['full']:.0%} in domain" in paragraph
    assert f"keeps {inside['min']:.0%} to {inside['max']:.0%} in domain" in paragraph
    for name in ("SO-Swap", "Embed-If", "After-If"):
        row = lower_sparsity(name)
        assert f"{row['min']:.0%} to {row['max']:.0%} ({name})" in paragraph


def test_spread_and_core_are_those_of_the_table(paragraph):
    wide = finding("20% sparsity: spread over seeds, out of domain")
    compared = f"(p = {short(wide['p'], 4)}; in the paper's numbers {wide['paper_value']:.0f} times)"
    assert f"{wide['our_value']:.0f} times that in domain {compared}" in paragraph
    core = finding("heads in all")
    by_chance = re.search(r"by chance ([\d.e-]+);", core["statistic"])[1].replace("0.", ".", 1)
    assert f"All {core['n']} pruned networks share {core['our_value']:.0f} of the 32 heads" in paragraph
    assert f"by chance {by_chance} are expected; the paper {core['paper_value']:.0f} of 144" in paragraph


def test_the_last_findings_are_those_of_the_table(paragraph):
    outside = finding("accuracy lost out of domain without one head")
    assert f"({short(outside['our_value'], 3)}, p = {short(outside['p'])})" in paragraph
    balanced = finding("accuracy lost balanced without one head: core less others")
    assert f"({short(balanced['our_value'])} more" in paragraph and f"p = {short(balanced['p'])};" in paragraph
    within = finding("accuracy lost balanced without one head: core less others, by chance within layers")
    assert f"within layers p = {short(within['p'])})" in paragraph
    sizes = finding("out of domain: change of effective size")
    assert f"(+{short(sizes['our_value'])} of all units, p = {short(sizes['p'])}" in paragraph
    gone = pd.read_csv(LAPTOP / "core_own_mlps.csv")
    low, high = (f"{row.mlps_pruned} of {row.mlps}" for row in gone.itertuples())
    assert f"{low} and {high}" in paragraph
