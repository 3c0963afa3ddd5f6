"""A GPU that is none: tensors that say they are on 'cuda' and are computed on the CPU.

Every operation goes through `_run`, which refuses what a GPU refuses (operands on two devices, a CPU's generator,
memory read as if it were the CPU's) and counts what makes one slow: operations to start, copies and results to wait
for. So the paths that are taken on a GPU alone are walked where there is none; how fast they are, it cannot say.

To be imported before torch, in a process of its own. Needs a C++ compiler.
"""

import ctypes
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

SOURCE = Path(__file__).with_suffix(".cpp")
COMPILER = os.environ.get("CXX", "c++")


def _pretend() -> None:
    """Register a CUDA device with torch's libraries, before torch itself asks whether there is one."""
    assert "torch" not in sys.modules, "import this before torch"
    torch_folder = Path(importlib.util.find_spec("torch").origin).parent
    ctypes.CDLL(str(torch_folder / "lib" / "libtorch_cpu.so"), mode=ctypes.RTLD_GLOBAL)
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "gpu.so")
        options = ["-std=c++20", "-shared", "-fPIC", f"-I{torch_folder / 'include'}", f"-L{torch_folder / 'lib'}"]
        subprocess.run([COMPILER, *options, str(SOURCE), "-o", str(made), "-ltorch_cpu", "-lc10"], check=True)
        ctypes.CDLL(str(made))


_pretend()

import torch  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

OPERATIONS, COPIES, WAITS = Counter(), Counter(), Counter()
"""Names of what was started on the GPU; of what brought data to it while the CPU waited; of what the CPU read there."""
NOT_STARTED = "detach", "_unsafe_view", "empty_like", "new_empty_strided"
"""Operators that are no work for a GPU, besides views."""
INDEXING = "index", "index_put", "index_put_", "_index_put_impl_"
ANY_GENERATOR, SEEDS_THERE = torch.Generator, set()
READ = "_local_scalar_dense", "nonzero", "_unique2", "equal"
"""Operators after which the CPU knows something of the data, and had to wait for it."""


class _Generator(torch.Generator):
    """A generator of random numbers on either device. Operators see another object, which is known by its seed."""

    def __new__(cls, device="cpu"):
        made = super().__new__(cls)
        made.there = torch.device(device).type == "cuda"
        return made

    def manual_seed(self, seed):
        if self.there:
            SEEDS_THERE.add(seed)
        return super().manual_seed(seed)


class OnGpu(torch.Tensor):
    """A tensor on the GPU; `inner` holds its numbers."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "OnGpu":
        about = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), device="cuda:0", **about)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return f"OnGpu({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _run(function, args, kwargs or {})


class _Operators(TorchDispatchMode):
    """Sends every operator to `_run`."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return _run(function, args, kwargs or {})


