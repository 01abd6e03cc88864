"""A network as it is run: its precision, its compilation, and label maps of whole images and volumes."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from polydice.data.batches import Batch, Batches
from polydice.data.prepare import Prepared
from polydice.training.config import Precision
from polydice.training.heads import Body, late_head
from polydice.training.metrics import as_annotated, confusion
from polydice.training.windows import in_zeros, planes

LARGEST_PATCH, PATCH_STEP = 96, 16
WINDOWS = 2  # run at a time
AT_ONCE = 1 << 24  # logits that are made of features at a time
NETWORKS = 100  # that a process may compile: beyond its limit, torch runs them uncompiled and says nothing


class Segmented(NamedTuple):
    """A batch, and what a network makes of it, on the device."""

    labels: Tensor  # [B, *spatial] uint8
    maps: Tensor  # [B, *spatial] uint8
    matrices: Tensor  # [B, C, C] int64


class Network:
    """`network(images)` gives what its loss takes, logits or features; `network.segment(images)` label maps, which of
    regions are written in their `order`.

    A GPU computes in bfloat16, with weights and sums in float32, and compiles the network, unless told otherwise.
    """

    def __init__(
        self,
        module: nn.Module,
        patch: tuple[int, int, int] | None = None,
        precision: Precision = "auto",
        compile: bool | None = None,
        order: Sequence[int] | None = None,
    ) -> None:
        self.module, self.patch, self.order = module, patch, order
        self.trained = module  # wrapped, while several processes train it together or the loss has its heads
        self.late = late_head(module)
        self.body = module if self.late is None else Body(module)
        self.device = next(module.parameters()).device
        on_gpu = self.device.type == "cuda"
        self.half = on_gpu if precision == "auto" else precision == "bfloat16"
        self.compiled = on_gpu if compile is None else compile
        self.channels_last = on_gpu and patch is None
        if self.channels_last:
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if on_gpu:
            torch.backends.cudnn.benchmark = True  # worth its time, since every batch has the same size

    def train(self) -> None:
        self.trained.train()

    def __call__(self, images: Tensor, whole: bool = True) -> Any:
        """A batch that is not `whole` runs uncompiled: such batches are rare and have many sizes."""
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        module = self.trained if self.module.training else self.module
        if not (self.compiled and whole):
            return _forward(module, images, self.half)
        # A CUDA graph saves the time of launches. It cannot hold a wait for other processes, so these have none.
        alone = not isinstance(module, DistributedDataParallel)
        return _compiled(self.device.type == "cuda" and alone)(module, images, self.half)

    @torch.no_grad()
    def segment(self, images: Tensor, whole: bool = True) -> Tensor:
        """Label maps `[B, *spatial]`, uint8, of images `[B, C, *spatial]`, volumes window by window."""
        self.module.eval()
        if self.patch is None:
            return label_maps(self(images, whole), self.order)
        return torch.stack([self.volume_labels(volume, volume.shape[1:], WINDOWS) for volume in images])

    def raw(self, images: Tensor) -> Tensor:
        """What is averaged over windows and flips, and brought to another grid: logits, or the features that the head
        makes them of, where these are fewer. The head is linear: it may as well come last."""
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        found: Tensor = _forward(self.body, images, self.half)  # uncompiled: the number of windows varies
        return found.float()

    def volume_labels(
        self, volume: Tensor, shape: Sequence[int], windows: int, raw: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """The label map, on a grid of `shape`, of a volume `[C, *spatial]`, from windows in the size of the patch.

        Planes are finished one by one, so that there never are logits, or features, of a whole volume.
        """
        depth, *_ = sides = volume.shape[1:]
        found = planes(volume, self.patch or sides, raw or self.raw, windows, self.device)
        labels = torch.empty(*shape, dtype=torch.uint8, device=self.device)
        kept, last = deque([next(found)], maxlen=2), 0  # the plane of this number, and the one before it
        for z in range(shape[0]):
            centre = min(max((z + 0.5) * depth / shape[0] - 0.5, 0), depth - 1)
            while last < min(int(centre) + 1, depth - 1):
                kept.append(next(found))
                last += 1
            below, above = kept[int(centre) - last - 1], kept[-1]
            labels[z] = self.plane_labels(torch.lerp(below, above, centre % 1), shape[1:])
        return labels

    def plane_labels(self, raw: Tensor, shape: Sequence[int]) -> Tensor:
        """The label map of `raw` `[K, y, x]`, which is brought to a grid of `shape` first: its borders are smooth.

        Both grids cover the same rectangle, as in `polydice.data.resample`.
        """
        own = F.interpolate(raw[None], tuple(shape), mode="bilinear", align_corners=False)
        if self.late is None:
            return label_maps(own, self.order)[0]
        weight, bias = self.late.weight.flatten(1), self.late.bias
        offset = weight.new_zeros(len(weight)) if bias is None else bias
        parts = own[0].flatten(1).T.split(max(1, AT_ONCE // len(weight)))  # [pixels, K]
        return torch.cat([label_maps(torch.addmm(offset, each, weight.T), self.order) for each in parts]).view(*shape)

    def segmented(self, batches: Batches, classes: int) -> Iterator[Segmented]:
        """Every batch, with its label maps and confusion matrices: of the classes that are annotated in each image."""
        for group in self._groups(batches, classes):
            whole = len(group[0].images) == batches.batch
            found = [self.segment(group[0].images, whole)] if len(group) == 1 else self._small(group)
            for batch, maps in zip(group, found, strict=True):
                maps = as_annotated(maps, batch.annotated)
                yield Segmented(batch.labels, maps, confusion(maps, batch.labels, classes))

    def _groups(self, batches: Batches, classes: int) -> Iterator[list[Batch]]:
        """Batches that are segmented at once: one, or some volumes that a window holds, whose logits are not many."""
        patch = self.patch or (0, 0, 0)
        most = max(1, min(batches.batch, AT_ONCE // max(1, classes * math.prod(patch))))
        if self.late is not None:  # which is computed in float32, not as the network is
            most = 1

        def held(batch: Batch) -> bool:
            return all(own <= side for own, side in zip(batch.images.shape[2:], patch, strict=False))

        for small, found in groupby(batches.ordered(), held):
            while group := list(islice(found, most if small else 1)):
                yield group

    @torch.no_grad()
    def _small(self, group: Sequence[Batch]) -> Iterator[Tensor]:
        """The label maps of volumes that a window holds, from one call of the network: where all are small, to call it
        for each, and to finish each by planes, takes longer than to compute."""
        self.module.eval()
        assert self.patch is not None
        volumes, places = zip(*(in_zeros(batch.images[0], self.patch) for batch in group), strict=True)
        maps = label_maps(_forward(self.module, torch.stack(volumes), self.half), self.order)
        return (each[None, *place] for each, place in zip(maps, places, strict=True))

    def confusion(self, batches: Batches, classes: int) -> Tensor:
        """The confusion matrix of every item, `[N, C, C]`, on the device."""
        return torch.cat([each.matrices for each in self.segmented(batches, classes)])


def label_maps(logits: Tensor, order: Sequence[int] | None = None) -> Tensor:
    """Logits `[B, C, *spatial]` to labels `[B, *spatial]`, uint8: the class that wins or, of regions, the label that
    `order` has for each one that is likelier than not, over those before it.

    >>> label_maps(torch.tensor([[[-1.0, 2.0, 2.0, -3.0], [-1.0, -1.0, 1.0, 4.0]]]), order=(1, 2)).tolist()
    [[0, 1, 2, 2]]
    """
    if order is None:
        return logits.argmax(1).to(torch.uint8)
    labels = torch.zeros_like(logits[:, 0], dtype=torch.uint8)
    for channel, label in zip(logits.unbind(1), order, strict=True):
        labels[channel > 0] = label
    return labels


def patch_for(prepared: Prepared) -> tuple[int, int, int]:
    """A patch that holds most volumes whole: their median size, rounded up for the halvings of a network."""
    median = np.median(prepared.shapes, axis=0)
    depth, height, width = (min(LARGEST_PATCH, -int(-side // PATCH_STEP) * PATCH_STEP) for side in median)
    return depth, height, width


def _forward(module: nn.Module, images: Tensor, half: bool) -> Any:
    with torch.autocast(images.device.type, torch.bfloat16, enabled=half):
        return module(images)


@cache
def _compiled(recorded: bool) -> Any:
    """Compiled once for each process: a second run with a network of the same shape uses it again."""
    # Two for each network: training and evaluation. Newer versions have another name too, torch 2.6 only this one.
    torch._dynamo.config.cache_size_limit = 2 * NETWORKS
    return torch.compile(_forward, mode="reduce-overhead" if recorded else None)
