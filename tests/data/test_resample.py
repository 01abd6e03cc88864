from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage
from torch.nn import functional as F

from polydice.data.cases import DataError
from polydice.data.resample import resample_image, resample_labels, to_unit

RESIZED = [(37, 224), (288, 224), (384, 224), (512, 100), (224, 224), (9, 5), (5, 1)]
WINDOW = (-125.0, 275.0)


@pytest.mark.parametrize(("old", "new"), RESIZED)
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_pixel_keeps_its_place(old: int, new: int, axis: int) -> None:
    """Every pixel holds its own place along the axis: point i of m must find (i + ½)·n/m − ½ there, and its label
    must be that of the pixel which is nearest."""
    shape, other = [3, 4, 5], [3, 8, 2]
    shape[axis], other[axis] = old, new
    others = tuple({0, 1, 2} - {axis})
    places = np.indices(shape, np.uint16)[axis]
    expected = (np.arange(new) + 0.5) * old / new - 0.5

    found = resample_image(places.astype(np.float32), other)
    assert np.ptp(found, others).max() < 1e-3
    inner = (expected >= old / new) & (expected <= old - 1 - old / new)  # at the edge there is less to average
    off = (found.mean(others) - expected)[inner]
    # The average of fewer points weighs whole pixels: it sways about the place by a part of one, to both sides alike.
    assert np.abs(off).max(initial=0) < (1e-4 if new >= old else 0.1)
    assert abs(off.sum()) < 1e-4 * max(1, len(off))

    labels = resample_labels(places, other)  # type: ignore[arg-type]
    assert (np.ptp(labels, others) == 0).all()
    assert np.abs(labels.max(others) - expected).max() <= 0.5


@pytest.mark.parametrize("shape", [(224, 224), (31, 77), (100, 400)])
def test_images_are_those_of_torch(shape: tuple[int, int]) -> None:
    image = np.random.default_rng(0).random((90, 130), np.float32)
    expected = F.interpolate(torch.from_numpy(image)[None, None], shape, mode="bilinear", antialias=True)[0, 0]
    np.testing.assert_allclose(resample_image(image, shape), expected.numpy(), atol=1e-5)  # torch's weights are float32
    grey = (image * 255).astype(np.uint8)
    expected = F.interpolate(torch.from_numpy(grey)[None, None], shape, mode="bilinear", antialias=True)[0, 0]
    assert np.abs(resample_image(grey, shape).astype(int) - expected.numpy()).max() <= 1  # of 255


def test_more_voxels_are_those_of_torch_and_scipy() -> None:
    volume, shape = np.random.default_rng(0).random((7, 12, 9), np.float32), (11, 30, 10)
    resampled = resample_image(volume, shape)
    expected = F.interpolate(torch.from_numpy(volume)[None, None], shape, mode="trilinear", align_corners=False)[0, 0]
    np.testing.assert_allclose(resampled, expected.numpy(), atol=1e-6)
    zoom = np.divide(shape, volume.shape)
    expected = ndimage.zoom(volume, zoom, order=1, mode="nearest", grid_mode=True)
    np.testing.assert_allclose(resampled, expected, atol=1e-6)


def test_fewer_voxels_average_all_they_stand_for() -> None:
    volume = np.random.default_rng(0).random((40, 40, 40), np.float32)
    assert resample_image(volume, (10, 10, 10)).std() < 0.3 * volume.std()
    assert resample_image(volume, (10, 10, 10)).mean() == pytest.approx(volume.mean(), abs=1e-3)


@pytest.mark.parametrize("shape", [(224, 224), (31, 77), (100, 400)])
def test_labels_are_those_of_pillow(shape: tuple[int, int]) -> None:
    """But for ties: a new centre on the edge between two old pixels belongs to both."""
    labels = np.random.default_rng(0).integers(0, 9, (91, 131), np.uint8)
    tied = [[(2 * i + 1) * old % (2 * new) == 0 for i in range(new)] for old, new in zip(labels.shape, shape)]  # noqa: B905
    expected = np.asarray(Image.fromarray(labels).resize(shape[::-1], Image.Resampling.NEAREST))
    same = resample_labels(labels, shape) == expected
    assert same[np.ix_(*(~np.array(axis) for axis in tied))].all()


def test_the_same_grid_changes_nothing() -> None:
    image = np.random.default_rng(0).random((4, 5, 6), np.float32)
    assert resample_image(image, (4, 5, 6)) is image


def test_colour_stays_as_it_is() -> None:
    image = np.arange(12, dtype=np.uint8).reshape(3, 2, 2)
    assert to_unit(image, "colour", WINDOW) is image
    with pytest.raises(DataError, match="8 bits a channel, this one is uint16"):
        to_unit(image.astype(np.uint16), "colour", WINDOW)


def test_mr_fills_the_unit_range_in_every_modality() -> None:
    image = np.stack([np.linspace(-50, 700, 24), np.linspace(3, 4, 24), np.full(24, 9)]).reshape(3, 2, 3, 4)
    unit = to_unit(image, "mr", WINDOW)
    assert unit.dtype == np.float32
    np.testing.assert_allclose(unit[:2].reshape(2, -1), np.tile(np.linspace(0, 1, 24), (2, 1)), atol=1e-6)
    assert (unit[:2].min((1, 2, 3)) == 0).all()
    assert (unit[:2].max((1, 2, 3)) == 1).all()
    assert (unit[2] == 0).all()  # a constant has no range


def test_a_few_bright_voxels_of_mr_can_be_cut_off() -> None:
    ramp = np.linspace(10, 109, 100)
    spoilt = np.append(ramp[:-1], 5000)
    mostly_empty = np.append(np.zeros(99), 7)
    image = np.stack([ramp, spoilt, mostly_empty]).reshape(3, 4, 5, 5)
    unit = to_unit(image, "mr", WINDOW, cut=2).reshape(3, 100)
    assert unit.dtype == np.float32
    bound = np.percentile(np.arange(1, 100), 98)
    np.testing.assert_allclose(unit[0], np.minimum(np.arange(100) / bound, 1), rtol=1e-6)
    np.testing.assert_array_equal(unit[1], unit[0])
    np.testing.assert_array_equal(unit[2], mostly_empty / 7)  # the percent are of what is above the minimum
    assert to_unit(image, "mr", WINDOW).reshape(3, 100)[1, 98] < 0.02


def test_ct_is_clipped_to_the_window() -> None:
    image = np.array([[[-1000, -125, 75, 275, 3000]]], np.int16)
    np.testing.assert_array_equal(to_unit(image, "ct", WINDOW), np.float32([[[0, 0, 0.5, 1, 1]]]))
    assert to_unit(image, "ct", (-160.3, 240.7)).max() == 1


def test_what_is_in_the_unit_range_already_stays() -> None:
    image = np.array([[[0, 0.25, 0.5]]])
    np.testing.assert_array_equal(to_unit(image, "unit", WINDOW), np.float32(image))
    with pytest.raises(DataError, match=r"expected in \[0, 1\] and lies in \[0.0, 1.5\]"):
        to_unit(3 * image, "unit", WINDOW)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_none_are_refused(bad: float) -> None:
    image: NDArray[Any] = np.array([[[0, bad]]])
    with pytest.raises(DataError, match="NaN or infinite"):
        to_unit(image, "mr", WINDOW)
