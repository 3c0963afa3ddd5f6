"""The discrepancy ledger: where the printed method of *Break It Down*, the authors' run and ours differ.

Each entry says what the three do. Where a number can be computed both ways, the ledger has it both ways, from this
study's own networks: that is what the difference is worth. Facts about the authors' run were read off their public
material; numbers that are theirs have a column of their own. The texts are a table, `reference/ledger.csv`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import nan

import pandas as pd
from scipy import stats

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import make_all
from subnet_utils.masks import overlap
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.papers.break_it_down import reference, tables
from subnet_utils.papers.break_it_down.masks import FinalMask
from subnet_utils.papers.break_it_down.networks import bases
from subnet_utils.papers.break_it_down.statistics import KEYS
from subnet_utils.statistics import LEARNED
from subnet_utils.tasks.odd_one_out import subroutines_of


def ledger(lab: Lab, notebook: str | None = None) -> pd.DataFrame:
    """The entries, of one notebook or all, with a number of the authors' run where one is known (`authors_run`) and
    with numbers computed here, their way (`as_printed`) and ours (`ours_value`).

    What has no number in a study, such as the temperature of a vision head in one without vision, is left empty there.
    """
    entries = reference.load("ledger")
    if notebook is not None:
        entries = entries[entries["notebook"] == notebook]
    numbers = [MEASURES[topic](lab) if topic in MEASURES else (nan, nan) for topic in entries["topic"]]
    table = entries.assign(authors_run=pd.to_numeric(entries["authors_run"])).reset_index(drop=True)
    return table.join(pd.DataFrame(numbers, columns=["as_printed", "ours_value"], dtype=float))


def _head_temperature(lab: Lab) -> tuple[float, float]:
    """Share of the head's weights kept by the first vision base's masks, its temperature fixed and annealed."""
    ways, shares = both_temperatures(tables.used_masks(lab)), []
    make_all(lab, [mask for masks in ways for mask in masks], "masks with and without the head's temperature")
    for masks in ways:
        kept = [mask.load(lab).masks for mask in masks if not mask.fault(lab)]
        heads = [[float(m.float().mean()) for name, m in one.items() if ".head." in name] for one in kept]
        shares.append(_mean(_mean(own) for own in heads))
    return tuple(shares)


def both_temperatures(masks: Sequence[FinalMask]) -> list[list[FinalMask]]:
    """Of some masks those of the first vision base and seed, with the head's temperature fixed and annealed."""
    vision = [mask for mask in masks if mask.base.modality == "vision"]
    first = [mask for mask in vision if (mask.base, mask.seed) == (vision[0].base, vision[0].seed)]
    return [[mask.but(settings=replace(mask.settings, as_printed=fixed)) for mask in first] for fixed in (True, False)]


def _pooler(lab: Lab) -> tuple[float, float]:
    """Share of the masked weights kept by language masks, with the unused pooler counted and without it."""
    masks = [mask for mask in tables.used_masks(lab) if mask.base.modality == "language"]
    kept = [mask.load(lab) for mask in masks]
    others = [{name: m for name, m in one.masks.items() if ".pooler." not in name} for one in kept]
    without = [Subnetwork(masks, one.network).density for masks, one in zip(others, kept, strict=True) if masks]
    return _mean(one.density for one in kept), _mean(without)


def _iou(lab: Lab) -> tuple[float, float]:
    """Mean over bases of the overlap of one subroutine's masks, as in Tables 13 and 14 and as their heading says."""
    groups: dict[tuple, list] = {}
    for mask in tables.used_masks(lab):
        groups.setdefault((mask.base, mask.subroutine), []).append(mask.load(lab))
    several = [group for group in groups.values() if len(group) > 1]
    ways = (overlap.as_printed, overlap.iou)
    return tuple(_mean(measure(group)[overlap.OVERALL] for group in several) for measure in ways)


def _collapse(lab: Lab) -> tuple[float, float]:
    """Share of our ResNet subnetworks that are right by a median margin below .1; the largest possible one is 4."""
    effects = tables.effects(lab).query("paper_model == 'resnet50' and network == 'subnetwork'")
    return nan, (effects.loc[effects["own_task_accuracy"] >= LEARNED, "own_task_margin"] < 0.1).mean()


def _leak(lab: Lab) -> tuple[float, float]:
    """Share of the test sentences of mask and probe sets that the base was trained on, by either way of sampling."""
    language = [base for base in bases(lab) if base.modality == "language"]
    if not language:
        return nan, nan
    subroutine, shares = subroutines_of(language[0].task)[0], []
    sets = [("base", "train"), (f"mask-{subroutine}", "test"), (f"probe-{subroutine}", "test")]
    for as_printed in (True, False):
        chosen = (replace(language[0].data(*one), as_printed=as_printed) for one in sets)
        trained, masks, probes = (set(one.readable().sentences) for one in chosen)
        shares.append(len((masks | probes) & trained) / len(masks | probes))
    return tuple(shares)


def _few_clusters(lab: Lab) -> tuple[float, float]:
    """p of the paper's own z for ResNet50, inside-contact, contact subnetwork, from two base models."""
    rows = reference.load("table1").set_index(KEYS)
    z = float(rows.loc[("resnet50", "inside-contact", "contact"), "intercept_z"])
    return 2 * float(stats.norm.sf(z)), 2 * float(stats.t.sf(z, 1))


def _untrained(lab: Lab) -> tuple[float, float]:
    """Distinct untrained networks behind the random control of one model and task."""
    section = lab.study.break_it_down
    return nan, 3 if section.controls.as_printed else len(section.experiments[0].base.seeds)


def _mean(values) -> float:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else nan


MEASURES: dict[str, Callable[[Lab], tuple[float, float]]] = {
    "few base models": _few_clusters,
    "small margins": _collapse,
    "sentences in several splits": _leak,
    "contact in inside-number": lambda lab: (nan, 0.0),  # excluded by construction
    "the head's temperature": _head_temperature,
    "BERT's pooler": _pooler,
    "untrained networks": _untrained,
    "IoU of Tables 13 and 14": _iou,
}
"""What is computed both ways, by topic: (as printed or as in the authors' run, ours)."""
