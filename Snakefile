"""One rule per notebook: `snakemake --cores all --config profile=laptop`, or `make reproduce PROFILE=laptop`.

A profile is a name in params/ or the path of a YAML file. A notebook takes what it needs from the artefact store, where
nothing is computed twice, and waits only for notebooks of its own paper whose artefacts it uses. The rules say when it
is run again: when it, its profile, the package or such a notebook has changed. Such a run is cheap, because artefacts
are found by what they depend on and not by date.

`--config profile=paper shards=1` makes everything that a study is known to need before the notebooks: a job for each
missing step of any paper (`subnet_utils.shards`), on a GPU of its own, here or through an executor such as SLURM.
`batch=20` makes up to twenty steps of a kind in one job.
`made=1` says that nothing is missing: notebooks then mostly draw, and several run at a time.

A notebook whose data or published weights are not there is named with the reason, and the others run.

The executed notebook is the rule's log, kept when a cell fails. A rule is done when the notebook has written its
manifest, which it does last, and papermill has ended well; the mark of that is in runs/, because figures/ may come from
a commit, and a committed manifest says nothing about this machine.
"""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from filelock import FileLock, Timeout

from subnet_utils.check import cannot_run
from subnet_utils.core.messages import nearest
from subnet_utils.core.papers import notebooks, papers
from subnet_utils.core.sections import ROOT
from subnet_utils.core.study import Study, profile_file
from subnet_utils.shards import batched, missing, visible_gpus

# papermill of the same environment, whether or not that is activated; what cells print goes straight to the terminal
PAPERMILL = (
    "{sys.executable:q} -m subnet_utils.execute {input.notebook:q} {log:q} -f {input.study:q}"
    " --no-progress-bar --log-level WARNING --stdout-file - --stderr-file -"
)


def number(key, least):
    """A whole number of --config; without one, the least that it may be."""
    value = str(config.get(key, least))
    if not value.isdecimal() or int(value) < least:
        raise SystemExit(f"{key}={value} is not valid; give a whole number, {least} or more")
    return int(value)


KEYS = ("profile", "shards", "made", "batch")
for KEY in config:
    if KEY not in KEYS:
        raise SystemExit(f"--config {KEY}=: unknown key; {nearest(KEY, KEYS)}")
try:
    FILE = profile_file(str(config.get("profile", "tiny")))
    STUDY = Study.load(FILE)
except ValueError as error:
    raise SystemExit(str(error))
RUNS, FIGURES = f"runs/{STUDY.name}", os.path.relpath(ROOT / "figures" / STUDY.name)
NOTEBOOKS = {name: both for name, both in notebooks().items() if both[1].is_about(both[0].section_of(STUDY))}
IN_SHARDS, MADE, BATCH = number("shards", 0), number("made", 0), number("batch", 1)
# Snakemake's own lock outlives a SIGKILL; this one is the operating system's and dies with its process. Without it, a
# second `make reproduce` could replace files under the hands of a first one that lost its terminal.
only_run = FileLock(Path(RUNS, ".lock"))


def package_of(paper):
    """The files that a paper's notebooks may depend on: those of its room and of no other."""
    others = {Path(folder) for name in papers() for folder in papers()[name].folders if name != paper.name}
    folders = [ROOT / "subnet_utils", *map(Path, paper.folders)]
    files = {path for folder in folders for kind in ("*.py", "*.csv") for path in folder.rglob(kind)}
    return sorted(os.path.relpath(path) for path in files if not others & set(path.parents))


PLANNED = {}
"""What the process that plans the run has seen, as JSON, by the file in which its jobs read it."""


def seen(name, find):
    """What find() gives to the process that plans the run; the processes of its jobs read it from a file.

    The file is written when the run starts. Until then the jobs of another run may read theirs.
    """
    if workflow.is_main_process:
        PLANNED[name] = json.dumps(find())
    return json.loads(PLANNED[name] if name in PLANNED else Path(RUNS, name).read_text())


def absent():
    """Notebooks that cannot run, with the reason."""
    needs = any(notebook.requires for _, notebook in NOTEBOOKS.values())
    return cannot_run(STUDY) if needs else {}  # to look for it takes seconds


def name_the_absent():
    """A line for each notebook that cannot run."""
    for name, why in ABSENT.items():
        print(f"{name} is left out: {why}", file=sys.stderr, flush=True)


def mark_of(shard):
    """The file that says that a shard is made."""
    return f"{RUNS}/shards/{shard}.done"


def whole_mark(paper):
    """The file that says that all shards of a paper are made."""
    return f"{RUNS}/shards/all/{paper}.done"


