"""Which losses of a recipe belong together: those that differ in one parameter alone are points of one line."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from polydice.base import Loss
from polydice.studies.recipe import Recipe, Variant, stem
from polydice.studies.style import COLOURS, GREY, MORE, shades
from polydice.training.expression import parse_loss

PARAMETERS = {"DropDiceLoss": "order", "PolyDice1Loss": "epsilon", "PolyCE1Loss": "epsilon"}
SYMBOLS = {"order": "K", "epsilon": "ε"}


class Member(NamedTuple):
    """A loss as a point of a line."""

    line: str  # the loss without the parameter
    parameter: str  # empty for a loss that has none
    value: float


def member(variant: Variant) -> Member:
    """
    >>> member(Variant("mine", "", "PolyDice1Loss(0.2, batch=True)"))
    Member(line='PolyDice1Loss(batch=True)', parameter='epsilon', value=0.2)
    """
    loss = parse_loss(variant.expression)
    parameter = PARAMETERS.get(type(loss).__name__, "")
    value = getattr(loss, parameter) if parameter and isinstance(loss, Loss) else None
    if value is None or (isinstance(value, Tensor) and value.ndim > 0):  # one per class is no place on a line
        return Member(repr(loss), "", 0.0)
    return Member(re.sub(rf"\b{parameter}=[^,)]+(, )?", "", repr(loss)), parameter, float(value))


def line_title(line: Sequence[Variant]) -> str:
    """What the recipe's names of a line's losses have in common: `PolyDice-1` of `PolyDice-1, ε = 0.5`."""
    names = {stem(variant.loss) for variant in line}
    return names.pop() if len(names) == 1 else member(line[0]).line


def lines(recipe: Recipe) -> dict[str, dict[str, list[Variant]]]:
    """Of each parameter that is given several values, the lines, and of each line its losses by ascending value."""
    found: dict[str, dict[str, list[Variant]]] = {}
    every = (variant.of_the_loss for variants in recipe.losses.values() for variant in variants)
    for variant in dict.fromkeys(every):
        line, parameter, _ = member(variant)
        if parameter:
            found.setdefault(parameter, {}).setdefault(line, []).append(variant)
    for by_line in found.values():
        for each in by_line.values():
            each.sort(key=lambda one: member(one).value)
    several = {name: {line: each for line, each in by_line.items() if len(each) > 1} for name, by_line in found.items()}
    return {parameter: by_line for parameter, by_line in several.items() if by_line}


def colours(recipe: Recipe) -> dict[str, str]:
    """A colour for each loss: its family's, or a free one where another line has that; shades along a line."""
    by_line: dict[str, list[str]] = {}
    for loss, variants in recipe.losses.items():
        by_line.setdefault(member(variants[0]).line, []).append(loss)
    families = {line: "" if " + " in line else line.partition("(")[0] for line in by_line}
    own = {COLOURS[family] for family in families.values() if family in COLOURS}
    spare = [colour for colour in (*COLOURS.values(), *MORE) if colour not in own]
    taken: set[str] = set()
    found: dict[str, str] = {}
    for line, losses in by_line.items():
        wanted = [COLOURS.get(families[line], ""), *spare]
        base = next((colour for colour in wanted if colour and colour not in taken), GREY)
        taken.add(base)
        found |= zip(losses, [base] if len(losses) == 1 else shades(base, len(losses)), strict=True)
    return found
