"""Pieces of work on threads of which each computes alone.

torch shares out every single operation: its threads wait for each other at the end of each. A pass in blocks has
hundreds of short operations, and where two threads share a core, or another program has it, each of them waits for the
scheduler. Here a thread takes whole pieces, whose operations are not shared out, and the threads meet once, at the end.
They are started anew for each pass, in 0.1 ms: nothing is kept that a fork or an exit could meet.
"""

import ctypes
from _thread import LockType, start_new_thread  # threading.Thread waits until it runs, on a busy machine for long
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from threading import Lock
from typing import TypeVar

import torch

T = TypeVar("T")


def on_threads(work: Callable[[Iterator[T]], None], pieces: Sequence[T], most: int) -> None:
    """Calls `work` on this thread and on others, as many as torch may use and `most` at most. Each call takes pieces
    from the iterator that it is given, until there are none.

    What fails is raised here: of several failures that of the first piece, which is the same every time, as pieces are
    taken in their order. What interrupts this thread (Ctrl-C) may be raised while others still have a piece at hand: so
    `work` has to hold all that it writes to.
    """
    threads = min(most, torch.get_num_threads()) if _thread_setter() else 1
    waiting, lock, failures = iter(enumerate(pieces)), Lock(), dict[int, BaseException]()
    others = list[LockType]()  # of threads that have begun, each locked until its thread has ended

    def run(busy: LockType | None = None) -> None:
        place = -1

        def mine() -> Iterator[T]:
            nonlocal place
            while True:
                with lock:
                    taken = None if failures else next(waiting, None)
                    if taken is None:
                        return
                    if place < 0 and busy is not None:
                        others.append(busy)
                place, piece = taken
                yield piece

        try:
            with _alone(), torch.inference_mode():  # a thread does not inherit the caller's modes
                work(mine())
        except BaseException as error:
            failures[place if isinstance(error, Exception) else -1] = error
        if busy is not None:
            busy.release()

    with suppress(RuntimeError):  # the system has no more threads: there are fewer, then
        for _ in range(threads - 1):
            busy = Lock()
            busy.acquire()
            start_new_thread(run, (busy,))
    run()
    # Nothing waits any more: a thread that has not begun has nothing to do, and may come as late as it likes.
    with lock:
        begun = [*others]
    for busy in begun:
        with busy:
            pass
    if failures:
        raise failures[min(failures)]


@contextmanager
def _alone() -> Iterator[None]:
    """In which torch does not share out the operations of this thread. `torch.set_num_threads` would change what other
    threads get, too; OpenMP's own setting is that of the calling thread."""
    before, set_threads = torch.get_num_threads(), _thread_setter()
    if before == 1 or set_threads is None:
        yield
        return
    set_threads(1)
    try:
        yield
    finally:
        set_threads(before)


@cache
def _thread_setter() -> Callable[[int], None] | None:
    """`omp_set_num_threads` of the very OpenMP that torch is linked to; None where torch has another kind of threads,
    or where it cannot be found (Windows)."""
    try:
        set_threads: Callable[[int], None] = ctypes.CDLL(torch._C.__file__).omp_set_num_threads
    except (OSError, AttributeError):
        return None
    before = torch.get_num_threads()
    set_threads(before + 1)
    heard = torch.get_num_threads() == before + 1
    set_threads(before)
    return set_threads if heard else None
