"""The numbers of an image brought to [0, 1], and images and labels brought to another grid over the same extent.

Both grids cover the same rectangle or box, and a value belongs to the centre of its pixel: point i of m lies at
(i + ½)·n/m − ½ on an axis of n. So image and labels stay aligned to the last fraction of a pixel.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from polydice.data.cases import DataError, Intensity


def to_unit(
    image: NDArray[Any], intensity: Intensity, window: tuple[float, float], cut: float | None = None
) -> NDArray[Any]:
    """`[channels, *spatial]` as float32 in [0, 1]; colour stays uint8, which is a quarter of the memory.

    `window` are the Hounsfield units of CT that become 0 and 1; `cut` is the percent of an MR channel's values above
    its minimum, the brightest, that become 1.
    """
    if intensity == "colour":
        if image.dtype != np.uint8:
            raise DataError(f"a colour image must be 8 bits a channel, this one is {image.dtype}")
        return image
    unit: NDArray[Any] = image.astype(np.float32)
    if not np.isfinite(unit).all():
        raise DataError("the image holds NaN or infinite values")
    if intensity == "mr":  # each modality has a scale of its own
        axes = tuple(range(1, unit.ndim))
        unit -= unit.min(axes, keepdims=True)
        for channel in unit:
            if channel.any():
                channel /= channel.max() if cut is None else np.percentile(channel[channel > 0], 100 - cut)
        np.minimum(unit, 1, out=unit)
    elif intensity == "ct":
        low, high = np.array(window, np.float32)
        unit = (unit.clip(low, high) - low) / (high - low)
    elif unit.min() < 0 or unit.max() > 1:
        raise DataError(f"the image was expected in [0, 1] and lies in [{unit.min()}, {unit.max()}]")
    return unit


def resample_image(image: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
    """`[*spatial]`, two or three axes, interpolated linearly on a grid of `shape`. On a coarser grid a point is the
    average of all that it stands for."""
    if image.shape == tuple(shape):
        return image
    planes: NDArray[Any] = np.stack(
        [_resample_plane(plane, shape[-2:]) for plane in image.reshape(-1, *image.shape[-2:])]
    )
    if image.ndim == 3 and len(planes) != shape[0]:
        planes = _resample_plane(planes.reshape(len(planes), -1), (shape[0], shape[1] * shape[2]))
    return planes.reshape(shape)


def _resample_plane(plane: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
    rows, columns = shape
    return np.asarray(Image.fromarray(plane).resize((columns, rows), Image.Resampling.BILINEAR))


def resample_labels(labels: NDArray[np.uint8], shape: Sequence[int]) -> NDArray[np.uint8]:
    """`[*spatial]` on a grid of `shape`: the label of the pixel that holds the new pixel's centre.

    >>> resample_labels(np.array([[0, 1, 2]], np.uint8), (1, 6)).tolist()
    [[0, 0, 1, 1, 2, 2]]
    """
    centres = [(2 * np.arange(new) + 1) * old // (2 * new) for old, new in zip(labels.shape, shape, strict=True)]
    return labels[np.ix_(*centres)]
