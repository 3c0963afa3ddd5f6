"""The frozen prefix of a network: computed once, then looked up.

A mask that begins at a stage leaves everything before it as it was. So the prefix's outputs for an item never change.
They are computed once in float32 and kept if they fit. A step of training then runs the masked suffix alone.
"""

import hashlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from subnet_utils.models.staged import StagedModel, fingerprint

State = tuple[Tensor, ...]
CHUNK = 256
"""Items that pass through a network at a time when nothing is trained."""


class FrozenPrefix:
    """Outputs of a prefix for a table of items, by row.

    items: [m, ...]; limit_gb: largest cache, GiB. Larger outputs are computed again at every look-up, and a line says
    so. The outputs of an empty prefix are the items themselves; they are moved to the device whatever their size.
    shorter: outputs of the first stages of the prefix for the same items, from which the rest is computed. make_room:
    called with the GiB that are needed, before memory is taken.
    """

    def __init__(
        self,
        prefix: StagedModel,
        items: Tensor,
        *,
        device: torch.device,
        limit_gb: float,
        shorter: "FrozenPrefix | None" = None,
        make_room: Callable[[float], None] = lambda gb: None,
    ):
        self.prefix, self.items, self.device, self.network = prefix, items, device, fingerprint(prefix)
        self._cache: State | None = None
        if not prefix.stage_names:
            make_room(items.nbytes / 2**30)
            self._cache = (items.to(device),)
        elif len(items):
            self._fill(limit_gb, make_room, *self._steps(shorter))

    @property
    def gb(self) -> float:
        """Size of the cache, GiB."""
        return sum(tensor.nbytes for tensor in self._cache or ()) / 2**30

    @property
    def digest(self) -> str:
        """16 hexadecimal digits for the items: of their number, shape and type, and of a thousand of them."""
        some = self.items[:: max(1, len(self.items) // 1000)].cpu().reshape(-1)
        digest = hashlib.sha256(f"{tuple(self.items.shape)} {self.items.dtype}".encode())
        digest.update(some.view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]

    def __call__(self, rows: Tensor) -> State:
        """The state [k, ...] that enters the suffix for the given rows [k]."""
        if self._cache is None:
            return self._compute(self.items.index_select(0, rows))
        rows = sent(rows, self.device)  # index_select copies item by item, tensor[rows] number by number
        return tuple(tensor.index_select(0, rows) for tensor in self._cache)

    def require(self, prefix: StagedModel) -> None:
        """Raise ValueError unless these are the outputs of `prefix`. Others would fit and give wrong numbers."""
        if self.prefix.stage_names != prefix.stage_names or self.network != fingerprint(prefix):
            theirs, ours = (", ".join(part.stage_names) or "no stage" for part in (self.prefix, prefix))
            raise ValueError(
                f"the cached prefix outputs are of another network or start ({theirs}; needed: {ours}); "
                "make them with this model's cut(start)"
            )

    def _steps(self, shorter: "FrozenPrefix | None") -> tuple[Callable[[Tensor], State], StagedModel]:
        """A function that gives the state of some rows, and the stages that remain after it.

        Raises ValueError for outputs of another network.
        """
        if shorter is None:
            return lambda rows: (self.items.index_select(0, rows).to(self.device),), self.prefix
        begun, rest = self.prefix.cut(self.prefix.stage_names[len(shorter.prefix.stage_names)])
        shorter.require(begun)
        return shorter, rest

    @torch.no_grad()
    def _compute(self, items: Tensor) -> State:
        with full_precision(self.device):
            return self.prefix(items.to(self.device))

    @torch.no_grad()
    def _fill(
        self,
        limit_gb: float,
        make_room: Callable[[float], None],
        begin: Callable[[Tensor], State],
        rest: StagedModel,
    ) -> None:
        first = self._compute(self.items[:1])
        needed = sum(tensor.nbytes for tensor in first) * len(self.items) / 2**30
        if needed > limit_gb:
            return _say(f"prefix outputs need {needed:.1f} GiB, cache_limit_gb leaves {max(0.0, limit_gb):.3g}")
        make_room(needed)
        try:
            cache = tuple(tensor.new_empty(len(self.items), *tensor.shape[1:]) for tensor in first)
            with full_precision(self.device):
                for rows in torch.arange(len(self.items)).split(CHUNK):
                    for whole, part in zip(cache, rest(*begin(rows)), strict=True):
                        whole[rows[0] : rows[-1] + 1] = part
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            return _say(f"out of memory for prefix outputs of {needed:.1f} GiB")
        self._cache = cache


def _say(why: str) -> None:
    print(f"{why}: recomputing them", file=sys.stderr, flush=True)


class _WithoutTf32:
    """TF32 is off while any thread is in this context. The flags belong to the whole process: the last thread that
    leaves sets them back to what the first one found."""

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, []

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = _tf32_flags()
                for kind, name, value in self._before:
                    setattr(kind, name, False if isinstance(value, bool) else "ieee")
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                for kind, name, value in self._before:
                    setattr(kind, name, value)


def _tf32_flags() -> list[tuple[Any, str, bool | str]]:
    """Torch's flags for TF32, and their values: of convolutions, where TF32 is the default, and of products, where an
    environment may ask for it. Once the newer names of these flags have been used, torch refuses to read the older."""
    backends = torch.backends
    try:
        return [(kind, "allow_tf32", kind.allow_tf32) for kind in (backends.cudnn, backends.cuda.matmul)]
    except RuntimeError:
        newer = backends.cudnn.conv, backends.cuda.matmul
        return [(kind, "fp32_precision", kind.fp32_precision) for kind in newer]


_WITHOUT_TF32 = _WithoutTf32()


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Context of plain float32, inside any autocast: no bfloat16, and no TF32 (a GPU's default in convolutions)."""
    with _WITHOUT_TF32, torch.autocast(device.type, enabled=False):
        yield


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device. Unlike `tensor.to`, this does not wait until a GPU has finished its work."""
    return tensor.to(device, non_blocking=True)


OUT_OF_MEMORY = (
    "can't allocate memory",  # torch's allocator on Linux
    "not enough memory",  # and elsewhere
    "bad_alloc",
    "could not create a primitive",  # oneDNN
    "STATUS_ALLOC_FAILED",  # cuBLAS and cuDNN, which also say it in these words:
    "ALLOCATION_FAILED",
    "STATUS_NOT_INITIALIZED",
    "unable to find an engine to execute this computation",
    "out of memory",  # the driver
)


def out_of_memory(error: Exception) -> bool:
    """Whether an error is a way to say that memory ran out, on a GPU or a CPU."""
    return isinstance(error, torch.OutOfMemoryError) or any(text in str(error) for text in OUT_OF_MEMORY)


def embed(suffix: StagedModel, parameters: Mapping[str, Tensor], state: State) -> Tensor:
    """Embeddings [k, d] of a state by the suffix with the given weights; columns of padding are cut off first."""
    return torch.func.functional_call(suffix, dict(parameters), suffix.compact(state))


def embed_rows(suffix: StagedModel, parameters: Mapping[str, Tensor], frozen: FrozenPrefix, rows: Tensor) -> Tensor:
    """Embeddings [*rows.shape, d]; an item that stands in several places is embedded once."""
    distinct, places = rows.unique(return_inverse=True)
    return embed(suffix, parameters, frozen(distinct))[sent(places, frozen.device)]


@torch.no_grad()
def embed_all(suffix: StagedModel, parameters: Mapping[str, Tensor], frozen: FrozenPrefix) -> Tensor:
    """Embeddings [m, d] of the whole table, in float32 and chunk by chunk."""
    rows = torch.arange(len(frozen.items))
    with full_precision(frozen.device):
        return torch.cat([embed(suffix, parameters, frozen(chunk)).float() for chunk in rows.split(CHUNK)])
