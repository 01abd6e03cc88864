"""Processes that compute together, as `torchrun` starts them, for tests."""

import os
from collections.abc import Callable
from pathlib import Path

import torch


def in_processes(work: Callable[[int, str], None], folder: Path, processes: int = 2) -> None:
    """Calls `work(rank, folder)` in each of several processes."""
    torch.multiprocessing.spawn(_one, (work, str(folder)), nprocs=processes)


def _one(rank: int, work: Callable[[int, str], None], folder: str) -> None:
    work(rank, folder)
    # As `polydice train` does: gloo's threads abort a process whose Python has begun to end, if they still hold tensors
    # then (pytorch/pytorch#190489).
    os._exit(0)
