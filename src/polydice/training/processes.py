"""Which process this is among those that train one network together, and the device it has."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor
from torch import distributed as dist


class Process(NamedTuple):
    rank: int
    world: int
    device: torch.device

    @property
    def first(self) -> bool:
        return self.rank == 0

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over the processes."""
        if self.world > 1:
            tensor = tensor.clone()
            dist.all_reduce(tensor)
        return tensor

    def wait(self) -> None:
        """Until every process is here."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def joined(device: str | None = None) -> Iterator[Process]:
    """This process, joined with those that `torchrun` has started beside it; by itself without `torchrun`."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and world > 1:
        device = f"cuda:{os.environ['LOCAL_RANK']}"
    found = torch.device(device)
    if world == 1:
        yield Process(0, 1, found)
        return
    if found.type == "cuda":
        torch.cuda.set_device(found)
    dist.init_process_group("nccl" if found.type == "cuda" else "gloo")
    try:
        yield Process(dist.get_rank(), world, found)
    finally:
        dist.destroy_process_group()
