"""Launches one Triton kernel again and again, past Triton's own handling of arguments."""

import ctypes
import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, reduce
from operator import or_
from typing import Any

import torch
from torch import Tensor
from triton.runtime import driver

from polydice.kernels.node import address

ENCODED = {"i32": "<i", "i64": "<q", "fp32": "<f"}  # numbers that a kernel takes, by Triton's names
LAUNCHES_AHEAD = (9, 0)  # the oldest device that starts a kernel before the one before it has ended


class Launch:
    """A kernel with all of its arguments but the tensors, which come first."""

    def __init__(self, kernel: Any, grid: tuple[int, int], numbers: Sequence[float | None], constants: dict[str, Any],
                 device: torch.device, **options: int | None) -> None:  # fmt: skip
        ahead = device.type == "cuda" and torch.cuda.get_device_capability(device) >= LAUNCHES_AHEAD
        constants = constants | {"AHEAD": ahead}
        self.kernel, self.grid = kernel, (*grid, 1)
        self.options = {name: value for name, value in options.items() if value} | (
            {"launch_pdl": True} if ahead else {}
        )
        self.numbers, self.constants = tuple(numbers), constants
        self.rest = (*numbers, *constants.values())
        self.compiled: dict[tuple[bool, ...], Callable[..., None]] = {}
        self.aligned: Callable[..., None] | None = None  # of pointers that are all aligned, as they nearly always are
        self.of_aligned: Any = None  # Triton's compiled kernel

    def __call__(self, stream: int, *tensors: Tensor) -> None:
        pointers = [*map(Tensor.data_ptr, tensors)]
        if self.aligned is not None and reduce(or_, pointers) % 16 == 0:
            self.aligned(stream, *pointers)
            return
        aligned = tuple([pointer % 16 == 0 for pointer in pointers])
        ready = self.compiled.get(aligned)
        if ready is not None:
            ready(stream, *pointers)
            return
        compiled = self.kernel[self.grid](
            *(tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor for tensor in tensors),
            *self.numbers, **self.constants, **self.options,
        )  # fmt: skip
        if compiled is not None:  # the interpreter compiles nothing
            self.compiled[aligned] = _launcher(compiled, self.grid, self.rest)
            if all(aligned):
                self.aligned, self.of_aligned = self.compiled[aligned], compiled

    def described(self) -> tuple[Any, ...]:
        """What CUDA's driver takes to launch it with aligned pointers, as `node.cpp` reads it. Raises where a kernel
        wants what is not given there."""
        how, types = self.of_aligned.metadata, [*self.of_aligned.src.signature.values()]
        tensors = len(types) - len(self.rest)
        given = [each for each in zip(types[tensors:], self.rest, strict=True) if each[0] != "constexpr"]
        more = how.num_ctas > 1 or how.global_scratch_size or how.profile_scratch_size or how.launch_cooperative_grid
        if more or not {kind for kind, _ in given} <= ENCODED.keys():
            raise ValueError(f"a kernel with {given}, {how}")
        numbers = [int.from_bytes(struct.pack(ENCODED[kind], number), "little") for kind, number in given]
        # Last, two pointers to memory of their own, which these kernels do not have.
        function, threads = self.of_aligned.function, 32 * how.num_warps
        return function, self.grid, threads, how.shared, how.launch_pdl, tensors, (*numbers, 0, 0)


def _launcher(compiled: Any, grid: tuple[int, int, int], rest: tuple[Any, ...]) -> Callable[..., None]:
    """What launches a compiled kernel on a stream, given its pointers. Past Triton's own handling of arguments, whose
    outcome depends on nothing else, and past its hooks for profilers: both take longer than the launch itself."""
    run, function, metadata, no_hooks = compiled.run, compiled.function, compiled.packed_metadata, (None, None, None)

    def launch(stream: int, *pointers: int) -> None:
        run(*grid, stream, function, metadata, *no_hooks, *pointers, *rest)

    return launch


@cache
def driver_of(device: torch.device) -> tuple[int, int, int]:
    """Addresses of the driver's functions that launch a kernel and enter a context, and the context of a device."""
    code, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    if code.cuDevicePrimaryCtxRetain(ctypes.byref(context), device.index):
        raise RuntimeError(f"CUDA's driver does not say what context {device} has")
    return address(code.cuLaunchKernelEx), address(code.cuCtxSetCurrent), context.value or 0


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
