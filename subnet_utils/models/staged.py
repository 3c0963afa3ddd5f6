"""Networks as an ordered dict of named stages, so that any of them can be cut in two.

*Break It Down* (appendix C) masks a network from some stage on and leaves everything before it alone. Cutting the
network there gives a frozen prefix, whose output is computed once and cached, and a suffix, whose weights are masked.
Both share the modules of the whole and the names of their parameters: a mask found in the suffix is one of the whole.

No network is ever edited: masked weights go through `called_with(suffix, {name: weight * mask}, *state)`.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map

from subnet_utils.core.messages import nearest

State = tuple[Tensor, ...]
"""What travels between stages: tensors that all have the item dimension first, [m, ...]."""


class StagedModel(nn.Module):
    """A network of named stages. `model(items)` is the embedding of each item, [m, embedding].

    stages: name -> module. A module takes the tensors of a state as its arguments and returns the next state,
    a tuple; the last stage of a whole network returns the embeddings, one tensor.
    trim: optional function state -> state behind `compact`; without one `compact` changes nothing.
    unmasked: stages whose weights no mask covers. Raises ValueError for one that is not there.
    """

    def __init__(
        self,
        stages: Mapping[str, nn.Module],
        *,
        trim: Callable[[State], State] | None = None,
        unmasked: Sequence[str] = (),
    ) -> None:
        super().__init__()
        for name in unmasked:
            if name not in stages:
                raise ValueError(f"unmasked must be names of stages, got '{name}'; {nearest(name, stages)}")
        self.stages = nn.ModuleDict(stages)
        self._trim, self._unmasked = trim, tuple(unmasked)

    @property
    def stage_names(self) -> tuple[str, ...]:
        """Names of the stages, first to last."""
        return tuple(self.stages)

    def forward(self, *state: Tensor) -> Tensor | State:
        """Embeddings [m, embedding] of a state; a prefix made by `cut` returns a state instead.

        Raises TypeError for a stage before another one that returns no tuple.
        """
        for name, stage in self.stages.items():
            if not isinstance(state, tuple):
                raise TypeError(f"what comes before stage '{name}' must return a tuple of tensors, not one tensor")
            state = stage(*state)
        return state

    def cut(self, start: str | None) -> tuple["StagedModel", "StagedModel"]:
        """Split before stage `start`: `suffix(*prefix(items))` equals `model(items)`.

        Both parts share modules and parameter names with the whole. Cutting at the first stage gives an empty
        prefix, which returns the state that it is given. Raises ValueError for an unknown stage.
        """
        before, after = self._split(start)
        return self._part(before), self._part(after)

    def maskable(self, start: str | None = None) -> tuple[str, ...]:
        """Names of the weight matrices from stage `start` on: what a mask covers.

        These are the weights of linear and convolutional layers, the input projections of torch's attention included;
        never biases, normalization layers, embeddings or class tokens (section 6 and the totals of Tables 5 to 11).
        Recurrent layers have none: override this to mask them. Raises ValueError for an unknown stage.
        """
        _, after = self._split(start)
        return tuple(
            f"{module_name}.{weight}"
            for stage in after
            if stage not in self._unmasked
            for module_name, module in self.stages[stage].named_modules(prefix=f"stages.{stage}")
            for weight in _matrices(module)
        )

    def compact(self, state: State) -> State:
        """The same batch without columns that are padding in every item; the embeddings stay the same.

        Not for compiled or vectorized code: the result's shape depends on the data.
        """
        return state if self._trim is None else self._trim(state)

    @property
    def takes_padding(self) -> bool:
        """Whether a state may have columns that are padding, which is 0 and changes no embedding."""
        return self._trim is not None

    def _part(self, names: tuple[str, ...]) -> "StagedModel":
        unmasked = [name for name in self._unmasked if name in names]
        return StagedModel({name: self.stages[name] for name in names}, trim=self._trim, unmasked=unmasked)

    def _split(self, start: str | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
        names = self.stage_names
        start = names[0] if start is None else start
        if start not in names:
            raise ValueError(f"unknown stage '{start}'; {nearest(start, names)}")
        return names[: names.index(start)], names[names.index(start) :]


NO_WEIGHT = re.compile(r"b|b_\w+|\w*bias\w*|W_E|W_pos|\w*embed\w*|\w*token\w*")
"""Last part of the name of a bare parameter that is no weight, but an embedding, a token, or biases."""
EMBEDDINGS = nn.Embedding, nn.EmbeddingBag
"""Modules whose tables are no weights."""


def maskable(model: nn.Module, start: str | None = None, only: Sequence[str] | None = None) -> tuple[str, ...]:
    """Names of the weights that a mask covers: `StagedModel.maskable`, from the first stage on if start is None.

    Of a module without stages these are all its floating-point parameters with two dimensions or more, those of
    recurrent layers included, but no embeddings, tokens and biases. These are torch's embeddings, and bare parameters
    with such a name (`NO_WEIGHT`), as `W_E` and `b_Q` in TransformerLens. only: some of these names, or one, to mask no
    others. Raises ValueError for a start if there are no stages, for an unknown stage, for a name of no such weight,
    and for no names.

    >>> maskable(nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 2)))
    ('1.weight',)
    """
    if isinstance(model, StagedModel):
        names = model.maskable(start)
    else:
        _require_no_start(model, start)
        embeddings = {id(module.weight) for module in model.modules() if isinstance(module, EMBEDDINGS)}
        named = model.named_parameters()
        names = tuple(
            name
            for name, weight in named
            if weight.ndim >= 2
            and weight.is_floating_point()
            and id(weight) not in embeddings
            and not NO_WEIGHT.fullmatch(name.rpartition(".")[2])
        )
    only = (only,) if isinstance(only, str) else only
    if only is not None and not only:
        raise ValueError("only names no weight; name one or more, or leave it out")
    if unknown := [name for name in only or () if name not in names]:
        raise ValueError(f"'{unknown[0]}' is no weight that can be masked; {nearest(unknown[0], names)}")
    return names if only is None else tuple(name for name in names if name in only)


def uncompiled(model: nn.Module) -> nn.Module:
    """The network itself, of one that `torch.compile` gave: its weights have other names there.

    Raises ValueError for what is no network, and for one without the values of its weights.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"a network is a torch.nn.Module, not a {type(model).__name__}; give the network itself")
    if empty := [name for name, weight in model.named_parameters() if weight.is_meta]:
        raise ValueError(f"'{empty[0]}' has no values (device 'meta'); load the network's weights first")
    return getattr(model, "_orig_mod", model)


