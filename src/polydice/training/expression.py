"""A loss written as one writes it in Python, from a command line or a recipe."""

import ast
from typing import Any

from torch import nn

import polydice
from polydice import foreign
from polydice.base import Loss, LossSum
from polydice.suggest import meant
from polydice.training.mixed import Foreign, Mixed, takes

LOSSES: dict[str, type[Loss]] = {
    name: kind
    for name in polydice.__all__
    if isinstance(kind := getattr(polydice, name), type) and issubclass(kind, Loss)
}


def parse_loss(text: str, **options: Any) -> Loss | LossSum | Mixed:
    """The loss that `text` spells: calls with literal arguments, added up, each times a number or not.

    A loss is one of polydice's, or anybody's as `module:Class`, with or without arguments in brackets. Its module is
    imported, and no other code is run.
    `options` are those of every term that takes them, where the text does not say otherwise; `ignore_index` alone is
    given to other people's losses too.

    >>> parse_loss("PolyDice1Loss(0.2, batch=True) + 0.5 * CrossEntropyLoss()")
    PolyDice1Loss(epsilon=0.2, batch=True) + 0.5 * CrossEntropyLoss()
    >>> parse_loss("0.5 * torch.nn:CrossEntropyLoss(label_smoothing=0.1) + DiceLoss()")
    DiceLoss() + 0.5 * torch.nn:CrossEntropyLoss(label_smoothing=0.1)
    """
    try:
        loss = _value(foreign.parsed(text), options)
    except SyntaxError as error:
        raise ValueError(f"loss {text!r} is no expression: {error.msg}") from error
    except (TypeError, ValueError) as error:
        raise ValueError(f"loss {text!r}: {error}") from error
    if not isinstance(loss, Loss | LossSum | Mixed):
        raise ValueError(f"loss {text!r} is no loss; the losses are {', '.join(LOSSES)}, or yours as module:Class()")
    return loss


def _value(node: ast.expr, options: dict[str, Any]) -> Any:
    match node:
        case ast.BinOp(left, ast.Add(), right):
            return _value(left, options) + _value(right, options)
        case ast.BinOp(left, ast.Mult(), right):
            return _value(left, options) * _value(right, options)
        case ast.Call(function) if ":" in foreign.spelt(function) and isinstance(function, ast.Name | ast.Attribute):
            return _foreign(node, foreign.find(foreign.spelt(function)), options)
        case ast.Name() | ast.Attribute() if ":" in foreign.spelt(node):
            return _value(ast.Call(node, [], []), options)
        case ast.Call(ast.Name(name)) if name in LOSSES:
            return _own(node, LOSSES[name], options)
        case ast.Call(ast.Name(name)) if near := meant(name, LOSSES):
            raise ValueError(f"{name} is none of the losses; did you mean {near}?")
        case _:
            return _number(node)


def _own(call: ast.Call, kind: type[Loss], options: dict[str, Any]) -> Loss:
    given, named = foreign.arguments(call)
    return kind(*given, **options | named)


def _foreign(call: ast.Call, kind: type[nn.Module], options: dict[str, Any]) -> Loss | Mixed:
    """A loss that is derived from polydice's is like one of them, wherever it comes from."""
    if issubclass(kind, Loss):
        return _own(call, kind, options)
    given, named = foreign.arguments(call)
    spelt, ignore = foreign.spelt(call), options.get("ignore_index")
    words = ({"ignore_index": ignore} if ignore is not None and takes(kind, "ignore_index") else {}) | named
    masked = "ignore_index" not in words and takes(kind.forward, "mask")
    if ignore is not None and words.get("ignore_index", ignore if masked else None) != ignore:
        raise ValueError(
            f"pixels without a label are {ignore} here, and {spelt} does not leave them out: its constructor must take "
            f"an ignore_index, which is given to it, or its forward a mask"
        )
    try:
        return Mixed(None, [(1.0, Foreign(spelt, kind(*given, **words), ignore if masked else None))])
    except Exception as error:  # it is somebody else's code, and may raise anything
        raise ValueError(f"{spelt} cannot be made: {type(error).__name__}: {error}") from error


def _number(node: ast.expr) -> Any:
    try:
        return foreign.literal(node)
    except ValueError:
        raise ValueError(
            f"{foreign.spelt(node)!r} is neither a number or text nor one of {', '.join(LOSSES)}, added or multiplied"
        ) from None
