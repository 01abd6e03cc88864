"""Writes bright.png: what a few bright voxels do to a volume that is scaled by its minimum and maximum.

polydice study results/paper/gradient-acdc-small/recipe.toml --data data --out runs/acdc-small
python results/paper/bright.py runs/acdc-small/runs/acdc/unet/dice/fold-0/seed-3 data/acdc

One network, trained on neither patient; patient 21 as it is, and with its brightest half percent cut off.
"""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from polydice.data.overview import COLOURS
from polydice.data.readers import open_dataset
from polydice.data.resample import to_unit
from polydice.studies.style import RC
from polydice.training.predict import Predictor, load, plane_labels

HERE = Path(__file__).parent
CUT = 0.5  # percent


def main(run: Path, data: Path) -> None:
    predictor, dataset = load(run, "cpu"), open_dataset(data)
    cases = {case.id: case for case in dataset.cases}
    with rc_context(RC):
        figure = Figure(figsize=(9.6, 3.9), layout="constrained")
        rows = (("patient016_frame01", None), ("patient021_frame01", None), ("patient021_frame01", CUT))
        for axes, (name, cut) in zip(figure.subplots(1, 3), rows, strict=True):
            sample = dataset.read(cases[name])
            predictor = replace(predictor, settings=replace(predictor.settings, cut=cut))
            labels = predicted(predictor, sample.image)
            scores = [f"{100 * score:.0f}" for score in dice(labels, sample.labels, len(dataset.classes))]
            axes.set_title(f"{name[:10]}{f', {cut:g} % cut' if cut else ''}\nDice {', '.join(scores)} %")
            show(axes, to_unit(sample.image, "mr", predictor.settings.window, cut)[0], labels, sample.labels)
        figure.savefig(HERE / "bright.png", dpi=120)


def predicted(predictor: Predictor, image: NDArray[Any]) -> NDArray[np.uint8]:
    items = torch.from_numpy(predictor.prepared(image, None))
    return np.stack([plane_labels(logits, image.shape[2:]) for logits in predictor.logits(items)])


def dice(found: NDArray[Any], truth: NDArray[Any], classes: int) -> list[float]:
    pairs = [(found == label, truth == label) for label in range(1, classes)]
    return [2 * np.count_nonzero(a & b) / (np.count_nonzero(a) + np.count_nonzero(b)) for a, b in pairs]


def show(axes: Axes, volume: NDArray[Any], *label_maps: NDArray[Any]) -> None:
    """The middle slice on one scale of grey, with the prediction drawn through and the truth in dots."""
    middle = len(volume) // 2
    axes.imshow(volume[middle], cmap="gray", vmin=0, vmax=0.6)
    for labels, style in zip(label_maps, ("-", ":"), strict=True):
        for label, colour in enumerate(COLOURS[:3], 1):
            axes.contour(labels[middle] == label, [0.5], colors=[colour], linestyles=style, linewidths=1.4)
    axes.axis("off")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
