"""A loss written as one writes it in Python, from a command line or a recipe."""

import ast
from typing import Any

import polydice
from polydice.base import Loss, LossSum
from polydice.suggest import meant

LOSSES: dict[str, type[Loss]] = {
    name: getattr(polydice, name) for name in polydice.__all__ if name.endswith("Loss")
}  # fmt: skip


def parse_loss(text: str, **options: Any) -> Loss | LossSum:
    """The loss that `text` spells: calls with literal arguments, added up, each times a number or not. Nothing is run.
    `options` are those of every term, where the text does not say otherwise.

    >>> parse_loss("PolyDice1Loss(0.2, batch=True) + 0.5 * CrossEntropyLoss()")
    PolyDice1Loss(epsilon=0.2, batch=True) + 0.5 * CrossEntropyLoss()
    """
    try:
        loss = _value(ast.parse(text.strip(), mode="eval").body, options)
    except SyntaxError as error:
        raise ValueError(f"loss {text!r} is no expression: {error.msg}") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"loss {text!r}: {error}") from error
    if not isinstance(loss, Loss | LossSum):
        raise ValueError(f"loss {text!r} is no loss; the losses are {', '.join(LOSSES)}")
    return loss


def _value(node: ast.expr, options: dict[str, Any]) -> Any:
    match node:
        case ast.BinOp(left, ast.Add(), right):
            return _value(left, options) + _value(right, options)
        case ast.BinOp(left, ast.Mult(), right):
            return _value(left, options) * _value(right, options)
        case ast.Call(ast.Name(name), given, named) if name in LOSSES:
            words = options | {word.arg or "**": _literal(word.value) for word in named}
            return LOSSES[name](*map(_literal, given), **words)
        case ast.Call(ast.Name(name)) if near := meant(name, LOSSES):
            raise ValueError(f"{name} is none of the losses; did you mean {near}?")
        case _:
            return _literal(node)


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(
            f"{ast.unparse(node)!r} is neither a number or text nor one of {', '.join(LOSSES)}, added or multiplied"
        ) from None
