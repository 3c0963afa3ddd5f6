"""Random numbers that depend on what they are for, and on nothing else."""

import hashlib
import json
from typing import Any

import torch


def generator_for(*parts: Any) -> torch.Generator:
    """A random generator on the CPU that depends on nothing but `parts` (integers and strings)."""
    digest = hashlib.sha256(json.dumps(parts).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
