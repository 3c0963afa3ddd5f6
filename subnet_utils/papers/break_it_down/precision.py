"""In which precision masks of a base model are trained."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from subnet_utils.core.devices import precision_name
from subnet_utils.core.lab import Lab
from subnet_utils.core.store import note
from subnet_utils.models.frozen import full_precision

if TYPE_CHECKING:
    from subnet_utils.papers.break_it_down.networks import Network

SMALLEST_MARGIN = 0.1
"""Margin of a base model, see `evaluation.Score`, below which its masks are trained in float32. A similarity logit lies
between -4 and 4, where bfloat16 has steps of up to 1/64; the embeddings behind it carry several such errors."""


@contextmanager
def mask_training(lab: Lab, base: "Network") -> Iterator[Callable[[], AbstractContextManager]]:
    """The time in which masks of a base are trained. Gives the context in which their forward passes run.

    For a base near collapse, which tells the odd one by less than `SMALLEST_MARGIN`, both are float32 from end to end:
    a GPU's convolutions would take TF32 on the way back.
    """
    if base.result(lab)["validation_margin"] >= SMALLEST_MARGIN:
        yield lab.autocast
        return
    note(precision="float32", near_collapse=True)
    if precision_name(lab.study.compute, lab.device) != "float32":
        why = f"tells the odd one by less than {SMALLEST_MARGIN}, near collapse"
        print(f"{base.label}: {why}; its masks are trained in float32", file=sys.stderr)
    with full_precision(lab.device):
        yield partial(full_precision, lab.device)
