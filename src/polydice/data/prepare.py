"""A data set made ready once: normalised, on one grid, in two files that are mapped into memory from then on."""

import json
import re
import shutil
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from polydice.data.cache import CacheError, digests, publish, sha256, short_hash
from polydice.data.cases import CT_WINDOW, VOID, Case, DataError, Dataset, Intensity, Regions, Sample
from polydice.data.parallel import in_parallel
from polydice.data.resample import resample_image, resample_labels, to_unit
from polydice.durable import replace_file
from polydice.values import as_tuple

FORMAT = 1  # to be raised whenever the same files and settings would give other arrays
INDEX, IMAGES, LABELS = "index.json", "images", "labels"
HASHED, SUMS = (INDEX, IMAGES, LABELS), "SHA256SUMS"  # as `sha256sum --check` takes it

Result = TypeVar("Result")


@dataclass(frozen=True)
class Preparation:
    """How a data set is made ready."""

    dims: Literal[2, 3] = 2  # images and every slice of a volume, or volumes
    size: int = 224  # 2D: pixels along both edges
    spacing: tuple[float, float, float] | None = None  # 3D: millimetres (z, y, x); None takes the median of the set
    window: tuple[float, float] = CT_WINDOW  # CT: the Hounsfield units that become 0 and 1
    cut: float | None = None  # MR: percent of a channel's values above its minimum, the brightest, that become 1

    def __post_init__(self) -> None:
        if self.dims not in (2, 3):
            raise ValueError(f"dims must be 2 or 3: {self.dims}")
        if self.size < 1:
            raise ValueError(f"size must be at least 1 pixel: {self.size}")
        if self.spacing is not None and (len(self.spacing) != 3 or not min(self.spacing) > 0):
            raise ValueError(f"spacing must be three positive numbers (z, y, x) in millimetres: {self.spacing}")
        if len(self.window) != 2 or not self.window[0] < self.window[1]:
            raise ValueError(f"window must be a lower and a higher number of Hounsfield units: {self.window}")
        if self.cut is not None and not 0 < self.cut < 100:
            raise ValueError(f"cut must lie between 0 and 100 percent: {self.cut}")

    def described(self) -> dict[str, Any]:
        """As files keep it. `cut` is left out where nothing is cut: so files are as they were before it existed."""
        found = asdict(self)
        cut = found.pop("cut")
        return found if cut is None else found | {"cut": float(cut)}


class PreparedCase(NamedTuple):
    id: str
    group: str
    spacing: tuple[float, ...] | None  # millimetres on the prepared grid: (y, x), or (z, y, x) of a volume
    items: range  # one image, the slices of a volume in their order, or one volume
    volume: bool  # the items are slices that make a volume
    annotated: tuple[int, ...] | None  # the classes that are; None: all


