"""What a profile costs on this machine, in job-seconds.

Sections whose jobs follow from the profile alone are counted, a few of each sort are timed, and the two multiplied;
those whose jobs depend on what others find are rehearsed. The unit is the job-second, the time of one job while the
others run beside it as they will in the study. Divided by the number of jobs at a time it is the time one waits, up to
the ends, where a job has no neighbor.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from tempfile import TemporaryDirectory

import pandas as pd

from subnet_utils.core.devices import autocast
from subnet_utils.core.jobs import cache_limit, worker_count
from subnet_utils.core.lab import Lab
from subnet_utils.cost.measurement import summed, times_noted, with_uses
from subnet_utils.cost.operations import operations
from subnet_utils.cost.plan import COUNTED, PLANNED, Sort, plan
from subnet_utils.cost.rehearsal import Rehearsal, epochs_taken
from subnet_utils.cost.samples import times
from subnet_utils.cost.sections import REHEARSED, Lacking, require, sections_of
from subnet_utils.cost.timing import large_product, race
from subnet_utils.papers.break_it_down import tables as break_it_down
from subnet_utils.papers.break_it_down.base_models import Network

TIMED = ("steps", "epochs", "items", "networks", "tasks", "read")
"""Counts of a plan, each of which takes its time; items of the frozen prefix besides."""
COUNTED_COLUMNS = [*PLANNED, *(f"{name}_s" for name in (*TIMED, "frozen_items")),
                   "predicted_s", "predicted_cpu_s", "tflop", "note"]  # fmt: skip
PREDICTED = ["section", "kind", "jobs", "predicted_s", "predicted_cpu_s"]


def predict(lab: Lab, counts: pd.DataFrame | None = None) -> pd.DataFrame:
    """What a study will cost, by section and kind of job: jobs, predicted_s, predicted_cpu_s by processor time, note.

    counts: from `counted`, if that was done before. A section that needs what is not there has one row, without
    numbers, and the reason as its note.
    """
    parts = [counted(lab) if counts is None else counts]
    parts += [rehearsed(lab, section) for section in sections_of(lab.study) if section in REHEARSED]
    table = pd.concat(parts, ignore_index=True).reindex(columns=[*PREDICTED, "note"])
    known = table["note"] == ""
    sums = summed(table.loc[known, PREDICTED]).assign(note="")
    return pd.concat([sums, table[~known]], ignore_index=True).astype({"jobs": "Int64"})


def counted(lab: Lab) -> pd.DataFrame:
    """The plan of the sections that are counted: `multiplied`, and a row with a note for each that lacks something."""
    tables, notes = [], []
    for section in sections_of(lab.study):
        try:
            if section in COUNTED:
                require(lab, section)
                tables.append(plan(lab, section))
        except Lacking as reason:
            notes.append({"section": section, "note": str(reason)})
    parts = [multiplied(lab, pd.concat(tables, ignore_index=True)).assign(note="")] if tables else []
    parts += [pd.DataFrame(notes)] if notes else []
    return pd.concat(parts or [pd.DataFrame()], ignore_index=True).reindex(columns=COUNTED_COLUMNS)


def multiplied(lab: Lab, table: pd.DataFrame) -> pd.DataFrame:
    """A plan with the seconds of each of its counts, `<count>_s`, and all together, predicted_s and predicted_cpu_s;
    tflop: trillions of additions and multiplications in its products and convolutions (`operations`)."""
    sorts = list(dict.fromkeys(table["sort"]))
    found = dict(zip(sorts, times(lab, sorts), strict=True))
    wall, processor = (
        _each(table["sort"], {sort: {name: both[clock] for name, both in found[sort].items()} for sort in sorts})
        for clock in (0, 1)
    )
    work = _each(table["sort"], {sort: operations(sort) for sort in sorts}) / 1e12
    too_large = table["trained_on"] * wall["gb"] > cache_limit(lab.study.compute)
    frozen = table["frozen_items"] + table["passes"].where(too_large, 0)
    counts = table[list(TIMED)].assign(frozen_items=frozen)
    sums = {"predicted_s": wall, "predicted_cpu_s": processor, "tflop": work}
    sums = {name: (counts * each[counts.columns]).sum(axis=1) for name, each in sums.items()}
    return table.join(wall.drop(columns="gb").add_suffix("_s")).assign(**sums)


def _each(sorts: pd.Series, found: Mapping[Sort, Mapping[str, float]]) -> pd.DataFrame:
    """What each count takes, a row for each of several jobs."""
    each = pd.DataFrame([found[sort] for sort in sorts]).reindex(columns=[*TIMED, "frozen_items", "gb"]).fillna(0.0)
    # a task's sentences are generated once in a process: of its sorts the first one shows how long that takes
    inputs = pd.Series([str(sort.inputs) for sort in sorts])
    return each.assign(tasks=each.groupby(inputs)["tasks"].transform("max"))


def at_best(counted: pd.DataFrame, lab: Lab) -> str:
    """In a line: the operations of what is counted, and how long they would take this machine if all of them were in
    products as large as it multiplies best: about the least that a study could cost."""
    product = large_product(lab.device, autocast=partial(autocast, lab.study.compute, lab.device))
    steps = race({"product": product}, counting=True)
    rate, all_of_it = (steps["flops"] / steps["seconds"]).median() / 1e12, counted["tflop"].sum()
    hours = all_of_it / rate / 3600
    at = f"at the rate of one large product, {_rounded(rate)} TFLOP/s, {_rounded(hours)} hours"
    return f"{_rounded(all_of_it)} TFLOP of products and convolutions; {at}"


def _rounded(number: float) -> str:
    """Three digits, without an exponent."""
    return f"{float(f'{number:.3g}'):,.12g}"


def rehearsed(lab: Lab, section: str) -> pd.DataFrame:
    """The jobs of a section that depend on each other, rehearsed: section, kind, jobs, predicted_s, predicted_cpu_s."""
    try:
        require(lab, section)
    except Lacking as reason:
        return pd.DataFrame([{"section": section, "note": str(reason)}])
    with TemporaryDirectory() as folder:
        store = Rehearsal(folder, lab.store, epochs_taken(lab.store))
        REHEARSED[section](replace(lab, store=store))
        rows = list(times_noted(with_uses(store.finished(), [store, lab.store])))
    table = pd.DataFrame(rows).rename(columns={"seconds": "predicted_s", "cpu_seconds": "predicted_cpu_s"})
    return summed(table.assign(section=section)).assign(note="")


def waiting(job_seconds: float, lab: Lab) -> float:
    """Seconds that one waits for so many job-seconds."""
    return job_seconds / worker_count(lab.study.compute)


def told(predicted: pd.DataFrame, lab: Lab) -> str:
    """A prediction in a line: job-hours and minutes of waiting; and a line for each section that is not in it."""
    total = predicted["predicted_s"].sum()
    wait = f"{waiting(total, lab) / 60:.0f} minutes of waiting"
    missing = predicted[predicted["note"] != ""]
    lines = [f"without {row.section}: {row.note}" for row in missing.itertuples()]
    return "\n".join([f"profile {lab.study.name}: {total / 3600:.2f} job-hours, {wait}", *lines])


def kinds(lab: Lab) -> list[Network]:
    """One base model of every model of a study."""
    bases = [*break_it_down.networks(lab.study), *break_it_down.swept(lab.study)]
    return list({network.experiment.model: network for network in reversed(bases)}.values())[::-1]


def check(predicted: pd.DataFrame, measured: pd.DataFrame) -> pd.DataFrame:
    """Predicted and measured job-seconds of the finished sections by kind of job, and in all.

    jobs: predicted, made: there are; ratio and cpu_ratio: measured relative to predicted, by the wall's clock and by
    processor time.
    """
    keys, ours, theirs = ["section", "kind"], ["predicted_s", "predicted_cpu_s"], ["measured_s", "measured_cpu_s"]
    finished = predicted[predicted["section"].isin(measured["section"]) & (predicted["note"] == "")]
    made = measured.rename(columns={"jobs": "made"})
    table = finished.drop(columns="note").merge(made, on=keys, how="outer", sort=False, indicator="side")
    table.loc[table["side"] == "right_only", ["jobs", *ours]] = 0.0
    table.loc[table["side"] == "left_only", ["made", *theirs]] = 0.0
    order = [tuple(about) for part in (finished, made) for about in part[keys].to_numpy()]
    table = table.iloc[sorted(range(len(table)), key=lambda i: order.index(tuple(table[keys].iloc[i])))]
    whole = table[["jobs", "made", *ours, *theirs]].sum(skipna=False).to_dict()
    table = pd.concat([table, pd.DataFrame([{"section": "all", "kind": ""} | whole])], ignore_index=True)
    for ratio, mine, noted in zip(("ratio", "cpu_ratio"), ours, theirs, strict=True):
        table[ratio] = table[noted] / table[mine]
    shown = ["jobs", "made", "predicted_s", "measured_s", "ratio", "predicted_cpu_s", "measured_cpu_s", "cpu_ratio"]
    return table.astype({"jobs": int, "made": int})[[*keys, *shown]]
