"""What follows a pass over the pixels: the launches that make the loss and its slopes of partial sums, by `tail.py`."""

import math
from itertools import accumulate
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from polydice.kernels.fields import SUMS, Formula, Options
from polydice.kernels.launch import Launch
from polydice.kernels.tail import gather, tail

KINDS = ("polynomial", "ratio", "overlap", "entropy", "focal")
MOST_ELEMENTS = 4096  # images x classes that the tail's one program takes
MOST_PARTIALS = 1 << 14  # that it adds up by itself
TAIL_WARPS = 8
# Of the squared angle, by halves: 2^(k+1) / (k^2 binomial(2k, k)). The rest is below 2^-44 of it.
SERIES = tuple(2.0 ** (k + 1) / (k * k * math.comb(2 * k, k)) for k in range(1, 17))


class Ending(NamedTuple):
    """The launches that make a loss and its slopes of partial sums."""

    gather: Launch | None
    tail: Launch

    def __call__(
        self, stream: int, space: Tensor, weights: Tensor | None, added: Tensor | None, *annotated: Tensor
    ) -> Tensor:
        device = space.device
        if weights is not None and (weights.device != device or weights.dtype != torch.float64):
            raise ValueError(f"weights for logits on {device} must be float64 there: {weights.dtype}, {weights.device}")
        loss = torch.empty((), dtype=torch.float32, device=device)
        if self.gather is not None:
            self.gather(stream, space)
        nothing = space
        numbers = nothing if weights is None else weights, nothing if added is None else added
        self.tail(stream, space, *numbers, loss, *annotated)
        return loss


def lumps(formula: Formula, options: Options, labels: bool) -> bool:
    """Whether every class of a label weighs the same in the cross-entropy."""
    same_weights = not formula.weighted and all(term.background for term in formula.terms)
    return labels and options.activation == "softmax" and same_weights and "cross_entropy" in options.want


def room_of(options: Options, batch: int, classes: int) -> int:
    """Numbers that the slopes take in the space of `tail`: an even one, since float64 numbers begin at even places."""
    slopes = len(options.want) * batch * classes
    return slopes + slopes % 2


def end(
    formula: Formula, options: Options, labels: bool, batch: int, classes: int, programs: int, device: torch.device,
    partial: bool = False,
) -> tuple[Ending, int]:  # fmt: skip
    """What follows a pass of so many programs for each image, and the numbers in the space of all."""
    slopes, room = len(options.want) * batch * classes, room_of(options, batch, classes)
    many = slopes * programs > MOST_PARTIALS
    gathering = _gather(room, slopes, programs, device) if many else None
    ending = _tail(formula, options, labels, partial, room, batch, classes, 0 if many else programs, device)
    return Ending(gathering, ending), 3 * room + slopes * programs


def absent(partial: bool) -> tuple[None, ...]:
    """`annotated`, the last of a kernel's tensors, where it is no tensor."""
    return () if partial else (None,)


def _gather(room: int, sums: int, programs: int, device: torch.device) -> Launch:
    blocks = {"BLOCK_P": 128, "BLOCK_J": 32}
    return Launch(gather, (triton.cdiv(sums, 32), 1), (room, sums, programs), blocks, device, num_warps=4)


def _tail(
    formula: Formula, options: Options, labels: bool, partial: bool, room: int, batch: int, classes: int,
    programs: int, device: torch.device,
) -> Launch:  # fmt: skip
    terms, forms = formula.terms, [term.form for term in formula.terms]
    rows_added = list(accumulate(bool(form.added) for form in forms))
    images = batch if formula.over_batch else 1
    rows, block = max(1, programs) * images, triton.next_power_of_2(batch * classes // images)
    split = min(max(1, 32 * TAIL_WARPS // block), triton.next_power_of_2(rows))
    constants = {
        "KIND": tuple(KINDS.index(form.kind) for form in forms),
        "NUMBERS": tuple(float(number) for form in forms for number in form.numbers),
        "COEFFICIENTS": (*(value for form in forms for value in form.coefficients), 0.0),  # never empty
        "BOUNDS": tuple(accumulate((len(form.coefficients) for form in forms), initial=0)),
        "ADDED": tuple(row - 1 if form.added else -1 for form, row in zip(forms, rows_added, strict=True)),
        "EACH_ADDED": formula.each_added,
        "FACTOR": tuple(term.factor for term in terms),
        "BACKGROUND": tuple(int(term.background) for term in terms),
        "SKIP": tuple(int(term.skip_absent) for term in terms),
        "MEAN": formula.mean,
        "LABELS": labels,
        "SIGMOID": options.activation == "sigmoid",
        "WEIGHTS": formula.weighted,
        "OVER_BATCH": formula.over_batch,
        **_places(options.want),
        "PARTIAL": partial,
        "SERIES": SERIES,
        "FIELDS": len(options.want),
        "GATHERED": programs == 0,
        "BLOCK": block,
        "SPLIT": split,
        "AT_ONCE": min(4, triton.cdiv(rows, 4 * split)),
        "BLOCK_B": triton.next_power_of_2(batch),
    }
    numbers = (*absent(partial), room, batch, classes, max(1, programs))
    return Launch(tail, (1, 1), numbers, constants, device, num_warps=TAIL_WARPS)


def _places(want: tuple[str, ...]) -> dict[str, int]:
    return {name.upper(): want.index(name) if name in want else -1 for name in SUMS}
