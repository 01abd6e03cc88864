"""Small files in the formats people have."""

import json
from pathlib import Path

import h5py
import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from PIL import Image


def picture(path: Path, array: NDArray[np.generic], **options: object) -> Path:
    """`[y, x]` or `[y, x, 3]` as PNG, JPEG, TIFF, BMP or GIF."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path, **options)
    return path


def volume(path: Path, array: NDArray[np.generic], spacing: tuple[float, ...] | None = None) -> Path:
    """`[z, y, x]` or `[channels, z, y, x]` as NIfTI; without a spacing it has an identity matrix and no unit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = nib.Nifti1Image(array.T, np.diag([*(spacing or (1, 1, 1))[::-1], 1]))
    if spacing:
        image.header.set_xyzt_units("mm")
    nib.save(image, path)
    return path


def archive(path: Path, **arrays: NDArray[np.generic]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file[name] = array
    return path


REGIONS = {"background": 0, "organ": [1, 2], "tumour": [2], "ignore": 3}


def regions(folder: Path, dims: int, cases: int = 6) -> Path:
    """As nnU-Net has them: discs or balls, the organ, with a brighter core, the tumour, in noise. A stripe of every
    mask is void, and the image is another one there."""
    shape, random = (12, 24, 24)[-dims:], np.random.default_rng(0)
    place = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), -1)
    for case in range(cases):
        centre = np.array(shape) / 2 + random.uniform(-2, 2, dims)
        distance = np.linalg.norm((place - centre) / np.array(shape), axis=-1)
        labels = (distance < 0.35).astype(np.uint8) + (distance < 0.18).astype(np.uint8)
        image = np.array([40, 120, 220])[labels] + random.normal(0, 8, shape)
        labels[..., :3], image[..., :3] = 3, random.uniform(0, 255, image[..., :3].shape)
        grey = image.clip(0, 255).astype(np.uint8)
        if dims == 2:
            picture(folder / "imagesTr" / f"{case}_0000.png", grey)
            picture(folder / "labelsTr" / f"{case}.png", labels)
        else:
            volume(folder / "imagesTr" / f"{case}_0000.nii.gz", grey, spacing=(2, 1, 1))
            volume(folder / "labelsTr" / f"{case}.nii.gz", labels, spacing=(2, 1, 1))
    about = {"channel_names": {"0": "grey"}, "labels": REGIONS, "regions_class_order": [1, 2]}
    (folder / "dataset.json").write_text(json.dumps(about))
    return folder
