"""`python -m benchmarks steady`: the plain pass against cross-entropy in one fresh process after the other, on a CPU.

Where the scheduler puts a process's threads is decided anew for each: one process shows nothing of it. In each the two
take turns, so that what else runs on the machine slows both alike, and the ratio is that of its medians.
"""

import csv
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import NamedTuple

import torch
from torch.nn import functional as F

from benchmarks import cpu
from benchmarks.measure import Effort
from benchmarks.providers import EPSILON, LossFunction
from benchmarks.sizes import Size, parse_size
from polydice import PolyDice1Loss

SIZES = tuple(
    map(Size, [
        (24, 9, 224, 224), (24, 2, 224, 224), (2, 3, 64, 64, 64), (1, 14, 96, 96, 96),
        (4, 3, 128, 128), (1, 3, 32, 32, 32), (2, 4, 64, 64),
    ])
)  # fmt: skip
PROCESSES = 20
EACH = Effort(cpu_seconds=1)
QUICK = Effort(cpu_seconds=0, least_rounds=2)
OURS, THEIRS = "polydice", "cross_entropy"


class Row(NamedTuple):
    """Medians of one process, forward and backward together; `others`: the cores that other processes took."""

    shape: str
    busy: int
    process: int
    ours_ms: float
    cross_entropy_ms: float
    ratio: float
    others: float
    device: str
    torch: str


def run(out: Path, sizes: Sequence[Size] | None, processes: int, busy: int, quick: bool) -> int:
    """`busy` processes that do nothing but count beside each that is measured."""
    rows = []
    with (out / f"steady{busy or ''}.csv").open("w", newline="") as file, _busy(busy):
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        for process in range(processes):
            for row in _in_a_process(sizes or SIZES, busy, process, quick):
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


def _in_a_process(sizes: Sequence[Size], busy: int, process: int, quick: bool) -> Iterator[Row]:
    command = [sys.executable, "-m", "benchmarks.steady", *(size.name for size in sizes), *(["quick"] if quick else [])]
    for line in subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines():
        size, ours, theirs, others = json.loads(line)
        yield Row(size, busy, process, ours, theirs, ours / theirs, others, cpu.device_name(), torch.__version__)


def _ratios(rows: Sequence[Row], process: int) -> str:
    return ", ".join(f"{row.shape} {row.ratio:.2f}" for row in rows if row.process == process)


def table(rows: Sequence[Row]) -> str:
    lines = [f"{'':20} {'ms':>9} {'cross-entropy':>14} {'ratio':>7} {'least':>7} {'worst':>7}  cores of others"]
    for shape in dict.fromkeys(row.shape for row in rows):
        found = [row for row in rows if row.shape == shape]
        ours, theirs, others = (
            median(getattr(row, name) for row in found) for name in ("ours_ms", "cross_entropy_ms", "others")
        )
        ratios = sorted(row.ratio for row in found)
        shown = f"{ours:9.3f} {theirs:14.3f} {median(ratios):7.2f} {ratios[0]:7.2f} {ratios[-1]:7.2f}"
        lines.append(f"{shape:20} {shown}  {others:.2f}")
    return "\n".join(lines)


def _measure(size: Size, effort: Effort) -> tuple[str, float, float, float]:
    logits, labels = size.inputs("cpu")
    working: list[tuple[str, LossFunction]] = [(OURS, PolyDice1Loss(EPSILON)), (THEIRS, F.cross_entropy)]
    cpu.rounds(working, logits, labels, QUICK)
    start, others = perf_counter(), cpu.seconds_of_others()
    found = cpu.rounds(working, logits, labels, effort)
    others = (cpu.seconds_of_others() - others) / (perf_counter() - start)
    ours, theirs = (1e3 * median(map(sum, found[name])) for name in (OURS, THEIRS))
    return size.name, ours, theirs, others


if __name__ == "__main__":  # one of the processes: sizes, and "quick"
    names = [name for name in sys.argv[1:] if name != "quick"]
    for each in map(parse_size, names):
        print(json.dumps(_measure(each, EACH if len(names) == len(sys.argv) - 1 else QUICK)), flush=True)
