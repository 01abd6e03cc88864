"""The figures the paper publishes: Dice in percent, mean ± standard deviation over five folds, as it prints them.

H. Aizawa, Polynomial Dice Loss for Medical Image Segmentation, arXiv:2606.23373: Table 1 (U-Net) and Table 2
(TransUNet). Its other results are plots without numbers.
"""

import re
from decimal import Decimal
from typing import NamedTuple

from polydice.studies.recipe import stem

SOURCE = "H. Aizawa, Polynomial Dice Loss for Medical Image Segmentation, arXiv:2606.23373"

_SETS = ("CVC-ClinicDB", "Kvasir-SEG", "ACDC", "Synapse")

_UNET = """
    Dice            79.31 ± 4.69    90.27 ± 0.37    91.95 ± 2.41    70.44 ± 5.47
    Cross Entropy   77.01 ± 3.72    90.14 ± 0.44    90.65 ± 2.55    63.77 ± 6.91
    PolyCE-1        78.81 ± 4.46    90.94 ± 0.51    91.71 ± 2.32    63.83 ± 6.26
    Tversky         79.69 ± 4.56    90.06 ± 0.68    91.41 ± 2.90    58.46 ± 6.77
    Focal Tversky   80.93 ± 4.21    90.41 ± 0.38    91.97 ± 2.43    56.14 ± 6.58
    DropDice        79.29 ± 4.68    90.21 ± 0.53    91.99 ± 2.45    70.49 ± 5.54
    PolyDice-1      80.73 ± 4.62    90.98 ± 0.63    92.30 ± 2.22    70.78 ± 5.20
"""

_TRANSUNET = """
    Dice            91.03 ± 4.29    93.90 ± 0.50    93.01 ± 0.78    78.73 ± 6.05
    Cross Entropy   90.73 ± 3.87    93.48 ± 0.39    91.97 ± 0.84    73.71 ± 6.01
    PolyCE-1        90.67 ± 4.12    93.44 ± 0.50    92.45 ± 0.66    73.31 ± 8.05
    Tversky         91.35 ± 4.01    93.11 ± 0.33    92.52 ± 0.66    52.34 ± 4.83
    Focal Tversky   91.02 ± 4.50    93.13 ± 0.48    92.82 ± 0.70    56.55 ± 6.76
    DropDice        91.19 ± 4.27    93.92 ± 0.43    93.03 ± 0.69    79.23 ± 6.18
    PolyDice-1      90.97 ± 4.73    93.79 ± 0.40    93.20 ± 0.70    79.16 ± 5.78
"""


class Published(NamedTuple):
    """Dice in percent, in the paper's own digits."""

    mean: Decimal
    sd: Decimal
    table: str

    def __str__(self) -> str:
        return f"{self.mean} ± {self.sd}"


def published(dataset: str, model: str, loss: str) -> Published | None:
    """What the paper has for a loss on a data set with a network, all three by the names that it gives them.

    Case, hyphens and the word "loss" make no difference. Nor do values of parameters: the paper chooses ε on validation
    and does not name K, α and β, so its figure stands for the loss.

    >>> str(published("cvc-clinicdb", "unet", "Cross-entropy"))
    '77.01 ± 3.72'
    >>> str(published("cvc-clinicdb", "unet", "PolyDice-1, ε = 0.5"))
    '80.73 ± 4.62'
    """
    return PUBLISHED.get((_plain(dataset), _plain(model), _plain(stem(loss))))


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+|\bloss\b", "", name.lower())


def _read(model: str, table: str, text: str) -> dict[tuple[str, str, str], Published]:
    found = {}
    for line in text.strip().splitlines():
        loss, *cells = re.split(r"\s{2,}", line.strip())
        for dataset, cell in zip(_SETS, cells, strict=True):
            mean, sd = map(Decimal, cell.split(" ± "))
            found[_plain(dataset), model, _plain(loss)] = Published(mean, sd, table)
    return found


PUBLISHED = _read("unet", "Table 1", _UNET) | _read("transunet", "Table 2", _TRANSUNET)