class Prepared:
    """A prepared data set, mapped into memory. An item is an image, a slice of a volume or, in 3D, a volume."""

    images: NDArray[Any]  # 2D: [items, channels, size, size]; 3D: [channels, voxels of all]; float32, or uint8 / 255
    labels: NDArray[np.uint8]  # 2D: [items, size, size]; 3D: [voxels of all]
    shapes: NDArray[np.int64]  # [items, dims]
    starts: NDArray[np.int64]  # [items]: where each begins among the pixels or voxels of all
    case_of: NDArray[np.int64]  # [items]: its place in `cases`
    annotated: NDArray[np.bool_] | None  # [items, classes]; None if all are, everywhere

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self._open(json.loads((folder / INDEX).read_text()))
            self._verify()
        except (OSError, ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError) as error:
            raise CacheError(f"{folder} is damaged ({error}); delete it and run again") from error

    def _open(self, index: dict[str, Any]) -> None:
        if index["format"] != FORMAT:
            raise ValueError(f"its format is {index['format']}, not {FORMAT}")
        self.name: str = index["name"]
        self.classes: tuple[str, ...] = tuple(index["classes"])
        self.ignore: int | None = index.get("ignore")  # VOID, if there can be pixels without a label
        self.regions = Regions(**as_tuple(index["regions"])) if "regions" in index else None
        self.channels: int = index["channels"]
        self.settings = Preparation(**{name: as_tuple(value) for name, value in index["settings"].items()})
        self.dims: int = self.settings.dims

        cases: tuple[dict[str, Any], ...] = as_tuple(index["cases"])
        counts = [case["items"] for case in cases]
        ends = np.cumsum(counts).tolist()
        self.cases = tuple(
            PreparedCase(
                case["id"], case["group"], case["spacing"], range(end - n, end), case["volume"], case.get("annotated")
            )
            for case, n, end in zip(cases, counts, ends, strict=True)
        )
        self.case_of = np.repeat(np.arange(len(counts)), counts)
        every = range(len(self.classes))
        rows = np.array([np.isin(every, case.annotated or every) for case in self.cases])
        self.annotated = None if rows.all() else rows[self.case_of]
        self.shapes = np.array([case["shape"] for case in cases], np.int64)[self.case_of]
        sizes = self.shapes.prod(1)
        self.starts = sizes.cumsum() - sizes

        total, square = int(sizes.sum()), (self.settings.size,) * 2
        images = (self.channels, total) if self.dims == 3 else (len(self), self.channels, *square)
        self.images = _mapped(self.folder / IMAGES, index["dtype"], images)
        self.labels = _mapped(self.folder / LABELS, "uint8", (total,) if self.dims == 3 else (len(self), *square))

    def _verify(self) -> None:
        """Compares the files with their checksums: nobody would notice that a network is trained on a damaged byte. A
        file is not read again as long as its size and times stay the same."""
        files = [self.folder / name for name in HASHED]
        found = digests(files, self.folder.parent / "digests" / f"{self.folder.name}.json")
        if not (self.folder / SUMS).exists():
            print(f"{self.folder} has no checksums, as an earlier version made it: they are added now", file=sys.stderr)
            with suppress(OSError):
                replace_file(self.folder / SUMS, _sums(found).encode())
            return
        written = (self.folder / SUMS).read_text()
        changed = [file.name for file in files if _sums({file: found[file]}) not in written]
        if changed:
            raise ValueError(f"the checksum of {', '.join(changed)} is not the one in {SUMS}")

    def __len__(self) -> int:
        return len(self.case_of)

    @property
    def label_names(self) -> tuple[str, ...]:
        """By label: the classes, unless these are regions."""
        return self.regions.label_names(self.classes) if self.regions else self.classes

    @property
    def members(self) -> tuple[tuple[int, ...], ...] | None:
        """The labels of each class, if these are regions."""
        return self.regions.members if self.regions else None

    @property
    def outputs(self) -> int:
        """The channels of a network's logits: the background has one, unless the classes are regions."""
        return len(self.regions.order) if self.regions else len(self.classes)

    def item(self, index: int) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        """Image `[channels, *spatial]` and labels `[*spatial]`: views, nothing is copied."""
        if self.dims == 2:
            return self.images[index], self.labels[index]
        shape, start = self.shapes[index], self.starts[index]
        voxels = slice(start, start + shape.prod())
        return self.images[:, voxels].reshape(self.channels, *shape), self.labels[voxels].reshape(shape)

    def __reduce__(self) -> tuple[type["Prepared"], tuple[Path]]:
        return Prepared, (self.folder,)  # another process maps the files itself: pickled, the arrays would be copied


def _sums(digests: Mapping[Path, str]) -> str:
    return "".join(f"{digest}  {file.name}\n" for file, digest in digests.items())


