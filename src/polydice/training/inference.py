"""A network as it is run: its precision, its compilation, and label maps of whole images and volumes."""

from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from polydice.data.batches import Batches
from polydice.data.prepare import Prepared
from polydice.training.metrics import confusion

LARGEST_PATCH, PATCH_STEP = 96, 16
WINDOWS, OVERLAP = 2, 0.5  # of a volume that are run at a time, and the part that neighbours share


class Network:
    """`network(images)` gives logits as in training; `network.segment(images)` label maps.

    A GPU computes in bfloat16, with weights and sums in float32, and compiles the network, unless told otherwise.
    """

    def __init__(
        self,
        module: nn.Module,
        patch: tuple[int, int, int] | None = None,
        precision: Literal["auto", "float32", "bfloat16"] = "auto",
        compile: bool | None = None,
    ) -> None:
        self.module, self.patch = module, patch
        self.device = next(module.parameters()).device
        on_gpu = self.device.type == "cuda"
        self.half = on_gpu if precision == "auto" else precision == "bfloat16"
        self.compiled = on_gpu if compile is None else compile
        self.channels_last = on_gpu and patch is None
        if self.channels_last:
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if on_gpu:
            torch.backends.cudnn.benchmark = True  # every batch has the same size: the search pays

    def train(self) -> None:
        self.module.train()

    def __call__(self, images: Tensor) -> Any:
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return (_compiled() if self.compiled else _forward)(self.module, images, self.half)

    @torch.no_grad()
    def segment(self, images: Tensor) -> Tensor:
        """Label maps `[B, *spatial]`, uint8, of images `[B, C, *spatial]`, volumes window by window."""
        self.module.eval()
        logits = self(images) if self.patch is None else self._by_windows(images, self.patch)
        return logits.argmax(1).to(torch.uint8)

    def _by_windows(self, volumes: Tensor, patch: tuple[int, int, int]) -> Tensor:
        from monai.inferers.utils import sliding_window_inference

        def logits(windows: Tensor) -> Tensor:
            found: Tensor = _forward(self.module, windows, self.half)  # as many as there are: not compiled for each
            return found.float()

        found = sliding_window_inference(volumes, patch, WINDOWS, logits, OVERLAP, mode="gaussian")
        assert isinstance(found, Tensor)  # as what it calls gives it
        return found

    def confusion(self, batches: Batches, classes: int) -> Tensor:
        """The confusion matrix of every item, `[N, C, C]`, on the device."""
        count = batches.batch if self.patch is None else 1
        found = []
        for batch in batches.ordered():
            guess = self.segment(_filled(batch.images, count))[: len(batch.labels)]
            found.append(confusion(guess, batch.labels, classes))
        return torch.cat(found)


def patch_for(prepared: Prepared) -> tuple[int, int, int]:
    """A patch that holds most volumes whole: their median size, rounded up for the halvings of a network."""
    median = np.median(prepared.shapes, axis=0)
    depth, height, width = (min(LARGEST_PATCH, -int(-side // PATCH_STEP) * PATCH_STEP) for side in median)
    return depth, height, width


def _forward(module: nn.Module, images: Tensor, half: bool) -> Any:
    with torch.autocast(images.device.type, torch.bfloat16, enabled=half):
        return module(images)


@cache
def _compiled() -> Any:
    """Compiled once a process: a second run with a network of the same shape finds it ready."""
    return torch.compile(_forward)


def _filled(images: Tensor, count: int) -> Tensor:
    """Filled up to `count` images: a last, smaller batch would be compiled for by itself."""
    missing = count - len(images)
    return torch.cat([images, images[:1].expand(missing, *images.shape[1:])]) if missing > 0 else images
