"""The frozen prefix of a network: computed once, then looked up.

A mask that begins at a stage leaves everything before it as it was. So the prefix's outputs for an item never change.
They are computed once in float32 and kept if they fit. A step of training then runs the masked suffix alone.
"""

import hashlib
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from subnet_utils.models.staged import StagedModel, called_with, fingerprint

# masked weights are never one piece of memory
warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")

State = tuple[Tensor, ...]
Items = Tensor | Mapping[str, Tensor]
"""A table of items [m, ...], or several by the names under which a network takes them, as tokenizers give them."""
CHUNK = 256
"""Items that pass through a network at a time when nothing is trained."""


class FrozenPrefix:
    """Outputs of a prefix for a table of items, by row.

    items: see `Items`; limit_gb: largest cache, GiB. Larger outputs are computed again at every look-up, and a line
    says so. The outputs of an empty prefix are the items themselves; they are moved to the device whatever their size.
    make_room: called with the GiB that are needed, before memory is taken. Raises ValueError for items by name before a
    prefix that is not empty.
    """

    def __init__(
        self,
        prefix: StagedModel,
        items: Items,
        *,
        device: torch.device,
        limit_gb: float,
        make_room: Callable[[float], None] = lambda gb: None,
    ):
        self.prefix, self.items, self.device, self.network = prefix, items, device, fingerprint(prefix)
        self.names = tuple(items) if isinstance(items, Mapping) else ()
        self._cache: State | None = None
        if not prefix.stage_names:
            make_room(sum(table.nbytes for table in tables(items)) / 2**30)
            self._cache = tuple(table.to(device) for table in tables(items))
        elif self.names:
            raise ValueError("items by name enter a network as a whole; leave out the start, or give one tensor")
        elif len(items):
            self._fill(limit_gb, make_room)

    @property
    def gb(self) -> float:
        """Size of the cache, GiB."""
        return sum(tensor.nbytes for tensor in self._cache or ()) / 2**30

    @property
    def digest(self) -> str:
        """16 hexadecimal digits for the items: of their number, shape and type, and of a thousand of them."""
        digest = hashlib.sha256()
        for table in tables(self.items):
            some = table[:: max(1, len(table) // 1000)].cpu().reshape(-1).contiguous()
            digest.update(f"{tuple(table.shape)} {table.dtype}".encode())
            digest.update(some.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]

    def __call__(self, rows: Tensor) -> State:
        """The state [k, ...] that enters the suffix for the given rows [k]."""
        if self._cache is None:
            return self._compute(self.items.index_select(0, rows))
        rows = sent(rows, self.device)  # index_select copies item by item, tensor[rows] number by number
        return tuple(tensor.index_select(0, rows) for tensor in self._cache)

    @classmethod
    def of(
        cls, prefix: StagedModel, items: "Items | FrozenPrefix", *, device: torch.device, limit_gb: float
    ) -> "FrozenPrefix":
        """The prefix's outputs: those given, if they are its own, or new ones for a table of items."""
        if not isinstance(items, FrozenPrefix):
            return cls(prefix, items, device=device, limit_gb=limit_gb)
        items.require(prefix)
        return items

    def require(self, prefix: StagedModel) -> None:
        """Raise ValueError unless these are the outputs of `prefix`. Others would fit and give wrong numbers."""
        if self.prefix.stage_names != prefix.stage_names or self.network != fingerprint(prefix):
            theirs, ours = (", ".join(part.stage_names) or "no stage" for part in (self.prefix, prefix))
            raise ValueError(
                f"the cached prefix outputs are of another network or start ({theirs}; needed: {ours}); "
                "make them with this model's cut(start)"
            )

    @torch.no_grad()
    def _compute(self, items: Tensor) -> State:
        with full_precision(self.device):
            return self.prefix(items.to(self.device))

    @torch.no_grad()
    def _fill(self, limit_gb: float, make_room: Callable[[float], None]) -> None:
        first = self._compute(self.items[:1])
        needed = sum(tensor.nbytes for tensor in first) * len(self.items) / 2**30
        if needed > limit_gb:
            return _say(f"prefix outputs need {needed:.1f} GiB, cache_limit_gb leaves {max(0.0, limit_gb):.3g}")
        make_room(needed)
        try:
            cache = tuple(tensor.new_empty(len(self.items), *tensor.shape[1:]) for tensor in first)
            for i, items in enumerate(self.items.split(CHUNK)):
                for whole, part in zip(cache, self._compute(items), strict=True):
                    whole[i * CHUNK :][: len(items)] = part
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            return _say(f"out of memory for prefix outputs of {needed:.1f} GiB")
        self._cache = cache


def tables(items: Items) -> tuple[Tensor, ...]:
    """The table, or all that have names. One row of each is an item."""
    return tuple(items.values()) if isinstance(items, Mapping) else (items,)


def outputs_of(module: nn.Module, weights: Mapping[str, Tensor], state: State, names: Sequence[str] = ()) -> Tensor:
    """What a module gives for a state with these weights in place of its own.

    names: of the state's tensors, for a module that takes them by name. Of several outputs it is `logits`, as the
    networks of transformers call it, or the first. Raises ValueError for outputs that are not one row an item.
    """
    inputs = dict(zip(names, state, strict=True)) if names else {}
    found = called_with(module, weights, *(() if names else state), **inputs)
    if isinstance(found, Mapping) and found:
        found = found.get("logits", next(iter(found.values())))
    found = found[0] if isinstance(found, tuple) and found else found
    if not isinstance(found, Tensor) or not found.ndim or len(found) != len(state[0]):
        what = f"a tensor {[*found.shape]}" if isinstance(found, Tensor) else f"a {type(found).__name__}"
        raise ValueError(f"for {len(state[0])} inputs the network gives {what}; it must give a row for each")
    return found


def _say(why: str) -> None:
    print(f"{why}: recomputing them", file=sys.stderr, flush=True)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Context of plain float32, inside any autocast: no bfloat16, and no TF32 (a GPU's default in convolutions)."""
    before = _tf32_flags()
    try:
        for owner, name, value in before:
            setattr(owner, name, False if isinstance(value, bool) else "ieee")
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _tf32_flags() -> list[tuple[Any, str, bool | str]]:
    """Torch's flags for TF32, with their values. Once the newer have been used, torch refuses to read the older."""
    backends = torch.backends
    try:
        return [(owner, "allow_tf32", owner.allow_tf32) for owner in (backends.cudnn, backends.cuda.matmul)]
    except RuntimeError:
        newer = backends.cudnn.conv, backends.cuda.matmul
        return [(owner, "fp32_precision", owner.fp32_precision) for owner in newer]


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device. Unlike `tensor.to`, this does not wait until a GPU has finished its work."""
    return tensor.to(device, non_blocking=True)


OUT_OF_MEMORY = re.compile(
    "out of memory|can't allocate memory|not enough memory|bad_alloc"  # the driver, and torch on a CPU
    "|could not create a primitive"  # oneDNN
    # cuBLAS and cuDNN, which also say it in these words:
    "|STATUS_ALLOC_FAILED|ALLOCATION_FAILED|STATUS_NOT_INITIALIZED|unable to find an engine to execute this computation"
)


def out_of_memory(error: Exception) -> bool:
    """Whether an error is a way to say that memory ran out, on a GPU or a CPU."""
    return isinstance(error, torch.OutOfMemoryError) or bool(OUT_OF_MEMORY.search(str(error)))


def embed_rows(model: StagedModel, frozen: FrozenPrefix, rows: Tensor) -> Tensor:
    """Embeddings [*rows.shape, d] by the stages after a frozen prefix; an item in several places is embedded once."""
    distinct, positions = rows.unique(return_inverse=True)
    return model(*model.compact(frozen(distinct)))[sent(positions, frozen.device)]


@torch.no_grad()
def embed_all(suffix: StagedModel, frozen: FrozenPrefix) -> Tensor:
    """Embeddings [m, d] of the whole table, in float32 and chunk by chunk."""
    rows = torch.arange(len(frozen.items)).split(CHUNK)
    with full_precision(frozen.device):
        return torch.cat([suffix(*suffix.compact(frozen(chunk))).float() for chunk in rows])
