import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from polydice.kernels.plan import fused_obstacle

pytestmark = pytest.mark.skipif("Triton" in fused_obstacle(torch.zeros(1)), reason="needs Triton")


class Recorder:
    """In place of a kernel: what is compiled, and what is launched of it."""

    def __init__(self) -> None:
        self.compiled: list[tuple[bool, ...]] = []
        self.launched: list[tuple[tuple[bool, ...], tuple[Any, ...], int]] = []

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        def compile_and_launch(*arguments: Any, **constants: Any) -> SimpleNamespace:
            aligned = tuple(given.data_ptr() % 16 == 0 for given in arguments if isinstance(given, torch.Tensor))
            self.compiled.append(aligned)

            def run(x: int, y: int, z: int, stream: int, *others: Any) -> None:
                assert (x, y, z) == grid
                assert others[:5] == ("function", "metadata", None, None, None)
                self.launched.append((aligned, others[5:], stream))

            return SimpleNamespace(run=run, function="function", packed_metadata="metadata")

        return compile_and_launch


def test_triton_takes_what_it_is_given() -> None:
    """What is called is no public part of Triton."""
    from triton.backends.nvidia.driver import CudaLauncher
    from triton.compiler.compiler import CompiledKernel

    names = list(inspect.signature(CudaLauncher.__call__).parameters)
    assert names[1:6] == ["gridX", "gridY", "gridZ", "stream", "function"]
    runner = inspect.getsource(CompiledKernel.__getitem__)
    assert "self.function, self.packed_metadata, launch_metadata" in runner


def test_a_kernel_is_compiled_once_for_each_alignment_and_launched_with_pointers() -> None:
    """Triton compiles wider loads for pointers that are multiples of 16: it must never be given others."""
    from polydice.kernels.launch import Launch

    kernel, (whole, odd) = Recorder(), (torch.zeros(8), torch.zeros(9)[1:])
    launch = Launch(kernel, (3, 1), (5, 0.5), {"SIZE": 4}, torch.device("cpu"))
    given = [(whole, whole), (odd, whole), (whole, odd), (odd, odd)]
    for tensors in given + given:
        launch(7, *tensors)
    kinds = [(True, True), (False, True), (True, False), (False, False)]
    assert kernel.compiled == kinds
    expected = [
        (kind, (first.data_ptr(), second.data_ptr(), *launch.rest), 7)
        for kind, (first, second) in zip(kinds, given, strict=True)
    ]
    assert kernel.launched == expected
    assert launch.rest == (5, 0.5, 4, False)
