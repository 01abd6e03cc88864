"""What one sees of a study while it runs: a table that is drawn anew, or a line for each run where that cannot be."""

import sys
import time
from collections import Counter
from datetime import timedelta
from typing import TextIO

from polydice.studies.engine import Event
from polydice.studies.recipe import Planned
from polydice.studies.study import Study

Row = tuple[str, str, str]


class Live:
    """Counts runs by data set, network and loss."""

    def __init__(self, study: Study, stream: TextIO | None = None) -> None:
        self.study, self.stream = study, stream or sys.stderr
        self.total = Counter(map(_row, study.runs))
        self.done = Counter(_row(run) for run in study.runs if study.state(run) == "done")
        self.no_data = Counter(_row(run) for run in study.runs if study.state(run) == "no data")
        self.running: Counter[Row] = Counter()
        self.failed: Counter[Row] = Counter()
        self.started, self.ended = time.monotonic(), 0
        self.lines = 0
        self._draw()

    def __call__(self, run: Planned, event: Event) -> None:
        row = _row(run)
        if event == "started":
            self.running[row] += 1
        else:
            self.running[row] -= self.running[row] > 0
            (self.done if event == "done" else self.failed)[row] += 1
            self.ended += 1
            if not self.stream.isatty():
                what = "" if event == "done" else ": " + self.study.error(run).partition("\n")[0]
                print(f"{event} {run.place} ({self._summary()}){what}", file=self.stream, flush=True)
        self._draw()

    def _summary(self) -> str:
        left = self.total.total() - self.done.total() - self.failed.total() - self.no_data.total()
        text = f"{self.done.total()} of {self.total.total()} runs done"
        if self.failed.total():
            text += f", {self.failed.total()} failed"
        if self.no_data.total():
            text += f", {self.no_data.total()} without data"
        if self.ended and left:
            seconds = (time.monotonic() - self.started) / self.ended * left
            text += f", about {timedelta(seconds=round(seconds))} left"
        return text

    def _draw(self) -> None:
        if not self.stream.isatty():
            return
        width = max(len(loss) for _, _, loss in self.total)
        place = max(len(f"{dataset}, {model}") for dataset, model, _ in self.total)
        table = [f"{'':{place}}  {'loss':{width}}  {'done':>9}  running  failed"]
        for row, total in self.total.items():
            dataset, model, loss = row
            note = "  no data" if self.no_data[row] else ""
            done = f"{self.done[row]}/{total}"
            table.append(
                f"{f'{dataset}, {model}':{place}}  {loss:{width}}  {done:>9}  {self.running[row] or '':>7}  "
                f"{self.failed[row] or '':>6}{note}"
            )
        table.append(self._summary())
        back = f"\033[{self.lines}A\033[J" if self.lines else ""
        print(back + "\n".join(table), file=self.stream, flush=True)
        self.lines = len(table)


def _row(run: Planned) -> Row:
    return run.dataset, run.model, run.loss
