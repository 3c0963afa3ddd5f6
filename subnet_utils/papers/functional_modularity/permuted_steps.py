"""One network learns the same images again and again, its pixels permuted (*Are Neural Nets Modular?*, section 3.3).

Weights and masks are trained together. What a task's mask keeps is frozen, what is free is drawn anew for the next
task. The first layer is drawn anew every time: it could undo the permutation, and all that follows be used again.
Is it? The paper does not compare with tasks that are the same: our control repeats the first one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, linear

from subnet_utils.core.lab import Lab
from subnet_utils.core.seeds import generator_for
from subnet_utils.core.step import CHECKPOINT, Step
from subnet_utils.core.store import Artefact, save_table, save_tensors
from subnet_utils.masks.discover import warn_if_all_are_kept
from subnet_utils.papers.functional_modularity.image_steps import Source, settings_of
from subnet_utils.papers.functional_modularity.section import Permuted
from subnet_utils.problems.modules import drawn
from subnet_utils.training import fit

DIFFERENT, REPEATED = "different permutations", "the same one repeated"
FIRST = "1."
"""How names of the first layer begin; the others are numbered on."""
ALIVE = 0.5
"""Accuracy below which a network has lost a layer: what it shares means nothing."""
OCCUPIED = 2.0
"""First logits of weights that an earlier task uses."""
Tensors = dict[str, Tensor]


class Learned(NamedTuple):
    """A network after a task: weights and biases by name, which of them the task keeps, which any task so far does."""

    weights: Tensors
    mask: Tensors
    used: Tensors


@dataclass(frozen=True)
class PermutedTask(Step):
    """One task of a sequence. `load` gives what is `Learned`.

    settings: `Permuted.problem`; start_value: first logits of new weights; permutation: its number, 0 leaves the pixels
    as they are; previous: the task before.
    """

    keeps: ClassVar[int] = 4

    settings: Permuted
    source: Source
    start_value: float
    seed: int
    permutation: int
    previous: "PermutedTask | None" = None

    @property
    def number(self) -> int:
        """Place in the sequence, from 1."""
        return self.previous.number + 1 if self.previous else 1

    @property
    def work(self) -> float:
        """Steps."""
        return self.settings.training.steps * self._samples

    @property
    def _samples(self) -> int:
        """Parts of a batch, each with a draw of the mask."""
        return getattr(self.settings.training.masking, "samples", 1)

    def data(self, title: str) -> tuple[Tensor, Tensor]:
        """Pixels [n, p] from 0 to 1, permuted, and labels of `train` or `test`."""
        images = self.source.load(title)
        pixels = images.pixels.float().mean(dim=1).flatten(1) / 255
        order = torch.randperm(pixels.shape[1], generator=generator_for("permutation", self.seed, self.permutation))
        return pixels[:, order] if self.permutation else pixels, images.labels

    def build(self, lab: Lab, folder: Path) -> dict[str, Any]:
        """Learn weights and mask together."""
        settings, training = self.settings, self.settings.training
        inputs, targets = (tensor.to(lab.device) for tensor in self.data("train"))
        old, used = ({n: t.to(lab.device) for n, t in part.items()} for part in self._before(lab, inputs.shape[1]))
        method = training.masking.build(training.recipe().epochs)
        weights = {name: tensor.clone().requires_grad_() for name, tensor in old.items()}
        first = self.start_value if settings.first_layer is None else settings.first_layer
        starts = {name: first if name.startswith(FIRST) else self.start_value for name in used}
        logits = {name: torch.where(of, OCCUPIED, starts[name]).requires_grad_() for name, of in used.items()}

        def interval(number: int) -> Iterator[tuple[Tensor, torch.Generator]]:
            generator = generator_for("permuted batches", self.seed, self.number, number)
            return ((rows.to(lab.device), generator) for rows in drawn(len(inputs), training, generator))

        def loss(batch: tuple[Tensor, torch.Generator], number: int) -> Tensor:
            (rows, generator), losses = batch, []
            now = frozen(weights, old, used)
            for part in rows.chunk(self._samples):
                soft = method.soft(logits, number, generator)
                with lab.autocast():
                    outputs = forward({name: now[name] * soft[name] for name in now}, inputs[part])
                losses.append(cross_entropy(outputs.float(), targets[part]))
            return torch.stack(losses).mean() + method.penalty(soft, logits)

        trained = weights | {f"logits of {name}": tensor for name, tensor in logits.items()}
        about = f"task {self.number}, new logits {self.start_value:g}, seed {self.seed}"
        recipe = training.recipe(self.seed)
        history = fit(trained, interval, loss, recipe=recipe, checkpoint=folder / CHECKPOINT, label=about)
        save_table(folder / "history.parquet", history)
        final = {name: tensor.detach().cpu() for name, tensor in frozen(weights, old, used).items()}
        mask = {name: method.hard(tensor.detach()).cpu() for name, tensor in logits.items()}
        entries = torch.cat([kept.flatten() for kept in mask.values()])
        warn_if_all_are_kept(about, int(entries.sum()), len(entries))
        before = {name: tensor.cpu() for name, tensor in used.items()}
        tensors = {f"weights/{name}": tensor for name, tensor in final.items()}
        tensors |= {f"mask/{name}": kept.byte() for name, kept in mask.items()}
        tensors |= {f"used/{name}": (kept | before[name]).byte() for name, kept in mask.items()}
        save_tensors(folder / "learned.safetensors", tensors)
        pixels, labels = self.data("test")
        right = forward({name: final[name] * mask[name] for name in final}, pixels).argmax(dim=1) == labels
        return {"accuracy": float(right.float().mean()), "layers": shares(mask, before)}

    def read(self, lab: Lab, artefact: Artefact) -> Learned:
        """See the class."""
        parts = {part: {} for part in Learned._fields}
        for name, tensor in artefact.tensors("learned").items():
            part, _, own = name.partition("/")
            parts[part][own] = tensor if part == "weights" else tensor.bool()
        return Learned(**parts)

    def _before(self, lab: Lab, pixels: int) -> tuple[Tensors, Tensors]:
        """Weights before the task, all but the used ones drawn anew, and which are used: none in the first layer."""
        new = fresh((pixels, *self.settings.widths, len(self.source.data.classes)), seed=self.seed, task=self.number)
        if self.previous is None:
            return new, {name: torch.zeros_like(tensor, dtype=torch.bool) for name, tensor in new.items()}
        learned = self.previous.load(lab)
        # in this order draws of masks go on
        used = {name: learned.used[name] & (not name.startswith(FIRST)) for name in new}
        return frozen(new, learned.weights, used), used


def fresh(sizes: tuple[int, ...], *, seed: int, task: int) -> Tensors:
    """New weights by Xavier's normal initialization, and biases of 0; `2.weight` is [outputs, inputs] of layer 2."""
    generator, made = generator_for("permuted weights", seed, task), {}
    for layer, (inputs, outputs) in enumerate(zip(sizes, sizes[1:], strict=False), start=1):
        made[f"{layer}.weight"] = torch.randn(outputs, inputs, generator=generator) * (2 / (inputs + outputs)) ** 0.5
        made[f"{layer}.bias"] = torch.zeros(outputs)
    return made


