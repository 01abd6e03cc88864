"""What one sees of a study while it runs: a table that is drawn anew, or a line for each run where that cannot be."""

import sys
import time
from collections import Counter
from pathlib import Path
from shutil import get_terminal_size
from typing import TextIO

from polydice.studies.engine import Event
from polydice.studies.formats import duration
from polydice.studies.recipe import Planned
from polydice.studies.study import Study
from polydice.training.watch import HISTORY

Setup = tuple[str, str, str]  # data set, network and loss: a line of the table


class Live:
    """Counts runs by data set, network and loss."""

    def __init__(self, study: Study, stream: TextIO | None = None) -> None:
        self.study, self.stream = study, stream or sys.stderr
        every = (*study.tuning, *study.runs)
        self.total = Counter(map(_setup, every))
        self.done = Counter(_setup(run) for run in every if study.state(run) == "done")
        self.no_data = Counter(_setup(run) for run in every if study.state(run) == "no data")
        self.running: dict[Planned, int] = {}  # and the epochs they are to have
        self.failed: Counter[Setup] = Counter()
        self.started, self.ended = time.monotonic(), 0
        self.lines = 0
        self.draw()

    def __call__(self, run: Planned, event: Event) -> None:
        if event == "started":
            self.running[run] = self.study.recipe.settings(run, Path(), Path()).epochs
        else:
            self.running.pop(run, None)
            (self.done if event == "done" else self.failed)[_setup(run)] += 1
            self.ended += 1
            if not self.stream.isatty():
                what = "" if event == "done" else ": " + self.study.error(run).partition("\n")[0]
                print(f"{event} {run.place} ({self._summary()}){what}", file=self.stream, flush=True)
        self.draw()

    def _summary(self) -> str:
        left = sum(map(self._left, self.total))
        text = f"{self.done.total()} of {self.total.total()} runs done"
        if self.failed.total():
            text += f", {self.failed.total()} failed"
        if self.no_data.total():
            text += f", {self.no_data.total()} without data"
        if self.ended and left:
            seconds = (time.monotonic() - self.started) / self.ended * left
            text += f", about {duration(seconds / 60)} left"
        return text

    def say(self, line: str) -> None:
        """A line above the table."""
        self._erase()
        print(line, file=self.stream, flush=True)
        self.draw()

    def draw(self) -> None:
        if not self.stream.isatty():
            return
        self._erase()
        # A line that wraps, or that has scrolled off the top, cannot be erased: the table must fit the terminal.
        columns, height = get_terminal_size()
        runs = [f"{run.place}: epoch {self._epoch(run)} of {last}" for run, last in self.running.items()][: height // 3]
        lines = [line[: columns - 1] for line in [*self._table(height - len(runs) - 4), *runs, self._summary()]]
        print("\n".join(lines), file=self.stream, flush=True)
        self.lines = len(lines)

    def _erase(self) -> None:
        if self.lines:
            print(f"\033[{self.lines}A\033[J", end="", file=self.stream)
        self.lines = 0

    def _table(self, most: int) -> list[str]:
        """A line for each setup; of more than `most`, those that have something to do."""
        running = Counter(map(_setup, self.running))
        shown = sorted(self.total, key=lambda setup: (not running[setup], not self._left(setup)))[: max(most, 1)]
        width = max(len(loss) for _, _, loss in self.total)
        place = max(len(f"{dataset}, {model}") for dataset, model, _ in self.total)
        table = [f"{'':{place}}  {'loss':{width}}  {'done':>9}  running  failed"]
        for setup in (each for each in self.total if each in shown):
            dataset, model, loss = setup
            note = "  no data" if self.no_data[setup] else ""
            done = f"{self.done[setup]}/{self.total[setup]}"
            table.append(
                f"{f'{dataset}, {model}':{place}}  {loss:{width}}  {done:>9}  {running[setup] or '':>7}  "
                f"{self.failed[setup] or '':>6}{note}"
            )
        hidden = len(self.total) - len(shown)
        return [*table, f"({hidden} rows more)"] if hidden else table

    def _epoch(self, run: Planned) -> int:
        """The one it is at, by the lines of its history."""
        path = self.study.run_folder(run) / HISTORY
        over = path.read_bytes().count(b"\n") if path.exists() else 0
        return min(over + 1, self.running[run])

    def _left(self, setup: Setup) -> int:
        return self.total[setup] - self.done[setup] - self.failed[setup] - self.no_data[setup]


def _setup(run: Planned) -> Setup:
    return run.dataset, run.model, f"{run.loss}, tuning" if run.tuning else run.loss
