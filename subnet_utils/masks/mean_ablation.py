"""Mean ablation of weights: what is taken out leaves its mean behind.

Circuit work sets the outputs of what it takes out to 0, or to their mean over the data (Wang et al. 2023, IOI). How
faithful a circuit looks depends on the choice (Miller et al. 2024). A weight w_ij has an output, too: it adds w_ij x_j
to unit i. The mean of that is a number, and the bias of unit i takes it up: b_i + sum_j w_ij mean(x_j), over the
weights that are taken out. The inputs x_j are those in the whole network.
"""

from typing import TypeVar

import torch
from torch import Tensor, nn

from subnet_utils.masks.partitions import layer_of
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models.frozen import full_precision
from subnet_utils.models.staged import evaluating, watched

Network = TypeVar("Network", bound=nn.Module)


@torch.no_grad()
def mean_ablated(kept: Subnetwork, model: Network, inputs: Tensor) -> Network:
    """A copy of the network with the kept weights; of all others of its masks the mean contribution stays.

    inputs: [m, ...], the data over which means are taken. Raises WrongNetwork for another network, ValueError for a
    weight of another layer than a linear one with a bias, and as `partitions.layer_of` does.
    """
    changed, means, layers = kept.apply(model), {}, {name: layer_of(model, name) for name in kept.masks}
    if wrong := [name for name, one in layers.items() if not isinstance(one, nn.Linear) or one.bias is None]:
        raise ValueError(f"'{wrong[0]}' has no bias that could take up a mean; ablate it with zeros")

    def note(name: str, taken: Tensor, _: Tensor) -> None:
        means[name] = taken.flatten(0, -2).mean(dim=0)

    device = next(model.parameters()).device
    with evaluating(model), watched(layers, note), full_precision(device):
        model(inputs.to(device))
    for name, layer in layers.items():
        lost = layer.weight.masked_fill(kept.masks[name].to(device), 0.0)
        layer_of(changed, name).bias += lost @ means[name]
    return changed
