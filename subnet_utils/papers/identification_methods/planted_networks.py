"""Networks into which subtasks are planted, and which of their units every weight connects.

All are for items of `modular_tasks`: inputs [m, 28] -> logits [m, 13]. Biases are there and zero: they are no part of
a mask, and what a part of a network does must be in its weights.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from subnet_utils.core.seeds import generator_for, separate_randomness
from subnet_utils.models.layers import attend
from subnet_utils.models.staged import require_multiple, require_positive
from subnet_utils.tasks.modular_tasks import BASE, WIDTH

RESIDUAL = 64
"""Numbers that a token of the transformer has."""


@dataclass(frozen=True)
class Layout:
    """What the weights of a network connect.

    units: name -> number of a layer's units: neurons, channels or heads. weights: parameter -> the layers that its rows
    and its columns belong to, '' for inputs and outputs, which all groups of units share.
    """

    units: Mapping[str, int]
    weights: Mapping[str, tuple[str, str]]

    def within(self, name: str, shape: Sequence[int], chosen: Mapping[str, Tensor]) -> Tensor:
        """The entries of a weight [rows, columns, ...] between chosen units, booleans; chosen: layer -> [units]."""
        mask = torch.ones(tuple(shape), dtype=torch.bool)
        for dimension, layer in enumerate(self.weights[name]):
            if layer:
                each = chosen[layer].repeat_interleave(shape[dimension] // self.units[layer])
                mask &= each.view(*(-1 if at == dimension else 1 for at in range(len(shape))))
        return mask


class Picture(nn.Module):
    """Items as pictures [m, 2, 13, 13]: row and column of the two numbers are lit, in the operation's channel."""

    def forward(self, inputs: Tensor) -> Tensor:
        """See the class."""
        first, second, asked = inputs.split([BASE, BASE, WIDTH - 2 * BASE], dim=1)
        lit = first[:, :, None] + second[:, None, :]
        return lit[:, None] * asked[:, :, None, None]


class Transformer(nn.Module):
    """One layer of attention and one MLP, both with a residual connection, over three tokens: two numbers, operation.

    A token's embedding is its part of the inputs. The answer is read from the last token, in dimensions that no
    embedding has. There is no normalization.
    """

    def __init__(self, heads: int, neurons: int, width: int = RESIDUAL):
        super().__init__()
        self.heads, self.width = heads, width
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.into, self.out = nn.Linear(width, neurons), nn.Linear(neurons, width)

    def forward(self, inputs: Tensor) -> Tensor:
        """See the class."""
        ends = torch.tensor([BASE, 2 * BASE, WIDTH], device=inputs.device)
        token_of = torch.bucketize(torch.arange(WIDTH, device=inputs.device), ends, right=True)
        tokens = inputs[:, None] * (token_of == torch.arange(len(ends), device=inputs.device)[:, None])
        tokens = pad(tokens, (0, self.width - WIDTH))
        last = tokens[:, -1:]
        parts = self.query(last), self.key(tokens), self.value(tokens)
        parts = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in parts)
        last = last + self.output(attend(*parts).transpose(1, 2).flatten(2))
        return (last + self.out(torch.relu(self.into(last))))[:, 0, -BASE:]


def _mlp(widths: Sequence[int]) -> tuple[nn.Module, Layout]:
    sizes = [WIDTH, *widths, BASE]
    layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.ReLU())][:-1]
    return nn.Sequential(*layers), _chain([f"{2 * i}.weight" for i in range(len(widths) + 1)], widths)


def _cnn(widths: Sequence[int]) -> tuple[nn.Module, Layout]:
    layers, side = [Picture()], BASE
    for i, (a, b) in enumerate(pairwise([2, *widths])):
        stride = 1 if i == 0 else 2
        layers += [nn.Conv2d(a, b, 3, stride, padding=1), nn.ReLU()]
        side = (side - 1) // stride + 1
    layers += [nn.Flatten(), nn.Linear(widths[-1] * side**2, BASE)]
    names = [f"{2 * i + 1}.weight" for i in range(len(widths))] + [f"{len(layers) - 1}.weight"]
    return nn.Sequential(*layers), _chain(names, widths)


def _transformer(widths: Sequence[int]) -> tuple[nn.Module, Layout]:
    heads = dict.fromkeys(("query.weight", "key.weight", "value.weight"), ("heads", ""))
    neurons = {"into.weight": ("neurons", ""), "out.weight": ("", "neurons")}
    layout = Layout(
        dict(zip(("heads", "neurons"), widths, strict=True)), heads | {"output.weight": ("", "heads")} | neurons
    )
    return Transformer(*widths), layout


def _chain(names: Sequence[str], widths: Sequence[int]) -> Layout:
    """The layout of layers one after the other."""
    layers = [f"hidden layer {i + 1}" for i in range(len(widths))]
    between = zip(names, pairwise(["", *layers, ""]), strict=True)
    weights = {name: (rows, columns) for name, (columns, rows) in between}
    return Layout(dict(zip(layers, widths, strict=True)), weights)


ARCHITECTURES: dict[str, Callable[[Sequence[int]], tuple[nn.Module, Layout]]] = {
    "mlp": _mlp, "cnn": _cnn, "transformer": _transformer,
}  # fmt: skip
USUAL = {"mlp": (100, 100), "cnn": (24, 24), "transformer": (8, 256)}
"""Neurons of each hidden layer, channels of each convolution, heads and neurons."""


def require_widths(architecture: str, widths: Sequence[int]) -> None:
    """Raise ValueError for widths of which no network can be made."""
    require_positive(**{f"hidden[{i}]": width for i, width in enumerate(widths)})
    if architecture == "transformer":
        if len(widths) != 2:
            raise ValueError(f"hidden of a transformer is heads and neurons, got {len(widths)} numbers; give two")
        require_multiple(RESIDUAL, widths[0])


def network(architecture: str, widths: Sequence[int], *, seed: int, scale: float = 1.0) -> tuple[nn.Module, Layout]:
    """A network at its random start, and its layout. scale: of torch's own first weights."""
    with separate_randomness():
        torch.manual_seed(generator_for("planted network", seed).initial_seed())
        model, layout = ARCHITECTURES[architecture](widths)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale if parameter.ndim > 1 else 0.0)
    return model.eval().requires_grad_(False), layout
