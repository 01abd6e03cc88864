"""Where the fused kernels can run: Triton, the device, the type of the logits."""

import os
import warnings
from functools import cache
from importlib import metadata

import torch
from torch import Tensor

OLDEST_TRITON = (3, 6)
FUSED_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton's interpreter runs the kernels on a CPU, for tests


def _triton_obstacle() -> str:
    try:
        version = metadata.version("triton")
    except metadata.PackageNotFoundError:
        return "Triton is not installed"
    if tuple(map(int, version.split(".")[:2])) < OLDEST_TRITON:
        return f"Triton {version} is older than {'.'.join(map(str, OLDEST_TRITON))}"
    return ""


_TRITON_OBSTACLE = _triton_obstacle()


def has_kernels(tensor: Tensor) -> bool:
    return tensor.is_cuda or (INTERPRETED and tensor.device.type == "cpu")


def fused_obstacle(logits: Tensor) -> str:
    """Why the fused kernels cannot run on these logits; nothing if they can."""
    if _TRITON_OBSTACLE:
        return _TRITON_OBSTACLE
    if not has_kernels(logits):
        return f"the logits are on {logits.device}, not on a CUDA device"
    return "" if logits.dtype in FUSED_DTYPES else f"it computes in float32, the logits are {logits.dtype}"


@cache
def warn_without_triton() -> None:
    """Says once why CUDA tensors take the plain pass: it is right, and several times slower."""
    if _TRITON_OBSTACLE:
        warnings.warn(
            f"polydice's fused kernels are not used: {_TRITON_OBSTACLE}. The losses take the plain pass, with the same "
            "result; impl='eager' does so without this warning",
            stacklevel=2,
        )
