"""SimCLR (Chen et al. 2020): two augmented views of an image shall have similar embeddings, of different images not.

*Break It Down*, section 8 and appendix G.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import mean
from typing import Any

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional

from subnet_utils.core.seeds import generator_for
from subnet_utils.models import StagedModel
from subnet_utils.models.frozen import full_precision, sent
from subnet_utils.papers.break_it_down.section import SimCLR
from subnet_utils.tasks.odd_one_out import OddOneOut
from subnet_utils.training import fit

Precision = Callable[[], AbstractContextManager]
"""Makes the context in which networks run forward while they are trained."""
DEGREES, SHIFT, SHRINK, SHEAR, TURN, JITTER, GRAY = 30.0, 0.05, 0.1, 20.0, 90.0, 0.5, 0.2
"""Strength of the augmentation: affine angle, shift in image widths, most that is lost in scale, shear, rotation,
contrast and saturation, and the probability of gray. Appendix G names the kinds; the numbers are those of the authors'
code, in which jitter and affine map are applied to half of the images each and the jitter leaves brightness and hue."""


@dataclass(frozen=True)
class Augmentation:
    """What happens to each of m images; every field is a tensor with one row an image.

    In this order: mirrored left-right where `mirror` is -1 (else 1); contrast and saturation multiplied; affine map,
    that is sheared by an angle along x, scaled, turned clockwise by `angle` and shifted [m, 2] by image widths along x
    and y; turned counter-clockwise by `rotation`. Angles are in degrees; saturation 0 is gray.
    """

    mirror: Tensor
    contrast: Tensor
    saturation: Tensor
    shear: Tensor
    scale: Tensor
    angle: Tensor
    shift: Tensor
    rotation: Tensor

    @classmethod
    def draw(cls, m: int, generator: torch.Generator) -> "Augmentation":
        """An independent draw for each of m images."""
        chance = torch.rand(4, m, generator=generator)
        spread = 2 * torch.rand(8, m, generator=generator) - 1
        jittered, moved = chance[1] < 0.5, chance[2] < 0.5
        return cls(
            mirror=torch.where(chance[0] < 0.5, -1.0, 1.0),
            contrast=1 + JITTER * spread[0] * jittered,
            saturation=(1 + JITTER * spread[1] * jittered) * (chance[3] >= GRAY),
            shear=SHEAR * spread[2] * moved,
            scale=1 - SHRINK * (1 + spread[3]) / 2 * moved,
            angle=DEGREES * spread[4] * moved,
            shift=SHIFT * (spread[5:7] * moved).T,
            rotation=TURN * spread[7],
        )

    def __call__(self, images: Tensor) -> Tensor:
        """The changed images, floats in [0, 1] [m, 3, H, H], of uint8 [m, 3, H, H]; what moves in is white.

        The map is one bilinear sampling: two would blur twice. What the affine map alone would push over the edge and
        the rotation brings back is therefore still there.
        """
        drawn = self.contrast, self.saturation, self.inverse()
        contrast, saturation, inverse = (sent(tensor, images.device) for tensor in drawn)
        images = images.float() / 255
        images = _blend(images, _gray(images).mean(dim=(2, 3), keepdim=True), contrast)
        images = _blend(images, _gray(images), saturation)
        grid = functional.affine_grid(inverse, list(images.shape), align_corners=False)
        ink = functional.grid_sample(1 - images, grid, align_corners=False)  # pads with no ink, which is white
        return (1 - ink).clamp_(min=0)

    def inverse(self) -> Tensor:
        """Matrices [m, 2, 3] from a place in the changed image to its origin, in half image widths from the center."""
        shear = torch.eye(2).repeat(len(self.shear), 1, 1)
        shear[:, 0, 1] = self.shear.deg2rad().tan()
        back = shear @ _turn(-self.angle) / self.scale[:, None, None]
        back[:, 0] *= self.mirror[:, None]
        return torch.cat([back @ _turn(self.rotation), -2 * back @ self.shift[:, :, None]], dim=2)


def _blend(images: Tensor, other: Tensor, factors: Tensor) -> Tensor:
    """`other` at factor 0, the images at 1, beyond them above, cut off at black and white."""
    return torch.lerp(other, images, factors[:, None, None, None]).clamp_(0, 1)


def _gray(images: Tensor) -> Tensor:
    """Luma of colors: [m, 3, H, W] to [m, 1, H, W]."""
    return sum(share * images[:, i : i + 1] for i, share in enumerate((0.299, 0.587, 0.114)))


def _turn(degrees: Tensor) -> Tensor:
    """Matrices [m, 2, 2] that turn clockwise, y pointing down."""
    cos, sin = degrees.deg2rad().cos(), degrees.deg2rad().sin()
    return torch.stack([cos, -sin, sin, cos], dim=1).unflatten(1, (2, 2))


def contrastive_batches(sets: Sequence[OddOneOut], batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """One pass over the examples of all sets, shuffled: images uint8 [batch_size, 3, H, W] a batch (appendix G).

    Each example gives one of its three rule-following images, drawn at random, and its rule-breaking one. What does not
    fill a batch is left out: the fewer images, the easier it is to tell two views of one from the rest.
    Raises ValueError for an odd batch size and for one that the examples do not fill.
    """
    size, examples = batch_size // 2, torch.cat([data.examples for data in sets])
    if batch_size % 2 or not 0 < size <= len(examples):
        most = 2 * len(examples)
        raise ValueError(f"batch_size {batch_size}: give an even number from 2 to {most}, as many as there are")
    owners = torch.repeat_interleave(torch.tensor([len(data) for data in sets]))
    columns = torch.randint(3, (len(examples),), generator=generator)
    pairs = torch.stack([examples.gather(1, columns[:, None]).squeeze(1), examples[:, 3]], dim=1)
    order = torch.randperm(len(examples), generator=generator)
    for part in order[: len(order) - len(order) % size].split(size):
        yield torch.cat([data.items[pairs[part[owners[part] == i]].flatten()] for i, data in enumerate(sets)])


def nt_xent(embeddings: Tensor, temperature: float) -> Tensor:
    """The normalized temperature-scaled cross-entropy of Chen et al. (2020, equation 1), a scalar in nats.

    embeddings: [2n, d], rows i and i + n being views of one image. For each view it is the cross-entropy of finding its
    partner among the 2n - 1 others by cosine similarity over the temperature.
    """
    return functional.cross_entropy(*_matches(embeddings, temperature))


def top_k_accuracy(embeddings: Tensor, k: int = 5) -> float:
    """Share of views [2n, d] whose partner is among the k most similar of the 2n - 1 others.

    Another view that is just as similar counts as more similar: embeddings that have all become one score 0, not 1.
    Of no more than k others nothing can be wrong.
    """
    similarities, partners = _matches(embeddings)
    partner = similarities.gather(1, partners[:, None])
    return float(((similarities >= partner).sum(dim=1) <= k).double().mean())


def _matches(embeddings: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Cosine similarities [2n, 2n] over the temperature, -inf with itself, and the row [2n] of each view's partner."""
    directions, rows = functional.normalize(embeddings, dim=1), torch.arange(len(embeddings), device=embeddings.device)
    similarities = (directions @ directions.T).fill_diagonal_(-math.inf)
    return similarities / temperature, rows.roll(len(rows) // 2)


def simclr(
    model: StagedModel,
    train: Sequence[OddOneOut],
    validation: Sequence[OddOneOut],
    settings: SimCLR,
    precision: Precision = nullcontext,
    **about: Any,
) -> pd.DataFrame:
    """Pretrain a ResNet, whose `head` is the projection MLP, on the images of several sets (appendix G).

    The learning rate falls to a fiftieth by a cosine. Kept are the weights of the epoch with the best top-5 accuracy on
    the validation sets, measured on the same views every time, batch by batch. Returns the history, whose
    validation_loss, the number that decides, is 1 - top-5 accuracy; validation_nt_xent is the contrastive loss.
    about: for `fit`. Raises ValueError if either list of sets does not fill a batch, TrainingDiverged as `fit` does.
    """
    device, seed, batch_size = next(model.parameters()).device, settings.seed, settings.batch_size
    held_out = list(contrastive_batches(validation, batch_size, generator_for(seed, "validation")))

    def two_views(images: Tensor, generator: torch.Generator) -> Tensor:
        twice = sent(images, device).repeat(2, 1, 1, 1)
        return Augmentation.draw(len(twice), generator)(twice)

    def one_pass(epoch: int) -> Iterator[tuple[Tensor, torch.Generator]]:
        generator = generator_for(seed, epoch)
        for images in contrastive_batches(train, batch_size, generator):
            yield images, generator

    def loss(batch: tuple[Tensor, torch.Generator], epoch: int) -> Tensor:
        views = two_views(*batch)
        with precision():
            embeddings = model(views)
        return nt_xent(embeddings.float(), settings.temperature)

    @torch.no_grad()
    def validate() -> dict[str, float]:
        generator = generator_for(seed, "views")
        with full_precision(device):
            embeddings = [model(two_views(images, generator)) for images in held_out]
            contrast = mean(float(nt_xent(e, settings.temperature)) for e in embeddings)
            top = mean(top_k_accuracy(e) for e in embeddings)
        return {"validation_loss": 1 - top, "validation_accuracy": top, "validation_nt_xent": contrast}

    trained = dict(model.named_parameters())
    return fit(trained, one_pass, loss, recipe=settings.recipe(seed), validate=validate, **about)
