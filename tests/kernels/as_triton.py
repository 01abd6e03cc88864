"""Losses launched by Triton and by the compiled node, both with a driver that launches nothing: what each gives it.

A process of its own, for `libcuda.c` is in place of CUDA's driver. Arguments: that, compiled.
"""

import ctypes
import re
import sys
from contextlib import nullcontext
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.nvidia.driver import CudaDriver

from polydice import CrossEntropyLoss, DiceLoss, FocalLoss, PolyDice1Loss
from polydice.base import Loss, LossSum
from polydice.kernels import compiling, fused, launch, node, plan
from tests.kernels.test_node import Driver

STREAM = 4242


class Ahead(launch.Launch):
    """As on a GPU, which launches ahead."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.constants = self.constants | {"AHEAD": True}
        self.rest = (*self.numbers, *self.constants.values())
        self.options["launch_pdl"] = True


def main(library: str) -> None:
    driver, cuda = Driver({}), ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    ctypes.c_void_p.in_dll(cuda, "listener").value = driver.addresses[0]
    _pretend()
    module = node.load(compiling.kept(*node._place()))  # type: ignore[arg-type]
    weight = torch.tensor([0.2, 0.3, 0.5])
    losses = (
        PolyDice1Loss(0.2),
        PolyDice1Loss(0.0, follow=4.0, batch=True, scale="detached", ignore_index=255),
        DiceLoss() + CrossEntropyLoss(weight=weight),
        DiceLoss(activation="sigmoid") + 0.5 * FocalLoss(gamma=1.5, activation="sigmoid"),
    )
    count = 0
    for loss in losses:
        for shape, more in (((2, 3, 64, 64), ""), ((1, 3, 1, 16), "mask"), ((3, 3, 33, 17), "annotated")):
            logits = torch.randn(shape, dtype=torch.bfloat16, requires_grad=True)
            labels = torch.randint(3, (shape[0], *shape[2:]), dtype=torch.uint8)
            mask = torch.rand(labels.shape) > 0.5 if more == "mask" else None
            annotated = torch.ones(shape[0], 3, dtype=torch.bool) if more == "annotated" else None
            count += compare(loss, module, driver, logits, labels, mask, annotated)
    print(count)


def _pretend() -> None:
    """That there is a GPU, an H200, and these tensors lie on it."""
    torch.cuda.get_device_capability = lambda device=None: (9, 0)  # type: ignore[assignment]
    active = CudaDriver()
    active.get_current_stream, active.get_current_device = lambda device: STREAM, lambda: 0
    active.get_device_capability = lambda device=0: (9, 0)
    triton.runtime.driver.set_active(active)
    plan._has_kernels = lambda tensor: True
    fused.resident = lambda device, block: block.resident * 132
    fused.Launch = Ahead  # type: ignore[misc]
    fused.current_stream = lambda device: nullcontext(STREAM)
    from polydice.kernels import ending

    ending.Launch = Ahead  # type: ignore[misc]


def compare(
    loss: Loss | LossSum, module: Any, driver: Driver, logits: Tensor, target: Tensor, mask: Tensor | None,
    annotated: Tensor | None,
) -> int:  # fmt: skip
    """How many launches were the same."""
    terms = loss.terms
    launches: Any = plan.plan_loss(terms, logits, target, mask, annotated).launches
    given = target, mask, plan.stacked_weights(terms), plan.added_numbers(terms, logits.device), annotated
    over, ending = launches.over_pixels, launches.ending
    each = [kernel for kernel in (over.forward, *ending, over.backward) if kernel is not None]
    fused.FusedLoss.apply(logits, given, launches).backward()  # type: ignore[no-untyped-call]
    described = tuple(kernel.described() for kernel in each)
    for kernel in each:
        driver.arguments[kernel.of_aligned.function] = parameters(kernel.of_aligned.asm["ptx"])
    made = module.launches(None, launches.space, (*driver.addresses[:2], 0), described)
    by_triton, saved = launched(driver, logits, fused.FusedLoss.apply, logits, given, launches)
    by_node, also_saved = launched(driver, logits, module.loss, made, STREAM, logits, *given)
    assert by_triton == by_node, f"{loss}, {logits.shape}: {by_triton} and {by_node}"
    assert saved == also_saved  # a checkpoint compares that, and either may compute the loss again
    assert [found[0] for found in by_node] == [kernel[0] for kernel in described]
    assert all(found[4:6] == (STREAM, [(6, 1)]) for found in by_node)
    return len(by_node)


def parameters(ptx: str) -> list[Any]:
    head = ptx.partition(".entry")[2].partition(")")[0]
    return [ctypes.c_uint64 if size == "64" else ctypes.c_uint32 for size in re.findall(r"\.param \.[a-z]+(\d+)", head)]


def launched(driver: Driver, logits: Tensor, call: Any, *given: Any) -> tuple[list[Any], list[int]]:
    """The launches of a loss and its gradient, and what is saved for that. What they were made of has other addresses
    each time: these are named by where they occur first."""
    driver.launched.clear()
    saved: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.data_ptr()) or t, lambda t: t):  # type: ignore[func-returns-value]
        loss = call(*given)
    (gradient,) = torch.autograd.grad(loss, logits)
    names = {loss.data_ptr(): "loss", gradient.data_ptr(): "gradient"}
    fixed = {each.data_ptr() for each in (logits, *_tensors(given)) if each is not None}
    found = []
    for *how, values in driver.launched:
        own = [names.setdefault(value, f"other {len(names)}") if _is_new(value, fixed) else value for value in values]
        found.append((*how, own))
    return found, saved


def _is_new(value: int, fixed: set[int]) -> bool:
    return value > 1 << 40 and value not in fixed


def _tensors(given: Any) -> list[Tensor]:
    flat = [each for item in given for each in (item if isinstance(item, tuple) else (item,))]
    return [each for each in flat if isinstance(each, Tensor)]


if __name__ == "__main__":
    main(sys.argv[1])
