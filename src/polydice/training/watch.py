"""What one sees of a run: a progress bar, `history.jsonl` with a line an epoch, and TensorBoard if wanted."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from polydice.training.checkpoint import CheckpointError, write_text
from polydice.training.config import Settings

HISTORY = "history.jsonl"
# What TensorBoard draws of an epoch.
SCALARS = ("loss", "rate", "gradient_norm", "weight_norm", "dice_foreground", "dice_global", "dice_case")

Epoch = dict[str, Any]  # a line of the history


class Watch:
    """Of several processes only the first shows anything. `bar` counts steps. Where there is no terminal to draw it on,
    every epoch is a line of text, if `lines` are wanted."""

    def __init__(
        self, settings: Settings, history: Sequence[Epoch], steps: int, first: bool, lines: bool = False
    ) -> None:
        self.path, self.score, self.first = settings.out / HISTORY, settings.score, first
        self.bar = tqdm(
            desc=settings.out.name, total=settings.epochs * steps, initial=len(history) * steps, unit="step",
            disable=None if first else True,
        )  # fmt: skip
        self.lines, self.name, self.epochs = first and lines and self.bar.disable, settings.out.name, settings.epochs
        self.shown: dict[str, str] = {}
        self.board = _tensorboard(settings.out) if first and settings.track == "tensorboard" else None
        if first and (history or self.path.exists()):  # epochs after the last checkpoint are done again
            write_history(self.path, history)
        for epoch in history:
            self._draw(epoch)

    def show(self, epoch: Epoch) -> None:
        self._draw(epoch)
        if self.lines:
            names = [name for name in ("loss", self.score, "dice_case") if name in epoch]
            scores = "".join(f", {name} {told(epoch[name])}" for name in names)
            print(f"{self.name}: epoch {epoch['epoch']} of {self.epochs}{scores}", file=sys.stderr, flush=True)
        if self.first:
            try:
                with self.path.open("a") as file:
                    file.write(_lines([epoch]))
            except OSError as error:
                raise CheckpointError(
                    f"cannot write {self.path}: {error.strerror}; what was saved is untouched: resume from it once the "
                    "folder can be written to"
                ) from error

    def _draw(self, epoch: Epoch) -> None:
        self.shown |= {"epoch": str(epoch["epoch"]), "loss": f"{epoch['loss']:.4f}", "rate": f"{epoch['rate']:.1e}"}
        if self.score in epoch:
            self.shown["dice"] = told(epoch[self.score])
        if self.board is not None:
            for name in SCALARS:
                if epoch.get(name) is not None:
                    self.board.add_scalar(name, epoch[name], epoch["step"])
        self.bar.set_postfix(self.shown)

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()
        if self.board is not None:
            self.board.close()


def told(score: float | None) -> str:
    """A score with four digits. Where there is no foreground, its score is None and is "not defined"."""
    return "not defined" if score is None else f"{score:.4f}"


def write_history(path: Path, history: Sequence[Epoch]) -> None:
    write_text(path, _lines(history))


def _lines(epochs: Sequence[Epoch]) -> str:
    return "".join(json.dumps(epoch, allow_nan=False) + "\n" for epoch in epochs)


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("--track tensorboard needs TensorBoard: pip install 'polydice[track]'") from error
    # A run that is resumed is drawn again from its first step: TensorBoard may have lost its last minutes, or may show
    # epochs after the last checkpoint, which are trained again.
    return SummaryWriter(folder / "tensorboard", purge_step=0)
