"""A network as it is run: its precision, its compilation, and label maps of whole images and volumes."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from polydice.data.batches import Batches
from polydice.data.prepare import Prepared
from polydice.training.config import Precision
from polydice.training.metrics import as_annotated, confusion

LARGEST_PATCH, PATCH_STEP = 96, 16
WINDOWS, OVERLAP = 2, 0.5  # run at a time, and the part of a window that its neighbour shares
NETWORKS = 100  # that a process may compile: beyond its limit, torch runs them uncompiled and says nothing


class Segmented(NamedTuple):
    """A batch, and what a network makes of it, on the device."""

    labels: Tensor  # [B, *spatial] uint8
    maps: Tensor  # [B, *spatial] uint8
    matrices: Tensor  # [B, C, C] int64


class Network:
    """`network(images)` gives logits as in training; `network.segment(images)` label maps, which of regions are written
    in their `order`.

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
        self.trained = module  # wrapped, while several processes train it together
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
        return _compiled(self.device.type == "cuda" and self.trained is self.module)(module, images, self.half)

    @torch.no_grad()
    def segment(self, images: Tensor, whole: bool = True) -> Tensor:
        """Label maps `[B, *spatial]`, uint8, of images `[B, C, *spatial]`, volumes window by window."""
        self.module.eval()
        logits = self(images, whole) if self.patch is None else self.by_windows(images, self._window_logits)
        return label_maps(logits, self.order)

    def by_windows(
        self,
        volumes: Tensor,
        logits: Callable[[Tensor], Tensor],
        windows: int = WINDOWS,
        keep_on: torch.device | str | None = None,
    ) -> Tensor:
        """The logits of whole volumes `[B, C, *spatial]`, from those of windows in the size of the patch.

        Neighbouring windows overlap, and each counts most in its middle. So many `windows` are run at a time, on the
        network's device. The result is kept on the device `keep_on`, and else on that of the volumes.
        """
        from monai.inferers.utils import sliding_window_inference

        found = sliding_window_inference(
            volumes, self.patch or volumes.shape[2:], windows, logits, OVERLAP,
            mode="gaussian", sw_device=self.device, device=keep_on,
        )  # fmt: skip
        assert isinstance(found, Tensor)  # as what it calls gives it
        return found

    def _window_logits(self, windows: Tensor) -> Tensor:
        found: Tensor = _forward(self.module, windows, self.half)  # uncompiled: the number of windows varies
        return found.float()

    def segmented(self, batches: Batches, classes: int) -> Iterator[Segmented]:
        """Every batch, with its label maps and confusion matrices: of the classes that are annotated in each image."""
        for batch in batches.ordered():
            maps = as_annotated(self.segment(batch.images, len(batch.images) == batches.batch), batch.annotated)
            yield Segmented(batch.labels, maps, confusion(maps, batch.labels, classes))

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
