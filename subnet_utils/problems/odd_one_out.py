"""Networks with known subtasks of other kinds: a BERT on agreement, a ResNet on scenes (notebook 10a).

An odd-one-out task of *Break It Down* (section 5) is composed of two subroutines. These are the functions. As there, a
function is tested twice: where the other subroutine is held fixed (the probe sets), and where it varies (the sets that
masks are trained on). In the first any part that does the whole task is right. In the second it is not: an item that
only violates the other subroutine is not the odd one.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn

from subnet_utils.core.seeds import generator_for
from subnet_utils.models import build
from subnet_utils.models.architectures import Bert, ResNet
from subnet_utils.problems.modules import CONTROL
from subnet_utils.problems.subtasks import VARIES, Subtasks
from subnet_utils.tasks import agreement, odd_one_out, shapes, tokenization

SEED = 0
"""Of all sets. Networks of all seeds learn from the same ones."""


class Chooser(nn.Module):
    """Four items [m, 4, ...] -> logits [m, 1, 4]: how sure it is of each that it is the odd one.

    embed: a network of stages. Of a BERT the pooler is left out, which no embedding goes through. Images are mirrored
    at random in training.
    """

    def __init__(self, embed: nn.Module) -> None:
        super().__init__()
        self.embed = embed.cut("pooler")[0] if "pooler" in embed.stage_names else embed

    def forward(self, items: Tensor) -> Tensor:
        """See the class."""
        each = items.flatten(0, 1)
        found = self.embed(odd_one_out.mirrored(each) if self.training and each.ndim == 4 else each)
        found = found[0][:, 0] if isinstance(found, tuple) else found
        with torch.autocast(found.device.type, enabled=False):  # gaps between logits are small
            found = found.to(torch.get_default_dtype()).unflatten(0, items.shape[:2])
            return odd_one_out.similarity_logits(found)[:, None]


@cache
def examples_of(task: str, set_name: str, split: str, count: int, resolution: int) -> tuple[Tensor, Tensor]:
    """Items [count, 4, ...] of a set's examples, as token ids or uint8 images, and the place of the odd one [count, 1].

    Raises ValueError for an unknown task, set or split, and for more examples than there are.
    """
    if task in odd_one_out.LANGUAGE_TASKS:
        made = agreement.generate(task, set_name, count, split=split, seed=SEED).encode(tokenization.tokenizer())
    else:
        made = shapes.generate(task, set_name, count, split=split, seed=SEED, resolution=resolution).odd_one_out()
    rows, odd = odd_one_out.draw(made.examples, generator=generator_for("odd one out", set_name, split))
    return made.items[rows], odd[:, None]


@dataclass(frozen=True)
class Subroutines(Subtasks):
    """A task with its two subroutines, and a network that embeds its items.

    task: a key of `odd_one_out.SUBROUTINES`; taught, masked, tested: examples that the network learns from, that the
    masks of a function learn from, and of each test; resolution: of images, pixels.
    """

    task: str
    architecture: Bert | ResNet
    taught: int
    masked: int
    tested: int
    resolution: int = 48

    lost = odd_one_out.CHANCE + 0.1
    at_once = 64

    @property
    def functions(self) -> tuple[str, str]:
        """The subroutines."""
        return odd_one_out.subroutines_of(self.task)

    @property
    def every_test(self) -> tuple[str, ...]:
        """See `Subtasks`: each subroutine where the other one is held fixed, and where it varies."""
        return (*self.functions, *(f"{name}{VARIES}" for name in self.functions))

    def network(self, seed: int) -> nn.Module:
        """See `Problem`."""
        about = {"vocabulary": tokenization.tokenizer().size, "resolution": self.resolution}
        first = generator_for("odd one out network", seed).initial_seed()
        return Chooser(build(self.architecture.model_dump(exclude_none=True), seed=first, **about))

    def examples(self, function: str, seed: int) -> tuple[Tensor, Tensor]:
        """See `Problem`: a subroutine is learned where the other one varies."""
        if function == CONTROL:
            return self._set("base", "train", self.taught)
        return self._set(f"mask-{function}", "train", self.masked)

    def tests(self, name: str) -> tuple[Tensor, Tensor]:
        """See `Subtasks`."""
        kind, function = ("mask", name.removesuffix(VARIES)) if name.endswith(VARIES) else ("probe", name)
        return self._set(f"{kind}-{function}", "test", self.tested)

    def _set(self, name: str, split: str, count: int) -> tuple[Tensor, Tensor]:
        return examples_of(self.task, name, split, count, self.resolution)
