"""Geometry is the point: every label has to lie where its voxel lies in the file.

The networks here are known functions of one pixel, or compared with a pipeline written out by hand.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.inferers.utils import sliding_window_inference
from numpy.typing import NDArray
from PIL import Image
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from polydice.data.prepare import Preparation, prepare
from polydice.data.readers import open_dataset
from polydice.models import build
from polydice.training.inference import Network
from polydice.training.predict import NotAllDoneError, Predictor, load, predict
from polydice.training.windows import OVERLAP
from tests.data import write
from tests.data.conftest import RealSet
from tests.training.networks import SMALL, THRESHOLD, saved, thresholding

ROUNDING = 1e-5  # of a logit: where the reference is nearer to a tie than this, either label is right


def randomly(name: str, channels: int, classes: int) -> nn.Module:
    """Its logits differ enough between classes for a label map to have several."""
    model = build(name, channels, classes, **SMALL).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    return model


def linear(values: NDArray[Any], shape: Sequence[int]) -> NDArray[np.float64]:
    """The last axes brought to `shape`, one after the other: pixel centres on the same extent, constant beyond them."""
    values = values.astype(np.float64)
    for axis, new in enumerate(shape, values.ndim - len(shape)):
        old = values.shape[axis]
        centres = (np.arange(new) + 0.5) * old / new - 0.5
        values = np.apply_along_axis(
            lambda line, old=old, at=centres: np.interp(at, np.arange(old), line), axis, values
        )
    return values


def is_argmax(labels: NDArray[Any], logits: NDArray[np.float64]) -> bool:
    """Whether a label map takes the highest logits `[classes, *spatial]`, up to rounding."""
    taken = np.take_along_axis(logits, labels[None].astype(int), 0)[0]
    return bool((logits.max(0) - taken < ROUNDING).all())


def labels_in(path: Path) -> NDArray[Any]:
    """The label map in the axes of its file."""
    if path.name.endswith((".nii", ".nii.gz")):
        return np.asarray(nib.load(path).dataobj)
    return np.asarray(picture(path))


def picture(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.copy()


def noise(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


# Images


@pytest.mark.parametrize("flips", [False, True])
def test_an_image_of_any_size_is_as_done_by_hand(tmp_path: Path, flips: bool) -> None:
    file = write.picture(tmp_path / "frame.png", noise(37, 53, 3))
    weights = saved(tmp_path / "w", thresholding(3), size=32)
    (written,) = predict(weights, [file], tmp_path / "out", flips=flips)
    resized = picture(file).resize((32, 32), Image.Resampling.BILINEAR)
    reference = linear(np.asarray(resized)[..., 0] / 255 - THRESHOLD, (37, 53))
    assert written == tmp_path / "out" / "frame.png"
    assert picture(written).mode == "L"
    assert np.abs(reference).min() > ROUNDING
    assert np.array_equal(labels_in(written), reference > 0)


def test_a_random_network_is_as_done_by_hand(tmp_path: Path) -> None:
    """Beside flips this tests that the network runs in evaluation mode and that images share a batch unharmed."""
    model = randomly("unet", 3, 4)
    weights = saved(tmp_path / "w", model, classes=4, size=24)
    sizes = {"a": (37, 53), "b": (24, 24), "c": (10, 90)}
    files = [write.picture(tmp_path / f"{name}.png", noise(*size, 3)) for name, size in sizes.items()]
    for batch in (1, 2, 8):
        written = predict(weights, files, tmp_path / "out", flips=True, batch=batch)
        for file, found in zip(files, map(labels_in, written), strict=True):
            small = np.array(picture(file).resize((24, 24), Image.Resampling.BILINEAR)) / np.float32(255)
            image = torch.from_numpy(small).movedim(-1, 0)[None]
            turned = [(), (2,), (3,), (2, 3)]
            with torch.no_grad():
                logits = sum(model(image.flip(axes)).flip(axes) for axes in turned)[0] / 4
            assert len(np.unique(found)) > 1
            assert is_argmax(found, linear(logits.numpy(), found.shape))


def test_a_grey_picture_is_a_coloured_one_for_a_network_that_takes_colours(tmp_path: Path) -> None:
    grey = noise(20, 30)
    write.picture(tmp_path / "grey.png", grey)
    write.picture(tmp_path / "rgb.png", np.repeat(grey[..., None], 3, -1))
    weights = saved(tmp_path / "w", randomly("unet", 3, 4), classes=4, size=16)
    one, other = predict(weights, [tmp_path / "grey.png", tmp_path / "rgb.png"], tmp_path / "out")
    assert np.array_equal(labels_in(one), labels_in(other))


# Volumes


def test_a_volume_is_taken_slice_by_slice(tmp_path: Path) -> None:
    """CT, in Hounsfield units that the file's own scale makes of its numbers."""
    image = nib.Nifti1Image(np.random.default_rng(0).integers(-500, 800, (13, 9, 5)).astype(np.int16), np.eye(4))
    image.header.set_slope_inter(0.5, 3)
    nib.save(image, tmp_path / "a.nii.gz")
    weights = saved(tmp_path / "w", thresholding(), intensity="ct", size=16, window=(-100, 300))
    (written,) = predict(weights, [tmp_path / "a.nii.gz"], tmp_path / "out")
    unit = ((np.asarray(nib.load(tmp_path / "a.nii.gz").dataobj).clip(-100, 300) + 100) / 400).astype(np.float32)
    planes = [Image.fromarray(plane).resize((16, 16), Image.Resampling.BILINEAR) for plane in unit.T]
    reference = np.stack([linear(np.asarray(plane).T - THRESHOLD, (13, 9)) for plane in planes], axis=-1)
    assert is_argmax(labels_in(written), np.stack([np.zeros_like(reference), reference]))


