"""Losses that are not polydice's own, alone or added to those that are."""

import inspect
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from polydice.base import Loss, LossSum


class Foreign(nn.Module):
    """A loss of another package, `module(logits, labels)`, as `spelt`.

    It is given float32 logits `[B, C, *spatial]` and int64 labels `[B, *spatial]`, or float32 masks like the logits.
    Pixels with the label `masked`, if there are such, are 0 in the labels and False in the `mask` it is given then.
    Where not all classes are annotated in all images it is given `annotated` `[B, C]` too.
    """

    def __init__(self, spelt: str, module: nn.Module, masked: int | None = None) -> None:
        super().__init__()
        self.spelt, self.module, self.masked = spelt, module, masked

    def forward(
        self, logits: Tensor, target: Tensor, mask: Tensor | None = None, annotated: Tensor | None = None
    ) -> Any:
        logits, target = logits.float(), target.float() if target.dtype == torch.bool else target.long()
        if self.masked is not None:
            mask = target != self.masked
            target = target.where(mask, 0)
        more = {"mask": mask, "annotated": annotated}
        return self.module(logits, target, **{name: each for name, each in more.items() if each is not None})

    def __repr__(self) -> str:
        return self.spelt


class Mixed(nn.Module):
    """A weighted sum of losses: polydice's own in one pass over the pixels, and each of the others by itself."""

    def __init__(self, own: LossSum | None, others: Sequence[tuple[float, Foreign]]) -> None:
        super().__init__()
        self.own = own
        self.factors = tuple(factor for factor, _ in others)
        self.others = nn.ModuleList(loss for _, loss in others)

    @property
    def foreign(self) -> list[tuple[float, Foreign]]:
        return list(zip(self.factors, self.others, strict=True))  # type: ignore[arg-type]

    def forward(
        self, logits: Tensor, target: Tensor, mask: Tensor | None = None, annotated: Tensor | None = None
    ) -> Any:
        values = [factor * loss(logits, target, mask, annotated) for factor, loss in self.foreign]
        return sum(values, self.own(logits, target, mask, annotated)) if self.own is not None else sum(values)

    def __add__(self, other: "Loss | LossSum | Mixed") -> "Mixed":
        if isinstance(other, Loss | LossSum):
            other = Mixed(1.0 * other, [])
        if not isinstance(other, Mixed):
            return NotImplemented
        own = [each.own for each in (self, other) if each.own is not None]
        return Mixed(sum(own[1:], own[0]) if own else None, self.foreign + other.foreign)

    __radd__ = __add__

    def __mul__(self, factor: float) -> "Mixed":
        if not isinstance(factor, Real) or isinstance(factor, bool):
            return NotImplemented
        own = None if self.own is None else self.own * factor
        return Mixed(own, [(float(factor) * each, loss) for each, loss in self.foreign])

    __rmul__ = __mul__

    def __repr__(self) -> str:
        shown = [f"{factor!r} * {loss!r}" if factor != 1 else repr(loss) for factor, loss in self.foreign]
        return " + ".join(shown if self.own is None else [repr(self.own), *shown])


def takes(function: Any, name: str) -> bool:
    """Whether a function or class has an argument of this name."""
    return name in inspect.signature(function).parameters
