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
    sides = volume.shape[1:]
    before = [max(side - own, 0) // 2 for side, own in zip(patch, sides, strict=True)]
    after = [max(side - own, 0) - first for side, own, first in zip(patch, sides, before, strict=True)]
    if any(after):
        volume = F.pad(volume, [pad for ends in zip(before[::-1], after[::-1], strict=True) for pad in ends])
    depth, *size = volume.shape[1:]
    layers, *across = map(_starts, volume.shape[1:], patch)
    places = list(product(*across))
    inside = slice(before[1], before[1] + sides[1]), slice(before[2], before[2] + sides[2])
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
        for plane in range(max(before[0] - start, 0), min(before[0] + sides[0] - start, finished)):
            yield total[plane, :, *inside] / count[plane, *inside]
        for kept in (total, count):  # one after the other: they overlap
            for plane in range(finished, len(kept)):
                kept[plane - finished] = kept[plane]
            kept[len(kept) - finished :] = 0


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
