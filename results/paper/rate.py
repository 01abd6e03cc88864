"""Writes rate.png: the test Dice of losses times a number, which is SGD at another rate. `python results/paper/rate.py`

From gradient-acdc, gradient-hippocampus and rate-small, the means of their reports.
"""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from polydice.studies.comparison import compare
from polydice.studies.study import open_study
from polydice.studies.style import COLOURS, RC

HERE = Path(__file__).parent
COLOUR = {
    "Dice": COLOURS["DiceLoss"],
    "Cross-entropy": COLOURS["CrossEntropyLoss"],
    "PolyDice-1, ε = 0.5": COLOURS["PolyDice1Loss"],
    "PolyDice-1 detached, ε = 0.5": COLOURS["TvMFDiceLoss"],
}
PANELS = {
    "gradient-acdc": "ACDC, U-Net",
    "gradient-hippocampus": "Hippocampus, 3D U-Net",
    "rate-small": "Hippocampus, 3D U-Net, small",
}


def main() -> None:
    with rc_context(RC):
        figure = Figure(figsize=(12, 4.2), layout="constrained")
        for axes, (study, title) in zip(figure.subplots(1, 3), PANELS.items(), strict=True):
            draw(axes, scores(study))
            axes.set(title=title, xlabel="the loss times", ylabel="Dice, %")
        lines = {line.get_label(): line for axes in figure.axes for line in axes.lines if line.get_label() in COLOUR}
        figure.legend(lines.values(), lines, loc="outside lower center", ncols=4, fontsize=9)
        figure.savefig(HERE / "rate.png", dpi=140)


def scores(study: str) -> dict[str, dict[int, float]]:
    """By loss, its Dice at every number that it was multiplied with and could be trained."""
    found: defaultdict[str, dict[int, float]] = defaultdict(dict)
    (comparison,) = compare(open_study(HERE / study))
    for row in comparison.rows:
        if "dice_global" in row.scores:
            number, _, loss = row.loss.rpartition(" × ")
            found[loss[0].upper() + loss[1:]][int(number or 1)] = 100 * row.scores["dice_global"].mean
    return found


def draw(axes: Axes, losses: Mapping[str, Mapping[int, float]]) -> None:
    for loss, course in losses.items():
        axes.plot(list(course), list(course.values()), "o-", color=COLOUR[loss], label=loss)
        if len(course) == 1:
            axes.axhline(*course.values(), color=COLOUR[loss], linewidth=1, linestyle=":")
    numbers = sorted({number for course in losses.values() for number in course})
    floor = min(losses["Dice"].values()) - 1
    for number, dice in losses.get("Cross-entropy", {}).items():
        if dice < floor:  # it would press all other points together
            axes.set_ylim(bottom=floor)
            axes.annotate(
                f"↓ {dice:.1f}", (number, floor), (4, 4), textcoords="offset points", color=COLOUR["Cross-entropy"]
            )
    axes.set_xscale("log", base=2)
    axes.set_xticks(numbers, list(map(str, numbers)))
    axes.minorticks_off()


if __name__ == "__main__":
    main()
