"""Polynomial Dice losses for medical image segmentation: exact, light, one pass over the pixels."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from polydice.head import HeadLoss
    from polydice.losses import (
        CrossEntropyLoss,
        DiceLoss,
        DropDiceLoss,
        FocalLoss,
        FocalTverskyLoss,
        PolyCE1Loss,
        PolyDice1Loss,
        PolyDiceLoss,
        TverskyLoss,
        TvMFDiceLoss,
    )
    from polydice.sums import PixelSums, pixel_sums

__version__ = "0.2.0"

__all__ = [
    "CrossEntropyLoss",
    "DiceLoss",
    "DropDiceLoss",
    "FocalLoss",
    "FocalTverskyLoss",
    "HeadLoss",
    "PixelSums",
    "PolyCE1Loss",
    "PolyDice1Loss",
    "PolyDiceLoss",
    "TvMFDiceLoss",
    "TverskyLoss",
    "pixel_sums",
]


def __getattr__(name: str) -> object:
    # Lazily, so that the command line's --help does not wait for torch.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = {"PixelSums": "sums", "pixel_sums": "sums", "HeadLoss": "head"}.get(name, "losses")
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