class _Functions(TorchFunctionMode):
    """What torch does itself, below its operators, with memory of the device."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.Tensor.numpy and isinstance(args[0], OnGpu):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if function is torch.Tensor.tolist and isinstance(args[0], OnGpu):
            return args[0].cpu().tolist()
        if function is torch.Tensor.new_tensor and isinstance(args[0], OnGpu):
            return torch.tensor(*args[1:], **{"dtype": args[0].dtype} | kwargs).to("cuda")
        if function is torch.tensor and torch.device(kwargs.get("device") or "cpu").type == "cuda":
            return function(*args, **kwargs | {"device": "cpu"}).to("cuda")
        if function is torch.Tensor.__getitem__ and isinstance(args[0], OnGpu):
            args = args[0], _with_indices_there(args[1])
        return function(*args, **kwargs)


def _with_indices_there(index):
    """An index whose lists are tensors on the GPU."""
    if isinstance(index, tuple):
        return tuple(map(_with_indices_there, index))
    return torch.tensor(index).to("cuda") if isinstance(index, list) else index


def _run(function, args: tuple, kwargs: dict):
    """One operator, computed on the CPU: raises RuntimeError where a GPU would."""
    device = kwargs.get("device")
    leaves = [*_leaves(args), *_leaves(kwargs.values())]
    there = [leaf for leaf in leaves if isinstance(leaf, OnGpu)]
    here = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not isinstance(leaf, OnGpu)]
    to_gpu = bool(there) if device is None else torch.device(device).type == "cuda"
    if there and here and not _may_be_mixed(function, args, here):
        about = ", ".join(f"{tensor.device} {tuple(tensor.shape)}" for tensor in [*there, *here])
        raise RuntimeError(f"Expected all tensors to be on the same device: {function} of {about}")
    if to_gpu and any(isinstance(leaf, ANY_GENERATOR) and leaf.initial_seed() not in SEEDS_THERE for leaf in leaves):
        raise RuntimeError(f"Expected a 'cuda' device type for generator but found 'cpu': {function}")
    _count(function, args, kwargs, there, here, to_gpu)
    given = kwargs | {"device": "cpu"} if to_gpu and device is not None else kwargs
    made = function(*_each(_inner, args), **{key: _each(_inner, value) for key, value in given.items()})
    if made is not None and function._schema.name.endswith("_") and isinstance(args[0], OnGpu):
        return args[0]  # changed in place
    return _each(lambda leaf: OnGpu(leaf) if isinstance(leaf, torch.Tensor) else leaf, made) if to_gpu else made


def _leaves(values) -> Iterator:
    """What is in lists in lists; all that operators are given is of this kind."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _leaves(value)
        else:
            yield value


def _each(function, value):
    """The same lists with a function's result in every leaf's place."""
    if isinstance(value, list | tuple):
        return type(value)([_each(function, one) for one in value])
    return function(value)


def _inner(leaf):
    return leaf.inner if isinstance(leaf, OnGpu) else leaf


def _may_be_mixed(function, args: tuple, here: list[torch.Tensor]) -> bool:
    """Whether an operator takes tensors of both devices: copies, indices into a GPU's tensor, single numbers."""
    name = function._schema.name.removeprefix("aten::")
    if name in ("copy_", "_to_copy"):
        return True
    if name in INDEXING and isinstance(args[0], OnGpu):
        return all(tensor.ndim == 0 or tensor.dtype in (torch.long, torch.int, torch.bool) for tensor in here)
    pointwise = torch.Tag.pointwise in function.tags
    return pointwise and all(tensor.ndim == 0 for tensor in here)


def _count(function, args: tuple, kwargs: dict, there: list, here: list, to_gpu: bool) -> None:
    if not (there or to_gpu):
        return
    name = function._schema.name.removeprefix("aten::")
    if not function.is_view and name not in NOT_STARTED:
        OPERATIONS[name] += 1
    if name in READ or not to_gpu:
        WAITS[name] += 1
    asynchronous = kwargs.get("non_blocking") or (name == "copy_" and args[2:] == (True,))
    if here and not asynchronous and name in ("_to_copy", "copy_", *INDEXING):
        COPIES[name] += 1


def counted() -> list[Counter]:
    """What was counted so far: operations, copies, waits."""
    return [Counter(counter) for counter in (OPERATIONS, COPIES, WAITS)]


torch.cuda.is_available = lambda: True
torch.Generator = _Generator
torch.cuda.is_bf16_supported = lambda including_emulation=True: True
torch.cuda.device_count = lambda: 1
torch.cuda.get_device_name = lambda device=None: "an imitation of an NVIDIA GPU"
torch.cuda.get_device_properties = lambda device=None: SimpleNamespace(total_memory=140 * 2**30)
torch.cuda._lazy_init = torch.cuda.empty_cache = torch.cuda.synchronize = lambda *_: None
torch.cuda.manual_seed_all = torch.cuda.manual_seed = lambda seed: None
torch.__future__.set_swap_module_params_on_conversion(True)  # a wrapper cannot take the place of a tensor's memory
_Functions().__enter__()
_Operators().__enter__()
