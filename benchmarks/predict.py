"""`python -m benchmarks predict`: the label map of a large volume with many classes, as `polydice predict` makes it.

Time and memory of 384³ voxels, and at a size that the logits of a whole volume fit at, whether the map is the one of
these logits.
"""

import csv
import resource
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import nn

from benchmarks import cpu, cuda
from polydice.data.prepare import Preparation
from polydice.models import build
from polydice.training.config import Precision
from polydice.training.inference import WINDOWS, Network
from polydice.training.predict import Predictor
from polydice.training.windows import planes

CLASSES = 118
QUICK: dict[str, Any] = {"width": 4, "depth": 2}


class Cost(NamedTuple):
    """Of the device, bytes in use and bytes taken from it; of the host, all that the process ever had."""

    seconds: float
    in_use: int | None
    taken: int | None
    host: int


def run(device: str, out: Path, quick: bool) -> int:
    machine = (cuda if device == "cuda" else cpu).device_name()
    print(f"{machine}, torch {torch.__version__}", flush=True)
    edge, patch, smaller = (24, 16, 20) if quick else (384, 96, 160)
    torch.manual_seed(0)
    model = build("dynunet", 1, CLASSES, **QUICK if quick else {}).to(device).eval()
    with (out / "predict.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        kind = ["edge", "patch", "classes", "algorithms"]
        writer.writerow([*kind, "seconds", "in_use_bytes", "taken_bytes", "host_bytes", "device", "torch"])
        for tries in (True, False) if device == "cuda" else (False,):
            found = cost(model, edge, patch, tries)
            algorithms = "tried" if tries else "guessed"
            row = [edge, patch, CLASSES, algorithms, f"{found.seconds:.4g}", *found[1:], machine, torch.__version__]
            writer.writerow(row)
            file.flush()
            shares = zip(("in use", "taken", "host"), found[1:], strict=True)
            memory = ", ".join(f"{what} {size / 2**30:.2f} GiB" for what, size in shares if size is not None)
            print(f"{edge}^3, algorithms {algorithms}: {found.seconds:.1f} s; {memory}", flush=True)
    different, gap = difference(model, smaller, patch)
    print(f"{smaller}^3, float32: {different} of {smaller**3} labels differ, by {gap:.2g} of the largest logit at most")
    print(f"predict.csv and command.txt are in {out}")
    return 0


def cost(model: nn.Module, edge: int, patch: int, tries: bool) -> Cost:
    """Of one volume. `tries`: cuDNN tries its algorithms before it takes one, as it does in `polydice predict`."""
    predictor = _predictor(model, patch, "auto")
    torch.backends.cudnn.benchmark = tries
    on_gpu = predictor.network.device.type == "cuda"
    volume = torch.rand(1, edge, edge, edge)
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    start = perf_counter()
    predictor.volume_labels(volume, volume.shape[1:], WINDOWS)  # on the host: it has waited for the device
    seconds = perf_counter() - start
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if not on_gpu:
        return Cost(seconds, None, None, host)
    return Cost(seconds, torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), host)


@torch.inference_mode()
def difference(model: nn.Module, edge: int, patch: int) -> tuple[int, float]:
    """How many labels are others than those of all logits, and how far these are below the highest, as a share of the
    largest logit there is."""
    predictor = _predictor(model, patch, "float32")
    device = predictor.network.device
    torch.backends.cudnn.allow_tf32 = False
    volume = torch.rand(1, edge, edge, edge)
    found = torch.from_numpy(predictor.volume_labels(volume, volume.shape[1:], WINDOWS)).to(device, torch.int64)
    every = planes(volume, (patch, patch, patch), model, WINDOWS, device)
    different, gap, largest = 0, 0.0, 0.0
    for labels, logits in zip(found, every, strict=True):
        top, best = logits.max(0)
        below = top - logits.gather(0, labels[None])[0]
        different += int((labels != best).sum())
        gap, largest = max(gap, float(below.max())), max(largest, float(logits.abs().max()))
    return different, gap / largest


def _predictor(model: nn.Module, patch: int, precision: Precision) -> Predictor:
    network = Network(model, (patch, patch, patch), precision, compile=False)
    return Predictor(network, 1, tuple(map(str, range(CLASSES))), "unit", Preparation(dims=3))
