"""Lets torchvision be imported beside a CPU-only torch. Imported by whatever needs it, before torchvision is.

torchvision's wheel on the package registry is built against CUDA torch. Beside a CPU-only torch its compiled library
does not load, and its import stops at the fake kernels that it registers for the detection operators nms and qnms. We
use neither operator; declaring their schemas is enough for models, transforms and datasets. Where the library loads, it
brings the operators itself and nothing is declared.
"""

import importlib.util
from pathlib import Path

import torch


def _declared() -> torch.library.Library | None:
    """The operators as a library, which forgets them when it is collected; None where torchvision's own loads."""
    spec = importlib.util.find_spec("torchvision")
    compiled = sorted(Path(spec.origin).parent.glob("_C.*")) if spec and spec.origin else []
    try:
        for library in compiled:
            torch.ops.load_library(library)
        return None
    except OSError:  # built against CUDA libraries that are not there
        pass
    declared = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return declared


OPERATORS = _declared()