def cube(*shape: int) -> tuple[NDArray[np.int16], tuple[slice, ...]]:
    """Off the centre along every axis, as bright as MR may be, in noise."""
    place = tuple(
        slice(round(0.2 * side), round(share * side)) for side, share in zip(shape, (0.5, 0.4, 0.8), strict=True)
    )
    volume = np.random.default_rng(0).integers(100, 300, shape).astype(np.int16)
    volume[place] = 1000
    return volume, place


def extent(labels: NDArray[Any]) -> NDArray[np.int64]:
    """`[axes, 2]`: where the foreground begins and ends."""
    found = np.argwhere(labels)
    return np.stack([found.min(0), found.max(0) + 1], axis=1)


@pytest.mark.parametrize("size", [16, 40, 96])
def test_slices_of_a_volume_are_found_where_they_are(tmp_path: Path, size: int) -> None:
    volume, place = cube(31, 45, 12)
    nib.save(nib.Nifti1Image(volume, np.eye(4)), tmp_path / "a.nii.gz")
    (written,) = predict(
        saved(tmp_path / "w", thresholding(), intensity="mr", size=size), [tmp_path / "a.nii.gz"], tmp_path / "out"
    )
    error = extent(labels_in(written)) - [[axis.start, axis.stop] for axis in place]
    assert np.abs(error).max() <= 1
    assert not error[2].any()  # slices are not resampled


def pointwise(patch: tuple[int, int, int] | None, spacing: tuple[float, float, float] | None = None) -> Predictor:
    """In 3D, the function of `thresholding`."""
    model = nn.Conv3d(1, 2, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([0.0, 1]).view(2, 1, 1, 1, 1))
        model.bias.copy_(torch.tensor([0, -THRESHOLD]))
    return Predictor(Network(model, patch), 1, ("background", "cube"), "mr", Preparation(3, spacing=spacing))


@pytest.mark.parametrize("spacing", [(2.0, 1.0, 0.8), (1.0, 1.0, 1.0), (3.1, 2.2, 0.5)])
def test_volumes_are_found_where_they_are(spacing: tuple[float, float, float]) -> None:
    volume, place = cube(24, 30, 50)
    predictor = pointwise((16, 16, 16), spacing)
    (ready,) = predictor.prepared(volume[None], (2.0, 1.0, 0.8))
    labels = predictor.volume_labels(torch.from_numpy(ready), volume.shape, batch=2)
    assert ready.shape[1:] == tuple(
        round(n * a / b) for n, a, b in zip(volume.shape, (2.0, 1.0, 0.8), spacing, strict=True)
    )
    assert np.abs(extent(labels) - [[axis.start, axis.stop] for axis in place]).max() <= 1


@pytest.mark.parametrize("shape", [(21, 30, 19), (5, 40, 16), (3, 4, 5)])
def test_windows_change_nothing_for_a_network_that_sees_one_voxel(shape: tuple[int, ...]) -> None:
    """Some volumes here are smaller than the window along some axes, or all."""
    volume, wanted = torch.rand(1, *shape), [2 * side - 1 for side in shape]
    whole = pointwise(None).volume_labels(volume, wanted, batch=1)
    reference = linear(volume[0].numpy() - THRESHOLD, wanted)
    assert is_argmax(whole, np.stack([np.zeros_like(reference), reference]))
    for flips in (False, True):
        windows = replace(pointwise((8, 16, 16)), flips=flips).volume_labels(volume, wanted, batch=3)
        assert is_argmax(windows, np.stack([np.zeros_like(reference), reference]))


