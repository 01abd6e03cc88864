"""What the tensors of a call may be, by shape, type and device. Their values are looked at in the pass itself."""

from typing import Any

import torch
from torch import Tensor

from polydice.kernels.blocks import is_integer
from polydice.kernels.fields import Options


def check_inputs(logits: Tensor, target: Tensor, mask: Tensor | None, options: Options) -> bool:
    """Whether the target is labels, decided by shape and type alone. Raises on what is neither labels nor masks."""
    for name, value in (("logits", logits), ("target", target)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} must be a tensor: {type(value).__name__}")
    if mask is not None and not isinstance(mask, Tensor):
        raise ValueError(f"mask must be a tensor: {type(mask).__name__}; torch.as_tensor makes one")
    if not logits.is_floating_point():
        raise TypeError(f"logits must be floating: {_show(logits, target)}")
    if logits.ndim < 2:
        raise ValueError(f"logits must be [B, C, *spatial]: {_show(logits, target)}")
    if target.device != logits.device or (mask is not None and mask.device != logits.device):
        others = f"target on {target.device}" + ("" if mask is None else f", mask on {mask.device}")
        raise ValueError(f"logits are on {logits.device}, {others}")
    batch, classes, *spatial = logits.shape
    if classes == 0:
        raise ValueError(f"logits have no channel: {_show(logits, target)}")
    if options.activation == "softmax" and classes == 1:
        raise ValueError(f"a softmax over one channel is always 1; use activation='sigmoid': {_show(logits, target)}")
    integer = is_integer(target)
    plane = ([batch, *spatial], [batch, 1, *spatial])
    labels = integer and list(target.shape) in plane and (classes == 1 or target.shape != logits.shape)
    if not labels and (target.shape != logits.shape or target.is_complex()):
        hint = "" if integer or list(target.shape) not in plane else "; class labels must be integers: target.long()"
        raise ValueError(
            f"target must be integer labels [B, *spatial] or [B, 1, *spatial], or masks of the logits' shape: "
            f"{_show(logits, target)}{hint}"
        )
    if not labels and options.ignore_index is not None:
        raise ValueError(
            f"ignore_index={options.ignore_index} needs labels; pass mask= to leave out pixels of masks: "
            f"{_show(logits, target)}"
        )
    if mask is not None and mask.dtype != torch.bool and not mask.is_floating_point():
        raise TypeError(f"mask must be boolean, or floating to weigh pixels: {_show(logits, target, mask)}")
    if mask is not None and list(mask.shape) not in plane:
        raise ValueError(f"mask must be [B, *spatial] or [B, 1, *spatial]: {_show(logits, target, mask)}")
    return labels


def check_annotated(annotated: Tensor, logits: Tensor) -> None:
    if not isinstance(annotated, Tensor) or annotated.dtype != torch.bool:
        given = annotated.dtype if isinstance(annotated, Tensor) else type(annotated).__name__
        raise TypeError(f"annotated must be a tensor of booleans, [B, C]: {given}")
    if annotated.shape != logits.shape[:2]:
        raise ValueError(f"annotated must be [B, C] = {list(logits.shape[:2])}: {list(annotated.shape)}")
    if annotated.device != logits.device:
        raise ValueError(f"logits are on {logits.device}, annotated on {annotated.device}")


def is_lazy(tensor: Tensor) -> bool:
    """Whether torch has yet to do something to what lies in its memory: to negate it, or to make it 0."""
    return tensor.is_neg() or tensor._is_zerotensor()


def places(*tensors: Tensor | None) -> list[Any]:
    """Where they are and how they lie there. What was saved may come back as a copy, which may even come to lie where
    its original was, in another order."""
    return [tensor if tensor is None else (tensor.data_ptr(), tensor.stride()) for tensor in tensors]


def _show(logits: Tensor, target: Tensor, mask: Tensor | None = None) -> str:
    given = {"logits": logits, "target": target} | ({} if mask is None else {"mask": mask})
    return ", ".join(f"{name} {list(t.shape)} {str(t.dtype).removeprefix('torch.')}" for name, t in given.items())
