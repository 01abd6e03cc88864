"""`python -m benchmarks steady`: a loss as it is called against cross-entropy, in one fresh process after the other.

Where the scheduler puts a process's threads is decided anew for each: one process shows nothing of it. In each the two
take turns, so that what else runs on the machine slows both alike, and the ratio is that of its medians.
"""

import csv
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks import cpu, cuda
from benchmarks.measure import Effort, gradient
from benchmarks.providers import EPSILON, LossFunction
from benchmarks.sizes import Size, annotated_sizes, parse_size
from polydice import PolyDice1Loss
from polydice.kernels import node

SIZES = tuple(
    map(Size, [
        (24, 9, 224, 224), (24, 2, 224, 224), (2, 3, 64, 64, 64), (1, 14, 96, 96, 96),
        (4, 3, 128, 128), (1, 3, 32, 32, 32), (2, 4, 64, 64),
    ])
)  # fmt: skip
PROCESSES = 20
EACH = Effort(cpu_seconds=1)
QUICK = Effort(gpu_ms=3, cpu_seconds=0, least_rounds=2)
MASKED = tuple(map(Size, [(16, 1, 512, 512), (2, 3, 96, 96, 96), (8, 1, 256, 256), (4, 3, 128, 128), (8, 1, 64, 64)]))
OURS, THEIRS = "polydice", "cross_entropy"
TURNS = 3  # on a GPU, each of which is many calls


Working = tuple[str, LossFunction]
OF_LABELS: list[Working] = [(OURS, PolyDice1Loss(EPSILON)), (THEIRS, F.cross_entropy)]
OF_MASKS: list[Working] = [
    (OURS, PolyDice1Loss(EPSILON, activation="sigmoid")),
    (THEIRS, F.binary_cross_entropy_with_logits),
]


class Row(NamedTuple):
    """Medians of one process, forward and backward together; `others`: the cores that other processes took."""

    shape: str
    dtype: str
    busy: int
    process: int
    ours_ms: float
    cross_entropy_ms: float
    ratio: float
    others: float
    device: str
    torch: str


def run(
    device: str, out: Path, sizes: Sequence[Size] | None, processes: int, busy: int, masks: bool, quick: bool
) -> int:
    """`busy` processes that do nothing but count beside each that is measured. `masks`: of sigmoid and masks."""
    rows = []
    print(f"the compiled node: {node.obstacle() or 'used'}", flush=True)
    sizes = sizes or (MASKED if masks else annotated_sizes("cuda") if device == "cuda" else SIZES)
    file_name = f"{'masks' if masks else 'steady'}{busy or ''}.csv"
    with (out / file_name).open("w", newline="") as file, _busy(busy):
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        for process in range(processes):
            for row in _in_a_process(device, sizes, busy, process, masks, quick):
                rows.append(row)
                writer.writerow([f"{value:.4g}" if isinstance(value, float) else value for value in row])
            file.flush()
            print(f"process {process + 1} of {processes}: " + _ratios(rows, process), flush=True)
    print(f"\n{table(rows)}")
    return 0


@contextmanager
def _busy(count: int) -> Iterator[None]:
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def _in_a_process(
    device: str, sizes: Sequence[Size], busy: int, process: int, masks: bool, quick: bool
) -> Iterator[Row]:
    names = [f"{size.name}:{size.dtype}" for size in sizes]
    how = "masks" if masks else "labels", "quick" if quick else "whole"
    command = [sys.executable, "-m", "benchmarks.steady", device, *how, *names]
    machine = (cuda if device == "cuda" else cpu).device_name()
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    for size, line in zip(sizes, found, strict=True):
        ours, theirs, others = json.loads(line)
        kind = size.name, size.dtype, busy, process
        yield Row(*kind, ours, theirs, ours / theirs, others, machine, torch.__version__)


def _ratios(rows: Sequence[Row], process: int) -> str:
    return ", ".join(f"{_kind(row)} {row.ratio:.2f}" for row in rows if row.process == process)


def _kind(row: Row) -> str:
    return row.shape if row.dtype == "float32" else f"{row.shape}:{row.dtype}"


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'':24} {'ms':>9} {'cross-entropy':>14} {'ratio':>7} {'least':>7} {'worst':>7}  cores of others"]
    for kind in dict.fromkeys(map(_kind, rows)):
        found = [row for row in rows if _kind(row) == kind]
        ours, theirs, others = (
            median(getattr(row, name) for row in found) for name in ("ours_ms", "cross_entropy_ms", "others")
        )
        ratios = sorted(row.ratio for row in found)
        shown = f"{ours:9.3f} {theirs:14.3f} {median(ratios):7.2f} {ratios[0]:7.2f} {ratios[-1]:7.2f}"
        lines.append(f"{kind:24} {shown}  {others:.2f}")
    return "\n".join(lines)


def _measure(device: str, size: Size, masks: bool, quick: bool) -> tuple[float, float, float]:
    """Milliseconds of ours and of theirs, and the cores that others took meanwhile."""
    logits, target = size.inputs(device)
    if masks:
        target = (torch.rand_like(logits) > 0.5).to(logits.dtype)
    measured = partial(_on_a_gpu if device == "cuda" else _on_a_cpu, OF_MASKS if masks else OF_LABELS, logits, target)
    measured(QUICK)
    start, others = perf_counter(), cpu.seconds_of_others()
    found = measured(QUICK if quick else EACH)
    others = (cpu.seconds_of_others() - others) / (perf_counter() - start)
    return found[OURS], found[THEIRS], others


def _on_a_cpu(working: list[Working], logits: Tensor, target: Tensor, effort: Effort) -> dict[str, float]:
    found = cpu.rounds(working, logits, target, effort)
    return {name: 1e3 * median(map(sum, times)) for name, times in found.items()}


def _on_a_gpu(working: list[Working], logits: Tensor, target: Tensor, effort: Effort) -> dict[str, float]:
    """Ours with labels in a byte each, which cross-entropy does not take."""
    found: dict[str, list[float]] = {name: [] for name, _ in working}
    of = {OURS: target if target.is_floating_point() else target.to(torch.uint8), THEIRS: target}
    for _ in range(TURNS):
        for name, loss in working:
            found[name].append(cuda.timed(partial(gradient, loss, logits, of[name]), effort).median)
    return {name: median(times) for name, times in found.items()}


if __name__ == "__main__":  # one of the processes
    device, kind, effort, *names = sys.argv[1:]
    for each in map(partial(parse_size, least=1), names):
        print(json.dumps(_measure(device, each, kind == "masks", effort == "quick")), flush=True)
