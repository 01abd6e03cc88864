"""Small files in the formats people have."""

from pathlib import Path

import h5py
import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from PIL import Image


def picture(path: Path, array: NDArray[np.generic], **options: object) -> Path:
    """`[y, x]` or `[y, x, 3]` as PNG, JPEG, TIFF or BMP."""
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
