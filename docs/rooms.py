"""Counts the rooms of docs/architecture.md: which files a walk enters, and how often one calls another.

`python docs/rooms.py ACDC` with a folder of ACDC's patients; a minute on a CPU.
"""

import shutil
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import polydice
from polydice.studies.report import write_report
from polydice.studies.study import open_study
from polydice.training.config import Settings
from polydice.training.loop import train

SOURCE = Path(polydice.__file__).parent
ROOT = Path(__file__).parents[1]


class Walk:
    """What a call enters: files of polydice in order, calls of its functions, and calls from one file into another."""

    def __init__(self, walk: Callable[[], object]) -> None:
        self.files: list[str] = []
        self.calls = self.doors = 0
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        try:
            walk()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        file = _file(frame) if event == "call" else None
        if file is None or frame.f_code.co_name == "<module>":
            return
        caller = frame.f_back
        while caller is not None and _file(caller) is None:
            caller = caller.f_back
        self.files += [file] * (file not in self.files)
        self.calls += 1
        self.doors += caller is None or _file(caller) != file

    def __str__(self) -> str:
        return f"{len(self.files)} files, {self.doors} doors, {self.calls} functions: {' '.join(self.files)}\n"


@cache
def _room(name: str) -> str | None:
    return str(Path(name).relative_to(SOURCE)) if Path(name).is_relative_to(SOURCE) else None


def _file(frame: FrameType) -> str | None:
    return _room(frame.f_code.co_filename)


def main(acdc: Path, folder: Path) -> None:
    loss = polydice.PolyDice1Loss(0.2)
    logits, labels = torch.randn(2, 3, 32, 32), torch.randint(3, (2, 32, 32))
    for call in ("first", "next"):
        print(f"1. a loss on a CPU, {call} call: {Walk(lambda: loss(logits, labels))}")

    for patient in sorted(acdc.glob("patient*"))[:6]:
        shutil.copytree(patient, folder / "acdc" / patient.name)
    for training in ("first", "later"):
        walk = Walk(lambda: train(_settings(folder)))
        rooms = [file.removeprefix("data/") for file in walk.files if file.startswith("data/") or file == "durable.py"]
        print(f"2. {training} training on a set: {len(rooms)} rooms of data: {' '.join(rooms)}\n")

    shutil.copytree(ROOT / "results/paper/question-acdc", folder / "kept")
    kept = open_study(folder / "kept")
    print(f"4. report of a kept study: {Walk(lambda: write_report(kept))}")


def _settings(folder: Path) -> Settings:
    return Settings(
        data=folder / "acdc", cache=folder / "cache", out=Path(tempfile.mkdtemp(dir=folder)), device="cpu", epochs=1,
        size=32, width=4, depth=2, batch=32, folds=3, surfaces=False,
    )  # fmt: skip


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1]), Path(temporary))
