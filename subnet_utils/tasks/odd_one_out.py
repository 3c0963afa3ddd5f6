"""Odd-one-out tasks: four items, three that follow a rule and one that does not.

*Break It Down* (section 5) composes every task of two binary subroutines A and B. An item is of one of four kinds,
A+B+, A-B+, A+B- and A-B-, coded 0 to 3 (bit 0: A violated, bit 1: B violated). One task trains the base model, one
discovers a subnetwork for each subroutine, and one probes each subroutine; they differ only in the kinds of the three
rule-following items and of the odd one (`composition`). Items are embedded one by one, and the least similar of the
four embeddings is the answer (`similarity_logits`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from subnet_utils.core.messages import nearest

SUBROUTINES: dict[str, tuple[str, str]] = {
    "inside-contact": ("inside", "contact"),
    "inside-number": ("inside", "number"),
    "number-contact": ("number", "contact"),
    "sv-agreement-singular": ("subject", "verb"),
    "sv-agreement-plural": ("subject", "verb"),
    "anaphora-singular": ("antecedent", "pronoun"),
    "anaphora-plural": ("antecedent", "pronoun"),
}
"""Subroutines (A, B) of each compositional task."""

VISION_TASKS = ("inside-contact", "inside-number", "number-contact")
LANGUAGE_TASKS = tuple(task for task in SUBROUTINES if task not in VISION_TASKS)
SPLITS = ("train", "validation", "test")
CHANCE = 0.25


@dataclass(frozen=True)
class OddOneOut:
    """A set of n examples over a table of m distinct items.

    items: [m, ...] one row per distinct image or sentence; kinds: int8 [m] the kind of each item (0 to 3);
    examples: int64 [n, 4] rows of `items`, the odd one in column 3 (it is moved to a random place when drawn).
    """

    items: Tensor
    examples: Tensor
    kinds: Tensor

    def __len__(self) -> int:
        return len(self.examples)


def sets_of(task: str) -> tuple[str, str, str, str, str]:
    """Names of the five sets of a task: base, one mask set and one probe set per subroutine.

    Raises ValueError for an unknown task, naming the nearest one.
    """
    a, b = subroutines_of(task)
    return ("base", f"mask-{a}", f"mask-{b}", f"probe-{a}", f"probe-{b}")


def subroutines_of(task: str) -> tuple[str, str]:
    """The subroutines (A, B) of a task. Raises ValueError for an unknown task, naming the nearest one."""
    if task not in SUBROUTINES:
        raise ValueError(f"unknown task '{task}'; {nearest(task, SUBROUTINES)}")
    return SUBROUTINES[task]


def split_task(task: str) -> tuple[str, str]:
    """A task's name without its grammatical number, and the number ('' in vision).

    >>> split_task("sv-agreement-singular")
    ('sv-agreement', 'singular')
    """
    if task not in LANGUAGE_TASKS:
        return task, ""
    name, number = task.rsplit("-", 1)
    return name, number


def other_subroutine(task: str, subroutine: str) -> str:
    """The subroutine of the task that is not `subroutine`. Raises ValueError if the task has no such subroutine."""
    a, b = subroutines_of(task)
    if subroutine not in (a, b):
        raise ValueError(f"task '{task}' has no subroutine '{subroutine}'; it has '{a}' and '{b}'")
    return b if subroutine == a else a


def composition(task: str, set_name: str, n: int, *, both: bool, generator: torch.Generator) -> Tensor:
    """Kinds of the four items of n examples, int64 [n, 4], the odd one in column 3.

    Base: three A+B+ and a violation, drawn uniformly. Mask set of A: only the odd one violates A; B is random in every
    item. Probe set of A: three A+B+ and one A-B+ (section 5, Figures 13 to 15). For B the letters are swapped. both:
    whether A-B- items exist. In language they do not (appendix F: a sentence with both flipped is grammatical again).
    There the odd one of the base task violates either A or B, and that of the mask task violates A alone.
    Raises ValueError for an unknown task or set.
    """
    if set_name not in sets_of(task):
        raise ValueError(f"task '{task}' has no set '{set_name}'; {nearest(set_name, sets_of(task))}")
    kinds = torch.zeros(n, 4, dtype=torch.int64)
    if set_name == "base":
        kinds[:, 3] = torch.randint(1, 4 if both else 3, (n,), generator=generator)
        return kinds
    role, subroutine = set_name.split("-", 1)
    target, other = (1, 2) if subroutine == subroutines_of(task)[0] else (2, 1)
    kinds[:, 3] = target
    if role == "mask":
        kinds[:, :3] = other * torch.randint(0, 2, (n, 3), generator=generator)
        if both:
            kinds[:, 3] += other * torch.randint(0, 2, (n,), generator=generator)
    return kinds


def draw(examples: Tensor, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Move each odd one to a random place: item rows [b, 4] and the odd one's position [b]."""
    order = torch.rand(examples.shape, generator=generator).argsort(dim=1)
    return examples.gather(1, order), (order == 3).int().argmax(dim=1)


def batches(data: OddOneOut, batch_size: int, *, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """One pass over the examples, shuffled: (item rows [b, 4], odd position [b]) a batch; the last may be smaller."""
    for rows in torch.randperm(len(data), generator=generator).split(batch_size):
        yield draw(data.examples[rows], generator=generator)


def mirrored(images: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Images [k, 3, H, W], each mirrored left-right and top-bottom with probability one half."""
    for dimension in (2, 3):
        chosen = (torch.rand(len(images), 1, 1, 1, generator=generator) < 0.5).to(images.device, non_blocking=True)
        images = torch.where(chosen, images.flip(dimension), images)
    return images


def similarity_logits(embeddings: Tensor) -> Tensor:
    """Logits [b, 4] of "item i is the odd one" from embeddings [b, 4, d].

    Embeddings are L2-normalized, S = E E^T, logit_i = -sum_j S_ij with the item itself included (section 5: "dot
    product"; the authors' run normalizes first, so it is the cosine). Cross-entropy over these logits, without a
    temperature, cannot fall below log(1 + 3 exp(-4)) = 0.0535.
    """
    directions = torch.nn.functional.normalize(embeddings, dim=-1)
    return -(directions @ directions.sum(dim=-2).unsqueeze(-1)).squeeze(-1)


def similarity_loss(embeddings: Tensor, odd: Tensor) -> Tensor:
    """Cross-entropy of the odd one's place, nats, by `similarity_logits`."""
    return torch.nn.functional.cross_entropy(similarity_logits(embeddings), odd)
