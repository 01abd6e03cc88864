"""One image file to an array: PNG, JPEG, TIFF, BMP, GIF, NIfTI, and HDF5 or NumPy archives that hold image and labels.

Whatever a file does on the way, the only exception that leaves here is `UnreadableFile`. A file may come from anybody:
nothing is read from another file that it points to, and it takes no more memory than its header claims, within LARGEST.
"""

import gzip
import math
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from os.path import relpath
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import h5py
import nibabel as nib
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageSequence, UnidentifiedImageError

from polydice.data.cases import DataError

Array = NDArray[np.generic]
Labels = NDArray[np.integer]
Spacing = tuple[float, ...] | None

PICTURES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".gif")
FORMATS = "PNG, JPEG, TIFF, BMP, GIF or NIfTI"  # PICTURES and VOLUMES, in words
VOLUMES = (".nii.gz", ".nii")
ARCHIVES = (".h5", ".hdf5", ".npz")
PNG_END = b"IEND\xaeB`\x82"
# What holds images too, and is not read; and what can be done about it.
UNREAD = {
    **dict.fromkeys((".webp", ".ppm", ".pgm", ".jp2"), "save it as PNG"),
    **dict.fromkeys((".npy", ".mat"), "save it as PNG or TIFF, or a volume as NIfTI"),
    **dict.fromkeys((".dcm", ".mha", ".mhd", ".nrrd"), "convert it to NIfTI"),
}
LARGEST = 2**33  # bytes of an array that is stored compressed: far above any scan, far below what 8 MB can grow to
# A file that unpacks to more than so many bytes, and to more than so many times its own size, is made to fill memory.
LARGE, GROWTH = 2**30, 500
PIECE = 2**20  # bytes that are unzipped at once
PADDING = 2**20  # bytes that some programs write after the last voxel
ORIENTATION = 0x0112  # of EXIF: 1 is upright


class UnreadableFile(DataError):  # noqa: N818, as it says what it is
    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path, self.reason = path, reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def ending(path: Path) -> str:
    """The kind of a file by its name, in lower case.

    >>> ending(Path("case.1.NII.GZ")), ending(Path("frame.png"))
    ('.nii.gz', '.png')
    """
    name = path.name.lower()
    return ".nii.gz" if name.endswith(".nii.gz") else path.suffix.lower()


def stem(path: Path) -> str:
    """The name without its ending.

    >>> stem(Path("case.1.nii.gz"))
    'case.1'
    """
    return path.name[: len(path.name) - len(ending(path))]


def below(folder: Path, path: Path) -> str:
    """How a file of a set is called in what is told about the set.

    >>> below(Path("set"), Path("set/images/1.png"))
    'images/1.png'
    """
    return Path(relpath(path, folder)).as_posix()


def read_image(path: Path) -> tuple[Array, Spacing]:
    """The image `[channels, *spatial]` and the millimetres along each spatial axis, None where the file has none."""
    with _reading(path):
        if ending(path) in VOLUMES:
            array, spacing = _volume(path)
            return (array if array.ndim == 4 else array[None]), spacing
        return _picture(path, palette=False), None


def read_images(paths: Sequence[Path]) -> tuple[Array, Spacing]:
    """One image whose channels lie in several files, and its spacing, which is the first one's."""
    images = [read_image(path) for path in paths]
    first, spacing = images[0]
    for path, (image, _) in zip(paths, images, strict=True):
        if image.shape[1:] != first.shape[1:]:
            raise UnreadableFile(path, f"is {image.shape[1:]} in size, but {paths[0].name} is {first.shape[1:]}")
    return np.concatenate([image for image, _ in images]), spacing


def read_mask(path: Path) -> Labels:
    """The labels `[*spatial]`, as the file holds them: 255 stays 255."""
    with _reading(path):
        if ending(path) in VOLUMES:
            array = _volume(path)[0]
            if array.ndim == 4 and len(array) != 1:
                raise UnreadableFile(path, f"has {len(array)} channels: a mask holds one label per voxel")
            return _integers(path, array[0] if array.ndim == 4 else array)
        array = _picture(path, palette=True)
        if (array != array[:1]).any():
            raise UnreadableFile(path, "is coloured: a mask holds one label per pixel, not colours")
        return _integers(path, array[0])


