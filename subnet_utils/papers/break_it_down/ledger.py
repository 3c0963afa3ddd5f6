"""The discrepancy ledger: where the printed method of *Break It Down*, the authors' run and ours differ.

Each entry says what the three do. Where a number can be computed both ways, the ledger has it both ways, from this
study's own networks: that is what the difference is worth. Facts about the authors' run were read off their public
material; numbers that are theirs have a column of their own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import nan

import pandas as pd
from scipy import stats

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import make_all
from subnet_utils.masks import overlap
from subnet_utils.papers.break_it_down import reference, tables
from subnet_utils.papers.break_it_down.masks import FinalMask
from subnet_utils.papers.break_it_down.measurements import Effect
from subnet_utils.papers.break_it_down.networks import Trained, bases
from subnet_utils.papers.break_it_down.tasks.odd_one_out import subroutines_of

COLLAPSED = 0.1
"""Median logit margin below which a right answer rides on little; the largest possible one is 4."""


@dataclass(frozen=True)
class Entry:
    """One discrepancy. printed, run, ours: what the paper says, what the authors' run did, what we do by default."""

    notebook: str
    topic: str
    printed: str
    run: str
    ours: str
    quantity: str = ""
    theirs: float = nan
    """The quantity in the authors' run."""
    measure: Callable[[Lab], tuple[float, float]] | None = None
    """(as printed or as run, ours) of the quantity, both computed here."""


def ledger(lab: Lab, notebook: str | None = None) -> pd.DataFrame:
    """The entries, of one notebook or all, with a number of the authors' run where one is known (`authors_run`) and
    with numbers computed here, their way (`as_printed`) and ours (`ours_value`).

    What has no number in a study, such as the temperature of a vision head in one without vision, is left empty there.
    """
    rows = []
    for entry in ENTRIES:
        if notebook in (None, entry.notebook):
            as_printed, ours = entry.measure(lab) if entry.measure else (nan, nan)
            numbers = {"quantity": entry.quantity, "authors_run": entry.theirs}
            numbers |= {"as_printed": as_printed, "ours_value": ours}
            texts = {name: getattr(entry, name) for name in ("notebook", "topic", "printed", "run", "ours")}
            rows.append(texts | numbers)
    return pd.DataFrame(rows)


def _head_temperature(lab: Lab) -> tuple[float, float]:
    """Share of the head's weights kept by the first vision base's masks, its temperature fixed and annealed."""
    ways = both_temperatures(tables.used_masks(lab))
    make_all(lab, [mask for masks in ways for mask in masks], "masks with and without the head's temperature")
    return tuple(_mean(_head_share(lab, mask) for mask in masks) for masks in ways)


def both_temperatures(masks: Sequence[FinalMask]) -> list[list[FinalMask]]:
    """Of some masks those of the first vision base and seed, with the head's temperature fixed and annealed."""
    vision = [mask for mask in masks if mask.base.modality == "vision"]
    first = [mask for mask in vision if (mask.base, mask.seed) == (vision[0].base, vision[0].seed)]
    return [[mask.but(settings=replace(mask.settings, as_printed=fixed)) for mask in first] for fixed in (True, False)]


def _head_share(lab: Lab, mask: FinalMask) -> float:
    if mask.fault(lab):
        return nan
    kept = mask.load(lab).masks
    return _mean(float(entries.float().mean()) for name, entries in kept.items() if ".head." in name)


def _pooler(lab: Lab) -> tuple[float, float]:
    """Share of the masked weights kept by language masks, with the unused pooler counted and without it."""
    masks = [mask for mask in tables.used_masks(lab) if mask.base.modality == "language"]
    kept = [mask.load(lab) for mask in masks]
    without = [{name: m for name, m in one.masks.items() if ".pooler." not in name} for one in kept]
    shares = [sum(int(m.sum()) for m in ms.values()) / sum(m.numel() for m in ms.values()) for ms in without if ms]
    return _mean(one.density for one in kept), _mean(shares)


