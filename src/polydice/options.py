"""The keyword options of losses, and what `help` says of a loss: every option, those of its bases too, and shapes."""

import inspect
import re
from collections.abc import Sequence
from textwrap import dedent, indent
from typing import TYPE_CHECKING, TypedDict

from torch import Tensor

from polydice.arguments import parameters

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup  # absent from builds without torch.distributed

CALL = """\
Call:
    `loss(logits, target, mask=None, annotated=None)`, with logits `[B, C, *spatial]`; target `[B, *spatial]` or
    `[B, 1, *spatial]` labels, or masks of the logits' shape; mask `[B, *spatial]` or `[B, 1, *spatial]`, booleans or
    weights of pixels; annotated `[B, C]` booleans, the classes that are annotated in each image. Gives one number, or
    `[B, C]` (`[1, C]` with sums over the batch) with `reduction="none"`."""


class LossOptions(TypedDict, total=False):
    """Keyword options of every loss; `Loss` says what they mean."""

    activation: str
    include_background: bool
    weight: Sequence[float] | Tensor | None
    ignore_index: int | None
    reduction: str
    process_group: "ProcessGroup | None"
    impl: str


class AveragedOptions(LossOptions, total=False):
    """Keyword options of the losses that are a mean over classes: all but the cross-entropies."""

    batch: bool
    absent: str


class RegionOptions(AveragedOptions, total=False):
    """Keyword options of the losses that compare regions, by volume and place: all but those of the angle alone."""

    smooth: float


def describe(kind: type) -> None:
    """Gives a loss the signature and the text that its `**options` hide. A class without a text gets none."""
    wanted = parameters(kind)
    ordered = sorted(wanted.values(), key=lambda parameter: parameter.kind)
    kind.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
    if vars(kind).get("__doc__"):
        meanings = _meanings(kind)
        listed = "\n".join(f"{name}: {meanings[name]}" for name in wanted if name in meanings)
        text, _, more = _parts(kind)
        kind.__doc__ = "\n\n".join(filter(None, (text, f"Args:\n{indent(listed, '    ')}", CALL, more))) + "\n"


def _meanings(kind: type) -> dict[str, str]:
    """Of every option, as the nearest class says that has it in its text."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        found |= _parts(base)[1]
    return found


def _parts(kind: type) -> tuple[str, dict[str, str], str]:
    """A class's text before its section `Args`, the entries of that, and what follows it."""
    whole = inspect.cleandoc(vars(kind).get("__doc__") or "").replace(f"\n\n{CALL}", "")
    text, _, rest = whole.partition("\n\nArgs:\n")
    entries, *more = re.split(r"\n+(?=\S)", rest, maxsplit=1)
    return text, dict(re.findall(r"^(\w+): (.*(?:\n .*)*)", dedent(entries), re.MULTILINE)), "".join(more)
