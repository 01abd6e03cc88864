"""Where to start: the loss, the optimiser and the rates that the measurements support, said once.

Of the losses in results/fair it is the one that everybody knows and that need not be told how the validation went; none
was a point above the better of it and Dice. `polydice train` takes them if nothing else is given, and a recipe where it
says nothing. Tests hold the recipe `compare`, nnU-Net's trainers and the docs to them: change them here, and what has
to follow is named.
"""

from typing import Literal, NamedTuple

Optimizer = Literal["sgd", "adamw"]


class Start(NamedTuple):
    loss: str  # as in Python
    trainer: str  # of nnU-Net, with this loss
    optimizer: Optimizer
    rate: dict[str, float]  # of the loss, by optimiser
    tried: dict[str, list[float]]  # around it: what a study has every loss choose from


START = Start(
    loss="DiceLoss(batch=True) + CrossEntropyLoss()",
    trainer="nnUNetTrainerDiceCE",
    optimizer="sgd",
    rate={"sgd": 0.04, "adamw": 0.00128},  # its best in results/fair, or within 0.1 points of it
    # Inside these lists lie the best rates there of all losses but t-vMF.
    tried={"sgd": [0.01, 0.04, 0.16, 0.64], "adamw": [0.00032, 0.00128, 0.00512, 0.02048]},
)
