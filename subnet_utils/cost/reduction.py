"""Which steps of a study are the same code on the same shapes, and how one of each is made smaller.

Architectures, methods and resolutions stay. Examples and random draws become few, and so do batches of large networks.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

from subnet_utils.core.sections import Section
from subnet_utils.core.step import Step, described, with_parents
from subnet_utils.core.store import key_of
from subnet_utils.tasks.odd_one_out import LANGUAGE_TASKS, VISION_TASKS

BATCH = 4
"""Examples of a batch at most, for networks of LARGE classes."""
LARGE = ("ResNet", "ViT", "ResNetClassifier", "ViTClassifier", "PublishedTransformer")
"""Classes of architectures of which a whole batch is too much for a CPU, where they are as large as the papers'."""
PER_CLASS = {"mask_per_class": 450, "validation_per_class": 450}
"""Numbers that a study's data depend on, and what they are divided by: as many images as stand-ins have fewer."""
EXAMPLES = ("n", "train", "test", "tested")
"""Fields of steps that count examples, which are divided by FEWER."""
FEWER = 100
DRAWS, FEWEST = 3, 4
"""Random draws, and examples, that are left at least."""
SOME = 10
"""Samples that a network learns from, from which on more of them make no difference."""
NAMES = ("first", "draw", "draws", "permutation", "step", "schedule", "files", "digest", "set_name", "split",
         "subroutine", "function", "functions", "target", "computation", "subtask")  # fmt: skip
"""Fields that choose among things of the same shapes. Seeds and broken numbers do, too."""
SOURCES = ("weights", "pretrained", "train", "test", "conflicts", "mismatched", "hans", "paws", "folder")
"""Fields that say where something lies."""
SHOWN = ("task", "resolution", "start", "masking", "samples", "condition", "title", "by", "count", "layers")
"""What a table says of a step besides its architecture."""

Change = Callable[[str, int], int]


