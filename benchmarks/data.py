"""`python -m benchmarks data`: how many augmented images and patches a second, on a CPU beside MONAI's transforms."""

import csv
import math
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

import numpy as np
import torch

from benchmarks import cpu, cuda
from polydice.data.augment import Augment2D, Augment3D, Interpolation, as_float
from polydice.data.batches import Batches
from polydice.data.cases import Case, Dataset, Sample
from polydice.data.prepare import Preparation, Prepared, prepare

SIZE, BATCH, IMAGES = 224, 24, 480
EDGE, PATCH, PATCH_BATCH, VOLUMES = 128, (96, 96, 96), 2, 8
SECONDS, QUICK_SECONDS = 20.0, 0.1  # for each task, shared by those who take part
LEAST_ROUNDS = 3

Round = Callable[[], int]  # does some work and says how many images came out


class Row(NamedTuple):
    """Images (or patches) a second over the rounds; `over_monai` is the ratio of the medians, in the same run."""

    provider: str
    task: str
    median: float
    q10: float
    q90: float
    over_monai: float | None
    device: str
    torch: str

    def __str__(self) -> str:
        ratio = "" if self.over_monai is None else f"{self.over_monai:6.1f} x MONAI"
        return f"{self.task:28} {self.provider:10} {self.median:10.1f} images/s  {ratio}".rstrip()


def run(device: str, out: Path, quick: bool) -> int:
    machine = (cuda if device == "cuda" else cpu).device_name()
    print(f"{machine}, torch {torch.__version__}", flush=True)
    with TemporaryDirectory() as folder, (out / "data.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        for task, rounds in _tasks(device, Path(folder)):
            rates = _measure(rounds, QUICK_SECONDS if quick else SECONDS)
            monai = rates.get("monai")
            for name, (median, q10, q90) in rates.items():
                row = Row(name, task, median, q10, q90, monai and median / monai[0], machine, torch.__version__)
                writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in row])
                print(row, flush=True)
            file.flush()  # what was measured stays, should the rest be cut short
    print(f"data.csv and command.txt are in {out}")
    return 0


def _tasks(device: str, folder: Path) -> Iterator[tuple[str, dict[str, Round]]]:
    """What is measured, and who takes part in it."""
    images = _prepared(folder, IMAGES, Preparation(dims=2, size=SIZE), _image)
    interpolations: tuple[Interpolation, ...] = ("nearest", "bilinear")
    for interpolation in interpolations:
        made = partial(Batches, images, range(IMAGES), BATCH, device, augment=Augment2D(interpolation=interpolation))
        peer = {"monai": _monai(images, interpolation)} if device == "cpu" else {}
        yield f"{BATCH}x3x{SIZE}x{SIZE} {interpolation}", _ours(made) | peer
    volumes = _prepared(folder, VOLUMES, Preparation(dims=3), _volume)
    made = partial(Batches, volumes, range(VOLUMES), PATCH_BATCH, device, augment=Augment3D(), patch=PATCH)
    yield f"{PATCH_BATCH}x1x{'x'.join(map(str, PATCH))} patches", _ours(made)


def _ours(made: Callable[..., Batches]) -> dict[str, Round]:
    return {"resident": partial(_epoch, made(resident=True)), "streamed": partial(_epoch, made(resident=False))}


def _epoch(batches: Batches) -> int:
    count = sum(len(batch.items) for batch in batches.epoch(0))
    if batches.device.type == "cuda":
        torch.cuda.synchronize()
    return count


def _monai(prepared: Prepared, interpolation: Interpolation) -> Round:
    """The same rotations and flips, image by image, as a MONAI data set makes them."""
    from monai.transforms.compose import Compose
    from monai.transforms.spatial.dictionary import RandFlipd, RandRotated

    keys = ("image", "labels")
    rotation = RandRotated(keys, math.pi / 2, prob=1.0, mode=(interpolation, "nearest"), padding_mode="zeros")
    transform = Compose([rotation, RandFlipd(keys, prob=0.5, spatial_axis=1)]).set_random_state(0)

    def batch() -> int:
        pairs = [(torch.tensor(image), torch.tensor(labels)) for image, labels in map(prepared.item, range(BATCH))]
        done = [transform({"image": as_float(image), "labels": labels[None]}) for image, labels in pairs]
        torch.stack([one["image"].as_tensor() for one in done])
        torch.stack([one["labels"].as_tensor() for one in done])
        return BATCH

    return batch


def _measure(rounds: dict[str, Round], seconds: float) -> dict[str, tuple[float, float, float]]:
    """Median and quantiles of the images a second. All take turns, so that what else runs slows all alike."""
    rates: dict[str, list[float]] = {name: [] for name in rounds}
    for work in rounds.values():
        work()  # the first call compiles, allocates and reads the files
    start = perf_counter()
    while perf_counter() - start < seconds or len(rates[next(iter(rounds))]) < LEAST_ROUNDS:
        for name, work in rounds.items():
            before = perf_counter()
            rates[name].append(work() / (perf_counter() - before))
    return {name: tuple(np.quantile(values, [0.5, 0.1, 0.9]).tolist()) for name, values in rates.items()}


def _prepared(folder: Path, count: int, settings: Preparation, read: Callable[[Case], Sample]) -> Prepared:
    cases = tuple(Case(f"{number:03}", f"{number:03}", (), ()) for number in range(count))
    dataset = Dataset(
        "noise", folder, ("background", "foreground"), "mr" if settings.dims == 3 else "colour", cases, read
    )
    return prepare(dataset, settings, folder, workers=1)


def _image(case: Case) -> Sample:
    random = np.random.default_rng(int(case.id))
    image = random.integers(256, size=(3, SIZE, SIZE), dtype=np.uint8)
    return Sample(image, random.integers(2, size=(SIZE, SIZE), dtype=np.uint8), None)


def _volume(case: Case) -> Sample:
    random = np.random.default_rng(int(case.id))
    image = random.random((1, EDGE, EDGE, EDGE), np.float32)
    return Sample(image, (image[0] > 0.99).astype(np.uint8), None)
