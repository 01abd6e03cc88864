"""Runs of a study in processes of this machine. Each worker does one run after another, so it compiles only once."""

import io
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Literal

from polydice.data.parallel import cores
from polydice.studies.recipe import Planned
from polydice.studies.study import Study, open_study

TICK = 2.0  # seconds

Event = Literal["started", "done", "failed"]
Report = Callable[[Planned, Event], None]
Say = Callable[[str], None]
Then = Callable[[Planned], Sequence[Planned]]


def run_one(folder: Path, run: Planned, device: str | None = None) -> bool:
    """One run of the study in `folder`, whichever engine asks for it: trained, or gone on with, or already there.

    Whether it has a result; what went wrong is in its `error.txt`, and is no concern of the other runs.
    """
    import torch

    from polydice.training.checkpoint import exclusive
    from polydice.training.loop import train

    study = open_study(folder)
    (study.run_folder(run) / "error.txt").unlink(missing_ok=True)
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # the runs share the cores; and the same number everywhere gives the same results
    try:
        # A study that was killed may have left a worker behind, which ends its run before it notices.
        with exclusive(study.run_folder(run)):
            train(study.settings(run, device))
    except Exception as error:
        study.note_error(run, f"{type(error).__name__}: {error}\n\n{traceback.format_exc()}")
        return False
    return True


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def run_local(
    study: Study,
    runs: Sequence[Planned],
    report: Report,
    devices: Sequence[str],
    say: Say = to_stderr,
    tick: Callable[[], None] = lambda: None,
    then: Then = lambda run: (),
) -> None:
    """Runs them, one at a time on each of the devices; a device that is named twice has two at a time.

    `say` is given the lines that the runs write to standard error; `tick` is called every few seconds; `then` says
    which runs are to be done besides, now that one has ended.
    """
    waiting, free = deque(runs), deque(devices)
    workers: list[Worker] = []
    try:
        while waiting or any(worker.run for worker in workers):
            idle = [worker for worker in workers if worker.run is None]
            while waiting and (idle or free):
                if not idle:
                    idle.append(Worker(study.folder, free.popleft()))
                    workers += idle
                report(idle.pop().take(waiting.popleft()), "started")
            tick()
            for worker in _ready(workers):
                run, news = worker.news()
                if isinstance(news, str):
                    say(news)
                    continue
                report(run, "done" if news else "failed")
                if more := then(run):
                    waiting = deque(sorted((*waiting, *more), key=lambda run: run.turn))
    finally:
        for worker in workers:
            worker.stop()


def devices(jobs: int | None, per_gpu: int) -> list[str]:
    """Every GPU, `per_gpu` times, or the CPU as often as it has cores, up to `jobs`."""
    import torch

    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())] * per_gpu
    return (gpus or ["cpu"] * (jobs or cores()))[:jobs]


class Worker:
    """A process that trains, and what it is at."""

    def __init__(self, folder: Path, device: str | None) -> None:
        self.folder, self.device = folder, device
        self.run: Planned | None = None
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")  # a fork would take a GPU's state along
        self.ours, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, self.folder, self.device), daemon=True)
        self.process.start()
        theirs.close()

    def take(self, run: Planned) -> Planned:
        self.run = run
        self.ours.send(run)
        return run

    def news(self) -> tuple[Planned, bool | str]:
        """Its run, and a line that the run has written, or else whether it has ended well. A worker that died, of
        memory say, is replaced."""
        assert self.run is not None
        run, news = self.run, False
        try:
            news = self.ours.recv()
        except (EOFError, OSError):
            self.process.join()
            problem = f"the process ended by itself, with exit code {self.process.exitcode}"
            open_study(self.folder).note_error(run, problem)
            self._start()
        if isinstance(news, bool):
            self.run = None
        return run, news

    def stop(self) -> None:
        self.ours.close()  # an idle worker ends by itself
        if self.run is not None:
            self.process.terminate()
        self.process.join()


def _ready(workers: Sequence[Worker]) -> Iterator[Worker]:
    busy = {worker.ours: worker for worker in workers if worker.run}
    for connection in wait(list(busy), TICK):
        assert isinstance(connection, Connection)
        yield busy[connection]


class _Lines(io.TextIOBase):
    """A worker's standard error. It is no terminal, so nothing is drawn there: the process that has the terminal shows
    the lines."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.begun = connection, ""

    def write(self, text: str) -> int:
        *lines, self.begun = (self.begun + text).split("\n")
        with suppress(OSError):  # a worker that is left behind ends its run
            for line in lines:
                self.connection.send(line)
        return len(text)


def _serve(connection: Connection, folder: Path, device: str | None) -> None:
    sys.stderr = _Lines(connection)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the first one decides
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # and puts away what it holds
    while True:
        try:
            run = connection.recv()
        except EOFError:
            return
        connection.send(run_one(folder, run, device))
