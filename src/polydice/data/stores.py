"""Where the items of a prepared set lie, in the memory map or on the device, and batches copied from there."""

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from polydice.data.prepare import Prepared

AT_ONCE = 256  # slices that are copied to the device in one go

Pair = tuple[Tensor, Tensor]  # images [B, C, *spatial] and labels [B, *spatial], in the types of the prepared set


class Place(NamedTuple):
    """Where the items are: on the device, or in the memory map (`mapped`). From the map, batches for a GPU are made in
    pinned memory, which is copied faster."""

    device: torch.device
    mapped: bool

    @property
    def home(self) -> torch.device:
        return torch.device("cpu") if self.mapped else self.device

    def empty(self, count: int, shape: Sequence[int], like: Tensor) -> Tensor:
        pinned = self.mapped and self.device.type == "cuda"
        return torch.empty(count, *shape, dtype=like.dtype, device=self.home, pin_memory=pinned)


class Slices:
    """Images or slices, all of one size."""

    def __init__(self, prepared: Prepared, items: Tensor, place: Place) -> None:
        self._place = place
        self.index_device = place.home
        self._images, self._labels, self._rows = mapped(prepared.images), mapped(prepared.labels), items
        if not place.mapped:
            self._images, self._labels = self._upload(self._images), self._upload(self._labels)
            self._rows = torch.arange(len(items), device=place.home)

    def whole(self, index: Tensor) -> Pair:
        """A batch of the items with these numbers among the items, `[B]` on `index_device`."""
        rows = self._rows[index]
        return self._select(self._images, rows), self._select(self._labels, rows)

    def _select(self, tensor: Tensor, rows: Tensor) -> Tensor:
        return torch.index_select(tensor, 0, rows, out=self._place.empty(len(rows), tensor.shape[1:], tensor))

    def _upload(self, tensor: Tensor) -> Tensor:
        """The items alone, on the device; in parts, since the host may not have the memory for a copy of all."""
        kept = self._place.empty(len(self._rows), tensor.shape[1:], tensor)
        for part, rows in zip(kept.split(AT_ONCE), self._rows.split(AT_ONCE), strict=True):
            part.copy_(tensor[rows])
        return kept


class Volumes:
    """Volumes, each of its own size."""

    def __init__(self, prepared: Prepared, items: Tensor, place: Place) -> None:
        self._place = place
        self.index_device = torch.device("cpu")
        arrays = map(prepared.item, items.tolist())
        self._volumes = [(mapped(image).to(place.home), mapped(labels).to(place.home)) for image, labels in arrays]

    def whole(self, index: Tensor) -> Pair:
        """A batch of the one volume with this number, `[1]`."""
        _, labels = self._volumes[int(index)]
        return self.boxes(index, torch.zeros(1, labels.ndim, dtype=torch.int64), labels.shape)

    def boxes(self, index: Tensor, corners: Tensor, size: Sequence[int]) -> Pair:
        """A batch of boxes of one size, from each volume in `index` `[B]` the one at `corners` `[B, 3]`; 0 outside."""
        volumes = [self._volumes[number] for number in index.tolist()]
        image, label = volumes[0]
        images = self._place.empty(len(volumes), (image.shape[0], *size), image).zero_()
        labels = self._place.empty(len(volumes), size, label).zero_()
        for row, ((image, label), corner) in enumerate(zip(volumes, corners.tolist(), strict=True)):
            inside, part = _overlap(corner, size, label.shape)
            images[row][:, *inside] = image[:, *part]
            labels[row][inside] = label[part]
        return images, labels


def mapped(array: NDArray[Any]) -> Tensor:
    """The array as a tensor, without a copy. Torch warns that it could be written to, which nobody here does."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(array)


def _overlap(
    corner: Sequence[int], size: Sequence[int], shape: Sequence[int]
) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """What a box and a volume have in common: as part of the box, and as part of the volume."""
    ranges = [(max(first, 0), min(first + n, end)) for first, n, end in zip(corner, size, shape, strict=True)]
    inside = tuple(slice(low - first, high - first) for (low, high), first in zip(ranges, corner, strict=True))
    return inside, tuple(slice(low, high) for low, high in ranges)
