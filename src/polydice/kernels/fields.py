"""The sums of a pass over the pixels, by name, and what a pass and a formula are asked for."""

from typing import Any, NamedTuple

from torch import Tensor

_UNWANTED: Any = None


class PixelSums(NamedTuple):
    """Sums over the pixels of one image, for each class: `[B, C]` each, `None` where not wanted. ŷ is the prediction
    after the activation, y the target; a float mask weighs every pixel's part. `kernels/reference.py` defines them.

    Args:
        intersection: Σ y·ŷ.
        prediction: Σ ŷ.
        prediction_sq: Σ ŷ².
        target: Σ y.
        target_sq: Σ y².
        error_sq: Σ (y − ŷ)².
        cross_entropy: Σ −y·log ŷ (softmax), Σ of the binary one (sigmoid).
        pixels: pixels not ignored.
        focal: Σ −y·(1 − ŷ)^γ·log ŷ (softmax), and of sigmoid also Σ −(1 − y)·ŷ^γ·log(1 − ŷ).
        uniform: Σ −log ŷ / C (softmax): the cross-entropy of a target that does not know.
        annotated: booleans: which classes were annotated there; None: all of them.
        labels: whether the target was class labels (else masks).
    """

    intersection: Tensor = _UNWANTED
    prediction: Tensor = _UNWANTED
    prediction_sq: Tensor = _UNWANTED
    target: Tensor = _UNWANTED
    target_sq: Tensor = _UNWANTED
    error_sq: Tensor = _UNWANTED
    cross_entropy: Tensor = _UNWANTED
    pixels: Tensor = _UNWANTED
    focal: Tensor = _UNWANTED
    uniform: Tensor = _UNWANTED
    annotated: Tensor | None = None
    labels: bool = True


SUMS = PixelSums._fields[:-2]  # kernels number them in this order
ON_REQUEST = ("focal", "uniform")
FIELDS = tuple(name for name in SUMS if name not in ON_REQUEST)  # the sums that come unasked
FROM_LOGITS = ("cross_entropy", *ON_REQUEST)
ACTIVATIONS = ("softmax", "sigmoid", "none")  # kernels number these too
IMPLEMENTATIONS = ("auto", "fused", "eager")


class Options(NamedTuple):
    """What the pass is asked for. `want` names the sums, in the order in which they come out."""

    activation: str
    ignore_index: int | None
    want: tuple[str, ...]
    gamma: float = 0.0  # of the focal sum


class Form(NamedTuple):
    """A loss as `kernels/tail.py` computes it: which of its formulas, and with which numbers."""

    kind: str  # one of ending.KINDS
    numbers: tuple[float, ...]  # four, in the order in which the formula reads them
    coefficients: tuple[float, ...] = ()  # of a polynomial
    added: str = ""  # a buffer of the loss, one number or one per class: what is added to the first coefficient


class FormulaTerm(NamedTuple):
    """One loss of a weighted sum."""

    form: Form
    factor: float
    background: bool
    skip_absent: bool


class Formula(NamedTuple):
    """What the tail makes of the sums: a weighted sum of losses."""

    terms: tuple[FormulaTerm, ...]
    mean: bool  # over images and classes, else their sum
    over_batch: bool
    weighted: bool  # whether there are weights of classes
    each_added: bool = False  # whether what is added to coefficients is one number per class
