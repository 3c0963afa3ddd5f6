"""A network taken apart: what it and its parts answer to single examples, and how often they are right.

The experimental design of *Break It Down* (Lepori, Serre and Pavlick 2023, Figure 2) on one base model. Its parts are
the subnetwork of each subroutine and the network without it; any other `Subnetwork` of the base can be put beside them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from subnet_utils.core.lab import Lab
from subnet_utils.core.step import Step
from subnet_utils.core.store import save_table
from subnet_utils.masks.controls import random_like
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models import StagedModel
from subnet_utils.models.frozen import full_precision
from subnet_utils.papers.break_it_down.evaluation import score_model
from subnet_utils.papers.break_it_down.masks import FinalMask, Roles
from subnet_utils.papers.break_it_down.networks import Network
from subnet_utils.papers.break_it_down.sets import Sentences
from subnet_utils.papers.break_it_down.tables import identity, measured, used_masks
from subnet_utils.statistics import LEARNED
from subnet_utils.tasks.odd_one_out import CHANCE, similarity_logits, subroutines_of

WHOLE = "whole network"
TOGETHER, SHARED, NEITHER = "both together", "what both share", "without either"
ALONE = ("A alone", "B alone", TOGETHER, SHARED, "random like A", "random like B")
WITHOUT = ("without A", "without B", NEITHER)
PARTS = (WHOLE, *ALONE, *WITHOUT)
"""What `assembled` looks at, A and B being the task's subroutines."""


@dataclass(frozen=True)
class Parts(Step):
    """Test accuracies of a base model's parts, made of the first mask of each subroutine: table `parts`."""

    records_faults = True

    masks: tuple[FinalMask, ...]
    test: Roles
    draws: int = 3

    @classmethod
    def of(cls, masks: tuple[FinalMask, ...]) -> "Parts":
        """Those of the masks of both subroutines, on their base's test sets."""
        return cls(masks, Roles.of(masks[0].base, masks[0].subroutine, "test"))

    mask = property(lambda self: self.masks[0])
    base = property(lambda self: self.mask.base)

    @property
    def title(self) -> str:
        """Model, task and base model, for captions."""
        about = identity(self.base)
        return " ".join(filter(None, (about["model"], about["task"], about["number"], f"base {about['base_seed']}")))

    @property
    def heads(self) -> int | None:
        """Attention heads in a layer of the base model, if it has attention."""
        return getattr(self.base.architecture, "heads", None)

    def build(self, lab: Lab, folder: Path) -> None:
        """Measure the parts; the accuracies of random subnetworks are means over draws."""
        generic = dict(zip("AB", subnetworks(lab, self).values(), strict=True))
        drawn = {
            f"random like {name}, draw {draw}": random_like(own, seed=draw)
            for name, own in generic.items()
            for draw in range(self.draws)
        }
        table = accuracies(lab, self, parts(generic) | combined(generic) | drawn)
        table.columns = ["test_a", "test_b", "whole_task", "density"]
        means = table.groupby(table.index.str.split(",").str[0], sort=False).mean().rename_axis("part").reset_index()
        means["knows_one"] = means["part"].map(_knowing_one(lab, self.base))
        save_table(folder / "parts.parquet", means)


@dataclass(frozen=True)
class Dissection:
    """One base model and its parts before one example of each probe set.

    title: of the pair of masks; items: subroutine -> the example's four sentences, or images uint8 [4, 3, H, W], the
    odd one last; answers: one row for each part, subroutine and item (0 to 3), with the probability that the network
    gives this item to be the odd one; accuracies: those of `accuracies`.
    """

    title: str
    items: Mapping[str, list[str] | Tensor]
    answers: pd.DataFrame
    accuracies: pd.DataFrame


def pairs_of(masks: Sequence[FinalMask]) -> list[Parts]:
    """How each base model is taken apart: by the first of its masks of each subroutine, if it has one of both."""
    found: dict[Network, dict[str, FinalMask]] = {}
    for mask in masks:
        found.setdefault(mask.base, {}).setdefault(mask.subroutine, mask)
    return [Parts.of(tuple(masks.values())) for masks in found.values() if len(masks) == 2]


def mask_pairs(lab: Lab) -> list[Parts]:
    """`pairs_of` the masks that came to an end. Raises ValueError if there is none."""
    complete = pairs_of(used_masks(lab))
    if not complete:
        raise ValueError("no base model has a subnetwork of each subroutine; lower masks.learning_rates")
    return complete


def examined(lab: Lab) -> list[Parts]:
    """One base model of each modality: the first that has learned its task, or else the first."""
    chosen: dict[str, Parts] = {}
    for pair in sorted(mask_pairs(lab), key=lambda pair: pair.base.result(lab)["test_accuracy"] < LEARNED):
        chosen.setdefault(pair.base.modality, pair)
    return list(chosen.values())


def subnetworks(lab: Lab, pair: Parts) -> dict[str, Subnetwork]:
    """The subnetwork of each subroutine."""
    return {mask.subroutine: mask.load(lab) for mask in pair.masks}


