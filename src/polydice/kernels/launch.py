"""Launches one Triton kernel again and again, past Triton's own handling of arguments."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from triton.runtime import driver

LAUNCHES_AHEAD = (9, 0)  # the oldest device that starts a kernel before the one before it has ended


class Launch:
    """A kernel with all of its arguments but the tensors, which come first."""

    def __init__(self, kernel: Any, programs: int, numbers: Sequence[float | None], constants: dict[str, Any],
                 device: torch.device, **options: int | None) -> None:  # fmt: skip
        ahead = device.type == "cuda" and torch.cuda.get_device_capability(device) >= LAUNCHES_AHEAD
        constants = constants | {"AHEAD": ahead}
        self.kernel, self.grid = kernel, (programs, 1, 1)
        self.options = {name: value for name, value in options.items() if value} | (
            {"launch_pdl": True} if ahead else {}
        )
        self.numbers, self.constants = tuple(numbers), constants
        self.rest = (*numbers, *constants.values())
        self.compiled: dict[tuple[bool, ...], Any] = {}
        self.aligned: Any = None  # what is compiled for pointers that are all aligned, as they nearly always are

    def __call__(self, stream: int, *tensors: Tensor) -> None:
        pointers = [tensor.data_ptr() for tensor in tensors]
        every_bit = 0
        for pointer in pointers:
            every_bit |= pointer
        if every_bit % 16 == 0 and self.aligned is not None:
            self.aligned(*pointers, *self.rest, stream=stream)
            return
        aligned = tuple([pointer % 16 == 0 for pointer in pointers])
        ready = self.compiled.get(aligned)
        if ready is not None:
            # Past Triton's own argument handling, whose outcome depends on nothing else.
            ready(*pointers, *self.rest, stream=stream)
            return
        ready = self.kernel[self.grid](
            *(tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor for tensor in tensors),
            *self.numbers, **self.constants, **self.options,
        )  # fmt: skip
        if ready is not None:  # the interpreter compiles nothing
            self.compiled[aligned] = ready[self.grid]
            self.aligned = self.compiled.get((True,) * len(pointers))


def current_stream(device: torch.device) -> AbstractContextManager[int]:
    """The stream to launch on. Triton launches on the current device; the tensors may be on another."""
    if device.type != "cuda":
        return nullcontext(0)
    stream = driver.active.get_current_stream(device.index)
    return nullcontext(stream) if torch.cuda.current_device() == device.index else _Elsewhere(device, stream)


class _Elsewhere(torch.cuda.device):
    def __init__(self, device: torch.device, stream: int) -> None:
        super().__init__(device)
        self.stream = stream

    def __enter__(self) -> int:
        super().__enter__()  # type: ignore[no-untyped-call]
        return self.stream
