"""One rule per notebook: `snakemake --cores all --config profile=laptop`, or `make reproduce PROFILE=laptop`.

A notebook takes what it needs from the artefact store, where nothing is computed twice. The rules only say what follows
what, and when a notebook is run again: when it, its profile, the package or the notebook before it has changed. Such a
run is cheap, because artefacts are found by what they depend on and not by date.

The executed notebook is the rule's log, kept when a cell fails. A rule is done when the notebook has written its
manifest, which it does last, and papermill has ended well; the mark of that is in runs/, because figures/ may come from
a commit, and a committed manifest says nothing about this machine.
"""

import difflib
import sys
from pathlib import Path

import yaml
from filelock import FileLock, Timeout

NOTEBOOKS = (
    "01_train_bases", "02_discover_masks", "03_ablations", "04_random_controls", "05_pretraining", "06_overlap",
    "07_subtask_induction", "07b_shape_bias", "08_heuristic_core", "11_cost_of_a_study",
)
# What a study may do without: a notebook about a section that its profile lacks is left out.
OPTIONAL = {
    **{name: "experiments" for name in NOTEBOOKS[:6]}, "05_pretraining": "pretrained",
    "07_subtask_induction": "arithmetic", "07b_shape_bias": "images", "08_heuristic_core": "inference",
}
PACKAGE = sorted(str(path) for kind in ("*.py", "*.csv") for path in Path("subnet_utils").rglob(kind))
# papermill of the same environment, whether or not that is activated; what cells print goes straight to the terminal
PAPERMILL = (
    "{sys.executable:q} -m subnet_utils.headless {input.notebook} {log} -f {input.study}"
    " --no-progress-bar --log-level WARNING --stdout-file - --stderr-file -"
)
PROFILE = str(config.get("profile", "tiny"))
PROFILES = sorted(path.stem for path in Path("params").glob("*.yaml"))

if PROFILE not in PROFILES:
    close = [f"did you mean '{name}'? " for name in difflib.get_close_matches(PROFILE, PROFILES, n=1, cutoff=0.5)]
    raise SystemExit(f"no profile '{PROFILE}'; {''.join(close)}valid: {', '.join(PROFILES)}")

# The sections alone: to check the whole of it is the notebooks' first act, and would take seconds here.
LOADED = yaml.safe_load(Path("params", f"{PROFILE}.yaml").read_text())
SECTIONS = LOADED.get("study") if isinstance(LOADED, dict) else None
if not isinstance(SECTIONS, dict):
    raise SystemExit(f"params/{PROFILE}.yaml has no 'study'; look at params/tiny.yaml")
if SECTIONS.get("name") != PROFILE:  # the notebooks would write into the figures of another profile
    raise SystemExit(f"params/{PROFILE}.yaml: study.name is '{SECTIONS.get('name')}'; make it '{PROFILE}'")
NOTEBOOKS = [name for name in NOTEBOOKS if name not in OPTIONAL or SECTIONS.get(OPTIONAL[name]) not in (None, [])]

PARTS = []
if int(config.get("parts", 0)):  # one job for every base model with its masks, before the notebooks
    from subnet_utils.study import Study

    PARTS = Study.load(PROFILE).parts()

# Snakemake's own lock outlives a SIGKILL; this one is the operating system's and dies with its process. Without it, a
# second `make reproduce` could replace files under the hands of a first one that lost its terminal.
only_run = FileLock(Path("runs", PROFILE, ".lock"))


onstart:
    try:
        only_run.acquire(timeout=0)
    except Timeout:
        print(f"profile '{PROFILE}': another run is at work; waiting for it", file=sys.stderr, flush=True)
        only_run.acquire()


wildcard_constraints:
    profile="[a-z0-9_-]+",


rule all:
    message: f"all notebooks have run, {PROFILE} profile"
    input:
        expand("figures/{profile}/{notebook}.json", profile=PROFILE, notebook=NOTEBOOKS),
        expand("runs/{profile}/{notebook}.done", profile=PROFILE, notebook=NOTEBOOKS),


rule part:
    message: "{wildcards.part}, {wildcards.profile} profile"
    input:
        study="params/{profile}.yaml",
        package=PACKAGE,
    output:
        touch("runs/{profile}/parts/{part}.done"),
    log: "runs/{profile}/parts/{part}.log"
    threads: workflow.cores
    shell: "{sys.executable:q} -m subnet_utils.parts {wildcards.profile} {wildcards.part} > {log} 2>&1"


for BEFORE, NOTEBOOK in zip([None, *NOTEBOOKS], NOTEBOOKS):
    rule:
        name: NOTEBOOK.partition("_")[2]
        message: f"{NOTEBOOK}, {{wildcards.profile}} profile"
        input:
            f"runs/{{profile}}/{BEFORE}.done" if BEFORE else expand("runs/{profile}/parts/{part}.done", profile=PROFILE, part=PARTS),
            notebook=f"notebooks/{NOTEBOOK}.ipynb",
            study="params/{profile}.yaml",
            package=PACKAGE,
        output:
            f"figures/{{profile}}/{NOTEBOOK}.json",
            touch(f"runs/{{profile}}/{NOTEBOOK}.done"),
        log: f"runs/{{profile}}/{NOTEBOOK}.ipynb"
        threads: workflow.cores
        shell: PAPERMILL