def _iou(lab: Lab) -> tuple[float, float]:
    """Mean over bases of the overlap of one subroutine's masks, as in Tables 13 and 14 and as their heading says."""
    groups: dict[tuple, list] = {}
    for mask in tables.used_masks(lab):
        groups.setdefault((mask.base, mask.subroutine), []).append(mask.load(lab))
    several = [group for group in groups.values() if len(group) > 1]
    ways = (overlap.as_printed, overlap.iou)
    return tuple(_mean(measure(group)[overlap.OVERALL] for group in several) for measure in ways)


def _collapse(lab: Lab) -> tuple[float, float]:
    """Share of our ResNet subnetworks that are right with hardly a margin."""
    rows = [
        row
        for mask in tables.used_masks(lab)
        if mask.base.experiment.paper_model == "resnet50"
        for row in Effect.of(mask).result(lab)
        if row["network"] == "subnetwork" and row["own_task_accuracy"] > 0.9
    ]
    return nan, _mean(float(row["own_task_margin"] < COLLAPSED) for row in rows)


def _leak(lab: Lab) -> tuple[float, float]:
    """Share of the test sentences of mask and probe sets that the base was trained on, by either way of sampling."""
    language = [base for base in bases(lab) if base.modality == "language"]
    if not language:
        return nan, nan
    return tuple(_shared(language[0], as_printed) for as_printed in (True, False))


def _shared(base: Trained, as_printed: bool) -> float:
    def sentences(set_name: str, split: str) -> set[str]:
        return set(replace(base.data(set_name, split), as_printed=as_printed).readable().sentences)

    subroutine = subroutines_of(base.task)[0]
    others = sentences(f"mask-{subroutine}", "test") | sentences(f"probe-{subroutine}", "test")
    return len(others & sentences("base", "train")) / len(others)


def _few_clusters(lab: Lab) -> tuple[float, float]:
    """p of the paper's own z for ResNet50, inside-contact, contact subnetwork, from two base models."""
    table = reference.load("table1")
    rows = table.set_index(["model", "task", "subroutine"])
    z = float(rows.loc[("resnet50", "inside-contact", "contact"), "intercept_z"])
    return 2 * float(stats.norm.sf(z)), 2 * float(stats.t.sf(z, 1))


def _untrained(lab: Lab) -> tuple[float, float]:
    """Distinct untrained networks behind the random control of one model and task."""
    section = lab.study.break_it_down
    return nan, 3 if section.controls.as_printed else len(section.experiments[0].base.seeds)


def _mean(values) -> float:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else nan


