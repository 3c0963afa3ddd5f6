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

from filelock import FileLock, Timeout

NOTEBOOKS = "01_train_bases", "02_discover_masks", "03_ablations", "04_random_controls", "05_pretraining", "06_overlap", "11_cost_of_a_study"
PACKAGE = sorted(str(path) for kind in ("*.py", "*.csv") for path in Path("subnet_utils").rglob(kind))
# papermill of the same environment, whether or not that is activated; what cells print goes straight to the terminal
PAPERMILL = (
    "{sys.executable:q} -m papermill {input.notebook} {log} -f {input.study}"
    " --no-progress-bar --log-level WARNING --stdout-file - --stderr-file -"
)
PROFILE = str(config.get("profile", "tiny"))
PROFILES = sorted(path.stem for path in Path("params").glob("*.yaml"))

if PROFILE not in PROFILES:
    close = [f"did you mean '{name}'? " for name in difflib.get_close_matches(PROFILE, PROFILES, n=1, cutoff=0.5)]
    raise SystemExit(f"no profile '{PROFILE}'; {''.join(close)}valid: {', '.join(PROFILES)}")

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


rule train_bases:
    message: "01_train_bases, {wildcards.profile} profile"
    input:
        expand("runs/{profile}/parts/{part}.done", profile=PROFILE, part=PARTS),
        notebook="notebooks/01_train_bases.ipynb",
        study="params/{profile}.yaml",
        package=PACKAGE,
    output:
        "figures/{profile}/01_train_bases.json",
        touch("runs/{profile}/01_train_bases.done"),
    log: "runs/{profile}/01_train_bases.ipynb"
    threads: workflow.cores
    shell: PAPERMILL


rule discover_masks:
    message: "02_discover_masks, {wildcards.profile} profile"
    input:
        "runs/{profile}/01_train_bases.done",
        notebook="notebooks/02_discover_masks.ipynb",
        study="params/{profile}.yaml",
        package=PACKAGE,
    output:
        "figures/{profile}/02_discover_masks.json",
        touch("runs/{profile}/02_discover_masks.done"),
    log: "runs/{profile}/02_discover_masks.ipynb"
    threads: workflow.cores
    shell: PAPERMILL


rule ablations:
    message: "03_ablations, {wildcards.profile} profile"
    input:
        "runs/{profile}/02_discover_masks.done",
        notebook="notebooks/03_ablations.ipynb",
        study="params/{profile}.yaml",
        package=PACKAGE,
    output:
        "figures/{profile}/03_ablations.json",
        touch("runs/{profile}/03_ablations.done"),
    log: "runs/{profile}/03_ablations.ipynb"
    threads: workflow.cores
    shell: PAPERMILL


rule random_controls:
    message: "04_random_controls, {wildcards.profile} profile"
    input:
        "runs/{profile}/03_ablations.done",
        notebook="notebooks/04_random_controls.ipynb",
        study="params/{profile}.yaml",
        package=PACKAGE,
    output:
        "figures/{profile}/04_random_controls.json",
        touch("runs/{profile}/04_random_controls.done"),
    log: "runs/{profile}/04_random_controls.ipynb"
    threads: workflow.cores
    shell: PAPERMILL


rule pretraining:
    message: "05_pretraining, {wildcards.profile} profile"
    input:
        "runs/{profile}/04_random_controls.done",
        notebook="notebooks/05_pretraining.ipynb",
        study="params/{profile}.yaml",
        package=PACKAGE,
    output:
        "figures/{profile}/05_pretraining.json",
        touch("runs/{profile}/05_pretraining.done"),
    log: "runs/{profile}/05_pretraining.ipynb"
    threads: workflow.cores
    shell: PAPERMILL


rule overlap:
    message: "06_overlap, {wildcards.profile} profile"
    input:
        "runs/{profile}/05_pretraining.done",
        notebook="notebooks/06_overlap.ipynb",
        study="params/{profile}.yaml",
        package=PACKAGE,
    output:
        "figures/{profile}/06_overlap.json",
        touch("runs/{profile}/06_overlap.done"),
    log: "runs/{profile}/06_overlap.ipynb"
    threads: workflow.cores
    shell: PAPERMILL


rule cost_of_a_study:
    message: "11_cost_of_a_study, {wildcards.profile} profile"
    input:
        "runs/{profile}/06_overlap.done",
        notebook="notebooks/11_cost_of_a_study.ipynb",
        study="params/{profile}.yaml",
        package=PACKAGE,
    output:
        "figures/{profile}/11_cost_of_a_study.json",
        touch("runs/{profile}/11_cost_of_a_study.done"),
    log: "runs/{profile}/11_cost_of_a_study.ipynb"
    threads: workflow.cores
    shell: PAPERMILL
