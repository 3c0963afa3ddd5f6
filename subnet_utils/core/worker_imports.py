"""What the server imports that worker processes are copied from: the steps of all papers, all kinds of networks."""

from importlib import import_module

from subnet_utils.core.workers import importing

with importing():
    from subnet_utils import models
    from subnet_utils.core.papers import papers

    for _paper in papers().values():
        if _paper.steps:
            _paper.resolve(_paper.steps)
    for _family in models.FAMILIES.values():
        import_module(f"{models.__name__}.{_family}")
