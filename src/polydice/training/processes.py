"""Which process this is among those that train one network together, and the device it has."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

Value = TypeVar("Value")


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

    def of_first(self, value: Value) -> Value:
        """What the first process has given, in all of them."""
        if self.world == 1:
            return value
        given = [value]
        dist.broadcast_object_list(given)
        return given[0]

    def of_all(self, value: Value) -> list[Value]:
        """What each process has given."""
        if self.world == 1:
            return [value]
        given: list[Value] = [value] * self.world
        dist.all_gather_object(given, value)
        return given

    def together(self, module: nn.Module) -> nn.Module:
        """The network as it is trained: gradients are averaged over the processes, and on GPUs a batch norm takes the
        statistics of the whole batch. `module` itself keeps its parameters, and is to be evaluated by itself."""
        if self.world == 1:
            return module
        if self.device.type == "cuda":
            module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
        with warnings.catch_warnings():
            # torch 2.13 has a new name for this option, which 2.11 does not know. `share_buffers` does better: a
            # broadcast at every step would let all see the statistics of the first process's images alone.
            warnings.simplefilter("ignore", FutureWarning)
            return DistributedDataParallel(module, broadcast_buffers=False)

    def share_buffers(self, module: nn.Module) -> None:
        """Gives every process the mean of all: each has seen its own part of the images."""
        if self.world > 1:
            for buffer in module.buffers():
                if buffer.is_floating_point():
                    buffer.copy_(self.total(buffer) / self.world)


@contextmanager
def joined(device: str | None = None) -> Iterator[Process]:
    """This process, joined with those that `torchrun` has started beside it; by itself without `torchrun`."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    name = _named(device)
    if world > 1 and name.startswith("cuda"):
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    found = usable_device(name)
    if world == 1:
        yield Process(0, 1, found)
        return
    if found.type == "cuda":
        torch.cuda.set_device(found)
        dist.init_process_group("nccl", device_id=found)
    else:
        dist.init_process_group("gloo")
    try:
        yield Process(dist.get_rank(), world, found)
    except RuntimeError as error:
        if "by peer" not in str(error):
            raise
        raise ConnectionError("another process of this run has ended, and says why") from error
    finally:
        dist.destroy_process_group()


def usable_device(name: str | None) -> torch.device:
    """The device of that name; without one, a GPU where there is one."""
    try:
        tried = torch.zeros(1, device=_named(name))
        tried.item()  # which the device `meta` has not
        return tried.device
    except (AssertionError, RuntimeError) as error:
        raise ValueError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from error


def _named(device: str | None) -> str:
    return device or ("cuda" if torch.cuda.is_available() else "cpu")
