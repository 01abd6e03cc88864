"""Run by every Python that starts with this folder on its path, so also by the processes that a host starts.

Where torchvision is built for CUDA and torch is not, importing torchvision fails over two operators that its library
did not bring. timm, segmentation_models_pytorch and Lightning import it; nothing here calls the operators.
"""

from importlib.util import find_spec
from pathlib import Path

found = find_spec("torchvision")
if found is not None and found.origin is not None:
    import torch

    try:
        for library in Path(found.origin).parent.glob("_C*"):
            torch.ops.load_library(library)
    except OSError:
        operators = torch.library.Library("torchvision", "DEF")  # they live as long as this object
        for name in ("nms", "qnms"):
            operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
