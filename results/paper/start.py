"""Writes start.png: how the losses begin on ACDC, and how far apart they stay. `python results/paper/start.py`

Validation of the runs of question-acdc, mean over the folds and seeds that all losses have.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from polydice.studies.families import colours
from polydice.studies.study import Study, open_study
from polydice.studies.style import GREY, RC

HERE = Path(__file__).parent
START, LATER = 20, 14  # the last epoch of the left panel, the first of the right


def main() -> None:
    study = open_study(HERE / "question-acdc")
    background = course(study, lambda epoch: epoch["dice_global_per_class"][0])
    dice = course(study, lambda epoch: epoch["dice_global"])
    baseline = dice[study.recipe.baseline]
    above = {loss: {epoch: each[epoch] - baseline[epoch] for epoch in each} for loss, each in dice.items()}
    with rc_context(RC):
        figure = Figure(figsize=(9.6, 4.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        for loss, colour in colours(study.recipe).items():
            left.plot(*points(background[loss], 0, START), "o-", color=colour, label=loss, markersize=4)
            right.plot(*points(above[loss], LATER, max(baseline)), "o-", color=colour, markersize=4)
        left.set(title="Dice of the background on validation, %", xlabel="epoch", xticks=range(0, START + 1, 4))
        right.set(title="Mean Dice on validation, points above Dice", xlabel="epoch", ylim=(-5, 7))
        right.axhline(0, color=GREY, linewidth=1, zorder=0)
        figure.legend(loc="outside lower center", ncols=3, fontsize=9)
        figure.savefig(HERE / "start.png", dpi=160)


def course(study: Study, measure: Callable[[Mapping[str, Any]], float]) -> dict[str, dict[int, float]]:
    """By loss and epoch, in percent."""
    runs = {(run.loss, run.fold, run.seed): study.history(run) for run in study.runs if study.state(run) == "done"}
    pairs = {(fold, seed) for _, fold, seed in runs}
    common = [pair for pair in pairs if all((loss, *pair) in runs for loss in study.recipe.losses)]
    print(f"{len(common)} runs of each loss")
    found: dict[str, dict[int, float]] = {}
    for loss in study.recipe.losses:
        histories = [runs[loss, *pair] for pair in common]
        validated = [at for at, epoch in enumerate(histories[0]) if "dice_global" in epoch]
        found[loss] = {at + 1: 100 * fmean(measure(each[at]) for each in histories) for at in validated}
    return found


def points(course: Mapping[int, float], first: int, last: int) -> tuple[list[int], list[float]]:
    epochs = [epoch for epoch in course if first <= epoch <= last]
    return epochs, [course[epoch] for epoch in epochs]


if __name__ == "__main__":
    main()
