"""The sizes that are measured: those people train with, and two series that grow in pixels and in classes."""

import math
from argparse import ArgumentTypeError
from typing import NamedTuple

import torch
from torch import Tensor

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LABEL_BYTES = 8  # int64, what every peer takes


class Size(NamedTuple):
    """Logits `[B, C, *spatial]`. A size of a series leaves out the providers that must compile anew for each size."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    series: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}"

    @property
    def name(self) -> str:
        return "x".join(map(str, self.shape))

    @property
    def classes(self) -> int:
        return self.shape[1]

    @property
    def pixels(self) -> int:
        return self.shape[0] * math.prod(self.shape[2:])

    @property
    def logits_bytes(self) -> int:
        return self.pixels * self.classes * DTYPES[self.dtype].itemsize

    def floor_bytes(self, label_bytes: int = LABEL_BYTES) -> int:
        """What forward and backward must move: logits and labels read in each, the gradient written once."""
        return 3 * self.logits_bytes + 2 * self.pixels * label_bytes

    def inputs(self, device: str) -> tuple[Tensor, Tensor]:
        """Random logits and labels, the same ones every time."""
        torch.manual_seed(0)
        logits = torch.randn(self.shape, dtype=DTYPES[self.dtype], device=device, requires_grad=True)
        return logits, torch.randint(self.classes, (self.shape[0], *self.shape[2:]), device=device)


def parse_size(text: str) -> Size:
    """`24x9x224x224` or `2x14x128x128x128:bfloat16`."""
    shape, _, dtype = text.partition(":")
    try:
        size = Size(tuple(map(int, shape.split("x"))), dtype or "float32")
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a shape such as 24x9x224x224") from None
    if len(size.shape) < 3 or min(size.shape) < 1 or size.classes < 2:
        raise ArgumentTypeError(f"{text!r} must have a batch, at least two classes, and pixels")
    if size.dtype not in DTYPES:
        raise ArgumentTypeError(f"{text!r}: the type must be one of {', '.join(DTYPES)}")
    return size


def default_sizes(device: str) -> list[Size]:
    """The sizes people train with, then the series; a CPU is spared what would take it minutes."""
    cuda = device == "cuda"
    dtype = "bfloat16" if cuda else "float32"
    sizes = [
        Size((24, 9, 224, 224)),
        Size((24, 2, 224, 224)),
        Size((2, 14, 128, 128, 128)),
        Size((2, 14, 128, 128, 128), "bfloat16"),
        Size((2, 118, 128, 128, 128), "bfloat16") if cuda else Size((2, 14, 96, 96, 96)),
    ]
    if cuda:
        sizes += [Size((24, 9, 224, 224), dtype), Size((24, 2, 224, 224), dtype), Size((2, 3, 128, 128, 128), dtype)]
    edges = (64, 128, 256, 512) if cuda else (32, 64, 96, 128)
    classes = (2, 4, 8, 16, 32, 64, 118, 256) if cuda else (2, 4, 8, 16, 32)
    sizes += [Size((1, 3, edge, edge, edge), dtype, series=True) for edge in edges]
    return sizes + [Size((2, count, 64, 64, 64), dtype, series=True) for count in classes]