def require_own_weights(model: nn.Module, names: Sequence[str]) -> None:
    """Raise ValueError for a weight that is no parameter, or made of others, or one tensor with a weight before it."""
    every = dict(model.named_parameters(remove_duplicate=False)).keys()
    for name in names:
        stem, _, kind = name.rpartition("_")  # as torch's older functions call what they make a weight of
        older = kind == "orig" or (kind == "v" and f"{stem}_g" in every)
        if name not in every or "parametrizations" in name.split(".") or (older and stem not in every):
            raise ValueError(f"'{name}' is computed from other parameters; remove its parametrization first")
    if tied := sorted(set(names) - dict(model.named_parameters()).keys()):
        raise ValueError(f"'{tied[0]}' is one tensor with an earlier weight; give each its own, or mask neither")


def cut(model: nn.Module, start: str | None = None) -> tuple[StagedModel, nn.Module]:
    """The part of a network before a stage, and the part from it on (`StagedModel.cut`).

    With None, and for a module without stages, the first part is empty and the second is the whole. Raises ValueError
    as `maskable` does.
    """
    if isinstance(model, StagedModel):
        return model.cut(start)
    _require_no_start(model, start)
    return StagedModel({}), model


def called_with(module: nn.Module, weights: Mapping[str, Tensor], *args: Any, **inputs: Any) -> Any:
    """What a module gives for inputs with these weights in place of its own, wherever a weight stands.

    Of a layer that stands at two places `torch.func.functional_call` by itself would leave the other weights behind.
    """
    first, paths = {}, {}
    for prefix, own in module.named_modules():
        for name, parameter in own._parameters.items():
            if parameter is not None:
                path = f"{prefix}.{name}" if prefix else name
                paths.setdefault(first.setdefault(id(parameter), path), []).append(path)
    everywhere = {path: weight for name, weight in weights.items() for path in paths.get(name, [name])}
    return torch.func.functional_call(module, everywhere, args, inputs, tie_weights=False)


