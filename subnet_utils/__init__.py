"""Subnetworks of neural networks: the helper package behind the notebooks of this companion.

Read the modules in the order of the README; each one starts with the idea and its source.
"""

import importlib.util
import warnings
from pathlib import Path

import torch


def _declare_missing_torchvision_operators() -> None:
    """Let torchvision be imported beside a CPU-only torch.

    torchvision's wheel on the package registry is built against CUDA torch. Beside a CPU-only torch its compiled
    library does not load, and its import stops at the fake kernels that it registers for the detection operators
    nms and qnms. We use neither operator; declaring their schemas is enough for models, transforms and datasets.
    Where the library loads, it brings the operators itself and nothing is declared.
    """
    spec = importlib.util.find_spec("torchvision")
    compiled = sorted(Path(spec.origin).parent.glob("_C.*")) if spec and spec.origin else []
    try:
        for library in compiled:
            torch.ops.load_library(library)
        return
    except OSError:  # built against CUDA libraries that are not there
        pass
    declared = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declare_missing_torchvision_operators.library = declared  # a Library forgets its operators when collected


_declare_missing_torchvision_operators()
# transformers' progress bars would like notebook widgets; ours are plain
warnings.filterwarnings("ignore", message="IProgress not found")

__version__ = "0.1.0"
