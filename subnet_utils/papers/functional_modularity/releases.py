"""What the zoo may hold of *Are Neural Nets Modular?*: networks for arithmetic, SCAN and images, with their masks."""

from collections.abc import Iterator
from functools import partial

from subnet_utils.core.lab import Lab
from subnet_utils.models.sequences import PADDING, trimmed
from subnet_utils.papers.functional_modularity.arithmetic_steps import Dissected, dissected
from subnet_utils.papers.functional_modularity.image_steps import Family, families
from subnet_utils.papers.functional_modularity.sequence_steps import SOURCE, Inspected, Scan, encoded, inspected
from subnet_utils.problems.modules import CONTROL, Mask, Network
from subnet_utils.problems.releases import FILES, released
from subnet_utils.tasks import scan
from subnet_utils.zoo import NOT_ASKED
from subnet_utils.zoo.release import Release, Test


def releases(lab: Lab) -> Iterator[Release]:
    """Networks as they were trained, with the usual masks."""
    section = lab.section("functional_modularity")
    for one in dissected(lab) if section.arithmetic is not None else ():
        if one.usual and isinstance(one.network, Network):
            known = [f"accuracy on {name}" for name in one.network.problem.functions]
            yield released(one.network, partial(_masks, one), partial(_items, one), chance=0.01, known=known)
    for one in inspected(lab) if section.sequences is not None else ():
        if isinstance(one.network.problem, Scan):
            yield released(one.network, partial(_split_masks, one), _commands, chance=0.0, known=[Scan.known])
    for family in families(lab) if section.images is not None else ():
        if family.usual:
            problem = family.network.problem
            chance, tests = 1 / len(problem.source.data.classes), partial(_images, family)
            about = {"chance": chance, "known": ["accuracy"], "stored": True}
            yield released(family.network, partial(_class_masks, family), tests, **about)


def _masks(one: Dissected) -> dict[str, Mask]:
    found = {"control": one.mask(CONTROL)}
    for function, masks in one.masks.items():
        name = FILES.get(function, function.replace(" ", "-"))
        found |= {f"{name}-{i}" if i else name: mask for i, mask in enumerate(masks)}
    return found


def _items(one: Dissected) -> dict[str, Test]:
    return {name: tuple(items) for name, items in one.network.problem.tests().items()}


def _split_masks(one: Inspected) -> dict[str, Mask]:
    return {"control": one.controls[0]} | {name.replace(" ", "-"): one.mask(name) for name in one.settings.with_masks}


def _commands() -> dict[str, Test]:
    """One in ten commands of each split's tests."""
    rows = {name: encoded(scan.split(name).test[::10]) for name in scan.SPLITS}
    answers = {name: trimmed(some[:, SOURCE:]) for name, some in rows.items()}
    return {name: (some, answers[name].masked_fill(answers[name] == PADDING, NOT_ASKED)) for name, some in rows.items()}


def _class_masks(family: Family) -> dict[str, Mask]:
    return {"control": family.control} | {f"without-{name}": mask for name, mask in family.masks.items()}


def _images(family: Family) -> dict[str, Test]:
    """One in five test images of each class."""
    source = family.network.problem.source
    test = source.load("test")
    rows = {name: (test.labels == i).nonzero()[::5, 0] for i, name in enumerate(source.data.classes)}
    return {name: (test.pixels[own], test.labels[own]) for name, own in rows.items()}
