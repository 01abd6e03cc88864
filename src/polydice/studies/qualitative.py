"""Predictions beside the truth: a few test cases in rows, the input, the truth and every loss in columns."""

from collections import defaultdict
from collections.abc import Sequence
from textwrap import TextWrapper
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from polydice.data.augment import as_float
from polydice.data.cache import CacheError
from polydice.data.cases import VOID, DataError
from polydice.data.overview import COLOURS
from polydice.data.prepare import Prepared, PreparedCase
from polydice.studies.comparison import Comparison
from polydice.studies.grids import members_of
from polydice.studies.study import Finished, Study
from polydice.training.checkpoint import CheckpointError
from polydice.training.inference import Network
from polydice.training.loop import opened
from polydice.training.metrics import as_annotated, dice_per_class
from polydice.training.overlay import visible
from polydice.training.predict import load
from polydice.training.weights import FILES

# Which cases are shown: by how well the first loss does on them. Cases picked by hand could prove anything.
PLACES = {"worst": 0.0, "lower third": 1 / 3, "upper third": 2 / 3, "best": 1.0}
CLASSES = [colour for colour in COLOURS if colour != "#F0E442"]  # yellow is for what is missing
ERRORS = {"false positive": "#FF5A36", "false negative": "#FFD400", "wrong class": "#FF5CE1"}
UNLABELLED = (0.5, 0.5, 0.5, 0.75)
EDGE, LABELS, TITLES, LINE, LEGEND, GAP = 1.6, 0.45, 0.3, 0.16, 0.3, 0.04  # inches; the gap is a share of an edge
BELOW = 0.12  # for the score, a share of an edge


class NotHereError(Exception):
    """Why there are no pictures: results can be brought from another machine without weights and images."""


class View(NamedTuple):
    """A case, or one slice of it."""

    about: str
    image: NDArray[Any]  # [y, x, 3], bytes
    truth: NDArray[np.uint8]  # [y, x]
    predictions: list[NDArray[np.uint8]]  # by loss
    dice: list[float | None]  # of the whole case


def qualitative(study: Study, comparison: Comparison) -> Figure:
    """The picture of one data set and network, from the first seed and fold in which most losses have their weights.

    Networks are run on the CPU, whose results are the same every time.
    """
    runs = _together(study, comparison)
    try:
        prepared = _prepared(study, runs[0])
        views = _views(
            prepared, runs, [load(study.run_folder(each.run) / _file(study), "cpu").network for each in runs]
        )
    except (DataError, CacheError) as error:
        raise NotHereError("the images of this data set are not here") from error
    except CheckpointError as error:
        why = str(error).replace(str(study.folder), "DIR")
        raise NotHereError(f"the weights of these runs cannot be read: {why}") from error
    return _drawn(views, [each.run.loss for each in runs], prepared.label_names)


def _together(study: Study, comparison: Comparison) -> list[Finished]:
    """One run of each loss, the baseline's first, all of the same seed and fold: they were tested on the same cases."""
    same: defaultdict[tuple[int, int], list[Finished]] = defaultdict(list)
    for row in sorted(comparison.rows, key=lambda row: row.loss != comparison.baseline):
        for pair, each in row.counting.items():
            if (study.run_folder(each.run) / _file(study)).exists():
                same[pair].append(each)
    if not same:
        raise NotHereError(f"the weights of these runs ({_file(study)}) are not here")
    return same[max(sorted(same), key=lambda pair: len(same[pair]))]


def _file(study: Study) -> str:
    return FILES[study.weights]


def _prepared(study: Study, each: Finished) -> Prepared:
    kept = study.cache / each.result["prepared"]
    if kept.exists():
        return Prepared(kept)
    return opened(study.settings(each.run))[1]


def _views(prepared: Prepared, runs: Sequence[Finished], networks: Sequence[Network]) -> list[View]:
    dice = [_case_dice(each) for each in runs]
    known = {case.id: case for case in prepared.cases}
    ranked = sorted((case for case in dice[0] if case in known), key=lambda case: (dice[0][case], case))
    if not ranked:
        raise DataError("no case that was tested, and has a foreground, is in this data set")
    picked: dict[str, str] = {}
    for name, place in PLACES.items():
        picked.setdefault(ranked[round(place * (len(ranked) - 1))], name)
    return [
        _view(prepared, known[case], f"{name} for {runs[0].run.loss}", networks, [each.get(case) for each in dice])
        for case, name in picked.items()
    ]


