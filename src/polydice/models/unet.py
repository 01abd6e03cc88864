"""The U-Net of Ronneberger et al. with padded convolutions and a norm after each."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

NORMS = {"batch": nn.BatchNorm2d, "instance": nn.InstanceNorm2d}


class UNet(nn.Module):
    """Images `[B, channels, H, W]` to logits `[B, classes, H, W]`, any H and W of at least 2^depth.

    `width` is the number of features at full resolution; each of the `depth` poolings doubles it. `norm` is `"batch"`,
    or `"instance"`: then an image's logits do not depend on the others of its batch. With `deep_supervision`, training
    mode returns the logits at full, half, quarter, … resolution; evaluation mode always the first alone. `features`
    stops before the last convolution, one of `heads`: what `HeadLoss` takes.

    >>> UNet(3, 2, width=8)(torch.zeros(1, 3, 50, 37)).shape
    torch.Size([1, 2, 50, 37])
    """

    def __init__(
        self,
        channels: int,
        classes: int,
        *,
        width: int = 64,
        depth: int = 4,
        norm: str = "batch",
        deep_supervision: bool = False,
    ) -> None:
        super().__init__()
        if norm not in NORMS:
            raise ValueError(f"norm={norm!r} is none of {', '.join(map(repr, NORMS))}")
        if width < 1 or depth < 1:
            raise ValueError(f"width and depth must be at least 1: {width=}, {depth=}")
        widths = [width * 2**level for level in range(depth + 1)]
        steps = list(pairwise(widths))[::-1]  # the way up, from the deepest level
        self.channels = channels
        self.smallest = 2**depth * (2 if norm == "instance" else 1)  # one pixel has no variance of its own
        self.deep_supervision = deep_supervision
        self.down = nn.ModuleList(_convs(before, after, norm) for before, after in pairwise([channels, *widths]))
        self.up = nn.ModuleList(_Double(deep, shallow, 2, stride=2) for shallow, deep in steps)
        self.merge = nn.ModuleList(_convs(2 * shallow, shallow, norm) for shallow, _ in steps)
        self.heads = nn.ModuleList(nn.Conv2d(w, classes, 1) for w in widths[: depth if deep_supervision else 1])

    def forward(self, image: Tensor) -> Tensor | list[Tensor]:
        features = self.features(image)
        if isinstance(features, Tensor):
            return self.heads[0](features)  # type: ignore[no-any-return]
        return [head(x) for head, x in zip(self.heads, features, strict=True)]

    def features(self, image: Tensor) -> Tensor | list[Tensor]:
        """`[B, width, H, W]`, what the heads make logits of; a list of them where `forward` returns a list."""
        if image.ndim != 4 or image.shape[1] != self.channels or min(image.shape[2:]) < self.smallest:
            raise ValueError(
                f"this U-Net takes [B, {self.channels}, H, W] with H and W at least {self.smallest}; "
                f"it was given {list(image.shape)}"
            )
        skips = []  # [B, width·2^level, H/2^level, W/2^level]
        x = image
        for level, convs in enumerate(self.down):
            x = convs(x if level == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        levels: list[Tensor] = []  # the way up, the finest first
        for up, merge in zip(self.up, self.merge, strict=True):
            skip = skips.pop()
            x = merge(torch.cat([skip, _fit(up(x), skip)], dim=1))
            levels.insert(0, x)
        return levels if self.deep_supervision and self.training else levels[0]


class _Double(nn.ConvTranspose2d):
    """A transposed convolution whose windows do not overlap: every pixel becomes 2×2 of its own.

    With channels last this is one matrix product and one copy, and a compiler merges this copy with the one that puts
    the skip beside it. cuDNN would copy the gradient once more.
    """

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        if output_size is not None or not x.is_contiguous(memory_format=torch.channels_last):
            return super().forward(x, output_size)
        batch, _, height, width = x.shape
        matrix = self.weight.permute(2, 3, 1, 0).flatten(0, 2)  # [2·2·out, in]
        bias = None if self.bias is None else self.bias.repeat(4)
        pixels = F.linear(x.permute(0, 2, 3, 1), matrix, bias).view(batch, height, width, 2, 2, self.out_channels)
        image = pixels.transpose(2, 3).reshape(batch, 2 * height, 2 * width, self.out_channels)
        return image.permute(0, 3, 1, 2)


def _convs(before: int, after: int, norm: str) -> nn.Sequential:
    """Twice: 3×3 convolution, norm, ReLU. The norm takes the mean away, so the convolution has no bias."""
    layers: list[nn.Module] = []
    for features in (before, after):
        layers += [
            nn.Conv2d(features, after, 3, padding=1, bias=False),
            NORMS[norm](after, affine=True),
            nn.ReLU(inplace=True),
        ]
    return nn.Sequential(*layers)


def _fit(x: Tensor, skip: Tensor) -> Tensor:
    """Pads with zeros below and right: halving an odd side has lost its last row or column."""
    height, width = (skip.shape[axis] - x.shape[axis] for axis in (2, 3))
    return F.pad(x, (0, width, 0, height)) if height or width else x
