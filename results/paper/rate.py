"""Writes rate.png: the test Dice of losses times a number, which is SGD at another rate. `python results/paper/rate.py`

From gradient-acdc, gradient-hippocampus and rate-small: mean over the folds and seeds that all losses have.
"""

from collections import defaultdict
from pathlib import Path
from statistics import fmean

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from polydice.studies.study import Study, open_study
from polydice.studies.style import RC

HERE = Path(__file__).parent
COLOUR = {
    "Dice": "#000000", "Cross-entropy": "#7F7F7F", "PolyDice-1, ε = 0.5": "#D55E00",
    "PolyDice-1 detached, ε = 0.5": "#CC79A7",
}  # fmt: skip
PANELS = {
    "gradient-acdc": "ACDC, U-Net", "gradient-hippocampus": "Hippocampus, 3D U-Net",
    "rate-small": "Hippocampus, 3D U-Net, small",
}  # fmt: skip


def main() -> None:
    with rc_context(RC):
        figure = Figure(figsize=(12, 4.2), layout="constrained")
        for axes, (name, title) in zip(figure.subplots(1, 3), PANELS.items(), strict=True):
            draw(axes, courses(open_study(HERE / name)))
            axes.set(title=title, xlabel="the loss times", ylabel="Dice, %")
        lines = {line.get_label(): line for axes in figure.axes for line in axes.lines if line.get_label() in COLOUR}
        figure.legend(lines.values(), lines, loc="outside lower center", ncols=4, fontsize=9)
        figure.savefig(HERE / "rate.png", dpi=140)


def courses(study: Study) -> dict[str, dict[int, float]]:
    """By loss, the Dice at every number that it was multiplied with."""
    runs = {(run.loss, run.fold, run.seed): result["test"]["dice_global"] for run, result in study.finished()}
    pairs = {(fold, seed) for _, fold, seed in runs}
    common = [pair for pair in pairs if all((loss, *pair) in runs for loss in study.recipe.losses)]
    found: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for loss in study.recipe.losses:
        number, _, of = loss.rpartition(" × ")
        found[of[0].upper() + of[1:]][int(number or 1)] = 100 * fmean(runs[loss, *pair] for pair in common)
    print(study.folder.name, len(common), *((loss, each) for loss, each in found.items()), sep="\n")
    return found


def draw(axes: Axes, courses: dict[str, dict[int, float]]) -> None:
    numbers = sorted({number for course in courses.values() for number in course})
    for loss, course in courses.items():
        axes.plot(list(course), list(course.values()), "o-", color=COLOUR[loss], label=loss)
        if len(course) == 1:
            axes.axhline(*course.values(), color=COLOUR[loss], linewidth=1, linestyle=":")
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, list(map(str, numbers)))
    axes.minorticks_off()


if __name__ == "__main__":
    main()
