"""Where to cut patches from volumes: anywhere, or around the foreground, which is small and would seldom be met."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from polydice.data.cases import VOID

FOREGROUND = 1 / 3  # of the patches are centred on a voxel that is not background, as in nnU-Net
KEPT = 10_000  # voxels of each class of a volume are remembered, evenly spread over all of them


class Patches:
    """Draws places for patches of one size in volumes whose labels are given, `[D, H, W]` each.

    One patch in three is centred on a voxel of a class drawn from those the volume has; the others lie anywhere. No
    patch leaves its volume, unless that is smaller along an axis: then it is in the middle of the patch.
    """

    def __init__(self, labels: Iterable[NDArray[np.uint8]], size: Sequence[int]) -> None:
        self.size = np.array(size)
        volumes = [(np.array(volume.shape), _voxels_by_class(volume)) for volume in labels]
        self._shapes = [shape for shape, _ in volumes]
        self._foreground = [voxels for _, voxels in volumes]

    def draw(self, volumes: Tensor, generator: torch.Generator) -> Tensor:
        """`[count, 3]`: the first corner of a patch in each of these volumes; negative where the patch is larger."""
        uniform = torch.rand(len(volumes), 6, dtype=torch.float64, generator=generator).numpy()
        corners = [self._corner(volume, row) for volume, row in zip(volumes.tolist(), uniform, strict=True)]
        return torch.from_numpy(np.stack(corners))

    def _corner(self, volume: int, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
        shape, classes = self._shapes[volume], self._foreground[volume]
        kind, which, voxel = uniform[:3]
        room = shape - self.size
        if kind < FOREGROUND and classes:
            voxels = classes[int(which * len(classes))]
            centre = np.unravel_index(voxels[int(voxel * len(voxels))], shape)
            corner = np.array(centre) - self.size // 2
        else:
            corner = (uniform[3:] * (room + 1)).astype(np.int64)
        return np.where(room < 0, room // 2, corner.clip(0, room.clip(0)))


def _voxels_by_class(labels: NDArray[np.uint8]) -> list[NDArray[np.int64]]:
    """For each class but the background that the volume has, voxels `[n]` as places in the flat array."""
    flat = labels.reshape(-1)
    foreground = np.flatnonzero((flat != 0) & (flat != VOID))
    classes = flat[foreground]
    found = (foreground[classes == label] for label in np.unique(classes))
    return [voxels[np.linspace(0, len(voxels) - 1, min(len(voxels), KEPT)).astype(np.int64)] for voxels in found]
