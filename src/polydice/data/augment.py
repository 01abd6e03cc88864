"""Rotation, flips, scaling and intensity of whole batches, on whatever device they lie.

What happens to an image is drawn on the CPU, as a row of numbers; applying it is tensor arithmetic alone, without a
look at a value, so it can be compiled and recorded in a CUDA graph. Image and labels are read at the same points.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Interpolation = Literal["nearest", "bilinear"]


@dataclass(frozen=True)
class Augment2D:
    """Turns by an angle uniform in ±`rotation` degrees, after a left-right flip with probability `flip`.

    >>> augment = Augment2D(rotation=90, flip=0.5)
    >>> images, labels = torch.rand(4, 3, 32, 32), torch.zeros(4, 32, 32, dtype=torch.uint8)
    >>> parameters = augment.draw(4, torch.Generator().manual_seed(0))
    >>> images, labels = augment.apply(images, labels, parameters)
    """

    rotation: float = 90.0
    flip: float = 0.5
    interpolation: Interpolation = "nearest"

    def __post_init__(self) -> None:
        if self.rotation < 0:
            raise ValueError(f"rotation={self.rotation}: angles are drawn from ±rotation degrees, so it must be >= 0")
        _check_probability("flip", self.flip)
        if self.interpolation not in ("nearest", "bilinear"):
            raise ValueError(f"interpolation={self.interpolation!r} is none of 'nearest', 'bilinear'")

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """`[count, 4]`: for each image the matrix that `turn` makes."""
        angle, flip = torch.rand(2, count, dtype=torch.float64, generator=generator)
        return turn(_between(angle, (-self.rotation, self.rotation)), flip < self.flip)

    def apply(self, images: Tensor, labels: Tensor, parameters: Tensor) -> tuple[Tensor, Tensor]:
        """images `[B, C, H, W]` and uint8 labels `[B, H, W]`, turned; the images as float32, uint8 divided by 255.
        What comes from outside the image is 0 in both."""
        return warp(images, labels, parameters.view(-1, 2, 2), images.shape[2:], self.interpolation)


@dataclass(frozen=True)
class Augment3D:
    """Flips each axis with probability `flip`, turns about a random axis by an angle uniform in ±`rotation` degrees and
    enlarges by a factor uniform in `scaling`. An intensity x in [0, 1] becomes contrast·(x^gamma − ½) + ½ + brightness,
    with `gamma` and `contrast` uniform in their ranges and the brightness uniform in ±`brightness`.

    `spacing` is the distance of voxels along each axis: the rotation is one in space, whatever the voxels' shape.
    """

    rotation: float = 15.0
    flip: float = 0.5
    scaling: tuple[float, float] = (0.85, 1.15)
    brightness: float = 0.1
    contrast: tuple[float, float] = (0.75, 1.25)
    gamma: tuple[float, float] = (0.7, 1.5)
    spacing: tuple[float, ...] = (1.0, 1.0, 1.0)

    def __post_init__(self) -> None:
        if not 0 <= self.rotation <= 90:
            raise ValueError(f"rotation={self.rotation} must lie between 0 and 90 degrees")
        _check_probability("flip", self.flip)
        for name, (low, high) in {"scaling": self.scaling, "contrast": self.contrast, "gamma": self.gamma}.items():
            if not 0 < low <= high:
                raise ValueError(f"{name}={(low, high)} must be a range of positive factors, the smaller first")
        if len(self.spacing) != 3 or min(self.spacing) <= 0:
            raise ValueError(f"spacing={self.spacing} must be three positive distances, one for each axis")

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """`[count, 12]`: the 3×3 matrix from a place in the output to one in the input, then gamma, contrast and
        brightness."""
        uniform = torch.rand(10, count, dtype=torch.float64, generator=generator)
        angle, height, azimuth, scaling, gamma, contrast, brightness = uniform[:7]
        turned = _about(_unit_vector(height, azimuth), torch.deg2rad(_between(angle, (-self.rotation, self.rotation))))
        mirror = 1 - 2 * uniform[7:].lt(self.flip).double()
        stretch = (mirror / _between(scaling, self.scaling)).T
        spacing = torch.tensor(self.spacing, dtype=torch.float64)
        matrix = stretch[:, :, None] * turned * spacing / spacing[:, None]
        intensity = [
            _between(gamma, self.gamma),
            _between(contrast, self.contrast),
            _between(brightness, (-self.brightness, self.brightness)),
        ]
        return torch.cat([matrix.flatten(1), torch.stack(intensity, 1)], 1).float()

    def reach(self, size: Sequence[int]) -> tuple[int, ...]:
        """The size of the box around a patch of this size that holds every point it can be read from.

        Row i of a rotation is a unit vector, at most the angle r from axis i. So a patch with the extents e, in space,
        reaches along axis i over e_i·cos φ + √(Σ_{j≠i} e_j²)·sin φ at the worst φ ≤ r, over the smallest scaling.
        """
        extents = [length * distance for length, distance in zip(size, self.spacing, strict=True)]
        box = []
        for axis, (length, extent) in enumerate(zip(size, extents, strict=True)):
            aside = math.hypot(*extents[:axis], *extents[axis + 1 :])
            worst = min(math.radians(self.rotation), math.atan2(aside, extent))
            reached = extent * math.cos(worst) + aside * math.sin(worst)
            farthest = reached / self.spacing[axis] / self.scaling[0]
            # The same on both sides, so that the centres fall together; one voxel more for the interpolation.
            box.append(length + 2 * math.ceil(max(farthest - length, 0) / 2 + 1))
        return tuple(box)

    def apply(
        self, images: Tensor, labels: Tensor, parameters: Tensor, size: Sequence[int] | None = None
    ) -> tuple[Tensor, Tensor]:
        """images `[B, C, D, H, W]` and uint8 labels `[B, D, H, W]`, changed; the images as float32, interpolated
        linearly. With a `size` smaller than theirs it is the middle of that size. What comes from outside is 0 in
        both, before the intensities change."""
        size = images.shape[2:] if size is None else size
        images, labels = warp(images, labels, parameters[:, :9].view(-1, 3, 3), size, "bilinear")
        gamma, contrast, brightness = parameters[:, 9:, None, None, None, None].unbind(1)
        images = images.clamp(0, 1).pow(gamma)
        return contrast * (images - 0.5) + (0.5 + brightness), labels


def turn(degrees: Tensor, flipped: Tensor) -> Tensor:
    """`[count, 4]`: the 2×2 matrices from (row, column) of the output to those of the input, both from the centre, for
    a left-right flip where `flipped` and then a rotation, counter-clockwise as `torch.rot90`.

    The sines are formed in float64: then multiples of 90° hit pixels exactly in float32.
    """
    angle = torch.deg2rad(degrees.double())
    cos, sin, mirror = angle.cos(), angle.sin(), 1 - 2 * flipped.double()
    return torch.stack([cos, sin, -mirror * sin, mirror * cos], 1).float()


def as_float(images: Tensor) -> Tensor:
    """Float32, bytes divided by 255."""
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def warp(
    images: Tensor, labels: Tensor, matrix: Tensor, size: Sequence[int], interpolation: Interpolation
) -> tuple[Tensor, Tensor]:
    """Output voxel x is the input's value at A·(x − centre of the output) + centre of the input, 0 outside.

    images `[B, C, *shape]`, labels `[B, *shape]`, matrix A `[B, d, d]` for d axes; returns float32 `[B, C, *size]` and
    `[B, *size]`. Labels are those of the nearest voxel, images too or interpolated linearly.
    """
    # With a rim of zeros all that lies outside is read from the rim: no mask, and linear interpolation fades into it.
    rim = [1, 1] * (images.ndim - 2)
    padded = F.pad(images, rim)
    planes, shape = padded.flatten(2), padded.shape[2:]
    points = _points(matrix, shape, size)
    nearest = _index([point.round() for point in points], shape)
    labels = F.pad(labels, rim).flatten(1).gather(1, nearest).view(-1, *size)
    if interpolation == "nearest":
        values = _gather(planes, nearest)
    else:
        low = [point.floor().clamp_(max=length - 2) for point, length in zip(points, shape, strict=True)]
        parts = [(point - floor).flatten(1)[:, None] for point, floor in zip(points, low, strict=True)]
        values = _linear(planes, _index(low, shape), parts, shape)
    if images.dtype == torch.uint8:
        values = values / 255
    return values.view(*images.shape[:2], *size), labels


def _points(matrix: Tensor, shape: Sequence[int], size: Sequence[int]) -> list[Tensor]:
    """Where in the input each voxel of the output comes from: for each axis `[B, *size]`, in voxels, clamped to it."""
    steps = [torch.arange(length, device=matrix.device) - (length - 1) / 2 for length in size]
    points = []
    for row, length in enumerate(shape):
        point = torch.full((), (length - 1) / 2, device=matrix.device)
        for column in reversed(range(len(size))):  # the sum grows by one axis at a time: only the last one is large
            line = matrix[:, row, column, None] * steps[column]
            point = point + line.view(-1, *(line.shape[1] if axis == column else 1 for axis in range(len(size))))
        points.append(point.clamp_(0, length - 1))
    return points


def _index(points: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """`[B, N]`: the place in the flat array. Integers, since float32 counts only to 2²⁴."""
    index = points[0].int()
    for point, length in zip(points[1:], shape[1:], strict=True):
        index = index * length + point.int()
    return index.flatten(1).long()


def _gather(planes: Tensor, index: Tensor) -> Tensor:
    """`[B, C, P]` at `[B, N]`, as float32."""
    return planes.gather(2, index[:, None].expand(-1, planes.shape[1], -1)).float()


def _linear(planes: Tensor, index: Tensor, parts: Sequence[Tensor], shape: Sequence[int]) -> Tensor:
    """Between the voxel at `index` and the next along every axis, of which the parts of the way are given."""
    if not parts:
        return _gather(planes, index)
    near = _linear(planes, index, parts[1:], shape[1:])
    far = _linear(planes, index + math.prod(shape[1:]), parts[1:], shape[1:])
    return near.lerp_(far, parts[0])


def _unit_vector(height: Tensor, azimuth: Tensor) -> Tensor:
    """`[count, 3]`, uniform on the sphere, from two numbers uniform in [0, 1)."""
    z, angle = 2 * height - 1, 2 * math.pi * azimuth
    radius = (1 - z * z).sqrt()
    return torch.stack([z, radius * angle.cos(), radius * angle.sin()], 1)


def _about(axis: Tensor, angle: Tensor) -> Tensor:
    """`[count, 3, 3]`: rotations by `angle` about the unit vectors `axis` (Rodrigues)."""
    one = torch.eye(3, dtype=axis.dtype)
    cross: Tensor = torch.linalg.cross(one[None], axis[:, None])
    outer = axis[:, :, None] * axis[:, None]
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    return cos * one + sin * cross + (1 - cos) * outer


def _between(uniform: Tensor, limits: tuple[float, float]) -> Tensor:
    low, high = limits
    return low + (high - low) * uniform


def _check_probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f"{name}={value} is no probability: it must lie between 0 and 1")
