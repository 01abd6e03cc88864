import pydoc
import re
from typing import Any

import pytest
import torch
from torch import Tensor

import polydice
from polydice import DiceLoss, DropDiceLoss, PixelSums, PolyDice1Loss, TverskyLoss
from polydice.arguments import all_parameters, check_arguments, not_negative, number, numbers, parameters, shares
from polydice.base import RegionLoss, RegionOptions


class Scaled(PolyDice1Loss):
    """It passes on all that it does not know."""

    def __init__(self, size: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.size = number("size", size)


class Fixed(RegionLoss):
    """It takes one number and nothing else.

    Args:
        size: in pixels.

    Note:
        Of no use.
    """

    want = ("prediction",)

    def __init__(self, size: float) -> None:
        super().__init__(batch=True)
        self.size = size

    def per_class(self, sums: PixelSums) -> Tensor:
        return self.size * sums.prediction


class Named:
    """A mixin, of no loss."""

    def __init__(self, *, label: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.label = label


class NamedDice(Named, DiceLoss):
    pass


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: DiceLoss(eps=1.0),
            "DiceLoss: got an unexpected keyword argument 'eps'; .* are squared, batch",
        ),
        (lambda: DiceLoss(True), "DiceLoss: too many positional arguments; its options are squared"),
        (lambda: PolyDice1Loss(scale="none"), "PolyDice1Loss: missing a required argument: 'epsilon'; its options are"),
        (lambda: DropDiceLoss(2, order=3), "DropDiceLoss: multiple values for argument 'order'; its options are order"),
        (lambda: Scaled(2.0, epsilon=0.1, eps=1.0), "Scaled: got an unexpected keyword argument 'eps'; .* are size, "),
        (lambda: Fixed(2.0, batch=False), "Fixed: got an unexpected keyword argument 'batch'"),
        (
            lambda: NamedDice(labell="a"),
            "NamedDice: got an unexpected keyword argument 'labell'; .* are label, ",
        ),
    ],
)
def test_a_wrong_call_is_answered_in_one_way(make: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


def test_arguments_of_subclasses_and_mixins_are_taken() -> None:
    assert repr(Scaled(2.0, epsilon=0.5, batch=True)) == "Scaled(size=2.0, batch=True)"
    assert Scaled(2.0, epsilon=0.5).epsilon == 0.5
    assert repr(NamedDice(label="a", squared=False)) == "NamedDice(label='a', squared=False)"
    assert Fixed(3.0).batch
    assert list(parameters(Fixed)) == ["size"]


def test_the_arguments_of_a_loss_are_its_own_before_the_shared_ones() -> None:
    assert list(parameters(TverskyLoss))[:5] == ["alpha", "beta", "batch", "smooth", "absent"]
    assert "coefficients" not in parameters(DropDiceLoss)
    assert "coefficients" in all_parameters(DropDiceLoss)
    assert set(RegionOptions.__annotations__) <= set(parameters(DiceLoss))


def test_a_right_call_passes() -> None:
    check_arguments(TverskyLoss, (0.5,), {"beta": 0.5, "weight": None})


def test_numbers_are_kept_exactly() -> None:
    assert not_negative("weight", [0.1, 1 / 3]).tolist() == [0.1, 1 / 3]
    assert not_negative("kappa", torch.tensor(0.1)).dtype == torch.float64
    assert numbers("epsilon", [-0.1, 1 / 3]).tolist() == [-0.1, 1 / 3]


@pytest.mark.parametrize("values", [[0.5, float("nan")], [], [[0.1]]])
def test_numbers_that_are_none_are_refused(values: list) -> None:
    with pytest.raises(ValueError, match="epsilon must be finite, one number or one per class"):
        numbers("epsilon", values)
    with pytest.raises(ValueError, match="kappa must be finite and not negative, one per class"):
        not_negative("kappa", values)
    with pytest.raises(ValueError, match="dice_per_class must be"):
        shares("dice_per_class", values)


@pytest.mark.parametrize(
    "kind", [getattr(polydice, name) for name in polydice.__all__ if "Loss" in name and name != "HeadLoss"]
)
def test_help_says_what_every_option_means(kind: type) -> None:
    text = pydoc.plain(pydoc.render_doc(kind))
    for name, parameter in parameters(kind).items():
        assert len(re.findall(rf"^ \|      {name}: \S", text, re.MULTILINE)) == 1
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        assert re.search(rf"\b{name}: [^,]*{re.escape(default)}", text.splitlines()[3])


def test_the_text_of_somebodys_loss_stays_whole() -> None:
    assert re.fullmatch(
        r"It takes one .*\n\nArgs:\n    size: in pixels\.\n\nCall:\n(    .*\n)+\nNote:\n    Of no use\.\n",
        Fixed.__doc__,
    )
