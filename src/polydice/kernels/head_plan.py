"""Decides how a loss of features is computed: as `plan.py` does for the logits that the head would make of them."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polydice.kernels.plan import (
    Plan,
    Terms,
    are_plain,
    distinct,
    formula_of,
    fused_obstacle,
    plan_terms,
    planned,
    seen,
)

if TYPE_CHECKING:
    from polydice.kernels.head_fused import HeadLaunches

Head = tuple[Tensor, Tensor, Tensor | None]  # features [B, F, *spatial], a 1×1 convolution's weight and its bias


def plan_head(terms: Terms, head: Head, target: Tensor, mask: Tensor | None, annotated: Tensor | None = None) -> Plan:
    """How to compute a weighted sum of losses. Raises where it cannot be computed of such tensors."""
    if annotated is not None or not are_plain(*head, target, mask):
        return plan_terms(terms, unmade_logits(head), target, mask, annotated)
    tensors = [seen(tensor) for tensor in (*head, target, mask)]
    return planned(terms, ("head", *tensors), lambda: _plan_whole(terms, head, target, mask))


def in_one_kernel(weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether one kernel takes the head, of this weight, and features of this type, on the weight's device."""
    if fused_obstacle(weight):
        return False
    from polydice.kernels.head_tiles import fits

    return fits(weight.shape[:2], dtype, weight.device)


def unmade_logits(head: Head) -> Tensor:
    """The logits of a head, as far as they can be had for nothing: their shape, type and device."""
    features, weight, _ = head
    return features.new_empty(1).expand(features.shape[0], weight.shape[0], *features.shape[2:])


def _plan_whole(terms: Terms, head: Head, target: Tensor, mask: Tensor | None) -> Plan:
    logits = unmade_logits(head)
    plan = plan_terms(terms, logits, target, mask)
    return plan._replace(head_launches=_launches(terms, plan, logits, head, target, mask))


def _launches(
    terms: Terms, plan: Plan, logits: Tensor, head: Head, target: Tensor, mask: Tensor | None
) -> "HeadLaunches | None":
    """The launches that make the whole loss; None where torch must make it of the sums. `head_launches` refuses what
    one kernel cannot take."""
    formula = formula_of(terms, logits) if plan.fused else None
    if formula is None:
        return None
    from polydice.kernels.head_fused import Inputs, head_launches

    inputs = Inputs(*head, target, mask).specs()
    return head_launches(formula, distinct(plan.options, plan.labels), plan.labels, inputs)
