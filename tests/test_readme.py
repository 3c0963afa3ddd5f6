"""What the README and figures/README.md say of the results of notebooks 03 to 08 is in the tables that they link."""

import io
import re
import subprocess
from pathlib import Path

import pandas as pd
import pytest

from subnet_utils.core.study import ROOT

LAPTOP, MINILM = (ROOT / "figures" / profile for profile in ("laptop", "minilm"))
LEARNED = "346"
"""Base models of inside-contact that learned their task."""


def section(beginning: str) -> str:
    """The section of the findings whose heading begins so."""
    text = (ROOT / "figures" / "README.md").read_text(encoding="utf-8")
    return re.search(rf"^#+ {re.escape(beginning)}.*?(?=^#|\Z)", text, flags=re.MULTILINE | re.DOTALL)[0]


@pytest.fixture(scope="module")
def paragraph() -> str:
    return section("A small BERT")


def short(value: float, digits: int = 2) -> str:
    """.05 and not 0.05."""
    return f"{value:.{digits}f}".replace("0.", ".", 1)


def with_interval(row: pd.Series) -> str:
    """.08 [.05, .12]."""
    mean = row["advantage"] if "advantage" in row else row["ahead"]
    return f"{short(mean)} [{short(row['low'])}, {short(row['high'])}]"


def finding(beginning: str, folder: Path = LAPTOP, *, row: int = 0) -> pd.Series:
    """A row, the first one, whose statistic begins so."""
    table = pd.read_csv(folder / "core_own_findings.csv")
    return table[table["statistic"].str.startswith(beginning)].iloc[row]


def lower_sparsity(name: str) -> pd.Series:
    table = pd.read_csv(LAPTOP / "core_own_spread.csv")
    return table[table["target_sparsity"] == table["target_sparsity"].min()].set_index("name").loc[name]


def by_chance(core: pd.Series) -> str:
    return re.search(r"by chance ([\d.e-]+);", core["statistic"])[1].replace("0.", ".", 1)


def test_accuracies_are_those_of_the_table(paragraph):
    inside = lower_sparsity("in domain")
    assert f"right on {inside['full']:.1%} in domain" in paragraph
    assert f"keeps {inside['min']:.0%} to {inside['max']:.0%} in domain" in paragraph
    for name in ("SO-Swap", "Embed-If", "After-If"):
        row = lower_sparsity(name)
        assert f"{row['min']:.0%} to {row['max']:.0%} ({name})" in paragraph


def test_spread_and_core_are_those_of_the_table(paragraph):
    wide = finding("20% sparsity: spread over seeds, out of domain")
    even, sparser = (finding(f"{share}% sparsity: spread over seeds, balanced") for share in (20, 50))
    compared = f"(p = {short(wide['p'], 4)}; in the paper's numbers {wide['paper_value']:.0f} times)"
    assert f"{wide['our_value']:.0f} times that in domain {compared}, {even['our_value']:.1f} times where" in paragraph
    assert f"is 3 times that in domain ({even['least']:.1f} times)" in paragraph
    least, most = (f"{sparser[name]:.1f}" for name in ("least", "most"))
    assert f"6 times ({sparser['our_value']:.1f}), and 4 to 7 ({least} to {most}) whichever" in paragraph
    core = finding("heads in all")
    assert core["n"] == 12 and "All 24 pruned networks, these and as many at 50%," in paragraph
    assert f" share {core['our_value']:.0f} of the 32 heads (by chance {by_chance(core)} are expected," in paragraph
    size = (
        f"p = {short(core['p'], 4)}; the core of twelve other seeds would have {core['low']:.0f} to {core['high']:.0f}"
    )
    assert f"{size}; the paper's has {core['paper_value']:.0f} of 144" in paragraph
    rho = finding("Spearman")
    chance = float(re.search(r"by chance (-?[\d.]+)\)", rho["statistic"])[1])
    alike = f"correlates by {short(rho['our_value'])} (paper {short(rho['paper_value'])}), by chance {short(chance)}"
    assert f"{alike} (p = {short(rho['p'], 4)})" in paragraph
    categories = pd.read_csv(LAPTOP / "core_own_categories.csv").set_index("category")["in the core"]
    assert categories["repeated"] == 1 and categories.sum() == core["our_value"] == 2
    assert "one of the two gives more than half of its attention to the same word" in paragraph


