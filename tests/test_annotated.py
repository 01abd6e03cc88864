"""Classes that are not annotated in some images: the loss is that of logits whose background takes them in."""

import pytest
import torch
from mpmath import mpf
from torch import Tensor

from polydice import (
    CrossEntropyLoss,
    DiceLoss,
    FocalLoss,
    PolyCE1Loss,
    PolyDice1Loss,
    TverskyLoss,
    TvMFDiceLoss,
    pixel_sums,
)
from polydice.base import AveragedLoss
from tests.reference import CASES, Case, Reference, _activate, _digits, each_loss, value_and_gradient

SAME = 1e-12
ANNOTATED = torch.tensor([[True, True, False, True], [True, False, False, True], [True, True, True, True]])
GONE = torch.tensor([[False] * 4, [True, False, True, True], [True, True, True, True]])


def example(annotated: Tensor, soft: bool = False) -> tuple[Tensor, Tensor]:
    x = torch.randn(3, 4, 30, dtype=torch.float64)
    if soft:
        return x, torch.rand(3, 4, 30, dtype=torch.float64).softmax(1)
    labels = torch.randint(4, (3, 30))
    kept = annotated | ~annotated.any(1, keepdim=True)
    return x, torch.where(kept.gather(1, labels), labels, 0)


def merged(x: Tensor, y: Tensor, annotated: Tensor) -> tuple[Tensor, Tensor]:
    """One image's logits and masks, of the classes that are annotated alone: the rest is background."""
    rest = ~annotated
    rest[0] = True
    others = annotated.clone()
    others[0] = False
    return (
        torch.cat([x[rest].logsumexp(0, keepdim=True), x[others]]),
        torch.cat([y[rest].sum(0, keepdim=True), y[others]]),
    )


