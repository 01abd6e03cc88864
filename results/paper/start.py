"""Writes start.png: how the losses begin on ACDC. `python results/paper/start.py`

From the histories of question-acdc, mean over the folds and seeds that all losses have.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from polydice.studies.families import colours
from polydice.studies.study import Study, open_study
from polydice.studies.style import RC

HERE = Path(__file__).parent
History = list[dict[str, Any]]  # the epochs of a run
START, LATER = 20, 14  # the last epoch of the left panel, the first of the right


def main() -> None:
    study = open_study(HERE / "question-acdc")
    histories = complete(study)
    background = course(histories, "dice_global_per_class", lambda classes: 100 * classes[0])
    dice = course(histories, "dice_global", lambda dice: 100 * dice)
    gradient = course(histories, "gradient_norm", float)
    base, own = dice[study.recipe.baseline], gradient[study.recipe.baseline]
    with rc_context(RC):
        figure = Figure(figsize=(12, 4.2), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        for loss, colour in colours(study.recipe).items():
            above = {epoch: value - base[epoch] for epoch, value in dice[loss].items()}
            times = {epoch: value / own[epoch] for epoch, value in gradient[loss].items()}
            left.plot(*points(background[loss], 0, START), "o-", color=colour, label=loss, markersize=4)
            middle.plot(*points(times, 0, START), color=colour)
            right.plot(*points(above, LATER, max(base)), "o-", color=colour, markersize=4)
        left.set(title="Dice of the background on validation, %", xlabel="epoch", xticks=range(0, START + 1, 4))
        middle.set(title="Norm of the gradient, × Dice's", xlabel="epoch", xticks=range(0, START + 1, 4), yscale="log")
        middle.set_yticks([0.2, 0.5, 1, 2, 5], ["0.2", "0.5", "1", "2", "5"])
        middle.minorticks_off()
        right.set(title="Mean Dice on validation, points above Dice", xlabel="epoch", ylim=(-5, 7))
        figure.legend(loc="outside lower center", ncols=3, fontsize=9)
        figure.savefig(HERE / "start.png", dpi=140)


def complete(study: Study) -> dict[str, list[History]]:
    """By loss, those of the folds and seeds that all losses have."""
    runs = {(run.loss, run.fold, run.seed): study.history(run) for run in study.runs if study.state(run) == "done"}
    pairs = {(fold, seed) for _, fold, seed in runs}
    common = [pair for pair in pairs if all((loss, *pair) in runs for loss in study.recipe.losses)]
    print(f"{len(common)} runs of each loss")
    return {loss: [runs[loss, *pair] for pair in common] for loss in study.recipe.losses}


def course(
    histories: Mapping[str, list[History]], key: str, read: Callable[[Any], float]
) -> dict[str, dict[int, float]]:
    """By loss and epoch; not every epoch is validated."""
    found: defaultdict[str, defaultdict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for loss, own in histories.items():
        for epoch in chain.from_iterable(own):
            if key in epoch:
                found[loss][epoch["epoch"]].append(read(epoch[key]))
    return {loss: {epoch: fmean(values) for epoch, values in each.items()} for loss, each in found.items()}


def points(course: Mapping[int, float], first: int, last: int) -> tuple[list[int], list[float]]:
    epochs = [epoch for epoch in course if first <= epoch <= last]
    return epochs, [course[epoch] for epoch in epochs]


if __name__ == "__main__":
    main()