ENTRIES = (
    Entry(
        "03_ablations", "few base models",
        "z tests with cluster-robust errors (appendix A.1)", "the same, from 2 to 6 clusters",
        "the same, and t tests, a wild cluster bootstrap and exact permutations beside them",
        "p of the paper's z = 3.00 (inside-contact, contact): normal; t with one degree of freedom",
        measure=_few_clusters,
    ),
    Entry(
        "03_ablations", "small margins",
        "accuracies alone", "|cross-entropy - ln 4| < .01 at over 90% accuracy in 41% of the ResNet50 subnetworks",
        "margins beside accuracies; always evaluated in float32",
        f"share of ResNet50 subnetworks above 90%: theirs within .01 of ln 4; ours with a margin below {COLLAPSED}",
        0.41, _collapse,
    ),
    Entry(
        "03_ablations", "sentences in several splits",
        "train, validation and test sets", "mask and probe sets are sampled without regard to the base's sentences",
        "no sentence in two splits; data.as_printed for the authors' way",
        "share of mask and probe test sentences that the base was trained on", measure=_leak,
    ),
    Entry(
        "03_ablations", "dot product", "logits from dot products of embeddings (section 5)",
        "embeddings are normalized first, so it is the cosine", "the cosine",
    ),
    Entry(
        "03_ablations", "lambda", "1e-8 (appendix B)", "1e-8, times a sum over all masked weights",
        "1e-8 at the profile paper; 1e-6 for networks with a thirtieth to a hundredth of the weights, but 1e-8 for "
        "their untrained controls in language, whose masks come out empty otherwise",
    ),
    Entry(
        "03_ablations", "contact in inside-number", "two subroutines, inside and number",
        "nested shapes touch in 41% of the images", "shapes never touch in this rule",
        "share of images in which nested shapes touch (theirs counted on their images; ours excluded by construction)",
        0.41, lambda lab: (nan, 0.0),
    ),
    Entry(
        "03_ablations", "bases below 90%", "left out (section 3)",
        "left out of Table 1; the effects behind the figures keep them",
        "left out of means, intervals and tests, and drawn gray; the paper's means beside them are the published ones",
    ),
    Entry(
        "03_ablations", "masks that fail their own task", "must reach 90% on it (appendix C)",
        "score 0, which beats any mask whose ablation helps the target; measured and tested like the others",
        "as released; `subnetworks` has their accuracies",
    ),
    Entry(
        "03_ablations", "vocabulary of BERT from scratch", "BERT-small (section 5)", "WordPiece with 30,522 tokens",
        "a word-level vocabulary of the grammar, unless `pretrained` names weights with a WordPiece of their own",
    ),
    Entry(
        "03_ablations", "numbering of base models", "Tables 5 to 11 list models 1 to 3",
        "the list of selected masks numbers them differently", "compared by mean over base models only",
    ),
    Entry(
        "03_ablations", "the head's temperature",
        "beta rises to 200 for all masks (appendix B)", "the MLP head's stays 1; its mask is thresholded all the same",
        "annealed as the rest; masks.as_printed for the authors' way",
        "share of the head's weights kept, first vision base", measure=_head_temperature,
    ),
    Entry(
        "03_ablations", "BERT's pooler",
        "counted among the masked weights (Tables 8 to 11)", "never used: it gets the gradient of the penalty alone",
        "the same; the density without it is given here", "share of masked weights kept: with and without the pooler",
        measure=_pooler,
    ),
    Entry(
        "04_random_controls", "untrained networks",
        "randomly initialized models in place of the trained ones (appendix I)",
        "the same three under every base model: nine rows come from three networks",
        "an untrained network for every base model; controls.as_printed for the authors' way",
        "distinct untrained networks of the first model and task", 3, _untrained,
    ),
    Entry(
        "04_random_controls", "weights of untrained networks", "randomly initialized (appendix I)",
        "transformers draws with a deviation of .02 whatever the width; BERT-small's is 512",
        "the same at the profile paper; .04 at width 128, which passes on as much (`control_deviation`)",
    ),
    Entry(
        "04_random_controls", "which bases are in Table 12",
        "not said", "by the spread of their published effects, the z of inside-contact, contact, comes from two bases: "
        "the third, below 90%, was left out as in Table 1",
        "bases below 90% are left out, with the untrained networks that belong to them",
    ),
    Entry(
        "05_pretraining", "views of SimCLR",
        "random augmentations (appendix G)", "a rule-following image and its rule-breaking one share a draw, and the "
        "former is always the third of its example",
        "a draw for every view, and any of the three",
    ),
    Entry(
        "05_pretraining", "pretrained language models",
        "BERT-small's published weights", "the same",
        "the same at the profile paper; at the small ones a masked language model of the templates' own sentences",
    ),
    Entry(
        "06_overlap", "IoU of Tables 13 and 14",
        "intersection over union of three masks", "|m1 & m2 & m3| / |m3|: the union was computed as an intersection",
        "intersection over union; as printed beside it", "mean overlap of one subroutine's masks",
        measure=_iou,
    ),
)  # fmt: skip
"""All known discrepancies, by the notebook that they concern."""
