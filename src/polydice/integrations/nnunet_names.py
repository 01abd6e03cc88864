"""What a trainer's name says of its loss, and what is said of a name that is nearly one."""

import re
import warnings
from collections.abc import Callable
from difflib import get_close_matches
from functools import partial
from typing import Any, NamedTuple

from polydice.base import AveragedLoss
from polydice.losses import (
    CrossEntropyLoss,
    DiceLoss,
    DropDiceLoss,
    FocalLoss,
    FocalTverskyLoss,
    PolyDice1Loss,
    TverskyLoss,
    TvMFDiceLoss,
)
from polydice.pixelwise import PixelLoss
from polydice.recommended import START

PREFIX = "nnUNetTrainer"
SMOOTH = 1e-5  # nnU-Net's own
SCALES = {"detached": "detached", "noscale": "none"}


class Family(NamedTuple):
    """Losses that differ in numbers: by their arguments' names, the words of a name."""

    loss: Callable[..., AveragedLoss]  # with the numbers of a name that says none
    words: tuple[str, ...] = ()
    scales: bool = False


FAMILIES = {
    "Dice": Family(partial(DiceLoss, squared=False)),  # as nnU-Net's own
    "PolyDice": Family(partial(PolyDice1Loss, epsilon=0.2), ("epsilon", "follow"), scales=True),
    "DropDice": Family(partial(DropDiceLoss, order=1), ("order",), scales=True),
    "Tversky": Family(TverskyLoss, ("alpha", "beta")),
    "FocalTversky": Family(FocalTverskyLoss, ("alpha", "beta", "gamma")),
    "TvMF": Family(partial(TvMFDiceLoss, kappa=0.0), ("kappa",)),
}
HEAD = re.compile(f"({'|'.join(FAMILIES)})(CE|Focal)?")
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")
FORMS = "\n".join(
    f"  {PREFIX}{name}[CE|Focal]"
    + "".join(f"[_{word}NUMBER]" for word in family.words)
    + ("[_detached|_noscale]" if family.scales else "")
    for name, family in FAMILIES.items()
)
EXPLAINED = f"""The names of polydice's trainers are
{FORMS}
with [_focalNUMBER] at the end of those with Focal; a NUMBER is written as 2, 0.2 or -0.1. To start with, take
{START.trainer}."""


class Named(NamedTuple):
    """A loss by the arguments of `nnunet_loss`, and whether it adapts to the validation."""

    dice: Callable[..., AveragedLoss]
    plus: Callable[..., PixelLoss] | None
    smooth: float | None
    adapts: bool


def read(name: str) -> Named | None:
    """What the name says, or nothing if it is none of ours. A number that cannot be meant raises.

    >>> read("nnUNetTrainerTverskyCE_alpha0.4").dice()
    TverskyLoss(alpha=0.4)
    >>> read("nnUNetTrainerDropDice_order0")
    Traceback (most recent call last):
    ...
    ValueError: nnUNetTrainerDropDice_order0: order must be at least 1: 0
    """
    head, *parts = name.removeprefix(PREFIX).split("_")
    found = HEAD.fullmatch(head) if name.startswith(PREFIX) else None
    given = _words(FAMILIES[found[1]], found[2], parts) if found else None
    if found is None or given is None:
        return None
    plus: Callable[..., PixelLoss] | None = CrossEntropyLoss if found[2] else None
    try:
        numbers = {word: _number(word, text) for word, text in given.items() if word not in SCALES}
        if found[2] == "Focal":
            plus = partial(FocalLoss, numbers.pop("focal", 2.0))
        dice = partial(FAMILIES[found[1]].loss, **numbers)
        for word in given.keys() & SCALES:
            dice = partial(dice, scale=SCALES[word])
        _check(dice, plus)
    except (TypeError, ValueError, UserWarning) as problem:
        raise ValueError(f"{name}: {problem}") from None
    of_the_angle = found[1] == "TvMF" or "noscale" in given
    return Named(dice, plus, None if of_the_angle else SMOOTH, adapts="kappa" not in given)


def _words(family: Family, plus: str | None, parts: list[str]) -> dict[str, str] | None:
    """The words of a name, each with its number as it is written, if they are the family's and in its order."""
    allowed = [f"{word}[^_a-z]*" for word in family.words]
    allowed += ["(?:detached|noscale)"] if family.scales else []
    allowed += ["focal[^_a-z]*"] if plus == "Focal" else []
    if not re.fullmatch("".join(f"(_{word})?" for word in allowed), "".join(f"_{part}" for part in parts)):
        return None
    return dict(re.findall("([a-z]+)([^_]*)", "_".join(parts)))


def _number(word: str, text: str) -> float:
    if not NUMBER.fullmatch(text):
        raise ValueError(f"{word}{text} is no number: 2, 0.2 and -0.1 are, 02 and .2 are not")
    return float(text) if "." in text else int(text)


def _check(dice: Callable[..., AveragedLoss], plus: Callable[..., PixelLoss] | None) -> None:
    """Losses refuse numbers themselves. What they only warn of, and what teaches nothing, is not meant by a name."""
    with warnings.catch_warnings(action="error"):
        made: Any = dice()
        if plus is not None:
            plus()
    if isinstance(made, TverskyLoss) and made.alpha == made.beta == 0:
        raise ValueError("alpha and beta are both 0: the loss is 0 whatever is predicted")
    if isinstance(made, PolyDice1Loss) and (made.follow or 0) < 0:
        raise ValueError(f"follow is what epsilon grows to with Dice, and must be at least 0: {made.follow}")


def nearly(name: str) -> bool:
    """Whether a name that is none of ours was probably meant to be.

    >>> [nearly(f"nnUNetTrainer{rest}") for rest in ("PolydiceCE", "_FocalDice", "CE", "_100epochs", "Adam")]
    [True, True, True, False, False]
    """
    word = name.casefold().removeprefix(PREFIX.casefold()).lstrip("_").split("_")[0]
    known = [family.casefold() for family in FAMILIES]
    within = word in ("ce", "focal") or any(family in word for family in known)
    return within or bool(get_close_matches(word, known, cutoff=0.75))
