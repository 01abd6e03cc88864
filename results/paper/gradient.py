"""Writes gradient.csv and gradient.png: how large a loss's gradient is, and how well the network does that it trained.

polydice train --data data/cvc-clinicdb --out runs/small --split contiguous --size 96 --width 16 --epochs 40 \
    --batch 24 --validate-every 2 --no-surfaces --loss "DiceLoss(batch=True)"
python results/paper/gradient.py runs/small

Gradients are taken at the last weights of that run, of every loss on the same batches, so that nothing differs but the
loss. Scores are those of column-cvc: the last epoch's weights on the validation part, which did not choose them.
"""

import csv
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from scipy.stats import spearmanr
from torch import nn

from polydice.data.prepare import prepare
from polydice.data.readers import open_dataset
from polydice.studies.families import colours
from polydice.studies.study import Study, open_study
from polydice.studies.style import RC
from polydice.training.checkpoint import load_weights
from polydice.training.config import Settings
from polydice.training.loop import Run
from polydice.training.metrics import confusion, dice_per_class
from polydice.training.objective import adapt_kappa, objective
from polydice.training.processes import Process

HERE = Path(__file__).parent


def main(folder: Path) -> None:
    study = open_study(HERE / "column-cvc")
    sizes, scores = multiples(study, folder), last_scores(study)
    with (HERE / "gradient.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["loss", "gradient", "seed_0", "seed_1", "seed_2"])
        writer.writerows([loss, f"{sizes[loss]:.2f}", *(f"{one:.2f}" for one in each)] for loss, each in scores.items())
    pairs = [(sizes[loss], by_seed[0]) for loss, by_seed in scores.items()]
    for name, some in {"rank correlation, seed 0": pairs, "without the last": pairs[:-1]}.items():
        print(f"{name}: {spearmanr(*zip(*some, strict=True)).statistic:.2f}")
    draw(sizes, scores, colours(study.recipe))


def draw(sizes: Mapping[str, float], scores: Mapping[str, list[float]], colour: Mapping[str, str]) -> None:
    with rc_context(RC):
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.subplots()
        axes.set_xscale("log")
        axes.set(xlabel="norm of the gradient, times that of Dice", ylabel="Dice of the last weights on validation, %")
        axes.set_xticks([0.5, 1, 2, 5, 10], ["0.5", "1", "2", "5", "10"])
        axes.minorticks_off()
        for loss, by_seed in scores.items():
            axes.plot([sizes[loss]] * len(by_seed), by_seed, "o", color=colour[loss], label=loss)
        figure.legend(loc="outside right upper", frameon=False)
        figure.savefig(HERE / "gradient.png", dpi=160)


def multiples(study: Study, folder: Path) -> dict[str, float]:
    """The norm of each loss's gradient over that of the baseline: median over an epoch's batches."""
    saved = json.loads((folder / "settings.json").read_text())
    settings = Settings(**saved | {name: Path(saved[name]) for name in ("data", "cache")} | {"out": folder})
    dataset = open_dataset(settings.data)
    prepared = prepare(dataset, settings.preparation, settings.cache)
    alone = Process(0, 1, torch.device("cpu"))
    losses = {loss: objective(variants[0].expression, alone) for loss, variants in study.recipe.losses.items()}
    run = Run(settings, alone, dataset, prepared, losses[study.recipe.baseline])
    run.model.load_state_dict(load_weights(folder / "last.safetensors")[0])
    run.model.train()
    norms: dict[str, list[float]] = {loss: [] for loss in losses}
    for batch in run.training.epoch(0):
        logits = run.model(batch.images)
        reached = dice_per_class(confusion(logits.argmax(1), batch.labels, 2).sum(0))
        for name, loss in losses.items():
            adapt_kappa(loss, reached)
            gradient = torch.autograd.grad(loss(logits, batch.labels), list(run.model.parameters()), retain_graph=True)
            norms[name].append(float(nn.utils.get_total_norm(gradient)))
    return {
        name: median(a / b for a, b in zip(own, norms[study.recipe.baseline], strict=True))
        for name, own in norms.items()
    }


def last_scores(study: Study) -> dict[str, list[float]]:
    """By loss and seed, mean over the folds."""
    found: dict[str, dict[int, list[float]]] = {loss: {} for loss in study.recipe.losses}
    for run in study.runs:
        found[run.loss].setdefault(run.seed, []).append(100 * study.history(run)[-1]["dice_global"])
    return {loss: [fmean(folds) for folds in seeds.values()] for loss, seeds in found.items()}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