def test_the_last_findings_are_those_of_the_table(paragraph):
    outside = finding("accuracy lost out of domain without one head")
    assert f"({short(outside['our_value'], 3)}, p = {short(outside['p'])})" in paragraph
    lost = pd.read_csv(LAPTOP / "core_own_table_3.csv").set_index("ablated")["out_of_domain"]
    assert f"one of the two costs much ({short(lost['L3.H1'])};" in paragraph and lost["L2.H3"] < 0
    balanced = finding("accuracy lost balanced without one head: core less others")
    assert f"({short(balanced['our_value'])} more" in paragraph and f"p = {short(balanced['p'], 3)};" in paragraph
    within = finding("accuracy lost balanced without one head: core less others, by chance within layers")
    assert f"within layers p = {short(within['p'], 3)};" in paragraph
    sizes = finding("out of domain: change of effective size")
    assert sizes["n"] == 6 and f"(+{short(sizes['our_value'])} of all units, p = {short(sizes['p'], 3)}," in paragraph
    onset = finding("out of domain: change of effective size", row=1)
    assert f"(+{short(onset['our_value'])}, p = {short(onset['p'])})" in paragraph
    balanced = finding("balanced: change of effective size")
    assert f"(+{short(balanced['our_value'])}, p = {short(balanced['p'])})" in paragraph
    assert (sizes["verdict"], onset["verdict"]) == ("holds", "cannot be told")
    flat = finding("in domain: change of effective size")
    interval = f"[{short(flat['low'])}, {short(flat['high'])}]"
    assert f"no change shows ({short(flat['our_value'])} {interval})" in paragraph
    both = lost["all heads of the core"], lost["L3.H1"], -lost["L2.H3"]
    assert "({}, and {} less {})".format(*map(short, both)) in paragraph
    two = pd.read_csv(LAPTOP / "core_own_two_cores.csv").iloc[0]
    assert two["shared"] == 1 and f"one is in it (p = {short(two['p'])}, one-sided)" in paragraph
    assert f"correlate by {short(two['rho'])} (p = {short(two['rho_p'])};" in paragraph
    joint, both = (finding(f"accuracy lost {of} without all of the core") for of in ("out of domain", "balanced"))
    assert f"balanced ({short(both['our_value'])}, p = {short(both['p'])}, the least that 49 draws allow)" in paragraph
    assert (both["n"], both["verdict"], joint["verdict"]) == (49, "holds", "cannot be told")
    assert f"not settled ({short(joint['our_value'], 3)}, p = {short(joint['p'])}; with 20 draws" in paragraph
    core = pd.read_csv(LAPTOP / "core_own_table_3.csv").set_index("ablated")
    inside = core["in_domain"].loc[["one head of the core, mean", "L2.H3", "L3.H1"]].map(lambda x: short(x + 1e-9))
    assert "a head of the core {} less is right in domain on average ({} and {})".format(*inside) in paragraph
    paper = core.loc["one head of the core, mean", "paper_in_domain"]
    assert f"in the paper next to nothing ({short(paper, 3)})" in paragraph
    random = pd.read_csv(LAPTOP / "core_own_random.csv").query("target_sparsity == 0.5").set_index("name")
    for name, words in (("SO-Swap", "SO-Swap"), ("in domain", "in domain ("), ("entailed", "on entailed pairs (")):
        pair = f"{short(random.loc[name, 'random units: mean'])} against {short(random.loc[name, 'pruned: mean'])}"
        assert f"{words} {pair}".replace("( ", "(") in paragraph
    early = finding("share of the core's heads kept at step 400,")
    interval = f"[{short(early['low'])}, {short(early['high'])}]"
    assert f"(49% of other heads; +{short(early['our_value'])} {interval})" in paragraph
    gone = pd.read_csv(LAPTOP / "core_own_mlps.csv")
    low, high = (f"{row.mlps_pruned} of {row.mlps}" for row in gone.itertuples())
    assert f"{low} and {high}" in paragraph


def test_real_pairs_are_those_of_their_tables():
    text = section("MiniLM on real pairs")
    spread = pd.read_csv(MINILM / "core_own_random.csv").set_index(["name", "target_sparsity"])
    inside = spread.loc["in domain"]
    pruned, random = (inside[f"{kind}: mean"].map("{:.0%}".format).tolist() for kind in ("pruned", "random units"))
    assert f"is right on {inside['full'].iloc[0]:.0%} in domain" in text
    outside = spread["full"].xs(0.3, level="target_sparsity").loc[["SO-Swap", "Prep", "Embed-If", "Embed-Verb"]]
    assert "{:.0%}, {:.0%}, {:.0%} and {:.0%} are right".format(*outside) in text
    assert f"it keeps {' and '.join(pruned)} in domain" in text and f"keep {' and '.join(random)}." in text
    core, within = (finding("heads in all", MINILM, row=row) for row in (0, 1))
    assert f"All eight pruned networks share {core['our_value']:.0f} of the 72 heads" in text and core["n"] == 8
    tests = f"(p = {short(core['p'], 4)}; with as many heads in every layer p = {short(within['p'], 3)})"
    assert f"where {by_chance(core)} would be expected by chance if they were independent {tests}" in text
    assert f"([{core['low']:.0f}, {core['high']:.0f}] is what as many others" in text
    kept = round(0.5 * (72 + 6)) - 6  # no MLP is pruned
    assert kept == 33 and f"the 33 heads of four such networks alone would share {72 * (kept / 72) ** 4:.1f}" in text
    rho = finding("Spearman", MINILM)
    assert f"by {short(rho['our_value'])} [{short(rho['low'])}, {short(rho['high'])}]" in text
    assert pd.read_csv(MINILM / "core_own_categories.csv").set_index("category")["in the core"]["repeated"] == 1
    assert (pd.read_csv(MINILM / "core_own_mlps.csv")["mlps_pruned"] == 0).all() and "No MLP is pruned" in text
    lost = 100 * pd.read_csv(MINILM / "core_own_table_3.csv").set_index("ablated").drop(columns="networks")
    core, others = (lost.loc[name] for name in ("all heads of the core", "as many others at once, mean"))
    others = f"four other heads nothing ({short(others['in_domain'], 1)} points; with five"
    assert f"costs {core['in_domain']:.0f} points there, {others}" in text
    assert f"*rises* by {-core['out_of_domain']:.0f} points" in text and f"({core['entailed']:.0f} points fewer" in text
    last = finding("accuracy lost out of domain without one head", MINILM)
    assert last["verdict"] == "does not hold" and "does not hold of a network" in text
    wide, sparser = (finding(f"{share}% sparsity: spread over seeds, out", MINILM) for share in (30, 50))
    ratios = f"{wide['our_value']:.0f} and {sparser['our_value']:.0f} times that in domain"
    assert f"{ratios}, but with four of them p = {short(wide['p'])})" in text and wide["verdict"] == "cannot be told"