def shards():
    """What is missing."""
    found = {name: asdict(shard) for name, shard in batched(missing(STUDY), BATCH).items()}
    for mark in [*map(mark_of, found), *(whole_mark(paper) for one in found.values() for paper in one["papers"])]:
        Path(mark).unlink(missing_ok=True)  # of artefacts that are gone
    return found


ABSENT = seen("absent.json", absent)
NOTEBOOKS = {name: both for name, both in NOTEBOOKS.items() if name not in ABSENT}
if workflow.is_main_process:
    name_the_absent()
    if not NOTEBOOKS:
        raise SystemExit(f"profile '{STUDY.name}': no notebook can run")
SHARDS = seen("shards.json", shards) if IN_SHARDS else {}
GPUS = len(visible_gpus()) if STUDY.compute.device != "cpu" else 0


def shard_threads(wildcards):
    """As many cores as leave one GPU to each shard; without a GPU, those of one job."""
    return max(1, workflow.cores // GPUS) if GPUS and workflow.cores else STUDY.compute.threads


onstart:
    Path(RUNS).mkdir(parents=True, exist_ok=True)
    try:
        only_run.acquire(timeout=0)
    except Timeout:
        print(f"profile '{STUDY.name}': another run is at work; waiting for it", file=sys.stderr, flush=True)
        only_run.acquire()
    for name, text in PLANNED.items():
        Path(RUNS, name).write_text(text)


onsuccess:
    name_the_absent()  # again, where a long run ends


localrules: all


rule all:
    message: f"all notebooks have run, {STUDY.name} profile"
    input:
        expand(f"{FIGURES}/{{notebook}}.json", notebook=NOTEBOOKS),
        expand(f"{RUNS}/{{notebook}}.done", notebook=NOTEBOOKS),


rule shard:
    message: f"{{wildcards.shard}}, {STUDY.name} profile"
    input: lambda wildcards: map(mark_of, SHARDS[wildcards.shard]["after"])
    output: touch(mark_of("{shard}"))
    wildcard_constraints: shard="[^/]+"  # a list of all names would be searched for each of thousands of jobs
    params: steps=lambda wildcards: SHARDS[wildcards.shard]["steps"], study=os.path.relpath(FILE)
    log: f"{RUNS}/shards/{{shard}}.log"
    threads: shard_threads
    # Each attempt goes on from the checkpoint of the one before, so six of four hours are a day. A job of an executor is
    # a Snakemake of its own, which would try as often in vain, within the time and memory of the first attempt.
    retries: 5 if workflow.is_main_process else 0
    resources:
        gpu=0 if STUDY.compute.device == "cpu" else 1,
        mem_mb=lambda wildcards, attempt: 16000 * min(attempt, 4),
        runtime=240,  # minutes
    shell: "{sys.executable:q} -m subnet_utils.shards {params.study:q} {params.steps} >> {log:q} 2>&1"


for PAPER in {paper.name: paper for paper, _ in NOTEBOOKS.values()} if IN_SHARDS else ():
    rule:
        name: f"shards_{PAPER}"
        message: f"{PAPER}: all steps are made, {STUDY.name} profile"
        localrule: True
        input: [mark_of(name) for name, shard in SHARDS.items() if PAPER in shard["papers"]]
        output: touch(whole_mark(PAPER))


for NAME, (PAPER, NOTEBOOK) in NOTEBOOKS.items():
    rule:
        name: NAME
        message: f"{NAME}, {STUDY.name} profile"
        input:
            [f"{RUNS}/{before}.done" for before in NOTEBOOK.after if before in NOTEBOOKS],
            # ancient: a shard that is made anew is no reason to run a notebook again
            [ancient(whole_mark(PAPER.name))] if IN_SHARDS else [],
            notebook=os.path.relpath(NOTEBOOK.path),
            study=os.path.relpath(FILE),
            package=package_of(PAPER),
        output:
            f"{FIGURES}/{NAME}.json",
            touch(f"{RUNS}/{NAME}.done"),
        log: f"{RUNS}/{NAME}.ipynb"
        threads: 1 if IN_SHARDS or MADE else workflow.cores
        priority: len(NOTEBOOKS) - list(NOTEBOOKS).index(NAME)  # others wait for the first ones
        retries: 0 if workflow.local_exec else 2  # on a cluster with more memory; a fault here would only come again
        resources:
            mem_mb=lambda wildcards, attempt: 8000 * attempt,
            runtime=240,
        shell: PAPERMILL
