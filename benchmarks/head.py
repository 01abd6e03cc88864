"""`python -m benchmarks head`: a network's last 1×1 convolution and its loss, in one pass and one after the other.

The logits are made in three ways: by the convolution, by the convolution of features that lie channels-last, and by a
matrix product. Each loss is shown with the fastest of them. The gradient is that of features, weight and bias.

A training launches ahead of the GPU, so what a head costs there is the time of its kernels: on a GPU our loss, together
and apart, is also replayed from a CUDA graph, with the uint8 labels that a training has.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import cpu, cuda, report
from benchmarks.loss import QUICK, present, show, triton_version
from benchmarks.measure import Effort
from benchmarks.providers import EPSILON, LossFunction, Provider
from benchmarks.report import Row, Sheet
from benchmarks.sizes import DTYPES, Size, head_sizes
from polydice import CrossEntropyLoss, HeadLoss, PolyDice1Loss

OURS, APART = "HeadLoss", "polydice"
CHANNELS_LAST, GRAPH = ", channels-last", " graph, uint8"
REPLAYED = (OURS + GRAPH, OURS + CHANNELS_LAST + GRAPH)
SHOWN = (OURS, *REPLAYED)
EFFORT = Effort(gpu_ms=30)  # there are 400 to be measured
Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
CONVOLUTIONS: dict[int, type[Convolution]] = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}  # by the axes of features


class Logits(nn.Module):
    """A loss of the logits that a convolution makes, or a matrix product instead of it."""

    def __init__(self, conv: Convolution, loss: LossFunction, product: bool = False) -> None:
        super().__init__()
        self.conv, self.loss, self.product = conv, loss, product

    def forward(self, features: Tensor, target: Tensor) -> Tensor:
        weight, bias = self.conv.weight.flatten(1), self.conv.bias
        if not self.product or bias is None:
            return self.loss(self.conv(features), target)
        logits = torch.baddbmm(bias[:, None], weight.expand(len(features), -1, -1), features.flatten(2))
        return self.loss(logits.unflatten(2, features.shape[2:]), target)


def run(device: str, out: Path, sizes: list[Size] | None, quick: bool) -> int:
    from benchmarks import plots

    start = perf_counter()
    losses, shown = _losses(device), []
    with report.CsvFile(out / "head.csv") as file:
        for row, of_note in measure(sizes or head_sizes(device), losses, device, QUICK if quick else EFFORT):
            file.write(row)
            if of_note:
                shown.append(row)
    print(f"\n{report.table([row for row in shown if not row.provider.endswith(GRAPH)], APART)}\n")
    if device == "cuda":
        print(f"{report.table([row for row in shown if row.provider.endswith(GRAPH)], APART + GRAPH)}\n")
    plots.draw_heads(shown, out)
    print(f"{perf_counter() - start:.0f} s; head.csv, time-classes.png, memory-classes.png, command.txt are in {out}")
    return 0


def measure(
    sizes: Sequence[Size], losses: dict[str, LossFunction], device: str, effort: Effort
) -> Iterator[tuple[Row, bool]]:
    """Every row of a run, and whether it is for the tables and the plots: the floor, ours, and each loss of logits that
    were made in the fastest way."""
    machine = cuda if device == "cuda" else cpu
    sheet = Sheet(machine.copy_bandwidth(effort), machine.device_name(), torch.__version__, triton_version())
    print(f"{machine.device_name()}, torch {torch.__version__}, copy {sheet.bandwidth / 1e9:.1f} GB/s", flush=True)
    for size in sizes:
        yield sheet.floor(size), not size.series
        found: dict[str, list[Row]] = {}
        features, target = size.inputs(device)
        for layout, given in _layouts(features):
            candidates = list(_candidates(size, losses, device, layout))
            label_bytes = {provider.name: provider.label_bytes for provider, _ in candidates}
            for name, figures in machine.measure(candidates, given, target, effort):
                rows = list(sheet.of(name, size, figures, label_bytes[name]))
                show(name, size, rows)
                yield from ((row, name in SHOWN) for row in rows)
                if not isinstance(figures, str):
                    found[name] = rows
        for loss in (*losses, APART + GRAPH):
            ways = {name: rows for name, rows in found.items() if name.endswith(f" + {loss}")}
            if ways:
                fastest = min(ways, key=lambda name: _both(ways[name]))
                found[loss] = [replace(row, provider=loss, note=fastest) for row in ways[fastest]]
                yield from ((row, True) for row in found[loss])
        for names, references in (((OURS, *losses), [*losses]), ((*REPLAYED, APART + GRAPH), [APART + GRAPH])):
            both = {name: _both(found[name]) for name in names if name in found}
            yield from ((row, False) for row in sheet.ratios(size, both, references))


def _both(rows: Sequence[Row]) -> float:
    """Milliseconds of forward and backward."""
    return next(row.median for row in rows if (row.mode, row.metric) == ("both", "ms") and row.median is not None)


def _losses(device: str) -> dict[str, LossFunction]:
    """Those of logits that can be had here."""
    names = {"polydice fused" if device == "cuda" else "polydice eager": "polydice"}
    names |= {name: name for name in ("monai", "nnunet", "cross_entropy")}
    return {names[each.name]: each.make() for each in present(device) if each.name in names}


def _layouts(features: Tensor) -> Iterator[tuple[str, Tensor]]:
    yield "", features
    if features.ndim > 3:
        yield CHANNELS_LAST, features.detach().contiguous(memory_format=_last(features.ndim)).requires_grad_()


def _last(axes: int) -> torch.memory_format:
    return torch.channels_last if axes == 4 else torch.channels_last_3d


def _candidates(
    size: Size, losses: dict[str, LossFunction], device: str, layout: str
) -> Iterator[tuple[Provider, LossFunction]]:
    torch.manual_seed(0)
    conv = CONVOLUTIONS[len(size.shape)](size.features, size.classes, 1).to(device, DTYPES[size.dtype])
    if layout:
        conv.to(memory_format=_last(len(size.shape)))  # type: ignore[call-overload]
    dice, ways = PolyDice1Loss(EPSILON), [("conv", False)] if layout else [("conv", False), ("matmul", True)]
    if device == "cuda":
        replayed: dict[str, Any] = {"graph": True, "label_bytes": 1}
        yield _candidate(f"{OURS}{layout}{GRAPH}", HeadLoss(dice, conv), **replayed)
        for way, product in ways:
            yield _candidate(f"{way}{layout} + {APART}{GRAPH}", Logits(conv, dice, product), **replayed)
    if size.series:
        return
    yield _candidate(f"{OURS}{layout}", HeadLoss(dice, conv))
    yield _candidate(f"{OURS}{layout} with ce", HeadLoss(dice + CrossEntropyLoss(), conv))
    for name, loss in losses.items():
        for way, product in ways:
            yield _candidate(f"{way}{layout} + {name}", Logits(conv, loss, product))


def _candidate(name: str, module: nn.Module, **more: Any) -> tuple[Provider, LossFunction]:
    return Provider(name, lambda: module, **more), module