def parts(found: Mapping[str, Subnetwork]) -> dict[str, Subnetwork]:
    """What the paper looks at: each subroutine's subnetwork alone, and the network without it (the ablated model)."""
    made = {}
    for name, subnetwork in found.items():
        made |= {f"{name} alone": subnetwork, f"without {name}": ~subnetwork}
    return made


def combined(found: Mapping[str, Subnetwork]) -> dict[str, Subnetwork]:
    """What the algebra of two subnetworks makes: their union, what they share, and the network without either.

    Nothing if there are not two, or if they mask different weights because they start at different stages.
    """
    if len(found) != 2 or len({tuple(sorted(one.masks)) for one in found.values()}) > 1:
        return {}
    first, second = found.values()
    both = first | second
    return {TOGETHER: both, SHARED: first & second, NEITHER: ~both}


def accuracies(lab: Lab, pair: Parts, shown: Mapping[Any, Subnetwork]) -> pd.DataFrame:
    """Test accuracy of a base model and of parts of it on the probe set of each subroutine and on its own task, and the
    share of masked weights that each part keeps. One row a part, the whole network first.

    Raises WrongNetwork for a subnetwork of another network.
    """
    base, rows = pair.base, {}
    sets = {f"Test {name}": base.data(f"probe-{name}", "test") for name in subroutines_of(base.task)}
    sets |= {"whole task": base.test}
    for part, model in _models(lab, base, shown):
        scored = {name: score_model(model, chosen.load(lab)).accuracy for name, chosen in sets.items()}
        rows[part] = scored | {"weights kept": shown[part].density if part in shown else 1.0}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("part")


def assembled(lab: Lab) -> pd.DataFrame:
    """How well parts of every base model solve its whole task and the probe set of each subroutine: a row each.

    Columns: what identifies the base model, base_accuracy, part (of `PARTS`), test accuracies whole_task, test_a and
    test_b, density (of the masked weights that are left), and key. Those of random subnetworks are means over draws.
    knows_one: the accuracy on the whole task of a subnetwork that is right wherever its own subroutine tells the odd
    one, and guesses elsewhere; of "A alone" and "B alone".
    """
    found = measured(lab, mask_pairs(lab), "parts of base models", "parts")
    return found.drop(columns=["subroutine", "mask_seed", "start"])


def mean_parts(table: pd.DataFrame) -> pd.DataFrame:
    """Means of `assembled` over the base models that learned their task, or over all if none did: a row for each part.

    Columns: model, paper_model, task, number, part, n_bases, whole_task, its least and most, test_a, test_b, density.
    """
    learned = table[table["base_accuracy"] >= LEARNED]
    of = ["model", "paper_model", "task", "number", "part"]
    groups = (table if learned.empty else learned).groupby(of, sort=False)
    whole = groups["whole_task"].agg(n_bases="size", whole_task="mean", least="min", most="max")
    return whole.join(groups[["test_a", "test_b", "density"]].mean()).reset_index()


def dissect(lab: Lab, pair: Parts, shown: Mapping[str, Subnetwork], *, example: int = 0) -> Dissection:
    """What a base model and parts of it answer to one test example of each subroutine's probe set.

    example: its number in the set. Raises IndexError, with the size of the set, for one that is not there, and
    WrongNetwork for a subnetwork of another network.
    """
    network, items, chosen, rows = pair.base, {}, {}, []
    for subroutine in subroutines_of(network.task):
        probe = network.data(f"probe-{subroutine}", "test")
        data = probe.load(lab)
        if not 0 <= example < len(data):
            raise IndexError(f"Test {subroutine} has no example {example}; give a number from 0 to {len(data) - 1}")
        chosen[subroutine] = items[subroutine] = data.items[data.examples[example]]
        if isinstance(probe, Sentences):
            text = probe.readable()
            items[subroutine] = [text.sentences[row] for row in text.examples[example].tolist()]
    for part, model in _models(lab, network, shown):
        for subroutine, four in chosen.items():
            with full_precision(lab.device), torch.no_grad():
                logits = similarity_logits(model(four.to(lab.device)).float()[None])
            rows += [(part, subroutine, i, p) for i, p in enumerate(logits.softmax(dim=-1)[0].tolist())]
    answers = pd.DataFrame(rows, columns=["part", "subroutine", "item", "probability"])
    return Dissection(pair.title, items, answers, accuracies(lab, pair, shown))


def _knowing_one(lab: Lab, network: Network) -> dict[str, float]:
    """Accuracy on the whole task of whoever knows the first subroutine alone, and of whoever knows the second."""
    data = network.test.load(lab)
    odd = data.kinds[data.examples[:, 3]]
    knowing = ((odd & violated > 0).double().mean() for violated in (1, 2))  # bit 0: A is violated, bit 1: B is
    return {part: float(share + CHANCE * (1 - share)) for part, share in zip(ALONE, knowing, strict=False)}


def _models(lab: Lab, network: Network, shown: Mapping[str, Subnetwork]) -> Iterator[tuple[str, StagedModel]]:
    """The base model and its parts, one after the other."""
    base = network.load(lab)
    yield WHOLE, base
    for part, subnetwork in shown.items():
        yield part, subnetwork.apply(base)
