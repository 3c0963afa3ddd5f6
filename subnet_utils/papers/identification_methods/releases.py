"""What the zoo may hold of *Identifying Subnetworks*: networks of notebook 10a, with the masks that methods trained."""

from collections.abc import Iterator
from functools import partial

from subnet_utils.core.lab import Lab
from subnet_utils.papers.identification_methods.method_steps import Identified, Inspected, inspected
from subnet_utils.problems.releases import FILES, released
from subnet_utils.tasks.odd_one_out import CHANCE
from subnet_utils.zoo.release import Release, Test


def releases(lab: Lab) -> Iterator[Release]:
    """Every network, if the study has some. Rankings are not among its masks: they cost no training."""
    for one in inspected(lab):
        learns, known = one.settings.learns, [f"accuracy on {name}" for name in one.network.problem.functions]
        chance = 1 / learns.modulus if learns.task == "add_mul" else CHANCE
        yield released(one.network, partial(_masks, one), partial(_tests, one), chance=chance, known=known)


def _masks(one: Inspected) -> dict[str, Identified]:
    return {
        f"{FILES.get(function, function)}-{training.masking.method}": one.identified(training, function)
        for training in one.trained
        for function in one.network.problem.functions
    }


def _tests(one: Inspected) -> dict[str, Test]:
    return {name: one.network.problem.tests(name) for name in one.network.problem.every_test}