def masks_of(target: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(target, 4).movedim(2, 1).double() if target.ndim == 2 else target


WEIGHT = [0.5, 1.0, 2.0, 0.25]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("soft", [False, True])
@each_loss
def test_the_loss_of_an_image_is_that_of_merged_logits(case: Case, soft: bool, weighted: bool) -> None:
    x, target = example(ANNOTATED, soft)
    x.requires_grad_()
    y = masks_of(target)
    for image, annotated in enumerate(ANNOTATED):
        options = {"weight": WEIGHT} if weighted else {}
        fewer = {"weight": torch.tensor(WEIGHT)[annotated]} if weighted else {}
        found = case.make(**options)(x[image : image + 1], target[image : image + 1], annotated=annotated.unsqueeze(0))
        small, masks = (each.unsqueeze(0) for each in merged(x[image], y[image], annotated.clone()))
        expected = case.make(**fewer)(small, masks if soft else masks.argmax(1))
        torch.testing.assert_close(found, expected, rtol=SAME, atol=SAME)
        gradients = [torch.autograd.grad(value, x, retain_graph=True)[0] for value in (found, expected)]
        torch.testing.assert_close(*gradients, rtol=SAME, atol=SAME)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@each_loss
def test_everything_annotated_is_as_if_nothing_was_said(case: Case, activation: str) -> None:
    x, labels = example(torch.ones(3, 4, dtype=torch.bool))
    loss = case.make(activation=activation)
    said = value_and_gradient(lambda x, t, _: loss(x, t, annotated=torch.ones(3, 4, dtype=torch.bool)), x, labels)
    for found, expected in zip(said, value_and_gradient(loss, x, labels), strict=True):
        torch.testing.assert_close(found, expected, rtol=SAME, atol=SAME)


def test_over_the_batch_a_class_is_summed_where_it_is_annotated() -> None:
    x, labels = example(ANNOTATED)
    sums = pixel_sums(x, labels, annotated=ANNOTATED)
    dice = DiceLoss(batch=True, reduction="none")(x, labels, annotated=ANNOTATED)[0]
    for c in range(4):
        e, a, b = (field[ANNOTATED[:, c], c].sum() for field in (sums.error_sq, sums.target_sq, sums.prediction_sq))
        torch.testing.assert_close(dice[c], e / (a + b + 1))
    never = ANNOTATED.clone()
    never[:, 2] = False
    labels = torch.where(labels == 2, 0, labels)
    each = DiceLoss(batch=True, reduction="none")(x, labels, annotated=never)[0]
    torch.testing.assert_close(DiceLoss(batch=True)(x, labels, annotated=never), each.sum() / 3)


@pytest.mark.parametrize("soft", [False, True])
@each_loss
def test_channels_of_a_sigmoid_count_nowhere(case: Case, soft: bool) -> None:
    x, target = example(GONE, soft)
    y = masks_of(target)
    loss = case.make(activation="sigmoid", reduction="sum")
    found = loss(x, target, annotated=GONE)
    each = [
        loss(x[i : i + 1, GONE[i]], y[i : i + 1, GONE[i]]) if GONE[i].any() else torch.zeros((), dtype=torch.float64)
        for i in range(3)
    ]
    torch.testing.assert_close(found, sum(each), rtol=SAME, atol=SAME)
    mean = case.make(activation="sigmoid")(x, target, annotated=GONE)
    torch.testing.assert_close(mean, found / (7 if case.region else 7 * 30), rtol=SAME, atol=SAME)


@each_loss
def test_an_image_without_annotation_adds_nothing(case: Case) -> None:
    x, labels = example(GONE)
    x[0, 1, 3] = torch.nan  # nothing is read there
    value, gradient = value_and_gradient(lambda x, t, _: case.make()(x, t, annotated=GONE), x, labels)
    rest = case.make()(x[1:], labels[1:], annotated=GONE[1:])
    torch.testing.assert_close(value, rest, rtol=SAME, atol=SAME)
    assert not gradient[0].any()
    nothing = torch.zeros(3, 4, dtype=torch.bool)
    assert case.make()(x, labels, annotated=nothing) == 0


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_gradients(activation: str, soft: bool, masked: bool) -> None:
    """Over all options that change what is counted."""
    x, target = example(GONE if activation == "sigmoid" else ANNOTATED, soft)
    x, target = x[..., :6].clone().requires_grad_(), target[..., :6]
    annotated = GONE if activation == "sigmoid" else ANNOTATED
    mask = torch.rand(3, 6, dtype=torch.float64) if masked else None
    options = {"activation": activation, "ignore_index": None if soft else 1}
    each = [
        PolyDice1Loss([0.2, 0.0, 0.4, -0.1], **options) + CrossEntropyLoss(**options),
        DiceLoss(batch=True, include_background=False, **options),
        TverskyLoss(weight=WEIGHT, absent="skip", **options),
        TvMFDiceLoss(2.0, reduction="none", **options),
        FocalLoss(1.5, weight=WEIGHT, **options),
        PolyCE1Loss(0.5, **options),
    ]
    if activation == "softmax":
        each.append(CrossEntropyLoss(label_smoothing=0.2, **options))
    for loss in each:
        assert torch.autograd.gradcheck(lambda x, f=loss: f(x, target, mask, annotated), (x,))


@each_loss
def test_value_and_gradient_in_50_digits(case: Case) -> None:
    """Of logits whose members of the background differ by up to 60, and from the other class by as much."""
    x, labels = 20 * torch.randn(1, 4, 5, dtype=torch.float64), torch.tensor([[0, 1, 0, 3, 0]])
    annotated = torch.tensor([[True, True, False, True]])
    p = _activate(_digits(x)[0], "softmax")
    small = x[:, [0, 1, 3]]
    reference = Reference(small, masks_of(labels)[:, [0, 1, 3]], "softmax")
    background = [first + other for first, other in zip(p[0], p[2], strict=True)]
    reference.p = [[background, p[1], p[3]]]
    value, gradient = reference.evaluate(case)
    found, slopes = value_and_gradient(lambda x, t, _: case.make()(x, t, annotated=annotated), x, labels)
    assert abs(mpf(found.item()) - value) <= 1e-12 * abs(value)
    shares = [[float(q / whole) for q, whole in zip(p[c], background, strict=True)] for c in (0, 2)]
    first = torch.tensor(shares, dtype=torch.float64) * gradient[0, :1]
    expected = torch.stack([first[0], gradient[0, 1], first[1], gradient[0, 2]]).unsqueeze(0)
    torch.testing.assert_close(slopes, expected, rtol=1e-10, atol=1e-15)


def test_label_smoothing_is_over_the_classes_that_are_there() -> None:
    x, labels = example(ANNOTATED)
    found = CrossEntropyLoss(label_smoothing=0.25)(x[:1], labels[:1], annotated=ANNOTATED[:1])
    small, masks = merged(x[0], masks_of(labels)[0], ANNOTATED[0].clone())
    expected = torch.nn.functional.cross_entropy(small.T, masks.argmax(0), label_smoothing=0.25)
    torch.testing.assert_close(found, expected, rtol=SAME, atol=SAME)


def test_a_mask_and_ignored_labels_go_with_it() -> None:
    x, labels = example(ANNOTATED)
    labels[:, ::5], mask = 9, torch.rand(3, 30, dtype=torch.float64)
    loss = DiceLoss(ignore_index=9) + CrossEntropyLoss(ignore_index=9)
    weights = mask * (labels != 9)
    plain = DiceLoss() + CrossEntropyLoss()
    found = loss(x, labels, mask, ANNOTATED)
    torch.testing.assert_close(found, plain(x, torch.where(labels == 9, 0, labels), weights, ANNOTATED))


def test_many_pixels_in_float32() -> None:
    x, labels = torch.randn(3, 4, 200, 200), torch.zeros(3, 200, 200, dtype=torch.long)
    loss = CrossEntropyLoss() + DiceLoss()
    found, expected = (loss(logits, labels, annotated=ANNOTATED) for logits in (x, x.double()))
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=0)


