"""Generated images: lesions with irregular outlines on a textured background, in two or three dimensions.

Image i of a seed is the same however many are made and whatever the label noise.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, Unpack

import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy import ndimage

from polydice.data.cache import publish, short_hash
from polydice.values import Count, NotNegative, Positive, Range, Seed

Field = NDArray[np.float64]

VERSION = 1  # to be raised whenever the same options would give other images
BRIGHTNESS = 0.4  # of the background
IRREGULARITY = 0.2  # standard deviation of the outline about an ellipse, as a fraction of the radius


class Options(TypedDict, total=False):
    """What `generate` can be asked for besides the number of images."""

    size: Count  # pixels along each edge
    dims: Literal[2, 3]
    classes: Annotated[int, Range(2, 100)]  # the background included
    lesion: tuple[Positive, Positive]  # the smallest and the largest radius, in pixels
    lesions: tuple[Count, Count]  # the fewest and the most of each class in an image
    label_noise: NotNegative  # how far the drawn outline is off, as a fraction of the radius
    seed: Seed


def generate(
    count: int,
    *,
    size: int = 64,
    dims: Literal[2, 3] = 2,
    classes: int = 2,
    lesion: tuple[float, float] = (3.0, 8.0),
    lesions: tuple[int, int] = (1, 3),
    label_noise: float = 0.0,
    seed: int = 0,
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """Images `[count, 1, *(size,) * dims]` in [0, 1], multiples of 1/255, and labels `[count, *(size,) * dims]`.

    Every image has one to three lesions of each class but the background, or as many as `lesions` says: many small ones
    look like cells. `label_noise` ν moves a lesion's outline in the labels, not in the image: as a whole by ν radii
    along each axis, and every stretch of it by ν radii more, both standard deviations of normal numbers. In two
    dimensions the Dice coefficient with the true labels is about 1 − ν.

    >>> images, labels = generate(3, size=32, classes=4)
    >>> images.shape, labels.shape, np.unique(labels).tolist()
    ((3, 1, 32, 32), (3, 32, 32), [0, 1, 2, 3])
    """
    if dims not in (2, 3):
        raise ValueError(f"dims must be 2 or 3: {dims}")
    if not 2 <= classes <= 100:
        raise ValueError(f"classes must lie between 2 and 100, the background included: {classes}")
    if not 0 < lesion[0] <= lesion[1] <= size / 4:
        raise ValueError(f"lesion must be two radii in ascending order, up to a quarter of the size {size}: {lesion}")
    if not 1 <= lesions[0] <= lesions[1]:
        raise ValueError(f"lesions must be two numbers in ascending order, from 1: {lesions}")
    if label_noise < 0:
        raise ValueError(f"label_noise must not be negative: {label_noise}")
    shape = (size,) * dims
    images, labels = np.empty((count, 1, *shape), np.float32), np.empty((count, *shape), np.uint8)
    for place in range(count):
        picture, labels[place] = _picture(shape, classes, lesion, lesions, label_noise, (seed, place))
        images[place, 0] = np.rint(picture.clip(0, 1) * 255) / 255
    return images, labels


def _picture(
    shape: tuple[int, ...], classes: int, lesion: tuple[float, float], lesions: tuple[int, int], label_noise: float,
    seed: tuple[int, int],
) -> tuple[Field, NDArray[np.uint8]]:  # fmt: skip
    random, error = np.random.default_rng((*seed, 0)), np.random.default_rng((*seed, 1))
    picture = _background(random, shape)
    true, drawn = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
    for label in np.repeat(np.arange(1, classes), random.integers(lesions[0], lesions[1] + 1, classes - 1)):
        radius = random.uniform(*lesion)
        centre = _free_place(random, true, radius)
        rotation = np.linalg.qr(random.standard_normal((len(shape), len(shape))))[0]
        stretch = rotation * random.uniform(0.75, 1.25, len(shape))
        outline = radius * (1 + IRREGULARITY * _texture(random, shape, radius / 1.5))
        depth = outline - _distance(shape, centre, stretch)  # inside the lesion, in pixels
        free = true == 0  # no lesion covers another
        share = free * (depth + 0.5).clip(0, 1)  # a pixel on the outline is lesion in part
        contrast = _contrast(label, classes) * random.uniform(0.75, 1.25)
        picture += share * (contrast + (BRIGHTNESS - picture) / 2)  # the tissue shows through by half
        true[free & (depth > 0)] = label

        if label_noise > 0:
            centre += label_noise * radius * error.standard_normal(len(shape))
            outline += label_noise * radius * _texture(error, shape, radius / 1.5)
            depth = outline - _distance(shape, centre, stretch)
        drawn[(drawn == 0) & (depth > 0)] = label
    return picture + 0.03 * random.standard_normal(shape), drawn


def _background(random: np.random.Generator, shape: tuple[int, ...]) -> Field:
    """Uneven light, patchy tissue, thin bright vessels and grain."""
    light, tissue = _texture(random, shape, shape[0] / 4), _texture(random, shape, shape[0] / 24)
    vessels = (1 - np.abs(_texture(random, shape, shape[0] / 12)) / 0.12).clip(0, 1)
    return BRIGHTNESS + 0.06 * light + 0.06 * tissue + 0.12 * vessels + 0.04 * _texture(random, shape, 0.8)


def _texture(random: np.random.Generator, shape: tuple[int, ...], scale: float) -> Field:
    """Normal numbers of deviation 1, alike within about `scale` pixels."""
    field: Field = ndimage.gaussian_filter(random.standard_normal(shape), scale, mode="wrap")
    field /= field.std()
    return field


def _contrast(label: int, classes: int) -> float:
    """Odd labels are brighter than the background, even ones darker; of each, the later the more."""
    rank, ranks = (label - 1) // 2, classes // 2
    return (0.25 + 0.15 * rank / max(1, ranks - 1)) * (1 if label % 2 else -1)


def _free_place(random: np.random.Generator, labels: NDArray[np.uint8], radius: float) -> Field:
    """A pixel of the background, no nearer to the edge of the image than `radius`."""
    inner = np.zeros(labels.shape, bool)
    inner[(slice(int(radius), -int(radius) or None),) * labels.ndim] = True
    places = np.flatnonzero(inner & (labels == 0))
    if len(places) == 0:
        raise ValueError(f"the lesions do not fit into images of {labels.shape}: make those larger or these smaller")
    return np.array(np.unravel_index(random.choice(places), labels.shape), float)


def _distance(shape: tuple[int, ...], centre: Field, stretch: Field) -> Field:
    """Of each pixel from `centre`, along axes turned and stretched."""
    away = np.moveaxis(np.indices(shape, float), 0, -1) - centre
    distance: Field = np.linalg.norm(away @ stretch, axis=-1)
    return distance


def generated_folder(parent: Path, count: int, **options: Unpack[Options]) -> Path:
    """A folder below `parent` with `images/` and `masks/`, holding what `generate` makes; not made a second time.

    Images are PNG, masks too: 0 and 255, or with more than two classes the labels. Volumes are NIfTI, 1 mm a voxel.
    """
    dims, classes = options.get("dims", 2), options.get("classes", 2)
    folder = parent / f"generated-{dims}d-{short_hash(json.dumps((VERSION, count, options), sort_keys=True))}"

    def fill(partial: Path) -> None:
        names = ["background", *(f"lesion {label}" for label in range(1, classes))]
        (partial / "classes.txt").write_text("\n".join(names) + "\n")
        (partial / "images").mkdir()
        (partial / "masks").mkdir()
        for place, (image, labels) in enumerate(zip(*generate(count, **options), strict=True)):
            _save(partial / "images" / f"{place:05d}", np.rint(image[0] * 255))
            _save(partial / "masks" / f"{place:05d}", labels * (255 if classes == 2 else 1))

    if not folder.exists():
        publish(folder, fill)
    return folder


def _save(path: Path, array: NDArray[Any]) -> None:
    array = array.astype(np.uint8)
    if array.ndim == 2:
        Image.fromarray(array).save(path.with_suffix(".png"))
    else:
        volume: Any = nib.Nifti1Image(array.T, np.eye(4))  # type: ignore[no-untyped-call]
        volume.header.set_xyzt_units("mm")  # an identity matrix without a unit says that the spacing is not known
        nib.save(volume, path.with_suffix(".nii"))