def read_archive(path: Path) -> tuple[Array, Labels]:
    """The arrays `image` `[1, *spatial]` and `label` `[*spatial]` of an HDF5 or NumPy archive."""
    with _reading(path):
        if ending(path) == ".npz":
            with ZipFile(path) as zipped, np.load(path) as archive:  # NumPy takes what is no archive for a pickle
                _bounded(path, max((member.file_size for member in zipped.infolist()), default=0))
                found = {key: archive[key] for key in ("image", "label") if key in archive}
                keys = list(archive)
        else:
            with h5py.File(path) as archive:
                keys = list(archive)
                found = {key: _own_array(path, archive, key) for key in ("image", "label") if key in keys}
        if len(found) < 2:
            raise UnreadableFile(path, f"must hold 'image' and 'label', but holds {', '.join(keys) or 'nothing'}")
        return _real(path, found["image"])[None], _integers(path, found["label"])


def picture_remarks(path: Path) -> list[str]:
    """What a viewer would show otherwise than it is read."""
    remarks = []
    with _reading(path):
        content = path.read_bytes()
        with Image.open(BytesIO(content)) as image:
            told = image.format != "PNG" or b"eXIf" in content  # without a look, Pillow decodes a PNG to its end
            if told and (turned := image.getexif().get(ORIENTATION, 1)) in range(2, 9):
                what = "is to be turned when it is shown, by its EXIF data, but is read as it lies"
                remarks.append(f"{what} (orientation {turned})")
            if image.has_transparency_data and image.convert("RGBA").getchannel("A").getextrema() == (0, 0):
                remarks.append("is fully transparent: one sees nothing, and what lies under it is read")
    return remarks


def tally(labels: Labels) -> dict[int, int]:
    """How many pixels hold each value.

    >>> tally(np.array([[0, 0], [0, 7]]))
    {0: 3, 7: 1}
    """
    total: Counter[int] = Counter()
    flat = labels.reshape(-1)
    for start in range(0, flat.size, 2**22):  # a part at a time, as bincount makes 8 bytes of each label
        part = flat[start : start + 2**22]
        if part.min() >= 0 and part.max() < 2**16:
            counts = np.bincount(part)
            values = np.flatnonzero(counts)
            counts = counts[values]
        else:
            values, counts = np.unique(part, return_counts=True)
        total.update(dict(zip(values.tolist(), counts.tolist(), strict=True)))
    return dict(sorted(total.items()))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except UnreadableFile:
        raise
    except Exception as error:  # decoders raise anything, SyntaxError and struct.error among them
        raise UnreadableFile(path, _reason(path, error)) from error


def _reason(path: Path, error: Exception) -> str:
    if not path.is_file():
        return "is not there"
    if path.stat().st_size == 0:
        return "is empty"
    if isinstance(error, UnidentifiedImageError | BadZipFile):
        return f"is not {ending(path)}, or damaged"
    told = " ".join(str(error).split())
    return f"is damaged or truncated: {told}" if isinstance(error, EOFError | zlib.error) else f"cannot be read: {told}"


def _bounded(path: Path, size: int) -> int:
    if not 0 <= size <= LARGEST:
        raise UnreadableFile(path, f"claims to hold {size} bytes, where at most {LARGEST} are read")
    if size > max(LARGE, GROWTH * path.stat().st_size):
        what = f"claims to hold {size} bytes, more than {GROWTH} times its own: is not read, as it may fill the memory"
        raise UnreadableFile(path, f"{what} (if it is sound, save it uncompressed)")
    return size


def _own_array(path: Path, archive: Any, key: str) -> Array:
    """An array that lies in the HDF5 file itself: links, storage and virtual arrays can name any other file."""
    if isinstance(archive.get(key, getlink=True), h5py.ExternalLink):
        raise UnreadableFile(path, f"has {key!r} in another file, which is not read: copy it into this one")
    found = archive[key]
    if not isinstance(found, h5py.Dataset):
        raise UnreadableFile(path, f"has a group {key!r} where an array is expected")
    if found.external or found.is_virtual or found.file.filename != archive.filename:
        raise UnreadableFile(path, f"has {key!r} in another file, which is not read: copy it into this one")
    _bounded(path, found.nbytes)
    array: Array = np.asarray(found[()])
    return array


