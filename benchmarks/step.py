"""`python -m benchmarks step`: a training step of a 3D network with many classes, its head in the loss and apart.

On a GPU also the largest cube that can be trained on, by one step of each that is tried, which shows its memory;
first with logits, whose largest cube is smaller and sooner found. cuDNN takes the algorithms that it guesses, without
trying them: to try them takes longer than the steps here, and they take memory that is not the step's.
"""

import csv
import gc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch

from benchmarks import cpu, cuda
from benchmarks.measure import attempt
from polydice import CrossEntropyLoss, PolyDice1Loss
from polydice.models import build
from polydice.training.config import Head
from polydice.training.heads import Body, head_losses
from polydice.training.inference import Network
from polydice.training.objective import supervised

CLASSES, BATCH = 118, 2
HEADS: tuple[Head, ...] = ("plain", "fused")
EDGES, STEP, STEPS = (96, 128), 32, 5  # of the cubes that are measured; the largest is a multiple of the second
QUICK: dict[str, Any] = {"width": 4, "depth": 2}


class Cost(NamedTuple):
    """Milliseconds of a step, if steps were timed, and the most bytes on the device at once, where somebody counts."""

    ms: float | None
    peak: int | None


def run(device: str, out: Path, quick: bool) -> int:
    machine = (cuda if device == "cuda" else cpu).device_name()
    print(f"{machine}, torch {torch.__version__}", flush=True)
    with (out / "step.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["head", "edge", "batch", "classes", "ms", "peak_bytes", "device", "torch", "note"])
        for head, edge, found in trials(device, quick):
            (ms, peak), note = ((None, None), found) if isinstance(found, str) else (found, "")
            spent = "" if ms is None else f"{ms:.6g}"
            writer.writerow([head, edge, BATCH, CLASSES, spent, peak, machine, torch.__version__, note])
            file.flush()
            shown = [f"{spent} ms"] * bool(spent) + ([] if peak is None else [f"{peak / 2**30:.2f} GiB"])
            print(f"{head:6} {BATCH} x {edge}^3  {note or ', '.join(shown)}", flush=True)
    print(f"step.csv and command.txt are in {out}")
    return 0


def trials(device: str, quick: bool) -> Iterator[tuple[Head, int, Cost | str]]:
    """The head, the edge of each cube that was tried, and what it cost, or why it could not be trained on."""
    options = QUICK if quick else {}
    peaks: dict[Head, list[tuple[int, int]]] = {head: [] for head in HEADS}
    for head in HEADS:
        for edge in (8, 16) if quick else EDGES:
            found = tried(partial(cost, head, edge, device, options))
            yield head, edge, found
            if not isinstance(found, str) and found.peak is not None:
                peaks[head].append((edge, found.peak))
    for head, measured in peaks.items():
        if len(measured) == len(EDGES) and not quick:
            for edge, found in around(guess(*measured), partial(_once, head, device)):
                yield head, edge, found


def guess(small: tuple[int, int], large: tuple[int, int]) -> int:
    """The edge that would fill the device, if memory grows with the voxels as from one cube to another."""
    total = torch.cuda.get_device_properties("cuda").total_memory
    voxels = small[0] ** 3 + (total - small[1]) / (large[1] - small[1]) * (large[0] ** 3 - small[0] ** 3)
    return int(voxels ** (1 / 3)) // STEP * STEP


def around(edge: int, found: Callable[[int], Cost | str]) -> Iterator[tuple[int, Cost | str]]:
    """From a guess to the first cube that is too large, or, if that one is, to the first that is not."""
    first = found(edge)
    yield edge, first
    way = -STEP if isinstance(first, str) else STEP
    while edge + way > 0:
        edge += way
        here = found(edge)
        yield edge, here
        if isinstance(here, str) != isinstance(first, str):
            return


def _once(head: Head, device: str, edge: int) -> Cost | str:
    return tried(partial(cost, head, edge, device, {}, 0))


def tried(measurement: Callable[[], Cost]) -> Cost | str:
    """What a failed step has left behind must not count against the next."""
    found = attempt(measurement)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return found


def cost(head: Head, edge: int, device: str, options: dict[str, Any], steps: int = STEPS) -> Cost:
    """Of steps as `polydice train` makes them, after a first one, whose peak is that of all; or of that one alone."""
    torch.manual_seed(0)
    model = build("dynunet", 1, CLASSES, **options).to(device)
    network = Network(model, (edge, edge, edge), compile=False)
    torch.backends.cudnn.benchmark = False
    loss = PolyDice1Loss(0.2, batch=True) + CrossEntropyLoss()
    of_features = head_losses(head, loss, model, network.half)
    network.trained = model if of_features is None else Body(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9, fused=device == "cuda")
    images = torch.rand(BATCH, 1, edge, edge, edge, device=device)
    labels = torch.randint(CLASSES, (BATCH, edge, edge, edge), device=device, dtype=torch.uint8)
    network.train()

    def step() -> None:
        optimizer.zero_grad()
        supervised(of_features or loss, network(images), labels).backward()
        optimizer.step()

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    step()
    ms = 1e3 * _seconds(step, steps, device) / steps if steps else None
    return Cost(ms, torch.cuda.max_memory_allocated() if device == "cuda" else None)


def _seconds(step: Callable[[], None], steps: int, device: str) -> float:
    def now() -> float:
        if device == "cuda":
            torch.cuda.synchronize()
        return perf_counter()

    start = now()
    for _ in range(steps):
        step()
    return now() - start
