import pytest

import polydice
from polydice.base import Loss
from polydice.training.expression import LOSSES, parse_loss

EVERY = [
    "DiceLoss()",
    "DiceLoss(squared=False, batch=True)",
    "DropDiceLoss(order=2)",
    "PolyDice1Loss(epsilon=-0.3, scale='detached', batch=True, smooth=0.0)",
    "PolyDiceLoss(coefficients=(0.5, -0.04))",
    "TverskyLoss(alpha=0.7, beta=0.3, absent='skip')",
    "FocalTverskyLoss(gamma=2.0, include_background=False)",
    "TvMFDiceLoss(kappa=[32.0, 16.0])",
    "TvMFDiceLoss(kappa=4.0)",
    "PolyDice1Loss(epsilon=[0.1, 0.2], follow=0.5)",
    "FocalLoss(gamma=1.5)",
    "CrossEntropyLoss(weight=[1.0, 2.0], ignore_index=255)",
    "PolyCE1Loss(epsilon=2.0, activation='sigmoid')",
    "DiceLoss(batch=True) + 0.5 * CrossEntropyLoss()",
    "-1.5 * DiceLoss() + 2.0 * CrossEntropyLoss() + PolyCE1Loss()",
]


@pytest.mark.parametrize("text", EVERY)
def test_what_is_spelt_is_what_one_gets(text: str) -> None:
    loss = parse_loss(text)
    given = eval(text, {name: getattr(polydice, name) for name in LOSSES})
    assert repr(loss) == repr(given)
    assert repr(parse_loss(repr(loss))) == repr(loss)


def test_options_are_for_every_term_that_does_not_say_otherwise() -> None:
    assert repr(parse_loss("DiceLoss() + 0.5 * CrossEntropyLoss(ignore_index=255)", ignore_index=255)) == (
        "DiceLoss(ignore_index=255) + 0.5 * CrossEntropyLoss(ignore_index=255)"
    )
    assert repr(parse_loss("DiceLoss(smooth=2.0)", smooth=3.0)) == "DiceLoss(smooth=2.0)"


def test_every_loss_can_be_spelt() -> None:
    assert {type(loss).__name__ for loss in map(parse_loss, EVERY) if isinstance(loss, Loss)} == set(LOSSES)


@pytest.mark.parametrize("text", ["  DiceLoss()\n", "(DiceLoss())", "DiceLoss() * 2", "2 * 3 * DiceLoss()"])
def test_spaces_brackets_and_products_are_free(text: str) -> None:
    assert "DiceLoss()" in repr(parse_loss(text))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "loss '' is no expression: invalid syntax"),
        ("DiceLoss(", r"loss 'DiceLoss\(' is no expression: '\(' was never closed"),
        (
            "Vector()",
            r"loss 'Vector\(\)': 'Vector\(\)' is neither a number or text nor one of CrossEntropyLoss, DiceLoss, ",
        ),
        ("DiceLoss", "loss 'DiceLoss': 'DiceLoss' is neither"),
        ("polydice.DiceLoss()", r"'polydice.DiceLoss\(\)' is neither"),
        ("__import__('os').system('touch x')", "is neither"),
        ("DiceLoss(smooth=open('x'))", r"\"open\('x'\)\" is neither"),
        ("DiceLoss(*[1])", r"'\*\[1\]' is neither"),
        ("[DiceLoss() for _ in 'a']", "is neither"),
        ("(lambda: DiceLoss())()", "is neither"),
        ("DiceLoss().forward", "is neither"),
        ("DiceLoss() - DiceLoss()", "is neither"),
        ("DiceLoss() / 2", "is neither"),
        ("DiceLoss(smooth=1/2)", "'1 / 2' is neither"),
        ("DiceLoss() + 1", "unsupported operand"),
        ("DiceLoss() * DiceLoss()", "unsupported operand"),
        ("DiceLoss(smoth=1)", "unexpected keyword argument 'smoth'"),
        ("DiceLoss(**{'smooth': 1})", "unexpected keyword argument"),
        ("DiceLoss(smooth=-1)", "smooth must be finite and at least 0: -1"),
        ("DiceLoss(activation='relu')", "activation"),
        ("DropDiceLoss()", "missing 1 required positional argument: 'order'"),
        ("0.5", "loss '0.5' is no loss; the losses are CrossEntropyLoss, DiceLoss, "),
        ("'DiceLoss()'", "is no loss"),
        ("DiceLoss(activation='sigmoid') + CrossEntropyLoss()", "terms of a sum must agree in activation"),
    ],
)
def test_what_is_not_a_loss_is_refused_and_shown(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        parse_loss(text)
    assert "\n" not in str(caught.value)
    assert "object at 0x" not in str(caught.value)


def test_a_near_name_is_suggested() -> None:
    with pytest.raises(ValueError, match=r"DiceLos is none of the losses; did you mean DiceLoss\?"):
        parse_loss("DiceLos() + CrossEntropyLoss()")