def _mapped(file: Path, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    expected, found = int(np.prod(shape)) * np.dtype(dtype).itemsize, file.stat().st_size
    if found != expected:
        raise ValueError(f"{file.name} has {found} bytes instead of {expected}")
    return np.memmap(file, dtype, "r", shape=shape)


def prepare(dataset: Dataset, settings: Preparation, cache: Path, workers: int | None = None) -> Prepared:
    """The data set as `settings` say: taken from `cache` if the same files were prepared so before, else made now.

    `workers` threads share the work, `None` takes one per core.
    """
    if not dataset.cases:
        raise DataError(f"{dataset.name} in {dataset.folder} has no cases to prepare")
    if settings.cut is not None and dataset.intensity != "mr":
        raise DataError(f"cut is for MR, and the images of {dataset.name} in {dataset.folder} are {dataset.intensity}")
    cache = Path(cache).absolute()
    contents = contents_of(dataset, cache)
    final = cache / named(dataset, settings.described(), contents)

    def fill(folder: Path) -> None:
        try:
            _write(dataset, settings, workers, folder)
        except _GreyAndColouredError:
            _write(replace(dataset, read=partial(_coloured, dataset.read)), settings, workers, folder)
        if contents_of(dataset, cache) != contents:
            raise DataError(f"files of {dataset.name} in {dataset.folder} changed while they were prepared: run again")

    if not final.exists():
        publish(final, fill)
    return Prepared(final)


def contents_of(dataset: Dataset, cache: Path) -> dict[Path, str]:
    """The digest of each of its files."""
    memory = cache / "digests" / f"{short_hash(str(dataset.folder.absolute()))}.json"
    return digests((file for case in dataset.cases for file in case.files), memory)


def named(dataset: Dataset, about: object, contents: Mapping[Path, str]) -> str:
    """A name for what is made of these contents of a set and of what `about` says."""
    cases = [
        (case.id, case.group, [contents[file] for file in case.images], [contents[file] for file in case.masks])
        for case in dataset.cases
    ]
    reader = f"{dataset.read.__module__}.{dataset.read.__qualname__}"
    content: list[Any] = [dataset.name, dataset.classes, dataset.intensity, reader, cases]
    content += [] if dataset.ignore is None else [dataset.ignore]
    content += [] if dataset.regions is None else [dataset.regions._asdict()]
    content += [dataset.partly] if dataset.partly else []
    readable = re.sub(r"[^\w-]+", "-", dataset.name)
    return f"{readable}-{short_hash(json.dumps((FORMAT, about, content)))}"


class _GreyAndColouredError(DataError):
    """Some pictures of a set have one channel, and some three."""


def _coloured(read: Callable[[Case], Sample], case: Case) -> Sample:
    """A grey picture as `polydice predict` takes it: its grey is red, green and blue."""
    sample = read(case)
    return sample._replace(image=sample.image.repeat(3, axis=0)) if len(sample.image) == 1 else sample


class _Ready(NamedTuple):
    """A case as it is written."""

    images: NDArray[Any]  # [items, channels, *spatial]
    labels: NDArray[np.uint8]  # [items, *spatial]
    spacing: tuple[float, ...] | None
    volume: bool


def _write(dataset: Dataset, settings: Preparation, workers: int | None, folder: Path) -> None:
    """Fills `folder`: the arrays as the cases come, then the index."""
    if settings.dims == 3 and settings.spacing is None:
        settings = replace(settings, spacing=_median_spacing(dataset, workers))
    every = _each(dataset, lambda case, sample: _ready(case, sample, dataset, settings), "preparing", workers)
    index: dict[str, Any] = {"format": FORMAT, "name": dataset.name, "classes": dataset.classes, "cases": []}
    index |= {} if dataset.ignore is None else {"ignore": VOID}
    index |= {} if dataset.regions is None else {"regions": dataset.regions._asdict()}
    with closing(every), ExitStack() as files:
        images: list[IO[bytes]] = [files.enter_context((folder / IMAGES).open("wb"))]
        labels = files.enter_context((folder / LABELS).open("wb"))
        for case, ready in zip(dataset.cases, every, strict=True):
            items, channels, *shape = ready.images.shape
            if not index["cases"]:
                index |= {"settings": settings.described(), "channels": channels, "dtype": ready.images.dtype.name}
                if settings.dims == 3:  # [channels, voxels]: the other channels grow beside the first
                    images += [files.enter_context(TemporaryFile(dir=folder)) for _ in range(1, channels)]
            elif dataset.intensity == "colour" and {channels, index["channels"]} == {1, 3}:
                raise _GreyAndColouredError(f"{dataset.name}: case {case.id} has {channels} channels")
            elif channels != index["channels"]:
                expected = f"case {dataset.cases[0].id} has {index['channels']}"
                raise DataError(f"{dataset.name}: case {case.id} has {channels} channels, {expected}")
            for file, array in zip(images, ready.images[0] if len(images) > 1 else [ready.images], strict=True):
                file.write(np.ascontiguousarray(array).data)
            labels.write(np.ascontiguousarray(ready.labels).data)
            told = {"id": case.id, "group": case.group, "spacing": ready.spacing, "volume": ready.volume}
            told |= {"annotated": case.annotated} if case.annotated else {}
            index["cases"].append(told | {"items": items, "shape": shape})
        for file in images[1:]:
            file.seek(0)
            shutil.copyfileobj(file, images[0])
    (folder / INDEX).write_text(json.dumps(index))
    (folder / SUMS).write_text(_sums({folder / name: sha256(folder / name) for name in HASHED}))


def _median_spacing(dataset: Dataset, workers: int | None) -> tuple[float, float, float] | None:
    """Along each axis; None where no case knows its own."""
    every = _each(dataset, lambda _, sample: sample.spacing, "measuring", workers)
    known = [spacing for spacing in every if spacing is not None and len(spacing) == 3]
    if not known:
        return None
    z, y, x = np.median(known, axis=0).tolist()
    return z, y, x


def _each(
    dataset: Dataset, work: Callable[[Case, Sample], Result], doing: str, workers: int | None
) -> Generator[Result, None, None]:
    """work(case, sample) of each case, in their order. An error names its case."""

    def read_and_work(case: Case) -> Result:
        try:
            return work(case, dataset.read(case))
        except Exception as error:
            raise DataError(f"case {case.id}: {error}") from error

    return in_parallel(read_and_work, dataset.cases, f"{doing} {dataset.name}", workers)


def _ready(case: Case, sample: Sample, dataset: Dataset, settings: Preparation) -> _Ready:
    _check(case, sample, dataset, settings.dims)
    old, new = sample.labels.shape, _grid(sample.labels.shape, sample.spacing, settings)
    spacing = sample.spacing and tuple(mm * a / b for mm, a, b in zip(sample.spacing, old, new, strict=True))
    images = ready_image(sample.image, sample.spacing, dataset.intensity, settings)
    labels = resample_labels(_ignored_as(VOID, sample.labels, dataset).astype(np.uint8), new)
    volume = settings.dims == 2 and len(new) == 3
    return _Ready(images, labels if volume else labels[None], spacing, volume)


def ready_image(
    image: NDArray[Any], spacing: tuple[float, ...] | None, intensity: Intensity, settings: Preparation
) -> NDArray[Any]:
    """`[channels, *spatial]` as a file holds it to `[items, channels, *spatial]` as a network takes it."""
    shape = _grid(image.shape[1:], spacing, settings)
    unit = to_unit(image, intensity, settings.window, settings.cut)
    on_grid = np.stack([resample_image(channel, shape) for channel in unit])
    return np.ascontiguousarray(on_grid.swapaxes(0, 1)) if settings.dims == 2 and len(shape) == 3 else on_grid[None]


def _grid(shape: tuple[int, ...], spacing: tuple[float, ...] | None, settings: Preparation) -> tuple[int, ...]:
    """The shape it is to have, over the same extent: spacing comes as near to what is wanted as whole voxels can."""
    if settings.dims == 2:
        return (*shape[:-2], settings.size, settings.size)
    if spacing is None or settings.spacing is None:
        return shape
    axes = zip(shape, spacing, settings.spacing, strict=True)
    return tuple(max(1, round(points * own / wanted)) for points, own, wanted in axes)


def _ignored_as(value: int, labels: NDArray[Any], dataset: Dataset) -> NDArray[Any]:
    return labels if dataset.ignore is None else np.where(labels == dataset.ignore, value, labels)


def _check(case: Case, sample: Sample, dataset: Dataset, dims: int) -> None:
    """The last guard: an array that is wrong here would be wrong in every training."""
    image, labels, count = sample.image, sample.labels, min(len(dataset.label_names), VOID)
    if image.ndim not in (3, 4) or image.shape[1:] != labels.shape or labels.size == 0:
        raise DataError(f"image {list(image.shape)} and labels {list(labels.shape)} do not fit: [channels, *spatial]")
    if dims == 3 and labels.ndim == 2:
        raise DataError("it is a single image, not a volume: prepare with dims=2")
    known = _ignored_as(0, labels, dataset)
    if known.min() < 0 or known.max() >= count:
        raise DataError(f"labels {known.min()} to {known.max()}, but the classes are 0 to {count - 1}")
    if case.annotated and not np.isin(known, case.annotated).all():
        raise DataError(f"it has labels of classes that are said not to be annotated; annotated are {case.annotated}")