def _view(
    prepared: Prepared, case: PreparedCase, rank: str, networks: Sequence[Network], dice: list[float | None]
) -> View:
    """Of a volume, the slice with most foreground."""
    labels = np.stack([prepared.item(item)[1] for item in case.items])
    planes = labels.reshape(-1, *labels.shape[-2:])
    best = int(((planes > 0) & (planes < len(prepared.label_names))).sum(axis=(1, 2)).argmax())
    item, plane = divmod(best, len(planes) // len(case.items))
    image = np.array(prepared.item(case.items[item])[0])
    known = None if prepared.annotated is None else torch.from_numpy(prepared.annotated[[case.items[item]]])
    found = [network.segment(as_float(torch.from_numpy(image))[None]) for network in networks]
    maps = [as_annotated(each, known).numpy() for each in found]
    title = f"{_short(case.id)}, slice {best + 1}" if len(planes) > 1 else _short(case.id)
    return View(
        f"{title}\n{_short(rank)}",
        visible(image.reshape(len(image), -1, *planes.shape[1:])[:, plane]),
        planes[best],
        [each.reshape(-1, *planes.shape[1:])[plane] for each in maps],
        dice,
    )


def _case_dice(each: Finished) -> dict[str, float]:
    """Of the test cases that have a foreground class to be scored, the mean Dice over these classes."""
    cases = each.result["cases"]
    matrices, members = torch.tensor([case["confusion"] for case in cases]), members_of(each.result)
    scores = dice_per_class(matrices, members)[:, 1:].nanmean(1)
    return {case["id"]: score for case, score in zip(cases, scores.tolist(), strict=True) if score == score}


def _drawn(views: Sequence[View], losses: Sequence[str], classes: Sequence[str]) -> Figure:
    wrapper = TextWrapper(width=20, max_lines=3, placeholder=" …", break_on_hyphens=False)
    columns = [wrapper.fill(name) for name in ("input", "truth", *losses)]
    titles = TITLES + LINE * max(name.count("\n") for name in columns)
    handles = _handles(classes, void=any((view.truth == VOID).any() for view in views))
    legend_rows = -(-len(handles) // len(columns))
    width, height = EDGE * len(columns) + LABELS, EDGE * (1 + BELOW) * len(views) + titles + LEGEND * legend_rows
    figure = Figure(figsize=(width, height))
    edges = {"left": LABELS / width, "right": 1 - GAP / width, "top": 1 - titles / height}
    edges |= {"bottom": (LEGEND * legend_rows + EDGE * BELOW) / height, "wspace": GAP, "hspace": BELOW}
    grid = figure.subplots(len(views), len(columns), squeeze=False, gridspec_kw=edges)
    for axes, title in zip(grid[0], columns, strict=True):
        axes.set_title(title, fontsize=9, loc="center", pad=5)
    for row, view in zip(grid, views, strict=True):
        for axes in row:
            axes.imshow(view.image, interpolation="none")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(False)
        row[0].set_ylabel(view.about, fontsize=7)
        _fill(row[1], view.truth, view.truth)
        for axes, prediction, dice in zip(row[2:], view.predictions, view.dice, strict=True):
            _fill(axes, view.truth, prediction)
            _outline_errors(axes, view.truth, prediction)
            axes.set_xlabel("no score" if dice is None else f"Dice {100 * dice:.1f}", fontsize=7, labelpad=2)
    figure.legend(handles=handles, loc="lower center", ncols=len(columns), fontsize=8)
    return figure


def _fill(axes: Axes, truth: NDArray[np.uint8], prediction: NDArray[np.uint8]) -> None:
    """What truth and prediction agree on, in the colours of the classes, and what has no label."""
    cover = np.zeros((*truth.shape, 4))
    cover[truth == VOID] = UNLABELLED
    for label in np.unique(truth[(truth > 0) & (truth != VOID)]):
        colour = CLASSES[(label - 1) % len(CLASSES)]
        cover[(truth == label) & (prediction == label)] = (*(int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)), 0.55)
    axes.imshow(cover, interpolation="none")


def _outline_errors(axes: Axes, truth: NDArray[np.uint8], prediction: NDArray[np.uint8]) -> None:
    prediction = np.where(truth == VOID, truth, prediction)  # where there is no label, nothing can be wrong
    wrong = {
        "false positive": (truth == 0) & (prediction > 0),
        "false negative": (truth > 0) & (prediction == 0),
        "wrong class": (truth > 0) & (prediction > 0) & (truth != prediction),
    }
    factor = 3 if max(truth.shape) < 128 else 1  # where pixels can be seen, the outline follows their edges
    width = min(1.2, 0.3 * 72 * EDGE / max(truth.shape))  # points: less than a third of a pixel, which it must not hide
    x, y = ((np.arange(-1, length * factor + 1) + 0.5) / factor - 0.5 for length in reversed(truth.shape))
    for error, where in wrong.items():
        if where.any():
            fine = where.repeat(factor, 0).repeat(factor, 1)
            inside = np.pad(fine, 1)  # the empty border closes the outline of an area that touches the edge
            axes.contour(x, y, inside, [0.5], colors=[ERRORS[error]], linewidths=width)


def _handles(classes: Sequence[str], void: bool = False) -> list[Any]:
    found: list[Any] = [
        Patch(color=CLASSES[(label - 1) % len(CLASSES)], alpha=0.55, label=f"{_short(name)}, found")
        for label, name in enumerate(classes)
        if label > 0
    ]
    found += [Patch(color=UNLABELLED, label="without a label")] if void else []
    errors = list(ERRORS.items())[: 3 if len(classes) > 2 else 2]
    return found + [Line2D([], [], color=colour, linewidth=2, label=error) for error, colour in errors]


def _short(name: str) -> str:
    return name if len(name) <= 24 else name[:23] + "…"