def _picture(path: Path, palette: bool) -> Array:
    """`[channels, y, x]`, or `[channels, page, y, x]` of a TIFF with several pages."""
    content = path.read_bytes()
    with Image.open(BytesIO(content)) as image:
        ends = {"PNG": PNG_END in content, "GIF": content.rstrip(b"\0\r\n").endswith(b";")}
        if not ends.get(image.format or "", True):  # Pillow does not mind, as long as all pixels are there
            raise UnreadableFile(path, "is truncated: its end is missing")
        if image.format == "GIF" and (frames := getattr(image, "n_frames", 1)) > 1:
            raise UnreadableFile(path, f"is a film of {frames} frames: save those that are meant as PNG")
        pages = ImageSequence.Iterator(image) if image.format == "TIFF" else [image]
        arrays = [np.asarray(_plain(page, palette)) for page in pages]
    if len({array.shape for array in arrays}) > 1:
        raise UnreadableFile(path, f"has {len(arrays)} pages of different sizes")
    array = np.stack(arrays) if len(arrays) > 1 else arrays[0]
    colours = array.ndim == (4 if len(arrays) > 1 else 3)
    return np.ascontiguousarray(np.moveaxis(array, -1, 0)) if colours else array[None]


def _plain(image: Image.Image, palette: bool) -> Image.Image:
    """Grey or RGB; a mask keeps the indices of its palette, which are the labels. But a GIF has nothing else than
    palettes: one of greys stands for these."""
    if image.mode in ("1", "LA") or (image.format == "GIF" and image.mode == "P" and _is_grey(image)):
        return image.convert("L")
    if (image.mode == "P" and palette) or image.mode in ("L", "RGB", "I", "F") or image.mode.startswith("I;"):
        return image
    return image.convert("RGB")


def _is_grey(image: Image.Image) -> bool:
    """By its palette and not by its pixels: a label must not mean another thing in a mask that lacks the others."""
    colours = np.array(image.getpalette("RGB") or []).reshape(-1, 3)
    return bool((colours == colours[:, :1]).all())


def _volume(path: Path) -> tuple[Array, Spacing]:
    """`[z, y, x]`, or `[channels, z, y, x]`: a NIfTI's axes turned round, nothing else."""
    content = _unzipped(path) if ending(path) == ".nii.gz" else path.read_bytes()
    image = _version(content).from_bytes(content)
    array = _real(path, np.asanyarray(image.dataobj))
    if array.ndim == 5 and array.shape[3] == 1:  # vectors, as ITK writes channels
        array = array[:, :, :, 0]
    if array.dtype.fields or array.ndim not in (2, 3, 4):
        raise UnreadableFile(path, f"must hold numbers along 2, 3 or 4 axes: {image.shape} {array.dtype}")
    header: Any = image.header
    zooms = tuple(float(zoom) for zoom in header.get_zooms()[: min(array.ndim, 3)])
    # An identity matrix without a unit is what is written where nothing is known.
    lost = np.array_equal(image.affine, np.eye(4)) and header.get_xyzt_units()[0] == "unknown"
    known = not lost and all(np.isfinite(zoom) and zoom > 0 for zoom in zooms)
    return array.T, zooms[::-1] if known else None


def _version(content: bytes) -> Any:
    second = b"\x00\x00\x02\x1c" in (content[:4], content[:4][::-1])  # 540, the length of a NIfTI-2 header
    return nib.Nifti2Image if second else nib.Nifti1Image


def _unzipped(path: Path) -> bytes:
    """As much as the header claims. To its end, so that its checksum is looked at."""
    with gzip.open(path) as file:
        start = file.read(540)
        kind = _version(start).header_class
        header = kind(start[: kind.sizeof_hdr], check=False)
        voxels = math.prod(header.get_data_shape()) * header.get_data_dtype().itemsize
        most = _bounded(path, int(header.get_data_offset()) + voxels) + PADDING
        file.seek(0)
        content = BytesIO()  # which grows in place, and gives its bytes away without a copy
        while piece := file.read(PIECE):
            content.write(piece)
            if content.tell() > most:
                what = f"goes on after the {most - PADDING} bytes that its header claims: is not read"
                raise UnreadableFile(path, what)
    return content.getvalue()


def _real(path: Path, array: Array) -> Array:
    if array.dtype.kind == "c":
        raise UnreadableFile(path, "holds complex numbers: save their magnitude")
    return array


def _integers(path: Path, array: Array) -> Labels:
    _real(path, array)
    if array.size == 0:
        raise UnreadableFile(path, "holds no pixel")
    if array.dtype == bool:
        return array.astype(np.uint8)
    if np.issubdtype(array.dtype, np.integer):
        return array  # type: ignore[return-value]
    if not np.isfinite(array).all() or not np.array_equal(array, np.rint(array)):
        raise UnreadableFile(path, "holds fractions, NaN or infinity: a mask holds whole numbers")
    return array.astype(np.int32)
