"""Every step of the notebooks that can be named before anything is made."""

from collections.abc import Iterator

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Step
from subnet_utils.papers.identification_methods import cluster_steps, fine_tuning_steps, method_steps, planted_steps


def every_step(lab: Lab) -> Iterator[Step]:
    """The steps of all notebooks."""
    for one in method_steps.inspected(lab):
        yield from one.steps
        yield from one.composition
        yield from (step for _, step in cluster_steps.clustered(one))
    yield from (step for *_, step in fine_tuning_steps.fine_tuned(lab))
    yield from (step for _, step in cluster_steps.of_pictures(lab))
    for one in planted_steps.benchmarked(lab):
        yield from one.steps
