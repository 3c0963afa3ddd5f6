"""Every step of the notebooks that can be named before anything is made, and what notebook 10a needs."""

from collections.abc import Iterator

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Step
from subnet_utils.masks.attribution import require_few
from subnet_utils.models.staged import maskable
from subnet_utils.papers.identification_methods import cluster_steps, fine_tuning_steps, method_steps, planted_steps
from subnet_utils.problems.pictures import Source


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


def require(lab: Lab) -> None:
    """Raise ValueError if no method trains masks, and for `exact` on a network that is too large; PictureError for
    pictures that are not there, or none of a class."""
    settings = lab.section("identification_methods")
    if idle := [one.model for one in settings.networks or () if not any(each.masking.trains for each in one.methods)]:
        raise ValueError(f"methods of '{idle[0]}': none trains masks; add one, such as 'hard_concrete'")
    exact = (one for one in settings.networks or () if "exact" in [each.masking.method for each in one.methods])
    for network in (one.learns.problem().network(seed=0) for one in exact):
        require_few({name: network.get_parameter(name) for name in maskable(network)})
    if settings.pictures:
        Source.of(settings.pictures.data).require_classes()
