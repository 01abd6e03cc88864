"""`python -m benchmarks nnunet`: the loss of nnU-Net's trainer, its own and with our Dice in it.

It is called as in a training: float16 logits under autocast, the outputs of all resolutions, int16 labels.
"""

import csv
import os
import traceback
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks import cpu, cuda
from benchmarks.measure import Effort, Spread
from polydice import CrossEntropyLoss, DiceLoss, PolyDice1Loss
from polydice.base import RegionLoss
from polydice.integrations.nnunet import nnunet_loss, trainer_with

EPSILON = 0.2
THEIRS = "nnU-Net"
OURS: dict[str, Callable[..., RegionLoss]] = {
    "PolyDice-1": partial(PolyDice1Loss, EPSILON),
    "Dice as nnU-Net's": partial(DiceLoss, squared=False),
}


class Size(NamedTuple):
    """`resolutions` that the network has an output for; the coarsest has weight 0, as nnU-Net wants it."""

    shape: tuple[int, ...]
    resolutions: int
    batch_dice: bool

    def __str__(self) -> str:
        return "x".join(map(str, self.shape))

    def inputs(self, device: str) -> tuple[list[Tensor], list[Tensor]]:
        torch.manual_seed(0)  # the same for each loss
        batch, classes, *patch = self.shape
        patches = [[edge >> level for edge in patch] for level in range(self.resolutions)]
        dtype = torch.float16 if device == "cuda" else torch.float32  # autocast is off on a CPU
        logits = [torch.randn(batch, classes, *edges, device=device, dtype=dtype) for edges in patches]
        labels = [torch.randint(classes, (batch, 1, *edges), device=device, dtype=torch.int16) for edges in patches]
        return [each.requires_grad_() for each in logits], labels


SIZES = {
    "cuda": (
        Size((2, 3, 128, 128, 128), 5, batch_dice=False),
        Size((2, 14, 128, 128, 128), 5, batch_dice=False),
        Size((12, 4, 256, 224), 6, batch_dice=True),
        Size((2, 118, 128, 128, 128), 5, batch_dice=False),
    ),
    "cpu": (Size((2, 3, 32, 32, 32), 3, batch_dice=False), Size((4, 4, 64, 56), 4, batch_dice=True)),
}


class Row(NamedTuple):
    """Forward and backward of a loss. `extra_bytes`: the most it held beyond inputs and gradients; none on a CPU."""

    shape: str
    cross_entropy: bool
    dice: str
    median_ms: float
    q10_ms: float | None
    q90_ms: float | None
    extra_bytes: int | None
    logit_bytes: int
    value: float
    built_by: str
    device: str
    torch: str

    def __str__(self) -> str:
        extra = "" if self.extra_bytes is None else f"extra {self.extra_bytes / self.logit_bytes:7.1%} of the logits"
        name = self.dice + (" + CE" if self.cross_entropy else "")
        return f"{self.shape:20} {name:24} {self.median_ms:9.3f} ms  {extra}  value {self.value:.4f}"