def test_classes_that_are_ruled_out_may_be_merged() -> None:
    x, labels = example(ANNOTATED)
    x[:, 2] = -torch.inf
    labels = torch.where(labels == 2, 0, labels)
    for value in value_and_gradient(
        lambda x, t, _: (DiceLoss() + CrossEntropyLoss())(x, t, annotated=ANNOTATED), x, labels
    ):
        assert value.isfinite().all()


def test_transforms_of_torch_func() -> None:
    x, labels = example(ANNOTATED)
    loss = DiceLoss() + CrossEntropyLoss()
    found = torch.func.grad(lambda x: loss(x, labels, annotated=ANNOTATED))(x)
    _, expected = value_and_gradient(lambda x, t, _: loss(x, t, annotated=ANNOTATED), x, labels)
    torch.testing.assert_close(found, expected, rtol=SAME, atol=SAME)


@pytest.mark.parametrize(
    ("annotated", "error", "message"),
    [
        (ANNOTATED[:2], ValueError, r"annotated must be \[B, C\] = \[3, 4\]: \[2, 4\]"),
        (ANNOTATED.float(), TypeError, "must be a tensor of booleans"),
        (ANNOTATED.tolist(), TypeError, "must be a tensor of booleans"),
        (~ANNOTATED, ValueError, "annotated lacks class 0 in image 0, "),
    ],
)
def test_what_is_no_annotation_is_refused(annotated: Tensor, error: type[Exception], message: str) -> None:
    x, labels = example(ANNOTATED)
    with pytest.raises(error, match=message):
        DiceLoss()(x, labels, annotated=annotated)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_a_label_of_a_class_that_is_not_annotated_is_refused(activation: str) -> None:
    x, labels = example(ANNOTATED)
    labels[1, 7] = 2
    told = r"image 1 has the label 2, a class that is not annotated there: annotated is \[True, False"
    with pytest.raises(ValueError, match=told):
        DiceLoss(activation=activation)(x, labels, annotated=ANNOTATED)
    DiceLoss(activation=activation)(x, labels, torch.arange(30).ne(7).expand(3, 30), ANNOTATED)  # it does not count


def test_the_mean_is_over_what_is_annotated() -> None:
    x, labels = example(ANNOTATED)
    for case in CASES:
        loss = case.make(reduction="none")
        if isinstance(loss, AveragedLoss):
            each = loss(x, labels, annotated=ANNOTATED)
            assert not each[~ANNOTATED].any()
            torch.testing.assert_close(case.make()(x, labels, annotated=ANNOTATED), each.sum() / ANNOTATED.sum())


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float64])
def test_masks_that_overlap_cannot_be_merged(dtype: torch.dtype) -> None:
    x, labels = example(ANNOTATED)
    masks = torch.nn.functional.one_hot(labels, 4).movedim(2, 1).to(dtype)
    DiceLoss()(x, masks, annotated=ANNOTATED)
    masks[0, 0, 3], masks[0, 2, 3] = 1, 1
    DiceLoss()(x, masks)
    with pytest.raises(ValueError, match=r"from 0 to 2; .*merged ones must not overlap"):
        DiceLoss()(x, masks, annotated=ANNOTATED)
    DiceLoss(activation="sigmoid")(x, masks, annotated=ANNOTATED)  # a channel that is not annotated is not looked at
