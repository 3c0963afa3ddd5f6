"""What every notebook does first: check its parameters, open the study, start the record of what it makes."""

import ast
from typing import TYPE_CHECKING, Any

from subnet_utils.core.messages import nearest
from subnet_utils.core.workers import importing

if TYPE_CHECKING:
    from subnet_utils.core.lab import Lab
    from subnet_utils.report import Results


def begin(study: Any, notebook: str) -> "tuple[Lab, Results]":
    """Open the study of a notebook and the record of its figures and tables.

    study: whatever `Study.load` takes. Raises StudyError for any other parameter (papermill passes those on without a
    word) and for a study that is not valid, or has no section for what the notebook is about; ValueError for data or
    published weights that the study names and that are not there.
    """
    with importing():
        import pandas as pd
        from IPython import get_ipython

        from subnet_utils.core.devices import precision_name
        from subnet_utils.core.jobs import worker_count
        from subnet_utils.core.lab import Lab
        from subnet_utils.core.papers import notebooks
        from subnet_utils.core.study import StudyError
        from subnet_utils.plots import style
        from subnet_utils.report import Results, readable

    if unknown := _unknown():
        raise StudyError(unknown)
    lab, captions = Lab.open(study), {}
    if notebook in notebooks():
        paper, entry = notebooks()[notebook]
        captions = paper.captions
        if not entry.is_about(paper.section_of(lab.study)):
            about = ".".join(filter(None, (paper.name, entry.about)))
            raise StudyError(f"profile '{lab.study.name}' has no '{about}', which {notebook} is about; add it")
        paper.require(entry, lab)
    style.style()
    if (shell := get_ipython()) is not None:
        shell.display_formatter.formatters["text/html"].for_type(pd.DataFrame, readable.table)
    jobs, precision = worker_count(lab.study.compute), precision_name(lab.study.compute, lab.device)
    print(f"profile {lab.study.name}: {lab.device}, products in {precision}, {jobs} jobs at a time")
    return lab, Results(lab.study.name, notebook, device=lab.device, captions=captions, used=lab.store.used)


def _unknown() -> str | None:
    """What is wrong with the cell that papermill injected, if there is one: a name that is no parameter."""
    from IPython import get_ipython

    shell = get_ipython()
    for source in shell.user_ns.get("In", []) if shell is not None else []:
        if not source.startswith("# Parameters"):
            continue
        for statement in ast.parse(source).body:
            for target in getattr(statement, "targets", []):
                if isinstance(target, ast.Name) and target.id != "study":
                    return f"unknown parameter '{target.id}'; {nearest(target.id, ['study'])}"
    return None