def few_per_class(value: Any) -> Any:
    """A study with fewer images of each class."""
    return _changed(value, lambda name, number: max(1, number // PER_CLASS[name]) if name in PER_CLASS else number)


def smaller(step: Step, known: dict[str, Step]) -> Step:
    """The step with few examples and draws, and so all that it is made of. known: by name, what was found before."""
    if step.name not in known:
        change = partial(_less, large=is_large(step))
        known[step.name] = _changed(step, change, lambda parent: smaller(parent, known))
    return known[step.name]


def _less(name: str, number: int, *, large: bool) -> int:
    """A whole number in a field of this name, made smaller if it counts what is to become few."""
    if name in EXAMPLES:
        return max(FEWEST, number // FEWER)
    if name == "first":  # of a set that is drawn in parts: all of them are its first one then
        return 0
    if name == "batch_size" and large:
        return min(number, BATCH)
    return min(number, DRAWS) if name == "draws" else number


def _changed(value: Any, change: Change, parent: Callable[[Step], Step] | None = None, *, top: bool = True) -> Any:
    """A value with other whole numbers in it: change(name of the field, number). parent: what stands for a step."""
    if isinstance(value, Step) and not top:
        return parent(value)
    if isinstance(value, tuple):
        return tuple(_changed(one, change, parent, top=False) for one in value)
    if isinstance(value, Section):
        own = dict(value)
    elif is_dataclass(value) and not isinstance(value, type):
        own = {one.name: getattr(value, one.name) for one in fields(value) if one.init}
    else:
        return value
    new = {
        name: change(name, one) if type(one) is int else _changed(one, change, parent, top=False)
        for name, one in own.items()
    }
    new = {name: one for name, one in new.items() if one is not own[name]}
    if not new:
        return value
    return value.model_copy(update=new) if isinstance(value, Section) else dataclasses.replace(value, **new)


def scale(step: Step) -> float:
    """How many times what a smaller step computes in training the whole one does: by the examples where they are fewer,
    else by the batch."""
    numbers = [pair for one in with_parents([step]) for pair in _numbers(one)]
    examples = [number for name, number in numbers if name == "n"]
    if examples:
        return sum(examples) / sum(_less("n", number, large=False) for number in examples)
    if any(name in PER_CLASS for name, _ in numbers):
        return max(PER_CLASS.values())
    return batch(step) / _less("batch_size", batch(step), large=is_large(step)) if batch(step) else 1.0


def effort(step: Step, known: dict[str, int]) -> float:
    """Roughly how long a step takes beside others of its group: its `work`, times the examples of its sets.

    known: by name, examples of single steps.
    """
    steps = with_parents([step])
    for one in steps:
        if one.name not in known:
            known[one.name] = sum(number for name, number in _numbers(one) if name == "n")
    return step.work * max(1, sum(known[one.name] for one in steps))


def _numbers(step: Step) -> Iterator[tuple[str, int]]:
    """Whole numbers in the fields of a step by name, those of its parents not among them."""
    return ((name, one) for name, one in _within(step) if type(one) is int)


def is_large(step: Step) -> bool:
    """Whether a step, or one that it is made of, is about a network of a LARGE class."""
    return any(type(value).__name__ in LARGE for one in with_parents([step]) for _, value in _within(one))


def _within(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields of a value, and of all that is in it, by name; a step among them as it is."""
    for name, one in _fields(value):
        yield name, one
        yield from () if isinstance(one, Step) else _within(one)


def _fields(value: Any) -> list[tuple[str, Any]]:
    """Fields of a section or a dataclass that count, by name; items of a tuple without one."""
    if isinstance(value, Section):
        return list(value)
    if isinstance(value, tuple):
        return [("", one) for one in value]
    is_data = is_dataclass(value) and not isinstance(value, type)
    return [(one.name, getattr(value, one.name)) for one in fields(value) if one.compare] if is_data else []


def shapes(step: Step, known: dict[str, str]) -> str:
    """Equal for steps that make things of the same shapes by the same code, so that one can stand in for the other.

    known: by name, what was found before.
    """
    if step.name not in known:
        about = described(step, lambda parent: shapes(parent, known))
        known[step.name] = key_of(step.kind(), {"about": _kept(about)})
    return known[step.name]


def group(step: Step, known: dict[str, str]) -> str:
    """The same, with the step's own task told from others: the one of each group is made."""
    return f"{shapes(step, known)} {getattr(step, 'task', '')}"


def _kept(value: Any) -> Any:
    """What is in a description, without what chooses among things of the same shapes."""
    if isinstance(value, Mapping):
        kept = {name: _kept(one) for name, one in value.items() if not _chooses(name, one)}
        return kept | ({"samples": min(kept["samples"], SOME)} if type(kept.get("samples")) is int else {})
    if not isinstance(value, list):
        return value
    kept = [_kept(one) for one in value if not isinstance(one, float)]
    if any(isinstance(one, list) and all(type(part) is int for part in one) for one in kept):
        return len(kept)  # places, such as heads of a layer
    return list(dict.fromkeys(kept)) if all(isinstance(one, str) for one in kept) else kept


def _chooses(name: str, value: Any) -> bool:
    if name.endswith(("seed", "seeds")) or name in NAMES or isinstance(value, float):
        return True
    if name == "task":
        return value in (*VISION_TASKS, *LANGUAGE_TASKS)
    return name in EXAMPLES and isinstance(value, int)


def batch(step: Step) -> int:
    """The batch of a step, or of what it is made of; 0 without one."""
    sizes = (size for one in reversed(with_parents([step])) for name, size in _numbers(one) if name == "batch_size")
    return next(sizes, 0)


def words(step: Step) -> str:
    """What a step is about: its architecture, and what a reader looks for."""
    found: dict[str, str] = {}
    for one in reversed(with_parents([step])):
        for name, value in _leaves(one):
            found.setdefault(name, value)
    said = sorted(found.items(), key=lambda item: ("network", *SHOWN).index(item[0]))
    return ", ".join(value if name == "network" else f"{name} {value}" for name, value in said)


def _leaves(step: Step) -> Iterator[tuple[str, str]]:
    for name, one in _within(step):
        if name in ("architecture", "section", "design"):
            yield "network", one if isinstance(one, str) else _named(one)
        elif name == "masking":
            yield name, one if isinstance(one, str) else type(one).__name__
        elif name in SHOWN and isinstance(one, str | int) and one != "":
            yield name, str(one)


def _named(section: Any) -> str:
    """A section by its class and what is not at its default: `ViT layers=12`."""
    kind, own = described(section, str)
    named = {name: one for name, one in own.items() if name != "family" and isinstance(one, int | str | list)}
    return " ".join([kind, *(f"{name}={one}".replace(" ", "") for name, one in named.items() if name not in SOURCES)])
