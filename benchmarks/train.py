"""`python -m benchmarks train`: training images a second of the whole loop, as `polydice train` runs it."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import torch

from benchmarks import cpu, cuda
from polydice.training.config import Settings
from polydice.training.loop import train
from polydice.training.watch import HISTORY

EPOCHS, QUICK_EPOCHS = (2, 50, 150), (1, 2, 10)  # of the runs in this process, the first of which compiles
BATCH, QUICK_BATCH = 24, 4


def run(device: str, data: Path, out: Path, quick: bool) -> int:
    """What every run does once cancels in the difference of two; validations are part of the epochs and stay."""
    machine = (cuda if device == "cuda" else cpu).device_name()
    print(f"{machine}, torch {torch.__version__}", flush=True)
    with TemporaryDirectory() as folder:
        settings = Settings(data, Path(folder), cache=Path(folder, "cache"), device=device, batch=BATCH)
        settings = replace(settings, validate_every=2, surfaces=False)
        if quick:
            settings = replace(settings, size=32, width=4, batch=QUICK_BATCH)
        _, short, long = (_train(replace(settings, epochs=n)) for n in (QUICK_EPOCHS if quick else EPOCHS))
    rows = {"short run": short, "long run": long, "difference": (long[0] - short[0], long[1] - short[1])}
    with (out / "train.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["task", "images", "seconds", "images_per_second", "device", "torch"])
        for name, (images, seconds) in rows.items():
            writer.writerow([name, images, f"{seconds:.1f}", f"{images / seconds:.6g}", machine, torch.__version__])
            print(f"{name:11}{images:8} images in {seconds:6.1f} s: {images / seconds:6.0f} images/s")
    print(f"train.csv and command.txt are in {out}")
    return 0


def _train(settings: Settings) -> tuple[int, float]:
    """How many images a run trains on, and its seconds, with its test and files."""
    out = settings.out / str(settings.epochs)
    start = perf_counter()
    result = train(replace(settings, out=out))
    seconds = perf_counter() - start
    *_, last = (out / HISTORY).read_text().splitlines()
    return json.loads(last)["step"] * result["settings"]["batch"], seconds
