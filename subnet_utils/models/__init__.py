"""Networks as named stages: `build` makes any of them from a plain description and a seed."""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import torch

from subnet_utils import torchvision_operators  # noqa: F401 - before the modules here import torchvision
from subnet_utils.core.messages import nearest
from subnet_utils.core.seeds import separate_randomness
from subnet_utils.models.staged import StagedModel, fingerprint

__all__ = ["FAMILIES", "StagedModel", "build", "fingerprint"]

FAMILIES = {
    "bert": "language",
    "gpt2": "causal",
    "resnet": "vision",
    "vit": "vision",
    "resnet_classifier": "classifiers",
    "vit_classifier": "classifiers",
}
"""Family -> the module whose function of that name makes such networks. A module is imported when it is first needed:
transformers and torchvision take seconds, and a notebook whose networks are all there needs neither."""


def build(
    architecture: Mapping[str, Any], *, seed: int, vocabulary: int | None = None, resolution: int | None = None
) -> StagedModel:
    """The network that an architecture describes, its weights a pure function of the seed.

    architecture: `{"family": "bert" | "gpt2" | "resnet" | "vit" | "resnet_classifier" | "vit_classifier", ...}`, the
    rest being arguments of the function of that name; vocabulary: number of token ids (bert, gpt2); resolution: pixels
    a side (vit, vit_classifier). The global random state is left as it was. Raises ValueError for
    an unknown family, unknown or missing keys, and impossible sizes.

    >>> tiny = {"family": "bert", "layers": 2, "width": 8, "heads": 2, "mlp_width": 16}
    >>> build(tiny, seed=0, vocabulary=9).stage_names
    ('embeddings', 'layer_1', 'layer_2', 'pooler')
    """
    sizes = dict(architecture)
    family = sizes.pop("family", None)
    if family not in FAMILIES:
        raise ValueError(f"unknown model family '{family}'; {nearest(family, FAMILIES)}")
    make: Callable[..., StagedModel] = getattr(import_module(f"{__name__}.{FAMILIES[family]}"), family)
    parameters = inspect.signature(make).parameters
    from_data = {"vocabulary": vocabulary, "resolution": resolution}
    valid = [key for key in parameters if key not in from_data]
    for key in sizes:
        if key not in valid:
            raise ValueError(f"{family} has no key '{key}'; {nearest(key, valid)}")
    sizes |= {key: value for key, value in from_data.items() if key in parameters and value is not None}
    for key, parameter in parameters.items():
        if parameter.default is inspect.Parameter.empty and key not in sizes:
            raise ValueError(f"{family} needs '{key}'")
    with separate_randomness():
        torch.manual_seed(seed)
        return make(**sizes)
