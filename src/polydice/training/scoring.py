"""The test of a trained network: what `result.json` says of every case, and of all."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from polydice.data.batches import Batches
from polydice.data.prepare import Prepared, PreparedCase
from polydice.training.inference import Network
from polydice.training.metrics import Surface, confusion, evaluate, surface


def score(network: Network, prepared: Prepared, cases: Sequence[int], batch: int, surfaces: bool) -> dict[str, Any]:
    """`test`: the scores of all cases; `cases`: of each its confusion matrix and, if wanted, its surface distances.

    Slices are put back into their volumes first; distances are in millimetres where the spacing is known.
    """
    chosen = [prepared.cases[case] for case in cases]
    maps = _segmented(network, prepared, chosen, batch)
    classes = len(prepared.classes)
    rows: list[dict[str, Any]] = []
    matrices, distances = [], []
    for case, prediction in zip(chosen, maps, strict=True):
        labels = torch.from_numpy(_whole([prepared.item(item)[1] for item in case.items], case.volume))
        guess = torch.from_numpy(_whole(prediction, case.volume))
        matrices.append(confusion(guess[None], labels[None], classes)[0])
        row = {"id": case.id, "group": case.group, "confusion": matrices[-1].tolist()}
        if surfaces:
            distances.append(surface(guess, labels, classes, case.spacing))
            row |= {"hd95": _plain(distances[-1], "hd95"), "nsd": _plain(distances[-1], "nsd")}
        rows.append(row)
    return {"test": evaluate(torch.stack(matrices), distances), "cases": rows}


def _segmented(
    network: Network, prepared: Prepared, cases: Sequence[PreparedCase], batch: int
) -> list[list[NDArray[np.uint8]]]:
    """The predicted label maps of each case's items."""
    items = [item for case in cases for item in case.items]
    maps = [
        label_map
        for each in Batches(prepared, items, batch, network.device).ordered()
        for label_map in network.segment(each.images).cpu().numpy()
    ]
    found = iter(maps)
    return [[next(found) for _ in case.items] for case in cases]


def _whole(maps: Sequence[NDArray[np.uint8]], volume: bool) -> NDArray[np.uint8]:
    return np.stack(maps) if volume else np.array(maps[0])


def _plain(distances: Surface, name: str) -> list[float | None]:
    return [None if value != value else value for value in getattr(distances, name).tolist()]
