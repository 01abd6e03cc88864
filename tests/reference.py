"""What the losses are held against: plain definitions in 50 digits (mpmath). `polydice.kernels.reference` has the sums.

Nothing here is rearranged for the sake of digits: c = (2I + δ)/(2r + δ), or I/r of the angle alone, θ = arccos c. The
digits make up for it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from mpmath import mp, mpf
from torch import Tensor

from polydice import (
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
from polydice.kernels import blocks, native, plan

# 50 digits of result: 1 − cos loses 13 of them at an angle of 1e-6, a square root near 0 up to half of the rest.
mp.dps = 80


GAMMA = 1.5  # of the focal loss


class Sums(NamedTuple):
    """The sums of one image and class in the letters of the formulas."""

    i: mpf  # Σ y·ŷ
    p: mpf  # Σ ŷ
    b: mpf  # Σ ŷ²
    t: mpf  # Σ y
    a: mpf  # Σ y²
    ce: mpf  # Σ −y·log ŷ, or the binary one
    missed: mpf  # Σ 1 − p_t, p_t the probability of the truth
    focal: mpf = mpf(0)  # Σ (1 − p_t)^γ of the cross-entropy, γ = GAMMA


# A formula gets the sums, δ, and the same sums "held": constants, for what a gradient does not go through.
Formula = Callable[[Sums, mpf, Sums], mpf]


def dice(s: Sums, delta: mpf, _: Sums) -> mpf:
    return 1 - (2 * s.i + delta) / (s.a + s.b + delta)


def dice_unsquared(s: Sums, delta: mpf, _: Sums) -> mpf:
    return 1 - (2 * s.i + delta) / (s.t + s.p + delta)


def scale_of(s: Sums, delta: mpf) -> mpf:
    return (2 * mp.sqrt(s.a * s.b) + delta) / (s.a + s.b + delta)


def cosine_of(s: Sums, delta: mpf) -> mpf:
    return (2 * s.i + delta) / (2 * mp.sqrt(s.a * s.b) + delta)


def cosine_alone(s: Sums) -> mpf:
    """Of the vectors themselves, as the published t-vMF has it."""
    return s.i / (mp.sqrt(s.a) * mp.sqrt(s.b))


def poly(coefficients: Sequence[Any], scale: str = "coupled") -> Formula:
    def formula(s: Sums, delta: mpf, held: Sums) -> mpf:
        theta = mp.acos(cosine_alone(s) if scale == "none" else cosine_of(s, delta))
        q = sum(mpf(alpha) * theta ** (2 * k) for k, alpha in enumerate(coefficients, 1))
        if scale == "none":
            return q
        own = scale_of(s, delta)
        return 1 - own + (scale_of(held, delta) if scale == "detached" else own) * q

    return formula


def drop(order: int, scale: str = "coupled") -> Formula:
    return poly([(-1) ** (k - 1) / mp.factorial(2 * k) for k in range(1, order + 1)], scale)


def tversky(alpha: float, beta: float) -> Formula:
    def formula(s: Sums, delta: mpf, _: Sums) -> mpf:
        wrong = mpf(alpha) * (s.p - s.i) + mpf(beta) * (s.t - s.i)
        return 1 - (s.i + delta) / (s.i + wrong + delta)

    return formula


def focal(alpha: float, beta: float, gamma: float) -> Formula:
    return lambda s, delta, held: tversky(alpha, beta)(s, delta, held) ** (1 / mpf(gamma))


def tvmf(kappa: float) -> Formula:
    def formula(s: Sums, delta: mpf, _: Sums) -> mpf:
        cosine = cosine_alone(s)
        phi = (1 + cosine) / (1 + kappa * (1 - cosine)) - 1
        return (1 - phi) ** 2

    return formula


def cross_entropy(s: Sums, delta: mpf, held: Sums) -> mpf:
    return s.ce


def poly_ce(epsilon: float) -> Formula:
    return lambda s, delta, held: s.ce + mpf(epsilon) * s.missed


def focal_entropy(s: Sums, delta: mpf, held: Sums) -> mpf:
    return s.focal


class Case(NamedTuple):
    """A loss of the library and what it is by definition."""

    name: str
    make: Callable[..., Any]
    formula: Formula

    @property
    def region(self) -> bool:
        """Whether it is a mean over images and classes, and takes `batch` and `absent`."""
        return self.name not in ("ce", "focal-ce", "polyce")

    @property
    def angular(self) -> bool:
        """Whether it is a loss of the angle alone."""
        return self.name.startswith("tvmf") or self.name.endswith("-none")

    def smoothing(self, delta: float) -> dict[str, float]:
        """δ as an option, where it is one."""
        return {"smooth": delta} if self.region and not self.angular else {}

    def supports(self, activation: str) -> bool:
        return self.region or activation != "none"


def _make(kind: type, *arguments: Any, **own: Any) -> Callable[..., Any]:
    return lambda **options: kind(*arguments, **own, **options)


CASES = [
    Case("dice", _make(DiceLoss), dice),
    Case("dice-unsquared", _make(DiceLoss, squared=False), dice_unsquared),
    Case("drop1", _make(DropDiceLoss, 1), drop(1)),
    Case("drop2", _make(DropDiceLoss, 2), drop(2)),
    Case("drop10", _make(DropDiceLoss, 10), drop(10)),
    Case("drop2-none", _make(DropDiceLoss, 2, scale="none"), drop(2, "none")),
    Case("poly1", _make(PolyDice1Loss, 0.5), poly([1.0])),
    Case("poly1-detached", _make(PolyDice1Loss, 0.25, scale="detached"), poly([0.75], "detached")),
    Case("poly1-none", _make(PolyDice1Loss, -0.125, scale="none"), poly([0.375], "none")),
    Case("poly", _make(PolyDiceLoss, (0.25, 0.5, -0.0625)), poly([0.25, 0.5, -0.0625])),
    Case("tversky", _make(TverskyLoss), tversky(0.3, 0.7)),
    Case("focal", _make(FocalTverskyLoss), focal(0.3, 0.7, 4 / 3)),
    Case("tvmf0", _make(TvMFDiceLoss, 0.0), tvmf(0)),
    Case("tvmf8", _make(TvMFDiceLoss, 8.0), tvmf(8)),
    Case("tvmf32", _make(TvMFDiceLoss, 32.0), tvmf(32)),
    Case("ce", _make(CrossEntropyLoss), cross_entropy),
    Case("focal-ce", _make(FocalLoss, GAMMA), focal_entropy),
    Case("polyce", _make(PolyCE1Loss, 2.0), poly_ce(2.0)),
]
REGION_CASES = [case for case in CASES if case.region]
ANGULAR_CASES = [case for case in CASES if case.angular]
# Their value and gradient vanish at ŷ = y with any activation: they are functions of squares.
SQUARED_CASES = [case for case in REGION_CASES if case.name not in ("dice-unsquared", "tversky", "focal")]


ACTIVATIONS = ("softmax", "sigmoid", "none")

each_loss = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
each_region_loss = pytest.mark.parametrize("case", REGION_CASES, ids=[case.name for case in REGION_CASES])
each_squared_loss = pytest.mark.parametrize("case", SQUARED_CASES, ids=[case.name for case in SQUARED_CASES])


def losses_and_activations(cases: Sequence[Case]) -> pytest.MarkDecorator:
    pairs = [(case, activation) for case in cases for activation in ACTIVATIONS if case.supports(activation)]
    return pytest.mark.parametrize(("case", "activation"), pairs, ids=[f"{case.name}-{how}" for case, how in pairs])


each_loss_and_activation = losses_and_activations(CASES)


def value_and_gradient(loss: Any, logits: Tensor, target: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The loss and the gradient of its sum in the logits."""
    logits = logits.detach().clone().requires_grad_()
    value = loss(logits, target, mask)
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    return value.detach(), gradient


