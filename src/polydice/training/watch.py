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
# That TensorBoard draws.
SCALARS = ("loss", "rate", "gradient_norm", "weight_norm", "dice_foreground", "dice_global", "dice_case")

Row = dict[str, Any]  # an epoch


class Watch:
    """Only the first of several processes shows anything. `bar` counts steps; where there is no terminal to draw it on,
    an epoch is a line if `lines` are wanted."""

    def __init__(
        self, settings: Settings, history: Sequence[Row], steps: int, first: bool, lines: bool = False
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
        self._draw(history)

    def show(self, rows: Sequence[Row]) -> None:
        self._draw(rows)
        for row in rows if self.lines else ():
            names = [name for name in ("loss", self.score, "dice_case") if name in row]
            scores = "".join(f", {name} {told(row[name])}" for name in names)
            print(f"{self.name}: epoch {row['epoch']} of {self.epochs}{scores}", file=sys.stderr, flush=True)
        if self.first and rows:
            try:
                with self.path.open("a") as file:
                    file.write(_lines(rows))
            except OSError as error:
                raise CheckpointError(
                    f"cannot write {self.path}: {error.strerror}; what was saved is untouched: resume from it once the "
                    "folder can be written to"
                ) from error

    def _draw(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.shown |= {"epoch": str(row["epoch"]), "loss": f"{row['loss']:.4f}", "rate": f"{row['rate']:.1e}"}
            if self.score in row:
                self.shown["dice"] = told(row[self.score])
            if self.board is not None:
                for name in SCALARS:
                    if row.get(name) is not None:
                        self.board.add_scalar(name, row[name], row["step"])
        self.bar.set_postfix(self.shown)

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()
        if self.board is not None:
            self.board.close()


def told(score: float | None) -> str:
    """A score as one reads it; one of a foreground that is not there does not exist."""
    return "not defined" if score is None else f"{score:.4f}"


def write_history(path: Path, rows: Sequence[Row]) -> None:
    write_text(path, _lines(rows))


def _lines(rows: Sequence[Row]) -> str:
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError("--track tensorboard needs TensorBoard: pip install 'polydice[track]'") from error
    # What a run that was stopped has drawn is void, and drawn again: its last minutes may be lost, or done again.
    return SummaryWriter(folder / "tensorboard", purge_step=0)
