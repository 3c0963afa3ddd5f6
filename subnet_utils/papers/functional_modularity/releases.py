"""What the zoo may hold of *Are Neural Nets Modular?*: networks for arithmetic, SCAN and images, with their masks."""

from collections.abc import Iterator
from functools import partial

from torch import Tensor

from subnet_utils.core.lab import Lab
from subnet_utils.models.sequences import PADDING, trimmed
from subnet_utils.papers.functional_modularity import reference, sequence_steps
from subnet_utils.papers.functional_modularity.arithmetic_steps import Dissected, dissected
from subnet_utils.papers.functional_modularity.image_steps import Family, families
from subnet_utils.problems.modules import CONTROL, Mask, Network
from subnet_utils.problems.releases import FILES, released
from subnet_utils.tasks import scan
from subnet_utils.zoo import NOT_ASKED
from subnet_utils.zoo.release import Release, Test, committed

TASKS = reference.load("zoo").set_index("kind")["task"]


def releases(lab: Lab) -> Iterator[Release]:
    """Networks as they were trained, with the usual masks."""
    section, rows = lab.section("functional_modularity"), partial(committed, lab.study.name)
    for one in dissected(lab) if section.arithmetic is not None else ():
        if one.usual and isinstance(one.network, Network):
            about = {"chance": 0.01, "known": [f"accuracy on {name}" for name in one.network.problem.functions]}
            about["effects"] = partial(rows, "modularity_accuracies", title=one.settings.model, edges="")
            yield released(one.network, TASKS[one.settings.task], partial(_masks, one), partial(_items, one), **about)
    for one in sequence_steps.inspected(lab) if section.sequences is not None else ():
        problem, about = one.network.problem, {"chance": 0.0, "known": [one.network.problem.known]}
        about["effects"] = partial(rows, "sequences_findings", model=one.settings.model)
        tests = _commands if isinstance(problem, sequence_steps.Scan) else partial(_questions, problem)
        yield released(one.network, TASKS[one.settings.task], partial(_split_masks, one), tests, **about)
    for family in families(lab) if section.images is not None else ():
        if family.usual:
            chance, tests = 1 / len(family.network.problem.source.data.classes), partial(_images, family)
            about = {"chance": chance, "known": ["accuracy"], "stored": True}
            about["effects"] = partial(rows, "images_findings", model=family.network.model)
            yield released(family.network, TASKS["images"], partial(_class_masks, family), tests, **about)


def _masks(one: Dissected) -> dict[str, Mask]:
    found = {"control": one.mask(CONTROL)}
    for function, masks in one.masks.items():
        name = FILES.get(function, function.replace(" ", "-"))
        found |= {f"{name}-{i}" if i else name: mask for i, mask in enumerate(masks)}
    return found


def _items(one: Dissected) -> dict[str, Test]:
    return {name: tuple(items) for name, items in one.network.problem.tests().items()}


def _split_masks(one: sequence_steps.Inspected) -> dict[str, Mask]:
    return {"control": one.controls[0]} | {name.replace(" ", "-"): one.mask(name) for name in one.settings.with_masks}


def _commands() -> dict[str, Test]:
    """One in ten commands of each split's tests."""
    tests = {name: scan.split(name).test for name in scan.SPLITS}
    some = {name: scan.sampled(test, len(test) // 10) for name, test in tests.items()}
    return {name: _test(sequence_steps.encoded(pairs), sequence_steps.SOURCE) for name, pairs in some.items()}


def _questions(problem: sequence_steps.Mathematics) -> dict[str, Test]:
    """One in five test questions of each level."""
    levels = problem.levels.items()
    return {name: _test(sequence_steps.spelled(level.test[::5]), problem.sizes[0]) for name, level in levels}


def _test(rows: Tensor, question: int) -> Test:
    """question: how many tokens of a row are of the question; the rest is the answer."""
    answers = trimmed(rows[:, question:]).long()
    return rows, answers.masked_fill(answers == PADDING, NOT_ASKED)


def _class_masks(family: Family) -> dict[str, Mask]:
    return {"control": family.control} | {f"all-but-{name}": mask for name, mask in family.masks.items()}


def _images(family: Family) -> dict[str, Test]:
    """One in ten test images of each class."""
    source = family.network.problem.source
    test = source.load("test")
    rows = {name: (test.labels == i).nonzero()[::10, 0] for i, name in enumerate(source.data.classes)}
    return {name: (test.pixels[own], test.labels[own]) for name, own in rows.items()}
