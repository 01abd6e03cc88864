"""The same work for many cases, in several threads."""

import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")
Result = TypeVar("Result")

MOST_WORKERS = 16  # unless asked for: each holds a case in memory


def in_parallel(
    work: Callable[[Item], Result], items: Sequence[Item], description: str, workers: int | None = None
) -> Generator[Result, None, None]:
    """work(item) of each item, in their order, with a progress bar on a terminal. `workers=None`: one per core.

    Threads are enough, since decoding, resizing and arithmetic on arrays leave the interpreter to the others, and
    nothing has to be sent anywhere. At most `workers` results wait: memory does not grow with the items.
    """
    workers = min(cores(), MOST_WORKERS) if workers is None else workers
    if workers < 1:
        raise ValueError(f"workers must be at least 1: {workers}")
    coming = iter(items)
    pool = ThreadPoolExecutor(workers)
    try:
        waiting = deque(pool.submit(work, item) for item in islice(coming, workers))
        with tqdm(desc=description, total=len(items), disable=None) as bar:
            while waiting:
                result = waiting.popleft().result()
                waiting.extend(pool.submit(work, item) for item in islice(coming, 1))
                bar.update()
                yield result
    finally:
        pool.shutdown(cancel_futures=True)


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
