"""A plain network of linear layers, whose weights a mask covers and whose biases it leaves alone."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class FeedForward(nn.Module):
    """Linear layers with ReLUs between them: [m, inputs] -> logits [m, digits, classes].

    widths: of all layers, inputs and outputs among them.
    """

    def __init__(self, widths: Sequence[int], classes: int = 10):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in zip(widths[:-1], widths[1:], strict=True))
        self.classes = classes

    def forward(self, inputs: Tensor) -> Tensor:
        """See the class."""
        for layer in self.layers[:-1]:
            inputs = torch.relu(layer(inputs))
        return self.layers[-1](inputs).unflatten(1, (-1, self.classes))
