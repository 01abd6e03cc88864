"""Small runs on generated data, in this process or in others that are forked from one which has imported everything:
torch alone takes seconds."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch._dynamo  # which any optimiser imports: better once than in every process

from polydice.data.augment import Augment2D
from polydice.data.batches import Batches
from polydice.data.folds import split
from polydice.data.prepare import Prepared, prepare
from polydice.data.readers import open_dataset
from polydice.training.checkpoint import load_weights
from polydice.training.config import Settings
from polydice.training.loop import train
from polydice.training.run import Run

ROOT = Path(__file__).parents[2]
SMALL = {"size": 32, "width": 4, "depth": 2, "batch": 4, "device": "cpu", "surfaces": False}
SMALL |= {"loss": "PolyDice1Loss(epsilon=0.5, batch=True)", "optimizer": "sgd"}  # whatever is recommended
FILES = ("best.safetensors", "last.safetensors", "history.jsonl", "folds.json")


def small(data: Path, out: Path, **more: Any) -> Settings:
    """A tiny U-Net; the data set is prepared once, beside its folder."""
    return Settings(data=data, out=out, cache=data.parent / "cache", **(SMALL | more))


def options(settings: Settings) -> list[str]:
    """The same run on the command line."""
    given = []
    for name, value in settings.to_json().items():
        if isinstance(value, bool):
            given.append(f"--{name}" if value else f"--no-{name}")
        elif value is not None:
            given += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return given


def training_batches(settings: Settings) -> Batches:
    """What a run with these settings trains on, made without it."""
    prepared = prepare(open_dataset(settings.data), settings.preparation, settings.cache)
    cases = split(prepared.cases, settings.split, settings.folds)[settings.fold].train
    items = [item for case in cases for item in prepared.cases[case].items]
    augment = Augment2D(90.0, settings.flip)
    return Batches(prepared, items, settings.batch or 24, "cpu", augment=augment, seed=settings.seed)


@contextlib.contextmanager
def spoilt(prepared: Prepared, item: int) -> Iterator[None]:
    """An image of a prepared set is NaN, as long as this lasts."""
    images = np.memmap(prepared.folder / "images", prepared.images.dtype, "r+", shape=prepared.images.shape)
    sums = prepared.folder / "SHA256SUMS"
    kept, written = images[item].copy(), sums.read_text()
    images[item] = np.nan
    sums.unlink()  # as if it had been prepared so
    yield
    images[item] = kept
    sums.write_text(written)


def history(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]


def weights(out: Path, name: str = "last") -> torch.Tensor:
    """All of them, as one vector."""
    found, _ = load_weights(out / f"{name}.safetensors")
    return torch.cat([found[key].flatten().double() for key in sorted(found)])


def ended(out: Path) -> dict[str, Any]:
    """All that a run ends with, however often it was stopped."""
    result = json.loads((out / "result.json").read_text())
    del result["settings"], result["seconds"]
    return {name: (out / name).read_bytes() for name in FILES} | {"result": result, "names": sorted(os.listdir(out))}


def train_until(epoch: int, settings: Settings) -> None:
    """Stops the run as Ctrl-C would, when the checkpoint of an epoch is written."""
    save = Run.save

    def save_and_stop(run: Run) -> None:
        save(run)
        if run.epoch == epoch:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(Run, "save", save_and_stop)
        train(settings)


def python(code: str, *arguments: object, prefix: tuple[str, ...] = ()) -> str:
    """What a script prints; it has everything of this module."""
    start = "import os, random, shutil, signal, sys, time\nfrom tests.training.runs import *\n"
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [*prefix, sys.executable, "-c", start + code, *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": paths})
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def fork(settings: Settings, **environment: object) -> int:
    """Trains in another process; its exit status says whether that went well."""
    child = os.fork()
    if child:
        return child
    torch.set_num_threads(1)
    os.environ.update({name: str(value) for name, value in environment.items()})
    try:
        train(settings)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def fork_together(settings: Settings, world: int = 2) -> list[int]:
    """Trains in several processes, as `torchrun` starts them."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": world}
    return [fork(settings, RANK=rank, LOCAL_RANK=rank, **place) for rank in range(world)]


def wait(children: list[int]) -> bool:
    """Whether all have ended well. As with `torchrun`, one that fails ends the others."""
    waiting, well = set(children), True
    while waiting:
        child, status = os.wait()
        waiting.discard(child)
        if status and well:
            well = False
            for other in waiting:
                os.kill(other, signal.SIGKILL)
    return well
