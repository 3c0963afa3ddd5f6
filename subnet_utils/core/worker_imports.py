"""What the server imports that worker processes are copied from: all steps, and all kinds of networks."""

from importlib import import_module

from subnet_utils.core.workers import importing

with importing():
    from subnet_utils import models
    from subnet_utils.papers.break_it_down import steps  # noqa: F401
    from subnet_utils.papers.break_it_down.pretraining import hidden_words  # noqa: F401

    for _family in models.FAMILIES.values():
        import_module(f"{models.__name__}.{_family}")
