"""Subnetworks of neural networks: the helper package behind the notebooks of this companion.

Read the modules in the order of the README; each one starts with the idea and its source.
"""

import torch


def _declare_missing_torchvision_operators() -> None:
    """Let torchvision be imported beside a CPU-only torch.

    torchvision's wheel on the package registry is built against CUDA torch. Beside a CPU-only torch its compiled
    library does not load, and its import stops at the fake kernels that it registers for the detection operators
    nms and qnms. We use neither operator; declaring their schemas is enough for models, transforms and datasets.
    """
    try:
        torch.ops.torchvision.nms  # noqa: B018 - the attribute access is the test
        return
    except (AttributeError, RuntimeError):
        pass
    if torch.version.cuda is not None:
        return  # a CUDA build brings the operators itself when torchvision is imported
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declare_missing_torchvision_operators.library = library  # a Library forgets its operators when collected


_declare_missing_torchvision_operators()

__version__ = "0.1.0"
