"""What an ablation is compared with: random subnetworks of the same size, and ablations that are not by zeros.

*Break It Down* concludes from an ablated model that fails at one subroutine that the weights taken out computed it.
Would any other subnetwork with as many weights in every layer have done the same (`random_like`,
`random_in_complement`)? Is it the loss of the weights, or the zeros in their place (`replaced`, `units_at_means`)?
These are pure functions of (subnetwork, seed): neither the model nor the global random state is touched.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn
from torch.nn import functional

from subnet_utils.core.seeds import generator_for
from subnet_utils.core.step import Fault
from subnet_utils.masks.subnetwork import Subnetwork
from subnet_utils.models.frozen import full_precision
from subnet_utils.models.staged import StagedModel, watched


class NoControl(Fault):
    """There is no control of the subnetwork's size: its complement has fewer weights than it has."""


def random_like(subnetwork: Subnetwork, *, seed: int) -> Subnetwork:
    """A subnetwork drawn at random with as many weights in every layer as the given one.

    >>> a = Subnetwork({"w": torch.tensor([[True, False], [False, False]])}, network="n")
    >>> random_like(a, seed=0).active, random_like(a, seed=0) == random_like(a, seed=0)
    (1, True)
    """
    every = {name: torch.ones_like(mask) for name, mask in subnetwork.masks.items()}
    return random_within(subnetwork, every, "control", "like", seed)


def random_in_complement(subnetwork: Subnetwork, *, seed: int) -> Subnetwork:
    """A subnetwork drawn at random from the complement, with as many weights in every layer as the given one.

    Raises NoControl where the complement has fewer weights than the subnetwork.

    >>> a = Subnetwork({"w": torch.tensor([True, False, False])}, network="n")
    >>> drawn = random_in_complement(a, seed=0)
    >>> drawn.active, (drawn & a).active
    (1, 0)
    """
    for name, mask in subnetwork.masks.items():
        inside, outside = int(mask.sum()), int((~mask).sum())
        if outside < inside:
            raise NoControl(
                f"'{name}': {inside} weights in the subnetwork, {outside} outside it; "
                "its complement holds no control of that size, use random_like"
            )
    return random_within(subnetwork, (~subnetwork).masks, "control", "complement", seed)


def random_part(subnetwork: Subnetwork, share: float, *, seed: int) -> Subnetwork:
    """A share of the subnetwork's weights of every layer, rounded, in random order.

    With one seed the weights of a smaller share are among those of a larger one. Raises ValueError for a share that is
    not between 0 and 1.

    >>> a = Subnetwork({"w": torch.tensor([True, True, True, True, False])}, network="n")
    >>> half, all_but_one = (random_part(a, share, seed=0) for share in (0.5, 0.75))
    >>> half.active, all_but_one.active, (half - all_but_one).active, (half - a).active
    (2, 3, 0, 0)
    """
    if not 0 <= share <= 1:
        raise ValueError(f"a share is between 0 and 1, got {share}; divide percents by 100")
    masks = {
        name: _drawn(mask, round(share * int(mask.sum())), "control", "part", seed, name)
        for name, mask in subnetwork.masks.items()
    }
    return Subnetwork(masks, subnetwork.network)


def drawn_ahead(
    control: Callable[..., Subnetwork], subnetwork: Subnetwork, seeds: Sequence[int], *, threads: int
) -> Iterator[Subnetwork]:
    """The controls `control(subnetwork, seed=seed)`, in order, as many drawn side by side as there are threads.

    To permute a large layer's weights takes a core longer than a GPU needs to evaluate what comes of it.
    """
    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, len(seeds), threads):
            yield from pool.map(lambda seed: control(subnetwork, seed=seed), seeds[first : first + threads])


def replaced(model: StagedModel, subnetwork: Subnetwork, donor: StagedModel) -> StagedModel:
    """A copy of the network with the subnetwork's weights taken from another network, such as an untrained one.

    Raises WrongNetwork if the subnetwork is not one of `model`, ValueError if the donor lacks one of its weights.
    """
    subnetwork.require(model)
    changed = copy.deepcopy(model)
    ours, theirs = dict(changed.named_parameters()), dict(donor.named_parameters())
    with torch.no_grad():
        for name, mask in subnetwork.masks.items():
            if name not in theirs or theirs[name].shape != mask.shape:
                raise ValueError(
                    f"the donor has no weight '{name}' of shape {tuple(mask.shape)}; give one of the same architecture"
                )
            ours[name].copy_(torch.where(mask.to(ours[name].device), theirs[name].to(ours[name].device), ours[name]))
    return changed