def frozen(weights: Tensors, old: Tensors, used: Tensors) -> Tensors:
    """The weights, with the old value where one is used: no gradient gets there."""
    return {name: torch.where(used[name], old[name], tensor) for name, tensor in weights.items()}


def forward(weights: Tensors, inputs: Tensor) -> Tensor:
    """Logits of the classes [m, k]: linear layers with ReLUs between them."""
    for layer in range(1, len(weights) // 2 + 1):
        inputs = linear(inputs.relu() if layer > 1 else inputs, weights[f"{layer}.weight"], weights[f"{layer}.bias"])
    return inputs


def shares(mask: Tensors, used: Tensors) -> list[dict[str, float]]:
    """Of every layer's weights: how many the task keeps, what share of these an earlier one used, and of all."""
    rows = []
    for layer in range(1, len(mask) // 2 + 1):
        kept, before = mask[f"{layer}.weight"], used[f"{layer}.weight"]
        count, both = int(kept.sum()), int((kept & before).sum())
        about = {"layer": layer, "kept": count, "total": kept.numel(), "used": float(before.float().mean())}
        rows.append(about | {"shared": both / count if count else None})
    return rows


def tasks(lab: Lab) -> list[PermutedTask]:
    """Every task of the sequences of a study, in order. The control repeats the first task of one with start logits
    alike."""
    settings, made = settings_of(lab), []
    permuted, source = settings.permuted, Source.of(settings.permuted.data or settings.data)
    orders = range(permuted.tasks), [0] * permuted.tasks
    for seed, start_value, order in product(permuted.seeds, permuted.start_values, orders):
        task = None
        for permutation in order:
            task = PermutedTask(permuted.problem, source, start_value, seed, permutation, task)
            made.append(task)
    return made
