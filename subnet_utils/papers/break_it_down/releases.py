"""What the zoo may hold of *Break It Down*: of every task the first network that learned it, with all its masks."""

from collections.abc import Iterator, Mapping
from functools import partial

import pandas as pd
import torch
from torch import Tensor, nn

from subnet_utils.core.lab import Lab
from subnet_utils.core.seeds import generator_for
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.papers.break_it_down import networks, tables
from subnet_utils.papers.break_it_down.dissection import WHOLE, Dissection
from subnet_utils.papers.break_it_down.masks import FinalMask
from subnet_utils.papers.break_it_down.networks import Network
from subnet_utils.papers.break_it_down.sets import Sentences
from subnet_utils.statistics import LEARNED
from subnet_utils.tasks import shapes, tokenization
from subnet_utils.tasks.odd_one_out import CHANCE, LANGUAGE_TASKS, draw, similarity_logits, split_task, subroutines_of
from subnet_utils.zoo import Entry, share_right
from subnet_utils.zoo.release import Release, Test, committed

DRAWN = 200
"""Examples of a test on images. They are drawn when an entry is loaded, so they are few."""


def releases(lab: Lab) -> Iterator[Release]:
    """Networks of the first architecture that a study has for a task."""
    models = {}
    for base in networks.bases(lab):
        if models.setdefault(base.task, base.experiment.model) == base.experiment.model:
            about = {"network": base, "seed": base.seed, "chance": CHANCE, "fresh": base.fresh, "logits": logits}
            about |= {"masks": partial(_masks, lab, base), "tests": partial(_tests, lab, base)}
            about |= {"learned": partial(_learned, base=base), "effects": partial(_effects, lab, base)}
            yield Release(base.task, _said(base.task), **about)


def _said(task: str) -> str:
    """What a network does, for readers."""
    items = "sentences" if task in LANGUAGE_TASKS else "images of shapes"
    both = " and ".join(subroutines_of(task))
    return (
        f"It picks the odd one of four {items}. That takes two subroutines, {both}. The test of one holds the other "
        "one fixed: it is the same in all four."
    )


@torch.no_grad()
def logits(network: nn.Module, items: Tensor) -> Tensor:
    """Logits [n, 4] of each of four items [n, 4, ...] being the odd one."""
    found = [network(some.flatten(0, 1)).unflatten(0, some.shape[:2]) for some in items.split(50)]
    return similarity_logits(torch.cat(found))


def _learned(lab: Lab, *, base: Network) -> bool:
    return base.result(lab)["validation_accuracy"] >= LEARNED


def _masks(lab: Lab, base: Network) -> dict[str, FinalMask]:
    first = base.experiment.masks.seeds[0]
    return {
        mask.subroutine if mask.seed == first else f"{mask.subroutine}-{mask.seed}": mask
        for mask in tables.final_masks(lab, [base])
    }


def _tests(lab: Lab, base: Network) -> dict[str, Test]:
    """Each subroutine where the other one is held fixed, and the whole task."""
    sets = {name: f"probe-{name}" for name in subroutines_of(base.task)} | {"whole task": "base"}
    return {name: _test(lab, base, chosen) for name, chosen in sets.items()}


def _test(lab: Lab, base: Network, set_name: str) -> Test:
    chosen = base.data(set_name, "test")
    if isinstance(chosen, Sentences):
        data = chosen.load(lab)
    else:  # the first of the set's images, without the store
        one = chosen.parts[0]
        options = {"seed": one.seed, "split": one.split, "resolution": one.resolution}
        data = shapes.generate(one.task, one.set_name, min(one.n, DRAWN), **options).odd_one_out()
    rows, odd = draw(data.examples, generator=generator_for("evaluation", len(data)))
    return data.items[rows], odd


def _effects(lab: Lab, base: Network) -> pd.DataFrame:
    """Of the study's Figure 4, if it is there."""
    task, number = split_task(base.task)
    about = {"model": base.experiment.paper_model, "task": task, "number": number}
    return committed(lab.study.name, "figure_4_values", **about)


def dissected(entry: Entry, shown: Mapping[str, Subnetwork], *, example: int = 0) -> Dissection:
    """`dissection.dissect` for an entry of the zoo: what its network and parts of it answer to one example of each
    subroutine's test. Raises IndexError for an example that is not there."""
    models = {WHOLE: entry.network} | {part: entry.part(kept) for part, kept in shown.items()}
    items, answers, accuracies = {}, [], {}
    for subroutine in subroutines_of(entry.card["name"]):
        inputs, odd = entry.tests[subroutine]
        order = [i for i in range(4) if i != odd[example]] + [int(odd[example])]
        items[subroutine] = _readable(inputs[example, order])
        for part, model in models.items():
            found = entry.logits(model, subroutine)
            probabilities = found[example, order].softmax(dim=-1).tolist()
            answers += [(part, subroutine, i, one) for i, one in enumerate(probabilities)]
            accuracies.setdefault(f"Test {subroutine}", {})[part] = share_right(found.argmax(dim=-1), odd)
    table = pd.DataFrame(answers, columns=["part", "subroutine", "item", "probability"])
    return Dissection(entry.card["name"], items, table, pd.DataFrame(accuracies))


def _readable(items: Tensor) -> Tensor | list[str]:
    """Images as they are, sentences as text."""
    if items.ndim > 2:
        return items
    tokens = tokenization.tokenizer().tokens
    words = ([tokens[i] for i in row if tokens[i] not in tokenization.SPECIAL_TOKENS] for row in items.tolist())
    return [" ".join(row) for row in words]
