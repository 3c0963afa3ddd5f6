"""What every notebook does first: check its parameters, open the study, start the record of what it makes."""

import ast
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from subnet_utils.names import nearest
from subnet_utils.workers import importing, warm_up

if TYPE_CHECKING:
    from subnet_utils.lab import Lab
    from subnet_utils.report import Book

ABOUT_EXPERIMENTS = ("01", "02", "03", "04", "05", "06")
"""First digits of the notebooks about a study's `experiments`; a profile without them can have all others."""


def begin(study: Any, notebook: str, *, parameters: Iterable[str] = ("study",)) -> "tuple[Lab, Book]":
    """Open the study of a notebook and the book that records its figures and tables.

    study: whatever `Study.load` takes; parameters: names of the notebook's parameters. Raises StudyError for a
    parameter that the notebook does not have (papermill passes those on without a word) and for a study that is not
    valid, or has no experiments where the notebook is about them; ValueError for data or published weights that the
    study names and that are not there.
    """
    warm_up()  # first of all: while this process imports the package, the workers' server does the same
    with importing():
        import pandas as pd

        from subnet_utils.jobs import worker_count
        from subnet_utils.lab import Lab
        from subnet_utils.plots import figures
        from subnet_utils.report import Book
        from subnet_utils.study import StudyError
        from subnet_utils.training import precision_name

    if unknown := _unknown(parameters):
        raise StudyError(unknown)
    lab = Lab.open(study)
    if not lab.study.experiments and notebook.split("_")[0] in ABOUT_EXPERIMENTS:
        raise StudyError(f"profile '{lab.study.name}' has no 'experiments', which {notebook} is about; add some")
    _require_data(lab, notebook.split("_")[0])
    figures.style()
    pd.set_option("display.max_colwidth", None, "display.max_columns", None)  # tables are there to be read
    jobs, precision = worker_count(lab.study.compute), precision_name(lab.study.compute, lab.device)
    print(f"profile {lab.study.name}: {lab.device}, products in {precision}, {jobs} jobs at a time")
    return lab, Book(lab.study.name, notebook, device=lab.device)


def _require_data(lab: "Lab", number: str) -> None:
    """Look for the files and the published weights that a notebook needs, and whether there are sentences enough. What
    depends on files can name itself only if they are there; of experiments that is the first thing asked for."""
    if number in ("01", "05"):
        from subnet_utils.stimuli import require_sentences

        for experiment in lab.study.experiments if number == "01" else lab.study.pretrained:
            for task in experiment.tasks if experiment.modality == "language" else ():
                require_sentences(experiment, task)
    if number == "07b" and lab.study.images is not None:
        from subnet_utils.induction.image_sets import data_spec
        from subnet_utils.induction.image_steps import ImageBase

        data_spec(lab)  # first: weights may have to be fetched
        for model in lab.study.images.models:
            ImageBase(model, seed=0).spec(lab)
    if number == "08" and lab.study.inference is not None:
        from subnet_utils.heuristics.inference_sets import data_spec, require_generated
        from subnet_utils.heuristics.inference_steps import network_spec

        data_spec(lab)
        network_spec(lab)
        require_generated(lab)


def _unknown(parameters: Iterable[str]) -> str | None:
    """What is wrong with the cell that papermill injected, if there is one: a name that is no parameter."""
    known = tuple(parameters)
    for source in _cells():
        if not source.startswith("# Parameters"):
            continue
        for statement in ast.parse(source).body:
            for target in getattr(statement, "targets", []):
                if isinstance(target, ast.Name) and target.id not in known:
                    return f"unknown parameter '{target.id}'; {nearest(target.id, known)}"
    return None


def _cells() -> list[str]:
    """Sources of the cells run so far, or nothing outside a notebook."""
    try:
        from IPython import get_ipython
    except ImportError:
        return []
    shell = get_ipython()
    return list(shell.user_ns.get("In", [])) if shell is not None else []
