"""An LSTM that sees one input for several steps (*Are Neural Nets Modular?*, appendices C.4 and C.5)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad


class Reader(nn.Module):
    """An LSTM that sees its input for several steps and is read afterwards: [m, inputs] -> logits [m, digits, classes].

    reading: 'together', the whole input for `steps` steps, read at the last; 'forced', of two pairs the first alone for
    half of the steps and read then, and the second alone for the other half, without a new state.
    """

    def __init__(self, inputs: int, width: int, layers: int, outputs: int, *, steps: int, reading: str = "together"):
        super().__init__()
        self.lstm = nn.LSTM(inputs, width, layers, batch_first=True)
        self.output = nn.Linear(width, outputs)
        self.steps, self.reading = steps, reading

    def forward(self, inputs: Tensor) -> Tensor:
        """See the class."""
        if self.reading == "together":
            states, _ = self.lstm(inputs[:, None].expand(-1, self.steps, -1))
            return self.output(states[:, -1]).unflatten(1, (-1, 10))
        half, middle = self.steps // 2, inputs.shape[1] // 2
        first, second = pad(inputs[:, :middle], (0, middle)), pad(inputs[:, middle:], (middle, 0))
        states, _ = self.lstm(torch.stack([first] * half + [second] * half, dim=1))
        answers = [self.output(states[:, at]).unflatten(1, (2, -1, 10)) for at in (half - 1, -1)]
        return torch.cat([answers[0][:, 0], answers[1][:, 1]], dim=1)
