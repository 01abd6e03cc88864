"""Ctrl-C asks a run to save and stop; a second one stops it at once."""

import signal
import sys
import threading
from types import FrameType
from typing import Any


class Interrupt:
    """While this lasts, `asked` says whether Ctrl-C was pressed; `first` is the one of several processes that says so.

    Python tells only its main thread of signals, and a process that ignores Ctrl-C goes on doing so.
    """

    def __init__(self, first: bool = True) -> None:
        self.first, self.asked = first, False
        self._before: Any = signal.SIG_IGN

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.getsignal(signal.SIGINT)
        if self._before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._ask)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, self._before)
        if self.first:
            print("\nstopping after this epoch; Ctrl-C again stops at once", file=sys.stderr)

    def __exit__(self, *_: object) -> None:
        if self._before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, self._before)