@contextmanager
def float32_pixels() -> Iterator[None]:
    """In which those of large inputs are computed on a CPU; of inputs as small as here it is float64."""
    before = blocks.SMALL, native.EXACT
    blocks.SMALL = native.EXACT = 0
    plan._PLANS.clear()  # which say so
    try:
        yield
    finally:
        blocks.SMALL, native.EXACT = before
        plan._PLANS.clear()


def predictions(shape: Sequence[int], activation: str, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random logits; probabilities where the activation is none."""
    x = torch.randn(*shape, dtype=torch.float64)
    return (x.sigmoid() if activation == "none" else x).to(dtype)


class Reference:
    """One prediction and its target in 50 digits: `evaluate` gives value and gradient of any loss there.

    logits `[B, C, N]`, masks y of the same shape. `copies` says how often each pixel occurs: a million pixels need not
    be a million numbers. `delta` is the losses' `smooth`. `move` is added to the logits in 50 digits.
    """

    def __init__(
        self,
        logits: Tensor,
        y: Tensor,
        activation: str,
        delta: float = 1.0,
        copies: int = 1,
        move: tuple[mpf, Tensor] | None = None,
    ) -> None:
        self.activation, self.delta, self.copies = activation, mpf(delta), copies
        self.y = _digits(y)
        x = _digits(logits) if move is None else _moved(_digits(logits), move[0], _digits(move[1]))
        self.p = [_activate(image, activation) for image in x]
        self._known: dict[str, tuple[mpf, Tensor]] = {}

    def evaluate(self, case: Case) -> tuple[mpf, Tensor]:
        """The mean over images and classes; of a cross-entropy over what torch divides by. And ∂/∂logits."""
        if case.name not in self._known:
            self._known[case.name] = self._evaluate(case)
        return self._known[case.name]

    def _evaluate(self, case: Case) -> tuple[mpf, Tensor]:
        count = self._count(case)
        value, gradient = mpf(0), []
        for y, p in zip(self.y, self.p, strict=True):
            slopes = []
            for y_c, p_c in zip(y, p, strict=True):
                sums = self._sums(y_c, p_c)
                value += case.formula(sums, self.delta, sums) / count
                slopes.append(self._slope(case.formula, sums, y_c, p_c))
            gradient.append([[g / count for g in row] for row in _back(slopes, p, self.activation)])
        return mp.re(value), torch.tensor([[[float(mp.re(g)) for g in row] for row in image] for image in gradient],
                                          dtype=torch.float64)  # fmt: skip

    def _count(self, case: Case) -> int:
        batch, classes, pixels = len(self.y), len(self.y[0]), len(self.y[0][0]) * self.copies
        if case.region:
            return batch * classes
        return batch * pixels * (classes if self.activation == "sigmoid" else 1)

    def _sums(self, y: list[mpf], p: list[mpf]) -> Sums:
        pairs = list(zip(y, p, strict=True))

        def total(terms: Iterable[mpf]) -> mpf:
            return self.copies * mp.fsum(terms)

        if self.activation == "sigmoid":
            ce = total(-v * mp.log(q) - (1 - v) * mp.log(1 - q) for v, q in pairs)
            focal = total(v * _focused(q) + (1 - v) * _focused(1 - q) for v, q in pairs)
            missed = total(v * (1 - q) + (1 - v) * q for v, q in pairs)
        else:
            ce = mpf(0) if self.activation == "none" else total(-v * mp.log(q) for v, q in pairs)
            focal = mpf(0) if self.activation == "none" else total(v * _focused(q) for v, q in pairs)
            missed = total(v * (1 - q) for v, q in pairs)
        return Sums(total(v * q for v, q in pairs), total(p), total(q * q for q in p), total(y),
                    total(v * v for v in y), ce, missed, focal)  # fmt: skip

    def _slope(self, formula: Formula, sums: Sums, y: list[mpf], p: list[mpf]) -> list[mpf]:
        """∂/∂ŷ of each pixel, through the sums."""
        d = {name: _derivative(formula, sums, self.delta, name) for name in ("i", "p", "b", "ce", "missed", "focal")}
        slopes = []
        for v, q in zip(y, p, strict=True):
            slope = d["i"] * v + d["p"] + 2 * d["b"] * q
            if self.activation == "sigmoid":
                slope += d["missed"] * (1 - 2 * v) + d["ce"] * ((1 - v) / (1 - q) - v / q)
                slope += d["focal"] * (v * _focused_slope(q) - (1 - v) * _focused_slope(1 - q))
            elif self.activation == "softmax":
                slope += -d["missed"] * v - d["ce"] * v / q + d["focal"] * v * _focused_slope(q)
            slopes.append(slope)
        return slopes


def _focused(q: mpf) -> mpf:
    return -((1 - q) ** mpf(GAMMA)) * mp.log(q)


def _focused_slope(q: mpf) -> mpf:
    return mpf(GAMMA) * (1 - q) ** mpf(GAMMA - 1) * mp.log(q) - (1 - q) ** mpf(GAMMA) / q


def _digits(tensor: Tensor) -> list[list[list[mpf]]]:
    return [[[mpf(value) for value in row] for row in image] for image in tensor.double().tolist()]


def _moved(x: list[Any], step: mpf, direction: list[Any]) -> list[Any]:
    if not isinstance(x, list):
        return x + step * direction
    return [_moved(part, step, along) for part, along in zip(x, direction, strict=True)]


def _activate(x: list[list[mpf]], activation: str) -> list[list[mpf]]:
    if activation == "none":
        return x
    if activation == "sigmoid":
        return [[1 / (1 + mp.exp(-value)) for value in row] for row in x]
    exps = [[mp.exp(value) for value in row] for row in x]
    totals = [mp.fsum(column) for column in zip(*exps, strict=True)]
    return [[value / total for value, total in zip(row, totals, strict=True)] for row in exps]


def _back(slopes: list[list[mpf]], p: list[list[mpf]], activation: str) -> list[list[mpf]]:
    """From ∂/∂ŷ to ∂/∂logits."""
    if activation == "none":
        return slopes
    if activation == "sigmoid":
        return [[g * q * (1 - q) for g, q in zip(*rows, strict=True)] for rows in zip(slopes, p, strict=True)]
    columns = zip(zip(*slopes, strict=True), zip(*p, strict=True), strict=True)
    means = [mp.fsum(g * q for g, q in zip(gs, qs, strict=True)) for gs, qs in columns]
    return [
        [q * (g - mean) for g, q, mean in zip(gs, qs, means, strict=True)] for gs, qs in zip(slopes, p, strict=True)
    ]


def _derivative(formula: Formula, sums: Sums, delta: mpf, name: str) -> mpf:
    """Central difference, its step far below the digits wanted and far above those carried. Beyond c = 1 arccos² goes
    on analytically, through complex numbers whose square is real."""
    step, value = mpf(10) ** -60, getattr(sums, name)
    with mp.extradps(120):
        above, below = (formula(sums._replace(**{name: moved}), delta, sums) for moved in (value + step, value - step))
        return mp.re(above - below) / (2 * step)


def dense_masks(target: Tensor, classes: int, first_label: int = 0) -> Tensor:
    """Labels `[B, N]` to float64 masks `[B, C, N]`."""
    channels = torch.arange(first_label, first_label + classes)
    return (target.unsqueeze(1) == channels.unsqueeze(1)).double()
