"""What the zoo may hold of *Identifying Subnetworks*.

The networks of notebook 10a, with the masks that methods trained. And those of notebook 10c, with their true parts.
"""

from collections.abc import Iterator
from functools import partial
from operator import attrgetter

from subnet_utils.core.lab import Lab
from subnet_utils.papers.identification_methods import reference
from subnet_utils.papers.identification_methods.method_steps import Identified, Inspected, inspected
from subnet_utils.papers.identification_methods.planted_steps import PlantedNetwork, benchmarked
from subnet_utils.problems.releases import FILES, PartOf, logits, released
from subnet_utils.tasks.modular_tasks import chance
from subnet_utils.tasks.odd_one_out import CHANCE
from subnet_utils.zoo.release import Release, Test, committed

TASKS = reference.load("zoo").set_index("kind")["task"]


def releases(lab: Lab) -> Iterator[Release]:
    """Every network. Rankings are not among its masks: they cost no training."""
    for one in inspected(lab):
        learns, known = one.settings.learns, [f"accuracy on {name}" for name in one.network.problem.functions]
        guessed = 1 / learns.modulus if learns.task == "add_mul" else CHANCE
        about = {"chance": guessed, "known": known}
        about["effects"] = partial(committed, lab.study.name, "identification_findings", model=one.network.model)
        task = TASKS.get(learns.task, TASKS["odd_one_out"]).format(**learns.model_dump())
        yield released(one.network, task, partial(_masks, one), partial(_tests, one), **about)
    for planted in (one.network for one in benchmarked(lab)):
        design = planted.design
        yield Release(
            f"planted_{planted.design_name}" if planted.is_planted else planted.design_name,
            TASKS["planted"],
            network=PartOf(planted, attrgetter("model")),
            seed=planted.seed,
            chance=max(map(chance, design.tasks().values())),
            fresh=partial(design.network, planted.seed),
            masks=partial(_truth, planted),
            tests=partial(_subtasks, planted),
            logits=logits,
            learned=lambda lab, planted=planted: not planted.fault(lab),
            effects=partial(committed, lab.study.name, "benchmark_by_design", design=planted.design_name),
        )


def _truth(planted: PlantedNetwork) -> dict[str, PartOf]:
    return {
        FILES.get(task, task): PartOf(planted, lambda found, task=task: found.truth[task])
        for task in planted.design.tasks()
    }


def _subtasks(planted: PlantedNetwork) -> dict[str, Test]:
    return {task: tuple(items) for task, items in planted.design.tasks().items()}


def _masks(one: Inspected) -> dict[str, Identified]:
    return {
        f"{FILES.get(function, function)}-{training.masking.method}": one.identified(training, function)
        for training in one.trained
        for function in one.network.problem.functions
    }


def _tests(one: Inspected) -> dict[str, Test]:
    return {name: one.network.problem.tests(name) for name in one.network.problem.every_test}
