"""Random numbers that depend on what they are for, and on nothing else."""

import hashlib
import json
from contextlib import AbstractContextManager
from operator import index
from typing import Any

import torch
from torch import Tensor


def generator_for(*parts: Any) -> torch.Generator:
    """A random generator on the CPU that depends on nothing but `parts` (integers and strings)."""
    digest = hashlib.sha256(json.dumps(parts, default=index).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def uniform_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Uniform random numbers from [0, 1) of a tensor's shape, on its device. They depend on the generator and the
    model of the device alone.

    A GPU draws its own: a CPU takes a hundred times as long for the millions of entries of a large mask.
    """
    if not tensor.is_cuda:
        return torch.rand(tensor.shape, generator=generator)
    own = torch.Generator(tensor.device).manual_seed(int(torch.randint(2**62, (), generator=generator)))
    return torch.rand(tensor.shape, generator=own, device=tensor.device)


def separate_randomness() -> AbstractContextManager:
    """Context after which torch's own random state is as it was before, that of the GPUs in use included.

    GPUs that nothing has used yet are left alone: to ask for their state would start them, and fails where the driver
    is older than this torch.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    return torch.random.fork_rng(devices=range(gpus))
