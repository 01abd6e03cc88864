import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import ndimage

from polydice.data.generate import generate, generated_folder
from polydice.data.readers import open_dataset


@pytest.mark.parametrize(("dims", "classes"), [(2, 2), (2, 5), (3, 2), (3, 3)])
def test_shapes_ranges_and_every_class_in_every_image(dims: Any, classes: int) -> None:
    images, labels = generate(4, size=40, dims=dims, classes=classes, lesion=(2, 6))
    assert images.shape == (4, 1, *(40,) * dims)
    assert images.dtype == np.float32
    assert labels.shape == (4, *(40,) * dims)
    assert labels.dtype == np.uint8
    assert images.min() >= 0
    assert images.max() <= 1
    np.testing.assert_array_equal(np.float32(np.rint(images * 255)) / np.float32(255), images)
    assert all(np.unique(of_one).tolist() == list(range(classes)) for of_one in labels)


def test_the_same_seed_gives_the_same_images_on_every_platform() -> None:
    images, labels = generate(8, size=64, classes=3, label_noise=0.1, seed=7)
    digest = hashlib.sha256(np.rint(images * 255).astype(np.uint8).tobytes() + labels.tobytes()).hexdigest()
    assert digest == "0e0179030d8f4d16677e79371c5fe3240be85ea23dff00408453c3953fd3e87a"


def test_an_image_depends_on_its_place_and_the_seed_alone() -> None:
    few, many, other = generate(2, size=32)[0], generate(5, size=32)[0], generate(2, size=32, seed=1)[0]
    np.testing.assert_array_equal(few, many[:2])
    assert not np.array_equal(few, other)
    assert len({image.tobytes() for image in many}) == 5


def test_label_noise_leaves_the_images_and_costs_as_much_dice_as_it_says() -> None:
    images, true = generate(60)
    for noise in (0.05, 0.1, 0.2, 0.3):
        same, drawn = generate(60, label_noise=noise)
        np.testing.assert_array_equal(same, images)
        dice = 2 * np.count_nonzero(true & drawn) / (np.count_nonzero(true) + np.count_nonzero(drawn))
        assert dice == pytest.approx(1 - noise, abs=0.03)


def test_the_radii_are_those_asked_for() -> None:
    for low, high in ((1.0, 2.0), (3.0, 5.0), (9.0, 12.0)):
        _, labels = generate(60, size=128, lesion=(low, high))
        areas = np.concatenate([np.bincount(ndimage.label(one)[0].flat)[1:] for one in labels])
        radius = np.median(np.sqrt(areas / np.pi))  # a few touch and count as one
        assert low * 0.85 < radius < high * 1.15


def test_lesions_of_a_few_pixels() -> None:
    _, labels = generate(50, lesion=(0.5, 1.0))
    pixels = np.count_nonzero(labels, axis=(1, 2))
    assert pixels.min() >= 1
    assert np.median(pixels) <= 10


def test_the_brightness_tells_lesions_from_the_background_but_not_alone() -> None:
    """The background varies, so that a threshold does not solve the task."""
    images, labels = generate(40)
    inside, outside = images[:, 0][labels == 1], images[:, 0][labels == 0]
    assert inside.mean() - outside.mean() > 1.5 * outside.std()
    best = max(
        2 * (inside > cut).sum() / ((inside > cut).sum() + (outside > cut).sum() + len(inside))
        for cut in np.linspace(0, 1, 101)
    )
    assert best < 0.7


def test_many_small_lesions_are_cells() -> None:
    _, labels = generate(6, size=64, lesion=(1.5, 3.0), lesions=(20, 40))
    parts = [ndimage.label(of_one)[1] for of_one in labels]
    assert all(10 <= count <= 40 for count in parts), "some touch each other"
    _, few = generate(6, size=64, lesion=(1.5, 3.0))
    assert max(ndimage.label(of_one)[1] for of_one in few) <= 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": 4}, "dims must be 2 or 3: 4"),
        ({"classes": 1}, "classes must lie between 2 and 100"),
        ({"lesion": (5.0, 3.0)}, "lesion must be two radii in ascending order"),
        ({"lesion": (3.0, 30.0)}, "up to a quarter of the size 64"),
        ({"lesions": (0, 3)}, "lesions must be two numbers in ascending order, from 1: \\(0, 3\\)"),
        ({"lesions": (5, 3)}, "lesions must be two numbers in ascending order"),
        ({"label_noise": -0.1}, "label_noise must not be negative"),
        ({"size": 16, "classes": 90, "lesion": (4.0, 4.0)}, "do not fit into images of"),
    ],
)
def test_what_cannot_be_made_is_said(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        generate(1, **options)


@pytest.mark.parametrize(
    "options",
    [{}, {"classes": 3, "seed": 4}, {"dims": 3, "size": 24, "classes": 3, "lesion": (2.0, 4.0)}],
    ids=["two classes", "three classes", "volumes"],
)
def test_a_folder_is_read_as_any_other_and_holds_the_images_exactly(tmp_path: Path, options: Any) -> None:
    images, labels = generate(3, **options)
    dataset = open_dataset(generated_folder(tmp_path, 3, **options))
    assert len(dataset.classes) == options.get("classes", 2)
    assert dataset.findings == ()
    assert [case.id for case in dataset.cases] == ["00000", "00001", "00002"]
    for place, case in enumerate(dataset.cases):
        sample = dataset.read(case)
        np.testing.assert_array_equal(sample.image.astype(np.float32) / np.float32(255), images[place])
        np.testing.assert_array_equal(sample.labels, labels[place])
        assert sample.spacing == ((1, 1, 1) if options.get("dims") == 3 else None)


def test_a_folder_is_made_once_for_the_same_options(tmp_path: Path) -> None:
    first = generated_folder(tmp_path, 2, size=32)
    made = (first / "images").stat().st_mtime_ns
    assert generated_folder(tmp_path, 2, size=32) == first
    assert (first / "images").stat().st_mtime_ns == made
    assert generated_folder(tmp_path, 3, size=32) != first
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {
        first.name,
        generated_folder(tmp_path, 3, size=32).name,
    }
