"""Measurements on a CUDA device: time by events with a cold L2 cache, memory from the allocator's own counters."""

import gc
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from benchmarks.measure import Candidates, Effort, Figures, Outcome, Spread, T, attempt, gradient
from benchmarks.providers import LossFunction

COPY_BYTES = 1 << 30


def device_name() -> str:
    return torch.cuda.get_device_name()


def copy_bandwidth(effort: Effort) -> float:
    """Bytes read and written per second by a copy."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    copy = torch.empty_like(source)
    return 2e3 * COPY_BYTES / timed(lambda: copy.copy_(source), effort).median


def measure(candidates: Candidates, logits: Tensor, target: Tensor, effort: Effort) -> Outcome:
    gc.freeze()  # what is there now is not looked through again and again
    for provider, loss in candidates:
        figures = _graph_figures if provider.graph else _figures
        labels = target.to(torch.uint8) if provider.label_bytes == 1 else target
        yield provider.name, attempt(partial(figures, loss, logits, labels, effort))
        gc.collect()  # what a failed provider left behind must not count against the next
        torch.cuda.empty_cache()


def _figures(loss: LossFunction, logits: Tensor, target: Tensor, effort: Effort) -> Figures:
    both = partial(gradient, loss, logits, target)
    both()  # compiles kernels, where there are any
    extra = extra_bytes(both)
    return _combine(timed(partial(loss, logits, target), effort), timed(both, effort), extra)


def _graph_figures(loss: LossFunction, logits: Tensor, target: Tensor, effort: Effort) -> Figures:
    """The same work recorded once and replayed: no launch overhead of Python and torch."""
    both = partial(gradient, loss, logits, target)
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):  # a first call may compile and allocate, which cannot be recorded
        for _ in range(2):
            both()
    torch.cuda.current_stream().wait_stream(aside)
    graphs: list[torch.cuda.CUDAGraph] = []
    extra = extra_bytes(lambda: _record(both, graphs))
    _record(partial(loss, logits, target), graphs)
    spent, forward = (timed(graph.replay, effort) for graph in graphs)
    return _combine(forward, spent, extra)


def _record(function: Callable[[], T], graphs: list[torch.cuda.CUDAGraph]) -> T:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    graphs.append(graph)
    return result


def _combine(forward: Spread, both: Spread, extra: int) -> Figures:
    """Backward is both − forward: a compiled loss and a graph do not let backward run again by itself."""
    return Figures(forward, Spread(both.median - forward.median), both, extra, "backward is both - forward")


def timed(function: Callable[[], object], effort: Effort) -> Spread:
    from triton.testing import do_bench

    return Spread(*do_bench(function, warmup=effort.gpu_ms // 3, rep=effort.gpu_ms, quantiles=[0.5, 0.1, 0.9]))


def extra_bytes(function: Callable[[], Tensor | tuple[Tensor, ...]]) -> int:
    """The most that a function held beyond what it returns.

    The bytes that were asked for: the allocator hands out up to a megabyte more, which is not the loss's doing.
    """
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = int(torch.cuda.memory_stats()["requested_bytes.all.current"])
    result = function()
    torch.cuda.synchronize()
    peak = int(torch.cuda.memory_stats()["requested_bytes.all.peak"])
    return peak - before - sum(each.nbytes for each in (result if isinstance(result, tuple) else (result,)))