def run(device: str, out: Path, quick: bool) -> int:
    start = perf_counter()
    build = _by_trainer
    try:
        import nnunetv2.training.nnUNetTrainer.nnUNetTrainer  # noqa: F401
    except ImportError:
        print(f"{traceback.format_exc()}\nThe trainer cannot be imported: its loss classes alone are measured.\n")
        build = _by_hand
    machine = (cuda if device == "cuda" else cpu).device_name(), torch.__version__
    print(*machine, f"built by {build.__name__.strip('_')}", sep=", ", flush=True)
    with (out / "nnunet.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        for size in SIZES[device]:
            torch.compiler.reset()  # every training compiles for itself
            for cross_entropy in (True, False):
                for dice in (THEIRS, *OURS):
                    figures = _measure(build, size, dice, cross_entropy, device, quick)
                    row = Row(str(size), cross_entropy, dice, *figures, build.__name__.strip("_"), *machine)
                    writer.writerow(row)
                    print(row, flush=True)
            file.flush()  # what was measured stays, should the rest be cut short
    print(f"{perf_counter() - start:.0f} s; nnunet.csv and command.txt are in {out}")
    return 0


Build = Callable[[Size, str, str], nn.Module]


def _by_trainer(size: Size, dice: str, device: str) -> nn.Module:
    """What nnU-Net's trainer builds, from plans that say what a loss depends on."""
    from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer

    kind = nnUNetTrainer if dice == THEIRS else trainer_with("Ours", OURS[dice], plus=CrossEntropyLoss)
    _, classes, *patch = size.shape
    strides = [[1] * len(patch)] + [[2] * len(patch)] * size.resolutions
    settings = {
        "data_identifier": "",
        "batch_dice": size.batch_dice,
        "architecture": {"arch_kwargs": {"strides": strides}},
    }
    plans = {"dataset_name": "Dataset001_Set", "plans_name": "Plans", "label_manager": "LabelManager",
             "continue_training": False, "configurations": {"it": settings}}  # fmt: skip
    labels = {"background" if label == 0 else f"class {label}": label for label in range(classes)}
    with TemporaryDirectory() as folder, redirect_stdout(StringIO()):  # it prints what to cite, for every one
        os.environ["nnUNet_results"] = folder  # noqa: SIM112
        trainer: Any = kind(plans, "it", 0, {"labels": labels}, torch.device(device))
        loss: nn.Module = trainer._build_loss()
    return loss


def _by_hand(size: Size, dice: str, device: str) -> nn.Module:
    """The same, of the loss classes alone."""
    from nnunetv2.training.loss.compound_losses import DC_and_CE_loss
    from nnunetv2.training.loss.deep_supervision import DeepSupervisionWrapper
    from nnunetv2.training.loss.dice import MemoryEfficientSoftDiceLoss

    if dice == THEIRS:
        options = {"batch_dice": size.batch_dice, "smooth": 1e-5, "do_bg": False, "ddp": False}
        loss = DC_and_CE_loss(options, {}, dice_class=MemoryEfficientSoftDiceLoss)
        if device == "cuda":
            loss.dc = torch.compile(loss.dc)
    else:
        loss = nnunet_loss(OURS[dice], plus=CrossEntropyLoss, batch_dice=size.batch_dice)
    weights = [2.0**-level for level in range(size.resolutions - 1)]
    wrapped: nn.Module = DeepSupervisionWrapper(loss, [*(weight / sum(weights) for weight in weights), 0])
    return wrapped


def _measure(
    build: Build, size: Size, dice: str, cross_entropy: bool, device: str, quick: bool
) -> tuple[float, float | None, float | None, int | None, int, float]:
    loss: Any = build(size, dice, device)
    if not cross_entropy and dice == THEIRS:
        loss.loss.weight_ce = 0
    elif not cross_entropy:
        loss.loss = nnunet_loss(OURS[dice], plus=None, batch_dice=size.batch_dice)
    logits, labels = size.inputs(device)
    used = logits[:-1]  # the last has weight 0

    def forward() -> Tensor:
        with torch.autocast(device, enabled=device == "cuda"):
            value: Tensor = loss(logits, labels)
        return value

    def both() -> tuple[Tensor, ...]:
        return torch.autograd.grad(forward(), used)

    both()  # compiles, where there is something to compile
    if device == "cuda":
        extra: int | None = cuda.extra_bytes(both)
        spread = cuda.timed(both, Effort(gpu_ms=10 if quick else 200))
    else:
        extra, spread = None, _on_cpu(both, quick)
    return *spread, extra, sum(each.nbytes for each in used), forward().item()


def _on_cpu(both: Callable[[], tuple[Tensor, ...]], quick: bool) -> Spread:
    times = []
    for _ in range(3 if quick else 20):
        start = perf_counter()
        both()
        times.append(perf_counter() - start)
    return cpu.spread(times)
