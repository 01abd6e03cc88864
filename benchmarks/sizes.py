"""The sizes that are measured: those people train with, and two series that grow in pixels and in classes."""

import math
from argparse import ArgumentTypeError
from typing import NamedTuple

import torch
from torch import Tensor

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
LABEL_BYTES = 8  # int64, what every peer takes
CLASSES = (2, 3, 4, 8, 14, 24, 32, 64, 118)  # of heads


class Size(NamedTuple):
    """Logits `[B, C, *spatial]`, or so many features that a head makes them of. A size of a series leaves out the
    providers that must compile anew for each size; of heads, all but ours. `partial`: not all classes are annotated."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    series: bool = False
    features: int = 0
    partial: bool = False

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}"

    @property
    def name(self) -> str:
        batch, classes, *spatial = map(str, self.shape)
        return "x".join([batch, f"{self.features}-{classes}" if self.features else classes, *spatial])

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
        """What forward and backward must move: logits or features and labels read in each, the gradient written."""
        values = self.pixels * (self.features or self.classes)
        return 3 * values * DTYPES[self.dtype].itemsize + 2 * self.pixels * label_bytes

    def inputs(self, device: str) -> tuple[Tensor, Tensor]:
        """Random logits, or features, and labels, the same ones every time."""
        torch.manual_seed(0)
        batch, classes, *spatial = self.shape
        shape = batch, self.features or classes, *spatial
        values = torch.randn(shape, dtype=DTYPES[self.dtype], device=device, requires_grad=True)
        labels = torch.randint(classes, (batch, *spatial), device=device)
        if self.partial:  # what is not annotated is background
            known = self.annotated(device).gather(1, labels.flatten(1)).view_as(labels)
            labels = torch.where(known, labels, 0)
        return values, labels

    def annotated(self, device: str) -> Tensor:
        """All classes but every third, another third in the next image; class 0 always."""
        batch, classes = self.shape[:2]
        place = torch.arange(batch, device=device)[:, None] + torch.arange(classes, device=device)
        return (place % 3 != 2) | (torch.arange(classes, device=device) == 0)


def parse_size(text: str, least: int = 2) -> Size:
    """`24x9x224x224` or `2x14x128x128x128:bfloat16`, of so many classes at least."""
    shape, _, dtype = text.partition(":")
    try:
        size = Size(tuple(map(int, shape.split("x"))), dtype or "float32")
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a shape such as 24x9x224x224") from None
    if len(size.shape) < 3 or min(size.shape) < 1 or size.classes < least:
        raise ArgumentTypeError(f"{text!r} must have a batch, at least {least} classes, and pixels")
    if size.dtype not in DTYPES:
        raise ArgumentTypeError(f"{text!r}: the type must be one of {', '.join(DTYPES)}")
    return size


def parse_head_size(text: str) -> Size:
    """`2x32-118x128x128x128:bfloat16`: features and classes."""
    batch, _, rest = text.partition("x")
    features, _, logits = rest.partition("-")
    if not features.isdecimal() or not int(features):
        raise ArgumentTypeError(f"{text!r} is not a shape such as 2x32-118x128x128x128")
    return parse_size(f"{batch}x{logits}")._replace(features=int(features))


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


def annotated_sizes(device: str) -> list[Size]:
    """Those whose times docs/kernels.md has; on a CPU a small one."""
    if device != "cuda":
        return [Size((8, 9, 224, 224), partial=True)]
    images, volumes, half = (224, 224), (128, 128, 128), "bfloat16"
    kinds = [
        ((24, 2, *images), half),
        ((24, 9, *images), "float32"),
        ((24, 9, *images), half),
        ((2, 3, *volumes), half),
    ]
    kinds += [((2, 14, *volumes), "float32"), ((2, 14, *volumes), half), ((2, 118, *volumes), half)]
    return [Size(shape, dtype, partial=True) for shape, dtype in kinds]


def head_sizes(device: str) -> list[Size]:
    """As above, of features: those of 3D networks and of a 2D one, then more classes for the plots. On a GPU then the
    series that say when the head is better left to the loss: other features, images, small inputs, float32."""
    cuda = device == "cuda"
    batch, edge, images, dtype = (2, 128, 24, "bfloat16") if cuda else (1, 64, 8, "float32")
    plotted = edge if cuda else 32
    sizes = [Size((batch, classes, edge, edge, edge), dtype, features=32) for classes in (118, 14, 3)]
    sizes.append(Size((images, 9, 224, 224), dtype, features=64))
    more = [Size((batch, classes, plotted, plotted, plotted), dtype, features=32) for classes in CLASSES]
    sizes += [size for size in more if size not in sizes]
    if not cuda:
        return sizes
    volumes, planes = (batch, edge, edge, edge), (images, 224, 224)
    for pixels, features in ((volumes, 64), (planes, 32), (planes, 64)):
        sizes += _heads(pixels, dtype, CLASSES, features)
    sizes += _heads((2, 32, 32, 32), dtype, (2, 14, 118), 32) + _heads((4, 128, 128), dtype, (2, 14, 118), 64)
    return sizes + _heads(volumes, "float32", (2, 14, 118), 32) + _heads(planes, "float32", (2, 9, 118), 64)


def _heads(pixels: tuple[int, ...], dtype: str, counts: tuple[int, ...], features: int) -> list[Size]:
    batch, *spatial = pixels
    return [Size((batch, count, *spatial), dtype, True, features) for count in counts]
