"""Writes fold.png: Dice of the background after two epochs against ε. `python results/paper/fold.py`

From the histories of fold-small. The dashed lines are where the first step changes its direction (docs/theory.md).
"""

from collections import defaultdict
from pathlib import Path
from statistics import fmean

from matplotlib import rc_context
from matplotlib.figure import Figure

from polydice.studies.study import open_study
from polydice.studies.style import COLOURS, GREY, RC

HERE = Path(__file__).parent
EPOCH = 2
TURNS = {"acdc": 0.364, "cvc-clinicdb": 0.756}


def main() -> None:
    study = open_study(HERE / "fold-small")
    found: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for run in study.runs:
        found[run.dataset, run.loss].append(100 * study.history(run)[EPOCH - 1]["dice_global_per_class"][0])
    for (dataset, loss), values in found.items():
        print(f"{dataset}, {loss}: {fmean(values):.1f}, from {min(values):.1f} to {max(values):.1f}")
    with rc_context(RC):
        figure = Figure(figsize=(9.2, 3.6), layout="constrained")
        for axes, (dataset, turn) in zip(figure.subplots(1, 2, sharey=True), TURNS.items(), strict=True):
            by_epsilon = {float(loss[4:]): found[dataset, loss] for loss in study.recipe.losses if loss[:2] == "ε "}
            for epsilon, values in by_epsilon.items():
                axes.plot([epsilon] * len(values), values, "o", color=COLOURS["PolyDice1Loss"], alpha=0.4, markersize=4)
            axes.plot(list(by_epsilon), list(map(fmean, by_epsilon.values())), color=COLOURS["PolyDice1Loss"])
            for loss, colour in (("Dice", COLOURS["DiceLoss"]), ("detached, ε = 1.5", COLOURS["TvMFDiceLoss"])):
                axes.axhline(fmean(found[dataset, loss]), color=colour, linewidth=1.2, label=loss)
            axes.axvline(turn, color=GREY, linestyle="--", linewidth=1)
            axes.set(title=dataset, xlabel="ε of PolyDice-1, coupled", ylim=(-3, 103))
        figure.axes[0].set_ylabel("Dice of the background, %")
        figure.axes[1].legend(loc="lower left")
        figure.savefig(HERE / "fold.png", dpi=140)


if __name__ == "__main__":
    main()