def test_a_3d_network_is_as_done_by_hand(tmp_path: Path) -> None:
    volume = noise(2, 12, 20, 17).astype(np.int16)
    file = write.volume(tmp_path / "a.nii.gz", volume, (3.0, 1.0, 1.5))
    model = randomly("unet3d", 2, 3)
    weights = saved(
        tmp_path / "w", model, "unet3d", 3, "mr", patch=(64, 64, 64), dims=3, spacing=(1.5, 1.5, 1.5)
    )  # fmt: skip
    (written,) = predict(weights, [file], tmp_path / "out")
    predictor = load(weights)
    (ready,) = predictor.prepared(volume, (3.0, 1.0, 1.5))
    assert ready.shape == (2, 24, 13, 17)
    window = np.zeros((2, 64, 64, 64), np.float32)  # the volume in the middle of one window
    inside = tuple(slice((64 - side) // 2, (64 - side) // 2 + side) for side in ready.shape[1:])
    window[:, *inside] = ready
    with torch.no_grad():
        logits = model(torch.from_numpy(window)[None])[0].numpy()[:, *inside]
    found = labels_in(written).T
    assert len(np.unique(found)) > 1
    assert is_argmax(found, linear(logits, (12, 20, 17)))


class LargestTensor(TorchDispatchMode):
    """While it is entered, the bytes of the largest tensor that is made."""

    largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor):
            self.largest = max(self.largest, found.nbytes)
        return found


def test_a_large_volume_is_not_held_in_memory_once_for_each_class() -> None:
    network = Network(nn.Conv3d(1, 9, 1))
    predictor = Predictor(network, 1, tuple("abcdefghi"), "mr", Preparation(3))
    with LargestTensor() as memory:
        labels = predictor.volume_labels(torch.rand(1, 4, 32, 32), (30, 256, 256), batch=1)
    assert labels.shape == (30, 256, 256)
    assert memory.largest <= 9 * 256 * 256 * 4  # of one slice


def test_of_many_classes_only_features_are_kept_and_only_as_deep_as_a_window() -> None:
    """No tensor is larger than the logits of one of the 96 planes."""
    predictor = many_classes(flips=False)
    with LargestTensor() as memory:
        predictor.volume_labels(torch.rand(1, 96, 24, 24), (96, 24, 24), batch=1)
    assert memory.largest == 118 * 24 * 24 * 4
    assert predictor.network.late is not None


def many_classes(flips: bool) -> Predictor:
    network = Network(randomly("dynunet", 1, 118), (16, 16, 16))
    return Predictor(network, 1, tuple(map(str, range(118))), "mr", Preparation(3), flips)


@pytest.mark.parametrize("flips", [False, True])
def test_the_head_may_come_last(flips: bool) -> None:
    """As with logits of every window, brought to the grid as a whole; where the two highest are nearer to each other
    than rounding, either is right."""
    predictor, volume, shape = many_classes(flips), torch.rand(1, 24, 20, 30), (31, 20, 41)
    found = predictor.volume_labels(volume, shape, batch=3)

    def logits(windows: torch.Tensor) -> torch.Tensor:
        flipped = [(), (2,), (3,), (4,), (2, 3), (2, 4), (3, 4), (2, 3, 4)][: 8 if flips else 1]
        return sum(predictor.network.module(windows.flip(axes)).flip(axes) for axes in flipped) / len(flipped)

    with torch.no_grad():
        whole = sliding_window_inference(volume[None], (16, 16, 16), 3, logits, OVERLAP, mode="gaussian")[0]
    assert len(np.unique(found)) > 3
    assert is_argmax(found, linear(whole.numpy(), shape))


def test_the_head_may_come_last_in_pictures(tmp_path: Path) -> None:
    model = randomly("unet", 3, 4)
    assert Network(model).late is None
    wide = build("unet", 3, 4, width=2, depth=2).eval()
    weights = saved(tmp_path / "w", wide, classes=4, size=24, options={"width": 2, "depth": 2})
    file = write.picture(tmp_path / "a.png", noise(37, 53, 3))
    (written,) = predict(weights, [file], tmp_path / "out")
    image = np.array(picture(file).resize((24, 24), Image.Resampling.BILINEAR)) / np.float32(255)
    with torch.no_grad():
        logits = wide(torch.from_numpy(image).movedim(-1, 0)[None])[0]
    assert load(weights).network.late is not None
    assert is_argmax(labels_in(written), linear(logits.numpy(), (37, 53)))


def test_without_resampling_it_is_what_validation_computes(tmp_path: Path) -> None:
    weights = saved(tmp_path / "w", randomly("unet3d", 1, 3), "unet3d", 3, "mr", patch=(16, 16, 16), dims=3)
    predictor, volume = load(weights), torch.rand(1, 24, 20, 30)
    found = predictor.volume_labels(volume, volume.shape[1:], batch=3)
    assert np.array_equal(found, predictor.network.segment(volume[None])[0].numpy())


def test_channels_in_files_of_their_own(tmp_path: Path) -> None:
    """The network looks at the first, where the cube is."""
    volume, place = cube(12, 31, 45)
    write.volume(tmp_path / "in" / "a_0000.nii.gz", volume, (2.0, 1.0, 1.0))
    write.volume(tmp_path / "in" / "a_0001.nii.gz", noise(12, 31, 45), (2.0, 1.0, 1.0))
    write.volume(tmp_path / "in" / "alone_0000.nii", volume)
    write.volume(tmp_path / "in" / "both_0012.nii", np.stack([volume, volume]))
    weights = saved(tmp_path / "w", thresholding(2), intensity="mr", size=64)
    with pytest.raises(NotAllDoneError) as failed:
        predict(weights, [tmp_path / "in"], tmp_path / "out")
    (problem,) = failed.value.problems
    assert problem.endswith(
        "alone_0000.nii: it has 1 channel, but the network takes 2, in one file or as CASE_0000, CASE_0001, ..."
    )
    assert [path.name for path in failed.value.written] == ["a.nii.gz", "both_0012.nii"]
    for path in failed.value.written:
        assert np.abs(extent(labels_in(path).T) - [[axis.start, axis.stop] for axis in place]).max() <= 1


def test_frames_of_a_video_are_not_channels(tmp_path: Path) -> None:
    for frame in range(3):
        write.picture(tmp_path / "in" / f"video_000{frame}.png", noise(20, 30, 3))
    written = predict(saved(tmp_path / "w", thresholding(3), size=16), [tmp_path / "in"], tmp_path / "out")
    assert [path.name for path in written] == [f"video_000{frame}.png" for frame in range(3)]


def test_a_picture_is_no_volume(tmp_path: Path) -> None:
    weights = saved(tmp_path / "w", randomly("unet3d", 1, 2), "unet3d", 2, "mr", (8, 8, 8), dims=3)
    with pytest.raises(NotAllDoneError, match=r"a\.png: it is a single image, but the network takes volumes"):
        predict(weights, [write.picture(tmp_path / "a.png", noise(20, 30))], tmp_path / "out")


# The images are those of training


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("kvasir-seg", Preparation(size=96)),
        ("acdc", Preparation(size=64)),
        ("acdc", Preparation(size=64, cut=0.5)),
        ("Task04_Hippocampus", Preparation(3)),
        ("Task04_Hippocampus", Preparation(3, spacing=(1.5, 0.8, 2.0))),
    ],
)
def test_a_network_gets_what_it_got_in_training(
    real_set: RealSet, tmp_path: Path, name: str, settings: Preparation
) -> None:
    dataset = open_dataset(real_set(name))
    dataset = replace(dataset, cases=dataset.cases[:3])
    prepared = prepare(dataset, settings, tmp_path)
    predictor = replace(pointwise(None), settings=prepared.settings, intensity=dataset.intensity)
    for case, known in zip(dataset.cases, prepared.cases, strict=True):
        image, _, spacing, _ = dataset.read(case)
        found = predictor.prepared(image, spacing)
        assert len(found) == len(known.items)
        for item, one in zip(known.items, found, strict=True):
            assert np.array_equal(one, prepared.item(item)[0])


@pytest.mark.parametrize("name", ["kvasir-seg", "acdc", "Task04_Hippocampus"])
def test_real_files(real_set: RealSet, tmp_path: Path, name: str) -> None:
    dataset = open_dataset(real_set(name))
    files = [file for case in dataset.cases[:3] for file in case.images]
    if name == "kvasir-seg":
        weights = saved(tmp_path / "w", randomly("unet", 3, 2), size=64)
    elif name == "acdc":
        weights = saved(tmp_path / "w", randomly("unet", 1, 4), classes=4, intensity="mr", size=64)
    else:
        weights = saved(tmp_path / "w", randomly("unet3d", 1, 3), "unet3d", 3, "mr", (32, 32, 32), dims=3)
    written = predict(weights, files, tmp_path / "out", overlay=True)
    assert len(written) == 3
    for file, target in zip(files, written, strict=True):
        if name == "kvasir-seg":
            assert picture(target).size == picture(file).size
        else:
            given, found = nib.load(file), nib.load(target)
            assert found.shape == given.shape
            assert np.array_equal(found.affine, given.affine)
            assert found.header.get_zooms() == given.header.get_zooms()
        assert picture(target.with_name(target.name.partition(".")[0] + "_overlay.png")).mode == "RGB"