def _require_no_start(model: nn.Module, start: str | None) -> None:
    if start is not None:
        raise ValueError(f"a {type(model).__name__} has no stages, so no '{start}' to start at; use start=None")


def _matrices(module: nn.Module) -> tuple[str, ...]:
    """Attribute names of the maskable weights that a module holds itself, not through its children."""
    from transformers.pytorch_utils import Conv1D  # seconds to import

    if isinstance(module, (nn.Linear, nn.modules.conv._ConvNd, Conv1D)):
        return ("weight",)
    if isinstance(module, nn.MultiheadAttention):
        return ("in_proj_weight",)  # the query, key and value matrices in one; out_proj is a child
    return ()


def fingerprint(model: nn.Module) -> str:
    """16 hexadecimal digits for a network's weights: a mask is valid only for the network it was found in.

    SHA-256 over the sorted names, shapes, types and bytes of all parameters and buffers. The device and the
    memory layout do not matter; one changed bit does.

    >>> network = nn.Linear(2, 2)
    >>> found = fingerprint(network)
    >>> _ = network.weight.data.mul_(2)
    >>> len(found), fingerprint(network) == found
    (16, False)
    """
    digest = hashlib.sha256()
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}\n".encode())
        flat = tensor.detach().cpu().reshape(-1).contiguous()
        digest.update(flat.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def for_each(function: Callable[..., Tensor], *parts: Any, **options: Any) -> Tensor:
    """What a function gives for each of k networks, from its part of all tensors [k, ...]; options: of torch.vmap."""
    if len(tree_leaves(parts)[0]) == 1:  # nothing to vectorize
        return function(*tree_map(lambda tensor: tensor.squeeze(0), parts))[None]
    with sdpa_kernel(SDPBackend.MATH), _without_fast_path():  # not every fused kernel can be vectorized
        return torch.vmap(function, **options)(*parts)


@contextmanager
def _without_fast_path() -> Iterator[None]:
    """Context for torch's own layers of attention, which take tensors within torch.vmap for ones without gradient."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def watched(layers: Mapping[str, nn.Module], note: Callable[[str, Tensor, Tensor], None]) -> Iterator[None]:
    """Inside the block each run of a layer is noted: note(name, input, output)."""
    with ExitStack() as hooks:
        for name, layer in layers.items():
            seen = partial(note, name)
            hooks.enter_context(layer.register_forward_hook(lambda _, taken, given, seen=seen: seen(*taken, given)))
        yield


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The network in evaluation mode: no dropout, and running statistics as they are. Afterwards as it was."""
    before = [(module, module.training) for module in model.modules()]
    own = nn.RNN, nn.LSTM, nn.GRU  # a subclass may do more in training
    recurrent = [(module, module.dropout) for module in model.modules() if type(module) in own]
    try:
        model.eval()
        for layer, _ in recurrent:
            layer.training, layer.dropout = True, 0.0  # cuDNN has no gradients of recurrent layers in evaluation mode
        yield
    finally:
        for module, training in before:
            module.training = training
        for layer, dropout in recurrent:
            layer.dropout = dropout


def require_positive(**sizes: int) -> None:
    """Raise ValueError naming the first size that is not a whole number of at least 1."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, Integral) or size < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {size!r}")


def require_multiple(width: int, heads: int) -> None:
    """Raise ValueError unless the width can be shared out evenly among the attention heads."""
    if width % heads:
        raise ValueError(f"width {width} is not a multiple of heads {heads}; choose heads that divide it")
