"""Batches on the device: shuffled and augmented for training, in order and whole for evaluation."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polydice.data.augment import Augment2D, Augment3D, as_float
from polydice.data.patches import Patches
from polydice.data.prepare import Prepared
from polydice.data.stores import Pair, Place, Slices, Volumes

AHEAD = 6  # batches that are read and copied to the device while one is in use
READERS = 3  # threads that read and copy them
# On a CPU a batch is augmented in parts of so many pixels for each thread. The results of a larger part do not fit into
# the processor's cache, and to get fresh memory for them takes longer than the arithmetic.
CPU_PIXELS = 1 << 16

Read = Callable[[], Pair]


class Batch(NamedTuple):
    images: Tensor  # [B, C, *spatial] float32, on the device
    labels: Tensor  # [B, *spatial] uint8, on the device
    items: Tensor  # [B] int64, on the CPU: which items of the prepared set these are
    annotated: Tensor | None  # [B, classes] booleans, on the device: which are annotated; None: all


class Batches:
    """Batches of some items of a prepared set. An item is an image or a slice (2D), or a volume (3D).

    For training, `epoch(number)` is a function of `seed` and `number` alone, so a run that is resumed sees the same
    batches again; 3D needs the size of a `patch`. Each of `world` processes takes its part of every batch of `batch`
    items, and together they take what one process would. For evaluation, `ordered()` gives every process all items.

    The items are kept on the device if they take at most half of its free memory. Else they are read from the memory
    map, a few batches ahead. `resident=True` or `False` overrules this; the batches are the same. On a CPU the memory
    map is used as it is, and `resident=False` reads ahead. With `compile`, augmentation is one kernel and not thirty.
    """

    def __init__(
        self,
        prepared: Prepared,
        items: Sequence[int],
        batch: int,
        device: torch.device | str,
        *,
        augment: Augment2D | Augment3D | None = None,
        patch: tuple[int, int, int] | None = None,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        resident: bool | None = None,
        compile: bool = False,
    ) -> None:
        _check(prepared, items, batch, augment, patch)
        if not 0 <= rank < world or batch % world:
            raise ValueError(f"process {rank} of {world} cannot have an equal share of a batch of {batch}")
        self.prepared, self.batch, self.augment, self.patch, self.seed = prepared, batch, augment, patch, seed
        self.compile = compile
        self.items = torch.tensor(items, dtype=torch.int64)
        self._annotated = (
            None if prepared.annotated is None else torch.from_numpy(prepared.annotated[self.items.numpy()])
        )
        self.device = torch.empty(0, device=device).device  # with its number, which another thread must be told
        self.resident = _fits(prepared, self.items, self.device) if resident is None else resident
        self._share = slice(rank * batch // world, (rank + 1) * batch // world)
        self._patches = Patches((prepared.item(item)[1] for item in items), patch) if patch else None
        self._box = augment.reach(patch) if isinstance(augment, Augment3D) and patch else patch
        place = Place(self.device, mapped=self.device.type == "cpu" or not self.resident)
        self._store = (Slices if prepared.dims == 2 else Volumes)(prepared, self.items, place)

    def __len__(self) -> int:
        """Steps in an epoch; items that do not fill a last batch are left out of it."""
        steps = len(self.items) // self.batch
        if steps == 0:
            raise ValueError(f"{len(self.items)} items do not make one batch of {self.batch}: take a smaller batch")
        return steps

    def epoch(self, number: int) -> Iterator[Batch]:
        """The batches of an epoch.

        The order and all parameters are drawn before the first batch, from one CPU generator whose seed numpy's
        SeedSequence mixes from `seed` and `number`. From then on nothing waits for the device.
        """
        seed = int(np.random.SeedSequence([self.seed, number]).generate_state(1)[0])
        generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.items), generator=generator)[: len(self) * self.batch]
        parameters = self.augment.draw(len(order), generator) if self.augment else torch.empty(len(order), 0)
        reads = self._training_reads(order, generator)
        order, parameters = self._mine(order), _sent(self._mine(parameters), self.device)
        annotated = self._annotated_in(order.unbind())
        with closing(self._pairs(reads)) as pairs:
            for index, row, known, (images, labels) in zip(order, parameters, annotated, pairs, strict=True):
                yield Batch(*self._augmented(images, labels, row), self.items[index], known)

    def ordered(self) -> Iterator[Batch]:
        """Every item once, in the order given, whole and as it is; the last batch may be smaller, and in 3D one volume
        is a batch."""
        count = self.batch if self.prepared.dims == 2 else 1
        index = torch.arange(len(self.items))
        reads = [partial(self._store.whole, part) for part in _sent(index, self._store.index_device).split(count)]
        annotated = self._annotated_in(index.split(count))
        with closing(self._pairs(reads)) as pairs:
            for items, known, (images, labels) in zip(self.items.split(count), annotated, pairs, strict=True):
                yield Batch(as_float(images), labels, items, known)

    def _training_reads(self, order: Tensor, generator: torch.Generator) -> list[Read]:
        """How to get what each step of an epoch augments: items, or boxes around patches of them."""
        if isinstance(self._store, Slices):
            return [partial(self._store.whole, index) for index in _sent(self._mine(order), self._store.index_device)]
        if self._patches is None or self._box is None:
            raise ValueError("volumes differ in size: give the patch=(depth, height, width) to train on")
        margin = (torch.tensor(self._box) - torch.tensor(self.patch)) // 2
        corners = self._patches.draw(order, generator) - margin
        steps = zip(self._mine(order), self._mine(corners), strict=True)
        return [partial(self._store.boxes, index, corner, self._box) for index, corner in steps]

    def _annotated_in(self, batches: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """What is annotated in the items with these numbers among the items, for each batch."""
        if self._annotated is None:
            return [None] * len(batches)
        rows = _sent(self._annotated[torch.cat([*batches])], self.device)
        return torch.split(rows, [len(each) for each in batches])

    def _mine(self, table: Tensor) -> Tensor:
        """`[steps, B, ...]`: what concerns this process, of rows for all items of an epoch."""
        return table.view(len(self), self.batch, *table.shape[1:])[:, self._share].contiguous()

    def _pairs(self, reads: Sequence[Read]) -> Generator[Pair, None, None]:
        if self.resident:
            yield from (read() for read in reads)
        else:
            yield from _ahead(reads, self.device)

    def _augmented(self, images: Tensor, labels: Tensor, parameters: Tensor) -> Pair:
        if self.augment is None:
            return as_float(images), labels
        apply = partial(_compiled() if self.compile else _augment, self.augment, self.patch)
        if self.device.type != "cpu":
            return apply(images, labels, parameters)
        count = max(1, CPU_PIXELS * torch.get_num_threads() // labels[0].numel())
        parts = zip(images.split(count), labels.split(count), parameters.split(count), strict=True)
        all_images, all_labels = zip(*(apply(*part) for part in parts), strict=True)
        return torch.cat(all_images), torch.cat(all_labels)


def _augment(
    augment: Augment2D | Augment3D, patch: Sequence[int] | None, images: Tensor, labels: Tensor, parameters: Tensor
) -> Pair:
    if isinstance(augment, Augment3D):
        return augment.apply(images, labels, parameters, patch)
    return augment.apply(images, labels, parameters)


@cache
def _compiled() -> Callable[..., Pair]:
    """Once a process, for all runs in it."""
    return torch.compile(_augment)


def _ahead(reads: Iterable[Read], device: torch.device) -> Generator[Pair, None, None]:
    """What is read, on the device, by threads that are a few reads ahead."""
    stream = torch.cuda.Stream(device) if device.type == "cuda" else None
    waiting: deque[Future[tuple[Pair, torch.cuda.Event | None]]] = deque()
    background = ThreadPoolExecutor(READERS)
    try:
        for read in reads:
            waiting.append(background.submit(_fetch, read, device, stream))
            if len(waiting) > AHEAD:
                yield _arrived(*waiting.popleft().result())
        while waiting:
            yield _arrived(*waiting.popleft().result())
    finally:
        background.shutdown(cancel_futures=True)  # whoever wanted the batches may have left in the middle


def _fetch(read: Read, device: torch.device, stream: torch.cuda.Stream | None) -> tuple[Pair, torch.cuda.Event | None]:
    """Reads, and begins to copy to the device on another stream, so that the computation goes on meanwhile."""
    if stream is None:
        images, labels = read()
        return (images.to(device), labels.to(device)), None
    with torch.cuda.stream(stream):
        images, labels = read()
        return (images.to(device, non_blocking=True), labels.to(device, non_blocking=True)), stream.record_event()


def _arrived(pair: Pair, copied: torch.cuda.Event | None) -> Pair:
    """The pair, once the current stream has been told to wait for the copy, and the memory is kept for that stream."""
    if copied is not None:
        stream = torch.cuda.current_stream(pair[0].device)
        stream.wait_event(copied)
        for tensor in pair:
            tensor.record_stream(stream)
    return pair


def _sent(tensor: Tensor, device: torch.device) -> Tensor:
    """On the device, without waiting for it."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def _fits(prepared: Prepared, items: Tensor, device: torch.device) -> bool:
    """Whether the items take at most half of the memory that is free on the device; a CPU has them in its own."""
    if device.type != "cuda":
        return True
    pixels = int(prepared.shapes[items.numpy()].prod(1).sum())
    needed = pixels * (prepared.channels * prepared.images.itemsize + prepared.labels.itemsize)
    free, _ = torch.cuda.mem_get_info(device)
    return 2 * needed <= free


def _check(
    prepared: Prepared,
    items: Sequence[int],
    batch: int,
    augment: Augment2D | Augment3D | None,
    patch: Sequence[int] | None,
) -> None:
    count, dims = len(prepared.case_of), prepared.dims
    if len(items) == 0:
        raise ValueError("items is empty: there is nothing to make batches of")
    if min(items) < 0 or max(items) >= count:
        raise ValueError(f"items lie between {min(items)} and {max(items)}, but the set has items 0 to {count - 1}")
    if batch < 1:
        raise ValueError(f"batch={batch} must be at least 1")
    if augment is not None and isinstance(augment, Augment3D) != (dims == 3):
        raise ValueError(f"augment={augment!r} does not suit a set prepared in {dims}D")
    if patch is not None and (dims != 3 or len(patch) != 3 or min(patch) < 1):
        raise ValueError(f"patch={patch} must be three positive lengths, and the set one of volumes; it is in {dims}D")
