"""From images and a trained network to label maps on the images' own grids."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polydice.data.augment import as_float
from polydice.data.cases import DataError, Intensity, Regions
from polydice.data.files import UnreadableFile
from polydice.data.parallel import in_parallel
from polydice.data.prepare import Preparation, ready_image
from polydice.data.resample import to_unit
from polydice.foreign import ForeignError
from polydice.models import build
from polydice.training import label_files
from polydice.training.checkpoint import CheckpointError, load_weights
from polydice.training.config import Precision
from polydice.training.inference import WINDOWS, Network
from polydice.training.label_files import Job
from polydice.training.overlay import overlay as drawn
from polydice.training.processes import usable_device
from polydice.training.weights import FILES, counting_file
from polydice.values import Count, as_tuple, check

IMAGES = 8  # run at a time
READERS = 4  # threads that read and prepare ahead; each may hold a volume


class NotAllDoneError(DataError):
    """Some inputs could not be used: a line for each. The label maps of all the others are written."""

    def __init__(self, problems: Sequence[str], written: Sequence[Path]) -> None:
        super().__init__("\n".join(problems))
        self.problems, self.written = tuple(problems), tuple(written)


def predict(
    checkpoint: Path,
    inputs: Sequence[Path],
    out: Path,
    *,
    overlay: bool = False,
    flips: bool = False,
    device: str | None = None,
    precision: Precision | None = None,
    batch: int | None = None,
) -> list[Path]:
    """Writes a label map into `out` for each image, in the image's own size, geometry and format; returns their paths.

    `checkpoint` is a file of weights, or the folder of a run. `inputs` are files and folders of them. With `overlay` a
    PNG beside each label map shows it on the image; `flips` averages the logits over all flips of the image. Without a
    `precision` it is the one of the training. `batch` images or slices are run at a time, 8 if it is not given, or
    windows of volumes, 2: they are much larger.
    """
    check("batch", batch, Count | None)
    predictor = load(checkpoint, device, flips, precision)
    jobs = label_files.jobs(inputs, out, predictor.channels > 1 and predictor.intensity != "colour", overlay)
    if out.is_file():
        raise DataError(f"{out} is a file: label maps go into a folder")
    out.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []
    written = []
    at_once = batch or (WINDOWS if predictor.settings.dims == 3 else IMAGES)
    for scan in _labelled(predictor, _scans(predictor, jobs, problems.append), at_once):
        label_files.write(scan.labels, scan.job)
        if overlay:
            label_files.replace(scan.job.overlay, label_files.encoded(_overlay(scan, predictor), "PNG"))
        written.append(scan.job.target)
    if problems:
        raise NotAllDoneError(problems, written)
    return written


@dataclass(frozen=True)
class Predictor:
    """A trained network, and what its images were like."""

    network: Network  # [B, channels, *spatial] to logits [B, classes, *spatial]
    channels: int
    classes: tuple[str, ...]  # the names of the labels
    intensity: Intensity
    settings: Preparation
    flips: bool = False

    def prepared(self, image: NDArray[Any], spacing: tuple[float, ...] | None) -> NDArray[Any]:
        """`[channels, *spatial]` to `[items, channels, *spatial]`, exactly as in training: an item is an image, a slice
        of a volume or, in 3D, a volume."""
        return ready_image(image, spacing, self.intensity, self.settings)

    @torch.inference_mode()
    def raw(self, images: Tensor) -> Tensor:
        """What the network makes of `[B, channels, *spatial]`, float32 on the device: `Network.raw`, over all flips."""
        images = as_float(images.to(self.network.device))
        axes = range(2, images.ndim)
        every = [flip for count in range(len(axes) + 1) for flip in combinations(axes, count)]
        flips = every if self.flips else every[:1]  # the first of them flips nothing
        total = sum(self.network.raw(images.flip(flip)).flip(flip) for flip in flips)
        assert isinstance(total, Tensor)  # there is at least one flip
        return total / len(flips)

    @torch.inference_mode()
    def volume_labels(self, volume: Tensor, shape: Sequence[int], batch: int) -> NDArray[np.uint8]:
        """The label map, on a grid of `shape`, of a volume `[channels, *spatial]` that is looked at through windows."""
        return self.network.volume_labels(as_float(volume), shape, batch, self.raw).cpu().numpy()

    @torch.inference_mode()
    def plane_labels(self, raw: Tensor, shape: Sequence[int]) -> NDArray[np.uint8]:
        return self.network.plane_labels(raw, shape).cpu().numpy()


def load(
    checkpoint: Path, device: str | None = None, flips: bool = False, precision: Precision | None = None
) -> Predictor:
    """What a training run has saved: its folder, which means the weights that count, or a file of weights in it.
    `device=None` takes a GPU if it can."""
    path = counting_file(checkpoint) if checkpoint.is_dir() else checkpoint
    weights, about = load_weights(path)
    try:
        model, settings = about["model"], {name: as_tuple(value) for name, value in about["preparation"].items()}
        module = build(model["name"], model["channels"], model["classes"], **model["options"])
        module.load_state_dict(weights)
        patch, classes, intensity = as_tuple(about["patch"]), tuple(about["classes"]), about["intensity"]
        regions = Regions(**as_tuple(about["regions"])) if "regions" in about else None
        preparation = Preparation(**settings)
        precision = precision or about.get("precision", "auto")  # older files do not say
        check("precision", precision, Precision)
    except ForeignError as error:
        raise CheckpointError(f"{path} holds a network that is not polydice's own, {error}") from error
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{path} does not say what network it holds ({error!r}): give a run's {FILES['best']}"
        ) from error
    order = regions.order if regions else None
    network = Network(module.eval().to(usable_device(device)), patch, precision, compile=False, order=order)
    names = regions.label_names(classes) if regions else classes
    return Predictor(network, model["channels"], names, intensity, preparation, flips)


class _Scan(NamedTuple):
    """An image on its way to a label map."""

    job: Job
    image: NDArray[Any]  # [channels, *spatial] as in the file
    items: NDArray[Any]  # [items, channels, *spatial] as the network takes it
    labels: NDArray[np.uint8]  # [*spatial], to be filled


def _scans(predictor: Predictor, jobs: Sequence[Job], tell: Callable[[str], None]) -> Iterator[_Scan]:
    """Yields the images that can be read, and reads a few ahead; for the others it tells why they cannot."""

    def read(job: Job) -> _Scan | str:
        try:
            image, spacing = label_files.read(job)
            image = _with_channels(image, predictor)
            return _Scan(job, image, predictor.prepared(image, spacing), np.empty(image.shape[1:], np.uint8))
        except UnreadableFile as problem:
            return str(problem)
        except DataError as problem:
            return f"{job.files[0]}: {problem}"

    with contextlib.closing(in_parallel(read, jobs, "predicting", READERS)) as coming:
        for scan in coming:
            if isinstance(scan, str):
                tell(scan)
            else:
                yield scan


def _with_channels(image: NDArray[Any], predictor: Predictor) -> NDArray[Any]:
    """A grey picture is made a coloured one; any other image must have the channels that the network takes."""
    given, wanted = len(image), predictor.channels
    if predictor.settings.dims == 3 and image.ndim == 3:
        raise DataError("it is a single image, but the network takes volumes")
    if predictor.intensity == "colour" and (given, wanted) == (1, 3):
        return image.repeat(3, axis=0)
    if given != wanted:
        more = ", in one file or as CASE_0000, CASE_0001, ..." if wanted > 1 and predictor.intensity != "colour" else ""
        raise DataError(f"it has {given} channel{'s' * (given > 1)}, but the network takes {wanted}{more}")
    return image


def _labelled(predictor: Predictor, scans: Iterable[_Scan], batch: int) -> Iterator[_Scan]:
    """Yields each scan once its labels are filled. Slices and images of all sizes share batches, since the network sees
    them all in one size."""
    if predictor.settings.dims == 3:
        for scan in scans:
            scan.labels[:] = predictor.volume_labels(torch.from_numpy(scan.items[0]), scan.labels.shape, batch)
            yield scan
        return
    items = ((scan, index) for scan in scans for index in range(len(scan.items)))
    while chunk := list(islice(items, batch)):
        images = torch.from_numpy(np.stack([scan.items[index] for scan, index in chunk]))
        for (scan, index), raw in zip(chunk, predictor.raw(images), strict=True):
            planes = scan.labels.reshape(-1, *scan.labels.shape[-2:])
            planes[index] = predictor.plane_labels(raw, planes.shape[1:])
            if index == len(planes) - 1:
                yield scan


def _overlay(scan: _Scan, predictor: Predictor) -> Any:
    """Of a volume, the slice with most foreground."""
    planes = scan.labels.reshape(-1, *scan.labels.shape[-2:])
    best = int(np.count_nonzero(planes, axis=(1, 2)).argmax())
    image = scan.image.reshape(len(scan.image), *planes.shape)[:, best]
    title = f"slice {best + 1} of {len(planes)}" if scan.labels.ndim == 3 else ""
    return drawn(to_unit(image, predictor.intensity, predictor.settings.window), planes[best], predictor.classes, title)