def units_of(subnetwork: Subnetwork) -> dict[str, Tensor]:
    """The units that a subnetwork stands for: boolean [outputs] for every masked weight.

    A unit is an output of a weight [outputs, inputs, ...]: a neuron, a channel, a coordinate of a query. In every layer
    the units with the largest share of their incoming weights in the subnetwork are chosen, as large a part of the
    layer's units as the subnetwork is of its weights, rounded; of equals the first.

    >>> units_of(Subnetwork({"w": torch.tensor([[True, True], [False, False]])}, network="n"))["w"].tolist()
    [True, False]
    """
    units = {}
    for name, mask in subnetwork.masks.items():
        shares = mask.flatten(1).float().mean(dim=1)
        count = round(float(mask.float().mean()) * len(shares))
        chosen = torch.zeros(len(shares), dtype=torch.bool)
        chosen[shares.argsort(descending=True, stable=True)[:count]] = True
        units[name] = chosen
    return units


def mean_outputs(model: StagedModel, names: Iterable[str], batches: Iterable[Tensor]) -> dict[str, Tensor]:
    """Mean output [outputs] of the layers that hold the named weights, over items and positions.

    model: in evaluation mode; batches: of items without padding, such as sentences of one length. A layer that no item
    passes through, such as BERT's unused pooler, has no mean and is left out. Raises ValueError for a weight that is
    not one of a linear or 2d convolutional layer, or the queries, keys and values of a vision transformer.
    """
    sums, counts, seen = {}, {}, {name: _seen(model, name) for name in names}

    def note(name: str, _: Tensor, output: Tensor) -> None:
        output = seen[name][1](output)
        convolves = isinstance(model.get_submodule(name.rpartition(".")[0]), nn.Conv2d)
        flat = output.detach().double().movedim(-3 if convolves else -1, -1).flatten(0, -2)
        sums[name] = sums.get(name, 0.0) + flat.sum(dim=0)
        counts[name] = counts.get(name, 0) + len(flat)

    layers, device = {name: layer for name, (layer, _) in seen.items()}, next(model.parameters()).device
    with watched(layers, note), torch.no_grad(), full_precision(device):
        for items in batches:
            model(items)
    return {name: (sums[name] / counts[name]).float() for name in sums}


def units_at_means(model: StagedModel, units: Mapping[str, Tensor], means: Mapping[str, Tensor]) -> StagedModel:
    """A copy of the network in which the given units always have their mean output.

    units: boolean [outputs] by weight name; means: from `mean_outputs`. A unit's weights are set to zero and its bias
    to the mean. A convolution without bias has its weights set to zero only: instance normalization after it maps any
    constant channel to zero. Layers without a mean are left alone. Raises ValueError as `mean_outputs` does, and for
    layers without bias that have nowhere to keep a mean: linear ones, and convolutions in a network with batch
    normalization.
    """
    changed = copy.deepcopy(model)
    batch_norm = any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    with torch.no_grad():
        for name, chosen in units.items():
            if name not in means:
                continue
            weight, bias = _weight_and_bias(changed, name)
            if bias is None and (batch_norm or weight.ndim == 2):
                raise ValueError(f"the layer of '{name}' has no bias to keep a unit's mean; give it one")
            weight[chosen.to(weight.device)] = 0.0
            if bias is not None:
                bias.copy_(torch.where(chosen.to(bias.device), means[name].to(bias), bias))
    return changed


def random_within(subnetwork: Subnetwork, allowed: Mapping[str, Tensor], *about: str | int) -> Subnetwork:
    """As many weights of each layer as the subnetwork has, drawn without replacement from those allowed.

    about: names the draw, its seed among it.
    """
    masks = {name: _drawn(allowed[name], int(mask.sum()), *about, name) for name, mask in subnetwork.masks.items()}
    return Subnetwork(masks, subnetwork.network)


def _drawn(allowed: Tensor, count: int, *about: str | int) -> Tensor:
    """A mask of so many of the places allowed, the first ones of a random order."""
    positions = allowed.flatten().nonzero().flatten()
    # a generator for each layer, which `about` names: what is drawn in one does not depend on the others
    order = torch.randperm(len(positions), generator=generator_for(*about))
    drawn = torch.zeros(allowed.numel(), dtype=torch.bool)
    drawn[positions[order[:count]]] = True
    return drawn.reshape(allowed.shape)


def _weight_and_bias(model: StagedModel, name: str) -> tuple[Tensor, Tensor | None]:
    """A weight and the bias of the same outputs."""
    module, _, kind = name.rpartition(".")
    layer = model.get_submodule(module)
    if kind == "in_proj_weight" and isinstance(layer, nn.MultiheadAttention):
        return layer.in_proj_weight, layer.in_proj_bias
    if kind != "weight" or not isinstance(layer, nn.Linear | nn.Conv2d):
        raise ValueError(f"'{name}' is not the weight of a linear or convolutional layer; it has no units to ablate")
    return layer.weight, layer.bias


def _seen(model: StagedModel, name: str) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """The module whose output shows what a weight gives, and what has to be done with it still."""
    weight, bias = _weight_and_bias(model, name)
    module = model.get_submodule(name.rpartition(".")[0])
    if not isinstance(module, nn.MultiheadAttention):
        return module, lambda output: output
    # vision transformers apply this one matrix for queries, keys and values without calling its module
    block = model.get_submodule(name.rsplit(".", 2)[0])
    return block.ln_1, lambda normal: functional.linear(normal, weight, bias)