def answer(question: str) -> tuple[str, str]:
    """The paper's answer and ours in the table of the README's results."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    row = re.search(rf"^\| {re.escape(question)}.*$", text, flags=re.MULTILINE)[0]
    return tuple(cell.strip() for cell in row.strip("| ").split(" | ")[1:])


def test_answers_at_a_glance_are_those_of_the_tables():
    effects = pd.read_csv(LAPTOP / "figure_4_values.csv").set_index("network")
    alone, without = effects.loc["subnetwork"], effects.loc["ablated"]
    assert answer("Do subnetworks solve") == (
        f"{(alone['paper'] > 0.05).sum()} of {len(alone)} (it has 20, of which we cover these)",
        f"**yes**: {(alone['ours'] > 0.05).sum()} of {len(alone)} by their means; "
        f"in {(alone['ours_low'] > 0).sum()} the interval over base models excludes 0",
    )
    paper, ours = without["paper"] < -0.05, without["ours"] < -0.05
    assert answer("Does the network lose") == (
        f"{paper.sum()} of {len(without)} by more than .05",
        f"**mostly**: {ours.sum()} of {len(without)} by more than .05, "
        f"among them {(paper & ours).sum()} of the paper's "
        f"{paper.sum()}; in {(ours & (without['ours_high'] < 0)).sum()} the interval excludes 0, "
        f"{(paper & ours & (without['ours_high'] < 0)).sum()} of these among the paper's {paper.sum()}",
    )
    starts = pd.read_csv(LAPTOP / "by_start.csv")
    side = starts["network"].map({"subnetwork": 1, "ablated": -1})
    for who, text in zip(("paper", "ours"), answer("Are the effects larger"), strict=True):
        larger = side * starts[f"{who}_pretrained"] > side * starts[f"{who}_scratch"]
        count = larger.groupby(starts["family"]).agg(["sum", "size"])
        language, vision = (f"{row['sum']} of {row['size']}" for _, row in count.iterrows())
        assert f"language {language}, vision {vision}" in text
    grown = side * (starts["ours_pretrained"] - starts["ours_scratch"])
    beyond = [[(one > 0.05).sum(), (one < -0.05).sum()] for _, one in grown.groupby(starts["family"])]
    counted = "language {} larger and {} smaller, vision {} and {}".format(*sum(beyond, []))
    assert f"by more than .05 {counted}" in answer("Are the effects larger")[1]
    overlap = pd.read_csv(LAPTOP / "overlap_claim.csv")
    assert (overlap["lower"] == overlap["layers"]).all() and (overlap["lower_corrected"] == overlap["layers"]).all()
    sums = overlap.groupby(overlap["paper_model"] == "bert_small")[["above_chance", "layers"]].sum()
    vision, language = (f"{row['above_chance']} of {row['layers']}" for _, row in sums.iterrows())
    text = f"in every layer of all {len(overlap)} models and tasks, corrected for chance too"
    assert answer("Is overlap larger")[1] == f"**yes**, {text}" and text in section("Overlap")
    assert f"in vision ({vision} layers), not in language ({language} layers," in section("Overlap")
    heads = pd.read_csv(LAPTOP / "division_of_heads.csv").set_index("task")
    for task, words in (("sv-agreement", " base models (mean correlation within layers "), ("anaphora", " (")):
        row = heads.loc[task]
        assert f" in {row['below']} of {row['n_bases']}{words}{short(row['correlation'])})" in section("Overlap")
        assert row["low"] < 0 < row["high"], "not settled"
    gaps = pd.read_csv(LAPTOP / "induction_gaps.csv").set_index("variant")
    assert f"by {with_interval(gaps.loc['text'])} more than a random one" in answer("Does a subnetwork teach")[1]
    ahead = pd.read_csv(LAPTOP / "shape_advantages.csv").set_index(["model", "measure", "baseline"])
    row = ahead.loc["resnet_4x16", "shape_bias", "random"]
    assert f"shape bias +{with_interval(row)} over a random one" in answer("And does it teach")[1]
    shapes = pd.read_csv(LAPTOP / "shape_table_1.csv").set_index(["model", "measure", "network"])["ours"]
    found, scratch = (short(shapes["resnet_4x16", "shape_accuracy", name]) for name in ("subnetwork", "scratch"))
    row = ahead.loc["resnet_4x16", "shape_accuracy", "scratch"]
    assert f"{found} right, from scratch {scratch} (+{with_interval(row)})" in answer("And does it teach")[1]
    needed = pd.read_csv(LAPTOP / "induction_samples_needed.csv").set_index(["layers", "condition"])["median"]
    assert needed[2, "random"] == needed[2, "subnetwork"] and needed[4, "random"] == 2 * needed[4, "subnetwork"]
    assert "a random one needs as much with 2 layers and twice as much with 4" in answer("Does a subnetwork teach")[1]
    wide, sparser = (finding(f"{share}% sparsity: spread over seeds, out of domain") for share in (20, 50))
    paper, ours = ([row[f"{who}_value"] for row in (wide, sparser)] for who in ("paper", "our"))
    assert answer("Do pruned networks") == (
        f"spread over seeds {paper[0]:.0f} times that in domain, at 70% sparsity {paper[1]:.1f} times",
        f"**yes**: {ours[0]:.0f} times (p = {short(wide['p'], 4)}), without one of the twelve networks 3 times; "
        f"at higher sparsity {ours[1]:.0f} times, 4 to 7 whichever one is left out",
    )
    assert (round(wide["least"]), round(sparser["least"]), round(sparser["most"])) == (3, 4, 7)
    core = finding("heads in all")
    ours = f"{core['our_value']:.0f} of 32, other seeds {core['low']:.0f} to {core['high']:.0f} "
    ours += f"(by chance {by_chance(core)})"
    real = finding("heads in all", MINILM)
    ours += f"; in MiniLM on real pairs {real['our_value']:.0f} of 72, with four seeds not settled"
    assert answer("Do they all share") == (f"{core['paper_value']:.0f} of 144", f"**yes**: {ours}")


def test_verdicts_are_counted_as_the_tables_have_them():
    scratch, pretrained = (pd.read_csv(LAPTOP / f"{name}_values.csv") for name in ("figure_4", "pretrained"))
    agree = scratch[scratch["verdict"] == "agrees"]
    text = section("Subnetworks, and networks")
    assert (
        f"{len(agree)} of {len(scratch)} effects (the paper has 40 in Figures 4 and 6) agree with the paper's" in text
    )
    settled = agree.groupby("network")["decisive"].sum()
    counted = f"in {settled['subnetwork']} of subnetworks and in {settled['ablated']} of ablated networks"
    assert f"In {settled.sum()} of them the interval is narrow enough to settle it, {counted}" in text
    masks = pd.read_csv(LAPTOP / "subnetworks.csv")
    learned = (masks["task"] != "inside-contact") | masks["base_model"].isin(list(LEARNED))
    failed = masks[(masks["own_task_accuracy"] < 0.9) & learned]
    assert len(failed) == 6 + 3 and set(failed["subroutine"]) == {"number", "antecedent"}
    for _, accuracy in failed.groupby("subroutine")["own_task_accuracy"]:
        assert f"({short(accuracy.min() + 1e-9)} to {short(accuracy.max() + 1e-9)})" in text
    alone = scratch[scratch["network"] == "subnetwork"]
    counted = f"{alone['failed'].sum()} of the {alone['n_runs'].sum()} masks in Figures 4 and 6"
    assert f"(By test accuracy it is {counted}, inside of inside-number and the plural antecedent among them" in text
    assert set(alone.loc[alone["failed"] > 0, "subroutine"]) == {"number", "antecedent", "inside"}
    assert (scratch["verdict"] == scratch["verdict_without_failed"]).all()
    assert set(scratch.loc[scratch["task"] == "inside-contact", "n_bases"]) == {len(LEARNED)}
    assert "Five of the eight base models of inside-contact did not learn contact" in text
    open_none = agree[~agree["decisive"] & (agree["paper"].abs() <= 0.05)]
    assert f"Two of the other {(~agree['decisive']).sum()} count as agreement only because" in text
    assert len(open_none) == 2
    assert f"So {len(agree) - len(open_none)} agree" in text
    others = scratch[scratch["verdict"] == "differs"]
    assert len(others) == 4 and "Four differ, all of them ablations:" in text and set(others["network"]) == {"ablated"}
    for row in (*open_none.itertuples(), *others.itertuples()):
        assert short(row.paper) in text and short(row.ours) in text
    agree = pretrained[pretrained["verdict"] == "agrees"]
    counted = f"{len(agree)} agree with the paper's by the same rule, {agree['decisive'].sum()} of them decisively"
    text = section("Pretraining")
    assert f"Of the {len(pretrained)} effects after pretraining {counted}" in text
    others = pretrained[pretrained["verdict"] == "differs"]
    assert f"the other {len(others)} are those of anaphora" in text and set(others["task"]) == {"anaphora"}


def test_effects_that_grow_by_pretraining_are_counted_as_the_table_has_them():
    table = pd.read_csv(LAPTOP / "by_start.csv")
    ours, paper = (larger(table, who)["larger"] for who in ("ours", "paper"))
    text = section("Pretraining")
    agreement, anaphora = (table["task"] == task for task in ("sv-agreement", "anaphora"))
    vision = table["family"] == "resnet50"
    assert f"In subject-verb agreement {ours[agreement].sum()} of {agreement.sum()} effects are larger" in text
    assert f"in the paper {paper[agreement].sum()} of 8. In anaphora {ours[anaphora].sum()} of 8 are" in text
    assert f"(paper {paper[anaphora].sum()} of 8)" in text
    assert f"After SimCLR {ours[vision].sum()} of {vision.sum()} effects in vision are larger" in text
    assert f"(paper {paper[vision].sum()} of 12)" in text


def earlier(commit: str, name: str) -> pd.DataFrame:
    """A table of the laptop profile as it was in an earlier commit, which a shallow clone has not."""
    command = ["git", "show", f"{commit}:figures/laptop/{name}.csv"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if shown.returncode:
        pytest.skip(f"no commit {commit} here")
    return pd.read_csv(io.StringIO(shown.stdout))


def of_two_runs(first: str, second: str, name: str) -> pd.DataFrame:
    """The effects of the first run beside those of the second one, by the commits that have them."""
    about = ["model", "task", "number", "subroutine", "network"]
    one, other = earlier(first, name), earlier(second, name)
    both = one.merge(other, on=about, suffixes=("", "_again"), validate="one_to_one")
    assert len(both) == len(other)
    return both


def test_two_runs_are_compared_as_their_tables_say():
    text = section("How far these")
    names = {"figure_4_values": "0f4a2fa", "random_values": "0f4a2fa", "pretrained_values": "8e20cf1"}
    scratch, untrained, pretrained = (of_two_runs(commit, "a0a4100", name) for name, commit in names.items())
    runs = {"from scratch": scratch, "over untrained networks": untrained, "after pretraining": pretrained}
    for name, both in runs.items():
        apart, same = (both["ours"] - both["ours_again"]).abs(), (both["verdict"] == both["verdict_again"]).sum()
        numbers = " | ".join(map(short, (both["ours"].corr(both["ours_again"]), apart.mean(), apart.max())))
        assert f"| {name} | {numbers} | {same} of {len(both)} |" in text
    changed = scratch[scratch["verdict"] != scratch["verdict_again"]]
    changed = changed["subroutine"] + " in " + changed["task"]
    assert set(changed) == {"number in inside-number", "contact in inside-contact"}
    assert "that changed from scratch are those of number in inside-number and contact in inside-contact" in text
    settled = pretrained[pretrained["decisive"] & pretrained["decisive_again"]]
    opposite = settled[settled["verdict"] != settled["verdict_again"]]
    assert len(opposite) == 5 and "five verdicts of anaphora, settled by their intervals in both runs" in text
    assert set(opposite["task"]) == {"anaphora"}
    before = larger(earlier("8e20cf1", "by_start"), "ours")
    assert f"the counts of larger effects were {counted(before)}" in text


def larger(table: pd.DataFrame, who: str) -> pd.DataFrame:
    """Which effects are larger after pretraining: further in the direction that the paper claims."""
    sign = table["network"].map({"subnetwork": 1, "ablated": -1})
    return table.assign(larger=sign * table[f"{who}_pretrained"] > sign * table[f"{who}_scratch"])


def counted(table: pd.DataFrame) -> str:
    """How many effects are larger: 11 of 16 (language) and 4 of 12 (vision)."""
    found = [table.loc[table["family"] == family, "larger"] for family in ("bert_small", "resnet50")]
    return " and ".join(f"{one.sum()} of {len(one)}" for one in found)


def test_ablations_by_size_are_those_of_their_tables():
    text, values = section("Subnetworks of other sizes"), pd.read_csv(LAPTOP / "by_size_values.csv")
    changed = pd.read_csv(LAPTOP / "by_size_changes.csv").set_index(["factor", "accuracy"])
    weighted = values.assign(**{c: values[c] * values["n_bases"] for c in ("density", "own_task", "target", "other")})
    sums = weighted.groupby("factor")[["density", "target", "solved", "spared", "n_bases"]].sum()
    means = sums.div(sums["n_bases"], axis=0)
    small, usual = means.loc[10], means.loc[1]
    targets = short(small["target"]), short(usual["target"])
    assert f"{small['density']:.0%} of the masked weights on average, with λ itself {usual['density']:.0%}" in text
    assert f"right on {targets[0]} of the target, without the larger one on {targets[1]}" in text
    told = {name: signed(changed.loc[(10, name)]) for name in ("target", "other")}
    assert f"{told['target']} over 24 base models, while the other subroutine hardly changes ({told['other']})" in text
    assert (changed["n_bases"] == 24).all() and (changed["n_masks"] == 48).all() and (sums["n_bases"] == 48).all()
    assert f"Three times λ gives {signed(changed.loc[(3, 'target')])}" in text
    assert (changed.loc[0.1].loc[["target", "other"], "high"] < 0).all()
    spared, solved = (sums[name].astype(int) for name in ("spared", "solved"))
    assert f"and {solved[10]} and {solved[1]} of 48 solve their own task" in text
    assert f"In {spared[10]} of 48 cases, with λ itself in {spared[1]}, the subnetwork *and*" in text
    smallest = values[values["factor"] == 10]
    verb = smallest[(smallest["subroutine"] == "verb") & (smallest["number"] == "singular")].iloc[0]
    assert f"without {verb['density']:.0%} of the weights the verb of singular" in text
    contact = smallest[(smallest["model"] == "resnet_4x16") & (smallest["task"] == "number-contact")]
    contact = contact[contact["subroutine"] == "contact"].iloc[0]
    assert f"in only {short(verb['target'])}, contact in" in text
    assert f"without {contact['density']:.0%} in {short(contact['target'])} (" in text
    sizes = pd.read_csv(LAPTOP / "subnetwork_sizes.csv")["paper"]
    assert f"have {short(100 * sizes.min(), 1)}% to {sizes.max():.0%} of the masked weights)" in text
    front = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"({small['density']:.0%} of the weights and not {usual['density']:.0%}) it is missed less" in front
    ours = f"the target {targets[0]} right without it and not {targets[1]} ({told['target']})"
    assert f"{ours}; in {spared[10]} of 48 cases (with λ itself {spared[1]}) it solves" in front


def signed(row: pd.Series) -> str:
    """+.19 [.12, .27]."""
    return f"{row['change']:+.2f} [{short(row['low'])}, {short(row['high'])}]".replace("0.", ".", 1)


def test_the_controls_are_judged_as_their_table_says():
    table = pd.read_csv(LAPTOP / "table_12.csv")
    verdicts = pd.concat([table["coefficient_verdict"], table["chi2_verdict"]]).value_counts()
    judged, agreeing = verdicts["agrees"] + verdicts["differs"], verdicts["agrees"]
    text = section("Masks over untrained")
    assert f"of the {judged} tests that can be judged, language and vision together, {agreeing} have" in text
    language = table[table["model"] == "bert_small"]
    assert (language[["coefficient_verdict", "chi2_verdict"]] == "agrees").all(axis=None) and len(language) == 4
    assert "All eight tests of Table 12 come out as the paper's do." in text
    values = pd.read_csv(LAPTOP / "random_values.csv").set_index("network")
    values = values[values["model"] == "bert_small"]
    alone, without = values.loc["subnetwork"], values.loc["ablated"]
    assert len(alone) == 8 and (alone["ours_low"] > 0).all() and (without["ours_low"] > 0).all()
    assert alone["failed"].sum() == 0 and language["random_own_task"].min() >= 0.98
    low, high = (short(one + 1e-9) for one in (alone["ours"].min(), alone["ours"].max()))
    assert f"(an effect of {low} to {high})" in text
    low, high = (short(one + 1e-9) for one in (without["ours"].min(), without["ours"].max()))
    assert f"by {low} to {high} (in the paper" in text
    theirs = without["paper"].sort_values()
    assert (
        f"by {short(theirs.iloc[2])} to {short(theirs.max())} in six cases and by {short(theirs.min())} in two" in text
    )
    assert short(theirs.iloc[1]) == short(theirs.min())
    assert "**language: as in the paper**, in all 8 cases" in answer("Would masks over untrained")[1]
    values = pd.read_csv(LAPTOP / "random_values.csv").query("task == 'number-contact' and network == 'subnetwork'")
    contact = values[values["subroutine"] == "contact"]
    ours, paper = (" and ".join(contact[column].map(short)) for column in ("ours", "paper"))
    assert f"but for contact in number-contact ({ours}, in the paper {paper})" in text


def test_means_in_place_of_zeros_cost_what_their_table_says():
    table = pd.read_csv(LAPTOP / "other_ablations_values.csv").query("ablation == 'mean'")
    text = section("Other ablations")
    language = table[table["model"].str.startswith("bert")]["difference"]
    assert f"next to nothing is lost in language ({short(language.min())} to {short(language.max())})" in text
    vision = table[table["task"] == "number-contact"]["difference"].sort_values()
    assert f"contact of the smaller ResNet ({short(vision.iloc[0])}; the others" in text
    assert f"the others {short(vision.iloc[-1])} to {short(vision.iloc[1])})" in text
    found = pd.read_csv(LAPTOP / "other_ablations_values.csv").query("task.str.startswith('inside')")
    found = found.set_index(["task", "subroutine", "ablation"]).sort_index()
    contact, number = (found["difference"].loc[key].map(short) for key in (
        ("inside-contact", "contact"), ("inside-number", "number")))  # fmt: skip
    lost = f"{contact['mean'].lstrip('-')} by the means (zeros {contact['zeros'].lstrip('-')})"
    assert f"contact in inside-contact loses {lost}, and number in inside-number {number['mean'].lstrip('-')}" in text
    assert f"where zeros cost the other subroutine more ({number['zeros']};" in text
    inside = found["difference"].loc[("inside-contact", "inside")].map(short)
    assert f"nor of inside in inside-contact ({inside['mean']}, by zeros {inside['zeros']})" in text


def test_permutation_tests_are_those_of_the_tables():
    tests, masks = (pd.read_csv(LAPTOP / f"permutation_tests{of}.csv") for of in ("", "_of_masks"))
    tests, masks = tests[tests["kind"] == "random"], masks[masks["kind"] == "random"]
    lowest = tests[tests["p"] <= 1 / 40 + 1e-9]
    text = section("Random subnetworks")
    assert f"for {len(lowest)} of {len(tests)} tasks and subroutines (one-sided p = .025" in text
    others = tests.drop(lowest.index).set_index(["task", "subroutine"])["p"]
    assert set(others.index) == {
        ("inside-number", "inside"),
        ("inside-number", "number"),
    }
    inside, number = (short(others[key]) for key in sorted(others.index))
    assert f"not for inside and number in inside-number (p = {inside} and p = {number})" in text
    every = pd.read_csv(LAPTOP / "permutation_tests.csv")
    corrected = f"{short(lowest['p_bh'].max(), 3)} by Benjamini and Hochberg, {short(lowest['p_holm'].max())} by Holm"
    assert f"over all {len(every)} tests {corrected}" in text
    contact = every[every["task"].eq("inside-contact") & every["subroutine"].eq("contact")].set_index("kind")
    assert f"its mean is {short(contact['observed']['random'])}" in text
    outside = contact.loc["complement"]
    assert outside["n_masks"] == 2 and f"it fails (p = {short(outside['p'])})" in text
    learned = masks[(masks["task"] != "inside-contact") | masks["base_model"].isin(list(LEARNED))]
    said = f"Of the {len(learned)} masks of these base models by themselves {(learned['p'] <= 0.05).sum()} stand out"
    assert said in text
    language = learned[learned["model"].str.startswith("bert")]
    same = (language["null_mean"] == 0) & (language["null_sd"] == 0)
    assert (
        f"For {same.sum()} of the {len(language)} masks in language every random ablation leaves the difference at"
        in text
    )


def test_parts_and_what_they_make_together_are_those_of_the_table():
    text = section("Parts by themselves")
    table = pd.read_csv(LAPTOP / "assembled_values.csv").fillna({"number": ""})
    about = ["model", "task", "number"]
    whole = table.pivot_table(index=about, columns="part", values="whole_task", sort=False)
    random = table[table["part"].str.startswith("random like")]
    low, high = random["density"].min(), random["density"].max()
    assert f"({low:.0%} to {high:.0%} of those masked)" in text
    low, high = random["whole_task"].min(), random["whole_task"].max()
    solved = random["whole_task"] >= 0.9
    counted = f"in {solved.sum()} of {len(solved)} cases"
    assert f"they reach {short(low)} to {short(high)} of it on average, {counted} at least .90" in text
    ours = answer("Do as many weights")[1]
    assert f"{counted} they solve the *whole* task (.90 and more, in the others at least {short(low)})" in ours
    apart = (random["test_a"] - random["test_b"]).abs().max()
    assert f"(their means differ by {short(apart)} at most)" in text
    together = whole["both together"]
    assert f"Both together reach {short(together.min())} to {short(together.max())}" in text
    lost = (whole["whole network"] - together).dropna()
    assert {key[1:] for key in lost[lost < 0.01].index} == {("sv-agreement", "plural"), ("anaphora", "plural")}
    rest = lost[lost >= 0.01]
    assert f"in the others {short(rest.min())} to {short(rest.max())} less" in text
    assert together.isna().sum() == 1 and together.isna().idxmax()[:2] == ("resnet_4x16", "number-contact")
    ones = table[(table["part"] == "both together") & (table["n_bases"] == 1)]
    assert list(ones["task"]) == ["inside-number"] and (table["n_bases"] <= 3).all()
    pronoun = whole["B alone"].xs("anaphora", level="task")
    assert f"solves {short(pronoun.min())} and {short(pronoun.max())} of the whole task" in text
    shared = table[table["part"] == "what both share"]
    sizes = f"{shared['density'].min():.0%} to {shared['density'].max():.0%} of the weights"
    assert f"the {sizes} that both share still solve {short(shared['whole_task'].min())} to" in text
    assert f"to {short(shared['whole_task'].max())}:" in text


def test_the_arithmetic_is_that_of_the_tables():
    text = section("Arithmetic")
    accuracies = pd.read_csv(LAPTOP / "induction_accuracies.csv")
    main = accuracies[(accuracies["source"] == "a+ab") & (accuracies["target"] == "a^2+ab")]
    mean = main.groupby("condition")["mean"].mean().map(short)
    assert f"with a mean test accuracy of {mean['subnetwork']} over 50 to 1600 rows" in text
    assert f"one trained from scratch {mean['scratch']}." in text and set(main["samples"]) >= {50, 1600}
    assert f"alone they reach {mean['embed_only']} already, a random subnetwork {mean['random']}:" in text
    gaps = pd.read_csv(LAPTOP / "induction_gaps.csv").set_index("variant")
    assert "+" + with_interval(gaps.loc["text"]).replace("[", "(95% interval [") in text
    assert f"({with_interval(gaps.loc['strict'])})" in text
    few = main[main["samples"] <= 200].groupby("condition")["mean"].mean()
    along, gain = few["embed_only"] - few["scratch"], few["subnetwork"] - few["scratch"]
    assert f"(of the {short(gain)}, what comes along gives {short(along)} by itself)" in text
    behind = pd.read_csv(LAPTOP / "induction_gaps_by_samples.csv").query("control == 'full' and layers == 'all'")
    behind = behind[(behind["subtask"] == "ab") & (behind["target"] == "a^2+ab")].set_index("samples")
    assert f"with 100 rows the difference is {with_interval(behind.loc[100])}, with other numbers" in text
    assert f"no more than {short(behind['advantage'].drop(100).abs().max())} either way" in text
    assert (behind["low"] < 0).all() and (behind["high"] > 0).all(), "not settled"
    needed = pd.read_csv(LAPTOP / "induction_samples_needed.csv").set_index(["condition", "layers"])["median"]
    assert needed["subnetwork"].tolist() == [1600, 800] and needed["full"].tolist() == [float("inf"), 1600]
    assert "(1600 with 2 layers and 800 with 4, the whole network more than 1600 and 1600;" in text
    sizes = pd.read_csv(LAPTOP / "induction_table_3.csv").query("subtask == 'ab'")["ours"]
    assert f"{100 * sizes.min():.0f} to {100 * sizes.max():.0f}% of the attention and MLP matrices" in text
    each = pd.read_csv(LAPTOP / "induction_gaps_by_samples.csv").query("control == 'random'")
    each = each.set_index(["subtask", "target", "samples"]).sort_index()
    moved, others = (
        [with_interval(each.loc[(*about, samples)]) for samples in (200, 800)]
        for about in (("ab", "a^3+ab"), ("a^2", "a^2+ab"))
    )
    assert f"by {moved[0]} with 200 rows and by {moved[1].replace('-.00', '.00')} with 800" in text
    assert f"no advantage that shows ({others[0]} and {others[1]};" in text
    ablations = pd.read_csv(LAPTOP / "induction_ablations.csv").query("subtask == 'ab'")
    two, four = (ablations["whole_network"] - ablations["ablated"]) / ablations["whole_network"]
    assert f"costs {two:.0%} and {four:.0%} of the accuracy" in text
    for column in ("ablated", "random_ablated"):
        assert " and ".join(ablations[column].map(short)) in text


def test_the_shape_bias_is_that_of_the_tables():
    text = section("Shape and texture")
    table = pd.read_csv(LAPTOP / "shape_table_1.csv").query("model == 'resnet_4x16'")
    values = table.set_index(["network", "measure"])["ours"]
    bias = values.xs("shape_bias", level="measure").map(short)
    assert f"(shape bias {bias['base']})" in text and f"it raises the shape bias to {bias['subnetwork']}." in text
    controls = f"give {bias['embed_only']}, a random subnetwork {bias['random']} and training from scratch"
    assert f"{controls} {bias['scratch']}," in text
    pooled = values.xs("pooled", level="measure")
    assert (
        f"gets {pooled['mask']:.0%} of mean-pooled images right, where the whole network gets {pooled['base']:.0%}"
        in text
    )
    assert f"({short(pooled['mixture'])} against {short(pooled['subnetwork'])})" in text
    by_shape = values.xs("shape_accuracy", level="measure").map(short)
    alike = f"({bias['mixture']} and {bias['subnetwork']}, and by accuracy on shape {by_shape['mixture']} and"
    assert f"{alike} {by_shape['subnetwork']})" in text
    paper = table.set_index(["network", "measure"])["paper"].xs("shape_accuracy", level="measure").map(short)
    assert f"({paper['mixture']} against {paper['subnetwork']} by accuracy on shape)" in text
    ahead = pd.read_csv(LAPTOP / "shape_advantages.csv").set_index(["model", "measure", "baseline"]).loc["resnet_4x16"]
    assert f"(+{with_interval(ahead.loc['shape_bias', 'random'])} over the random one, " in text
    assert f"{with_interval(ahead.loc['shape_bias', 'embed_only'])} over what comes along" in text
    assert f"(+{with_interval(ahead.loc['pooled', 'random'])})" in text
    assert f"(+{with_interval(ahead.loc['pooled', 'embed_only'])})" in text
    assert f"over training from scratch (+{with_interval(ahead.loc['shape_bias', 'scratch'])})" in text


@pytest.mark.parametrize("page", ["README.md", "figures/README.md", "params/README.md"])
def test_what_a_page_links_is_there(page):
    path = ROOT / page
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text(encoding="utf-8"))
    local = [link for link in links if not link.startswith("https://")]
    assert len(local) > 5 and not [link for link in local if not (path.parent / link).exists()]


def test_notebooks_link_sections_that_are_there():
    headings = re.findall(
        r"^#+ (.*)$", (ROOT / "figures" / "README.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    anchors = {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}
    linked = {
        path.stem: re.findall(r"\(\.\./figures/README\.md#([\w-]+)\)", path.read_text(encoding="utf-8"))
        for path in sorted((ROOT / "notebooks").glob("0*.ipynb"))
    }
    assert all(len(found) == 1 and found[0] in anchors for found in linked.values()) and len(linked) == 9
