"""A volume through overlapping windows: the mean of what a network makes of them, plane by plane.

A plane is finished when no window to come reaches it. It is handed out then, and its memory is used again: what is kept
is as deep as a window, however deep the volume.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

OVERLAP = 0.5  # the part of a window that its neighbour shares
SIGMA, LEAST = 0.125, 1e-3  # a window counts by a Gaussian of so many sides, and its corners at least so much


def planes(
    volume: Tensor, patch: Sequence[int], run: Callable[[Tensor], Tensor], windows: int, device: torch.device
) -> Iterator[Tensor]:
    """The planes `[K, H, W]` of a volume `[C, D, H, W]`, in order and float32 on the device: means over all windows of
    what `run` makes of them, `[n, C, *patch]` to `[n, K, *patch]`, so many `windows` at a time. Each counts most in its
    middle. A volume that is smaller than the patch lies in the middle of zeros."""
    volume, (layer, rows, columns) = in_zeros(volume, patch)
    depth, *size = volume.shape[1:]
    layers, *across = map(_starts, volume.shape[1:], patch)
    places = list(product(*across))
    importance = _importance(patch, device)
    total, count = torch.empty(0), torch.zeros(patch[0], *size, device=device)
    for start, following in zip(layers, [*layers[1:], depth], strict=True):
        for group in (places[first : first + windows] for first in range(0, len(places), windows)):
            cut = [_window(volume, (start, *place), patch) for place in group]
            for place, found in zip(group, run(torch.stack(cut).to(device)), strict=True):
                if not total.numel():  # now K is known
                    total = count.new_zeros(patch[0], len(found), *size)
                _window(total.movedim(1, 0), (0, *place), patch).add_(found * importance)
                _window(count[None], (0, *place), patch).add_(importance)
        finished = following - start
        for plane in range(max(layer.start - start, 0), min(layer.stop - start, finished)):
            yield total[plane, :, rows, columns] / count[plane, rows, columns]
        for kept in (total, count):  # one after the other: they overlap
            for plane in range(finished, len(kept)):
                kept[plane - finished] = kept[plane]
            kept[len(kept) - finished :] = 0


def in_zeros(volume: Tensor, patch: Sequence[int]) -> tuple[Tensor, list[slice]]:
    """A volume `[C, D, H, W]` in the middle of zeros, no side smaller than the patch, and where it lies."""
    sides = volume.shape[1:]
    missing = [max(side - own, 0) for side, own in zip(patch, sides, strict=True)]
    places = [slice(each // 2, each // 2 + own) for each, own in zip(missing, sides, strict=True)]
    if any(missing):
        volume = F.pad(volume, [pad for each in missing[::-1] for pad in (each // 2, each - each // 2)])
    return volume, places


def _starts(side: int, window: int) -> list[int]:
    """Where windows begin along an axis; the last one ends with it."""
    step = max(1, int(window * (1 - OVERLAP)))
    return [*range(0, side - window, step), side - window]


def _window(volume: Tensor, start: Sequence[int], patch: Sequence[int]) -> Tensor:
    return volume[:, *(slice(first, first + side) for first, side in zip(start, patch, strict=True))]


def _importance(patch: Sequence[int], device: torch.device) -> Tensor:
    """`[*patch]`: a Gaussian around the middle of a window."""
    found = torch.ones((), device=device)
    for side in patch:
        place = torch.arange(side, device=device) - (side - 1) / 2
        found = found.unsqueeze(-1) * torch.exp(-place.square() / (2 * (SIGMA * side) ** 2))
    return found.clamp(min=LEAST)
