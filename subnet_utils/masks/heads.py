"""The attention heads of a network, as parts of its weights: how much of each head a subnetwork keeps."""

import re

import numpy as np
from torch import Tensor

from subnet_utils.masks.subnetwork import Subnetwork

OUTPUTS = re.compile(r"stages\.(\w+)\.attention\.self\.(?:query|key|value)\.weight")
THREE_OUTPUTS = re.compile(r"stages\.(\w+)\.self_attention\.in_proj_weight")
INPUTS = re.compile(r"stages\.(\w+)\.(?:attention\.output\.dense|self_attention\.out_proj)\.weight")
"""Weights whose rows, whose three times as many rows, and whose columns belong to one head after the other."""


def densities(subnetwork: Subnetwork, heads: int) -> dict[str, np.ndarray]:
    """Share of the weights of each head that a subnetwork keeps: layer -> [heads], in the order of their names.

    heads: of every layer. A head has rows of query, key and value, and columns of the matrix that follows them. Layers
    are stages of a BERT or a ViT; empty if the subnetwork masks none of their attention.
    """
    found: dict[str, list[Tensor]] = {}
    for name, mask in subnetwork.masks.items():
        if match := OUTPUTS.fullmatch(name):
            parts = mask.unflatten(0, (heads, -1))
        elif match := THREE_OUTPUTS.fullmatch(name):
            parts = mask.unflatten(0, (3, heads, -1)).transpose(0, 1)
        elif match := INPUTS.fullmatch(name):
            parts = mask.unflatten(1, (heads, -1)).transpose(0, 1)
        else:
            continue
        found.setdefault(match[1], []).append(parts.flatten(1))
    return {layer: np.concatenate(parts, axis=1).mean(axis=1) for layer, parts in found.items()}
