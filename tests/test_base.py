import copy
import math
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

import polydice
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
    pixel_sums,
)
from polydice.base import RegionLoss
from polydice.sums import PixelSums
from tests.reference import Case, dense_masks, each_loss, each_region_loss, value_and_gradient
from tests.together import in_processes

SAME = 1e-12  # the same float64 numbers in another order


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=SAME, atol=SAME)


def batch_of(images: int = 3, classes: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(images, classes, 60, dtype=torch.float64), torch.randint(classes, (images, 60))


# Reduction, weights, background


@each_loss
def test_sum_and_mean_are_of_the_unreduced_values(case: Case) -> None:
    x, labels = batch_of()
    each, total, mean = (case.make(reduction=reduction)(x, labels) for reduction in ("none", "sum", "mean"))
    assert each.shape == (3, 4)
    close(total, each.sum())
    close(mean, each.sum() / (12 if case.region else labels.numel()))


@each_region_loss
def test_weights_weigh_the_mean(case: Case) -> None:
    x, labels = batch_of()
    weight = torch.tensor([0.5, 2.0, 0.0, 1.0], dtype=torch.float64)
    plain = case.make(reduction="none")(x, labels)
    for given in (weight, weight.tolist()):
        close(case.make(weight=given, reduction="none")(x, labels), weight * plain)
        close(case.make(weight=given, reduction="sum")(x, labels), (weight * plain).sum())
        close(case.make(weight=given)(x, labels), (weight * plain).sum() / (3 * weight.sum()))


@each_region_loss
def test_without_background_class_zero_leaves_the_mean(case: Case) -> None:
    x, labels = batch_of()
    plain = case.make(reduction="none")(x, labels)
    without = case.make(include_background=False, reduction="none")(x, labels)
    assert without.shape == plain.shape
    assert not without[:, 0].any()
    close(without[:, 1:], plain[:, 1:])
    close(case.make(include_background=False)(x, labels), plain[:, 1:].mean())


@each_region_loss
def test_weights_have_one_entry_per_class_whatever_the_background(case: Case) -> None:
    x, labels = batch_of()
    plain = case.make(reduction="none")(x, labels)
    weight = torch.tensor([9.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    found = case.make(include_background=False, weight=weight)(x, labels)
    close(found, (weight * plain)[:, 1:].sum() / (3 * 6))


@each_loss
@pytest.mark.parametrize("length", [1, 3, 5])
def test_weights_of_the_wrong_length_are_refused(case: Case, length: int) -> None:
    x, labels = batch_of()
    with pytest.raises(ValueError, match=f"weight has {length} entries, the logits have 4 classes"):
        case.make(weight=[1.0] * length)(x, labels)


@each_loss
def test_a_single_channel_has_no_background_to_leave_out(case: Case) -> None:
    with pytest.raises(ValueError, match="include_background=False leaves no class of a single channel"):
        case.make(include_background=False, activation="sigmoid")(torch.zeros(2, 1, 9), torch.zeros(2, 9).long())


# Sums over the batch


@each_region_loss
def test_batch_sums_are_those_of_one_large_image(case: Case) -> None:
    x, labels = batch_of()
    found, gradient = value_and_gradient(case.make(batch=True), x, labels)
    one = x.transpose(0, 1).reshape(1, 4, 180), labels.reshape(1, 180)
    expected, its_gradient = value_and_gradient(case.make(), *one)
    close(found, expected)
    close(gradient, its_gradient.reshape(4, 3, 60).transpose(0, 1))
    assert case.make(batch=True, reduction="none")(x, labels).shape == (1, 4)


# Classes that are absent


def absent_last(images: int = 3) -> tuple[Tensor, Tensor]:
    """Class 3 is nowhere, class 2 only in the first image."""
    x, labels = batch_of(images)
    labels.remainder_(2)
    labels[0, :9] = 2
    return x, labels


@each_region_loss
def test_a_skipped_class_leaves_the_mean(case: Case) -> None:
    x, labels = absent_last()
    plain = case.make(reduction="none")(x, labels)
    skipped = case.make(absent="skip", reduction="none")(x, labels)
    present = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 0, 0]], dtype=torch.bool)
    close(skipped, plain * present)
    close(case.make(absent="skip")(x, labels), plain[present].mean())


@each_region_loss
def test_skipped_classes_leave_the_weights_too(case: Case) -> None:
    x, labels = absent_last(1)
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    plain = case.make(reduction="none")(x, labels)
    found = case.make(absent="skip", weight=weight)(x, labels)
    close(found, (weight * plain)[:, :3].sum() / 6)


@each_region_loss
def test_all_classes_absent_and_skipped_is_nothing(case: Case) -> None:
    x = torch.randn(2, 3, 50)
    value, gradient = value_and_gradient(case.make(absent="skip", activation="sigmoid"), x, torch.zeros(2, 3, 50))
    assert value == 0
    assert not gradient.any()


@pytest.mark.parametrize("smooth", [1.0, 10.0])
@pytest.mark.parametrize("loss", [DiceLoss, lambda **options: PolyDice1Loss(0.5, **options)])
def test_an_absent_class_costs_what_is_predicted_of_it(loss: Callable[..., Any], smooth: float) -> None:
    """b / (b + δ): its angle is 0, its scale δ / (b + δ)."""
    x, labels = absent_last()
    b = pixel_sums(x, labels).prediction_sq[:, 3]
    close(loss(smooth=smooth, reduction="none")(x, labels)[:, 3], b / (b + smooth))


@each_region_loss
def test_without_smoothing_an_absent_class_has_angle_zero(case: Case) -> None:
    x, labels = absent_last()
    value, gradient = value_and_gradient(case.make(**case.smoothing(0.0), reduction="none"), x, labels)
    assert gradient.isfinite().all()
    close(value[:, 3], torch.zeros(3).double() if case.angular else torch.ones(3).double())


@each_region_loss
@pytest.mark.parametrize("smooth", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_empty_masks_and_predictions_have_finite_gradients(case: Case, smooth: float, dtype: torch.dtype) -> None:
    y = dense_masks(torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]), 3).to(dtype)
    p = torch.zeros_like(y)
    p[:, 1:, :2] = 0.5
    value, gradient = value_and_gradient(case.make(activation="none", **case.smoothing(smooth)), p, y)
    assert value.isfinite()
    assert gradient.isfinite().all()


# No information


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("how", ["ignore_index", "mask", "empty batch", "no pixels"])
@pytest.mark.parametrize("smooth", [0.0, 1.0])
@each_loss
def test_data_without_information_costs_nothing(case: Case, smooth: float, how: str, reduction: str) -> None:
    shape = {"empty batch": (0, 3, 20), "no pixels": (2, 3, 0)}.get(how, (2, 3, 20))
    x, labels = torch.randn(*shape), torch.full((shape[0], shape[2]), 255)
    options = case.smoothing(smooth)
    if how == "mask":
        labels = torch.zeros_like(labels)
    loss = case.make(ignore_index=None if how == "mask" else 255, reduction=reduction, **options)
    mask = torch.zeros(shape[0], shape[2], dtype=torch.bool) if how == "mask" else None
    value, gradient = value_and_gradient(loss, x, labels, mask)
    assert value == 0
    assert gradient.shape == shape
    assert not gradient.any()


@each_region_loss
def test_an_image_that_is_all_ignored_adds_nothing(case: Case) -> None:
    x, labels = batch_of()
    labels[1] = 255
    values, gradient = value_and_gradient(case.make(ignore_index=255, reduction="none"), x, labels)
    assert not values[1].any()
    assert not gradient[1].any()
    close(case.make(ignore_index=255)(x, labels), values.sum() / 12)


# A mask of pixels


@each_loss
def test_a_boolean_mask_selects_pixels(case: Case) -> None:
    x, labels = batch_of(2)
    keep = torch.arange(60) % 3 != 0
    selected = value_and_gradient(case.make(), x[:, :, keep], labels[:, keep])
    value, gradient = value_and_gradient(case.make(), x, labels, keep.expand(2, 60))
    close(value, selected[0])
    close(gradient[:, :, keep], selected[1])
    assert not gradient[:, :, ~keep].any()


@each_loss
def test_a_float_mask_weighs_pixels(case: Case) -> None:
    """Weight 2 is the pixel twice."""
    x, labels = batch_of(2)
    weight = torch.ones(2, 60)
    weight[:, 40:] = 2
    twice = torch.cat([x, x[:, :, 40:]], 2), torch.cat([labels, labels[:, 40:]], 1)
    close(case.make()(x, labels, weight), case.make()(*twice))


# Sums of losses


def test_a_weighted_sum_is_the_sum_of_its_terms() -> None:
    x, labels = batch_of()
    loss = 2 * PolyDice1Loss(0.2, batch=True) + CrossEntropyLoss() * 0.5 + DiceLoss(squared=False)
    found, gradient = value_and_gradient(loss, x, labels)
    parts = [
        (2.0, PolyDice1Loss(0.2, batch=True)),
        (0.5, CrossEntropyLoss()),
        (1.0, DiceLoss(squared=False)),
    ]
    alone = [(factor, *value_and_gradient(term, x, labels)) for factor, term in parts]
    close(found, sum(factor * value for factor, value, _ in alone))
    close(gradient, sum(factor * slope for factor, _, slope in alone))


def test_sums_can_be_built_in_any_way() -> None:
    x, labels = batch_of()
    a, b = DiceLoss(), CrossEntropyLoss()
    expected = a(x, labels) + b(x, labels)
    for loss in (a + b, b + a, sum([a, b]), 0.5 * (a + b) * 2, a + (b + a) + (-1) * a):
        close(loss(x, labels), expected)


def test_masks_and_labels_reach_every_term() -> None:
    x, labels = batch_of(2)
    labels[:, ::7], mask = 255, torch.rand(2, 60)
    loss = DiceLoss(ignore_index=255) + CrossEntropyLoss(ignore_index=255)
    expected = sum(term(x, labels, mask) for term in (DiceLoss(ignore_index=255), CrossEntropyLoss(ignore_index=255)))
    close(loss(x, labels, mask), expected)


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("activation", ("softmax", "sigmoid")),
        ("ignore_index", (None, 255)),
        ("ignore_index", (0, 255)),
        ("impl", ("auto", "eager")),
        ("reduction", ("mean", "sum")),
    ],
)
def test_terms_must_agree(option: str, values: tuple) -> None:
    one, other = DiceLoss(**{option: values[0]}), CrossEntropyLoss(**{option: values[1]})
    with pytest.raises(ValueError, match=f"must agree in {option}: ") as caught:
        one + other
    assert repr(values[0]) in str(caught.value)
    assert repr(values[1]) in str(caught.value)


def test_unreduced_terms_must_have_one_shape() -> None:
    x, labels = batch_of()
    same = DiceLoss(reduction="none") + CrossEntropyLoss(reduction="none")
    assert same(x, labels).shape == (3, 4)
    different = DiceLoss(reduction="none", batch=True) + CrossEntropyLoss(reduction="none")
    with pytest.raises(ValueError, match=r"different shapes: DiceLoss \[1, 4\], CrossEntropyLoss \[3, 4\]"):
        different(x, labels)


@pytest.mark.parametrize("other", [1.0, "loss", None, nn.CrossEntropyLoss()])
def test_only_losses_of_this_library_add_up(other: object) -> None:
    with pytest.raises(TypeError):
        DiceLoss() + other
    with pytest.raises(TypeError):
        (DiceLoss() + CrossEntropyLoss()) + other


@pytest.mark.parametrize("factor", ["2", None, True, torch.tensor(2.0), DiceLoss()])
def test_a_factor_is_a_number(factor: object) -> None:
    with pytest.raises(TypeError):
        DiceLoss() * factor
    with pytest.raises(TypeError):
        factor * DiceLoss()


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_a_factor_is_finite(factor: float) -> None:
    with pytest.raises(ValueError, match=f"factor must be finite: {factor}"):
        factor * DiceLoss()


# Options


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"activation": "relu"}, ValueError, "activation='relu' is none of 'softmax', 'sigmoid', 'none'"),
        ({"reduction": "average"}, ValueError, "reduction='average' is none of 'mean', 'sum', 'none'"),
        ({"reduction": None}, ValueError, "reduction=None"),
        ({"impl": "cuda"}, ValueError, "impl='cuda' is none of 'auto', 'fused', 'eager'"),
        ({"absent": "drop"}, ValueError, "absent='drop' is none of 'keep', 'skip'"),
        ({"smooth": -1.0}, ValueError, "smooth must be finite and at least 0: -1.0"),
        ({"smooth": math.nan}, ValueError, "smooth must be finite and at least 0: nan"),
        ({"smooth": "1"}, TypeError, "smooth must be a number: '1'"),
        ({"smooth": True}, TypeError, "smooth must be a number: True"),
        ({"weight": [1.0, -1.0]}, ValueError, r"weight must be finite and not negative, one per class: \[1.0, -1.0\]"),
        ({"weight": [1.0, math.inf]}, ValueError, "weight must be finite"),
        ({"weight": [[1.0, 1.0]]}, ValueError, "weight must be finite and not negative, one per class"),
        ({"weight": []}, ValueError, r"weight must be .*: \[\]"),
        ({"weight": [0.0, 0.0]}, ValueError, r"not all 0: \[0.0, 0.0\]"),
        ({"weight": 2.0}, ValueError, "one number per class"),
        ({"softmax": True}, TypeError, "unexpected keyword argument 'softmax'; its options are .*activation, include_"),
        ({"eps": 1e-5}, TypeError, "unexpected keyword argument 'eps'; its options are .*smooth, .*impl$"),
    ],
)
@pytest.mark.parametrize("kind", [DiceLoss, TverskyLoss, lambda **options: PolyDice1Loss(0.5, **options)])
def test_a_wrong_option_is_refused_and_shown(
    kind: Callable[..., Any], options: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        kind(**options)


def test_a_missing_argument_is_named_among_the_options() -> None:
    """Somebody else's spelling of ε."""
    with pytest.raises(TypeError, match=r"PolyDice1Loss: .*'epsilon'; its options are epsilon, follow, scale, batch"):
        PolyDice1Loss(eps=0.2)
    with pytest.raises(TypeError, match="its options are kappa, batch, absent, activation"):
        TvMFDiceLoss(eps=0.2)


# What a loss is does not change


@each_loss
def test_an_option_cannot_be_set_on_a_loss_that_is_made(case: Case) -> None:
    """It would change `repr`, and not always the loss."""
    loss = case.make()
    x, labels = batch_of()
    value = loss(x, labels)
    shown = repr(loss)
    options = {"activation": "sigmoid", "include_background": False, "reduction": "sum", "ignore_index": 1}
    options |= {"batch": True, "absent": "skip", "smooth": 0.5, "scale": "none", "epsilon": 0.7, "order": 4}
    options |= {"coefficients": (1.0,), "alpha": 0.1, "beta": 0.1, "gamma": 3.0, "squared": False}
    tried = {name: new for name, new in options.items() if name in vars(loss)}
    assert len(tried) >= 4
    for name, new in tried.items():
        with pytest.raises(
            AttributeError, match=f"{name} of a {type(loss).__name__} is fixed .* make a new .* {name}="
        ):
            setattr(loss, name, new)
    assert repr(loss) == shown
    assert torch.equal(loss(x, labels), value)


def test_weights_and_kappa_are_buffers_and_may_be_set() -> None:
    x, labels = batch_of(classes=3)
    loss, weight = TvMFDiceLoss([1.0, 2.0, 3.0]), torch.tensor([1.0, 0.0, 2.0])
    loss.weight, loss.kappa = weight, torch.tensor([4.0, 4.0, 4.0])
    close(loss(x, labels), TvMFDiceLoss(4.0, weight=weight)(x, labels))
    saved = TvMFDiceLoss([5.0, 6.0, 7.0], weight=[1.0, 1.0, 1.0]).state_dict()
    loss.load_state_dict(saved, assign=True)
    assert repr(loss) == "TvMFDiceLoss(kappa=[5.0, 6.0, 7.0], weight=[1.0, 1.0, 1.0])"


@pytest.mark.parametrize("weight", [[1.0, -1.0, 1.0], [1.0, math.nan, 1.0], [0.0, 0.0, 0.0]])
def test_weights_that_are_set_are_checked_as_those_that_are_given(weight: list[float]) -> None:
    loss = DiceLoss(weight=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="weight must"):
        loss.weight = torch.tensor(weight)
    saved = {"weight": torch.tensor(weight)}
    with pytest.raises((ValueError, RuntimeError), match="weight must"):
        loss.load_state_dict(saved, assign=True)
    assert loss.weight.tolist() == [1, 2, 3]


def test_where_a_loss_is_computed_may_be_set_and_is_checked() -> None:
    x, labels = batch_of()
    loss = DiceLoss() + CrossEntropyLoss()
    loss.losses[0].impl = "eager"
    with pytest.raises(ValueError, match="must agree in impl"):
        loss(x, labels)
    loss.losses[1].impl = "eager"
    close(loss(x, labels), (DiceLoss() + CrossEntropyLoss())(x, labels))
    with pytest.raises(ValueError, match="impl='fast' is none of"):
        loss.losses[0].impl = "fast"


# Other devices


@pytest.mark.parametrize("make", [lambda: DiceLoss(weight=[1.0, 2.0, 3.0]), lambda: TvMFDiceLoss([1.0, 2.0, 3.0])])
def test_buffers_on_another_device_are_refused_in_words(make: Callable[[], nn.Module]) -> None:
    loss = make().to("meta")
    for either in (loss, loss + CrossEntropyLoss()):
        with pytest.raises(ValueError, match=r"is on meta, the logits are on cpu: .*loss.to\('cpu'\)"):
            either(torch.randn(2, 3, 40), torch.randint(3, (2, 40)))


def test_buffers_go_to_a_device_without_float64() -> None:
    """As `.to("mps")` does it: there a float64 tensor is a TypeError."""

    def to_such_a_device(tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.float64:
            raise TypeError("Cannot convert a MPS Tensor to float64 dtype as MPS does not support it")
        return tensor.clone()

    tvmf = TvMFDiceLoss([0.1, 0.2, 0.3], weight=[0.1, 0.7, 1 / 3])
    loss = tvmf + CrossEntropyLoss(weight=[0.1, 0.7, 1 / 3])
    x, labels = batch_of(classes=3)
    before = loss(x, labels)
    assert loss._apply(to_such_a_device) is loss
    assert {buffer.dtype for buffer in loss.buffers()} == {torch.float32}
    torch.testing.assert_close(loss(x, labels), before, rtol=1e-6, atol=0)
    tvmf.update_kappa([1.0, 0.5, 0.0])
    assert tvmf.kappa.dtype == torch.float32
    assert tvmf.kappa.tolist() == [32, 16, 0]
    with pytest.raises(RuntimeError, match="no such device"):
        loss._apply(lambda _: (_ for _ in ()).throw(RuntimeError("no such device")))


def test_buffers_keep_their_digits_in_a_model_of_half_precision() -> None:
    x, labels = batch_of(classes=3)
    loss = PolyDice1Loss(0.1, weight=[0.1, 0.7, 1 / 3]) + TvMFDiceLoss([0.1, 0.2, 0.3])
    before = loss(x, labels)
    for convert in (loss.half, loss.bfloat16, loss.float, loss.double):
        assert torch.equal(convert()(x, labels), before)
    assert loss.to("meta").losses[0].epsilon.is_meta


@each_loss
def test_a_loss_holds_nothing_but_its_weights(case: Case) -> None:
    own = {name for start, name in (("tvmf", "kappa"), ("poly1", "epsilon")) if case.name.startswith(start)}
    assert not list(case.make().parameters())
    assert {name for name, _ in case.make().named_buffers()} == own
    assert {name for name, _ in case.make(weight=[1.0, 2.0]).named_buffers()} == own | {"weight"}


def test_the_weights_given_are_copied() -> None:
    weight = torch.tensor([1.0, 2.0])
    loss = DiceLoss(weight=weight)
    weight[0] = 9
    assert loss.weight.tolist() == [1, 2]


@each_loss
def test_copies_and_pickles_are_the_same_loss(case: Case) -> None:
    x, labels = batch_of()
    loss = case.make(weight=[1.0, 0.5, 0.25, 2.0]) + case.make()
    for twin in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert torch.equal(twin(x, labels), loss(x, labels))


# repr

REPRESENTED = [
    "DiceLoss()",
    "DiceLoss(squared=False, batch=True, smooth=0.0, absent='skip')",
    "DropDiceLoss(order=3, scale='detached')",
    "PolyDice1Loss(epsilon=0.2, include_background=False)",
    "PolyDiceLoss(coefficients=(0.5, -0.25), scale='none')",
    "TverskyLoss()",
    "TverskyLoss(alpha=0.7, beta=0.3)",
    "FocalTverskyLoss(gamma=2.0, reduction='sum')",
    "CrossEntropyLoss(activation='sigmoid', weight=[1.0, 0.5], ignore_index=255)",
    "PolyCE1Loss()",
    "PolyCE1Loss(epsilon=2.0)",
    "TvMFDiceLoss(kappa=32.0)",
    "TvMFDiceLoss(kappa=[32.0, 16.0], impl='eager')",
    "DiceLoss() + CrossEntropyLoss()",
    "0.5 * DiceLoss() + 2.0 * PolyDice1Loss(epsilon=0.2)",
]


@pytest.mark.parametrize("text", REPRESENTED)
def test_repr_rebuilds_the_loss(text: str) -> None:
    loss = eval(text, vars(polydice) | {name: getattr(polydice, name) for name in polydice.__all__})
    assert repr(loss) == text


@each_loss
def test_repr_keeps_every_digit(case: Case) -> None:
    loss = case.make(weight=[0.1, 0.7, 1 / 3], ignore_index=-1, reduction="sum")
    names = {name: getattr(polydice, name) for name in polydice.__all__}
    twin = eval(repr(loss), names)
    x, labels = batch_of(2, 3)
    assert repr(twin) == repr(loss)
    assert torch.equal(twin(x, labels), loss(x, labels))


# A loss of one's own


class VolumeLoss(RegionLoss):
    """|Σŷ − Σy| / (Σŷ + Σy + δ)"""

    want = ("prediction", "target")

    def per_class(self, sums: PixelSums) -> Tensor:
        return (sums.prediction - sums.target).abs() / (sums.prediction + sums.target + self.smooth)


def test_a_new_loss_needs_no_more_than_its_formula() -> None:
    x, labels = batch_of()
    p, y = x.softmax(1).sum(2), dense_masks(labels, 4).sum(2)
    close(VolumeLoss(reduction="none")(x, labels), (p - y).abs() / (p + y + 1))
    close((VolumeLoss() + DiceLoss())(x, labels), VolumeLoss()(x, labels) + DiceLoss()(x, labels))
    assert repr(VolumeLoss(smooth=2.0)) == "VolumeLoss(smooth=2.0)"


def test_the_sums_of_a_new_loss_may_be_a_list_and_must_be_named() -> None:
    x, labels = batch_of()

    class Listed(VolumeLoss):
        want = ["prediction", "target"]  # noqa: RUF012

    class Unnamed(RegionLoss):
        def per_class(self, sums: PixelSums) -> Tensor:
            return sums.prediction

    close(Listed()(x, labels), VolumeLoss()(x, labels))
    with pytest.raises(AttributeError, match="no attribute 'want'"):
        Unnamed()(x, labels)


# Several processes

WORLD = 2
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
# How the images are shared out between two processes: evenly, unevenly, and all to one of them.
SPLITS = {"even": (2, 2), "ragged": (3, 1), "one idle": (4, 0)}
DISTRIBUTED: dict[str, Callable[[Any], nn.Module]] = {
    "dice": lambda group: DiceLoss(batch=True, process_group=group),
    "dice-skip": lambda group: DiceLoss(batch=True, absent="skip", process_group=group),
    "drop-none": lambda group: DropDiceLoss(2, scale="none", batch=True, process_group=group),
    "detached": lambda group: PolyDice1Loss(0.2, scale="detached", batch=True, process_group=group),
    "poly": lambda group: PolyDiceLoss((0.5, 0.1), batch=True, weight=[1.0, 2.0, 0.5], process_group=group),
    "focal": lambda group: FocalTverskyLoss(batch=True, include_background=False, process_group=group),
    "tvmf": lambda group: TvMFDiceLoss(8.0, batch=True, process_group=group),
    "ce": lambda group: CrossEntropyLoss(weight=[1.0, 2.0, 0.5], ignore_index=1, process_group=group),
    "polyce": lambda group: PolyCE1Loss(process_group=group),
    "focal-ce": lambda group: FocalLoss(process_group=group),
    "annotated": lambda group: partly(
        DiceLoss(batch=True, process_group=group) + CrossEntropyLoss(process_group=group)
    ),
    "sum": lambda group: (
        PolyDice1Loss(0.2, batch=True, process_group=group) + 0.5 * CrossEntropyLoss(process_group=group)
    ),
}


def partly(loss: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """Class 2 is annotated where it is."""

    def value(logits: Tensor, labels: Tensor) -> Tensor:
        annotated = (labels == 2).flatten(1).any(1, keepdim=True) | torch.tensor([True, True, False])
        return loss(logits, labels, annotated=annotated)

    return value


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Conv2d(2, 3, 3, padding=1).double()


def images_and_labels() -> tuple[Tensor, Tensor]:
    """Class 2 is only in the first image: a process without it still knows of it."""
    generator = torch.Generator().manual_seed(4)
    labels = torch.randint(2, (4, 6, 7), generator=generator)
    labels[0, :2] = 2
    return torch.randn(4, 2, 6, 7, generator=generator, dtype=torch.float64), labels


def step(model: nn.Module, loss: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Any]:
    """The loss, and the gradients of the parameters and of the logits."""
    model.zero_grad()
    logits = model(images)
    logits.retain_grad()
    value = loss(logits, labels)
    value.backward()
    parameters = [parameter.grad.clone() for parameter in model.parameters()]
    return {"value": value.detach(), "parameters": parameters, "logits": logits.grad}


def one_of_two(rank: int, folder: str) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    images, labels = images_and_labels()
    found = {}
    for split, counts in SPLITS.items():
        own = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        for name, make in DISTRIBUTED.items():
            model = DistributedDataParallel(network())
            loss = make(distributed.group.WORLD)
            found[split, name] = step(model, loss, images[own], labels[own])
            value = make(distributed.group.WORLD)(network()(images[own]), labels[own])
            found[split, name]["without gradient"] = value.detach()
    torch.save(found, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    """What each of two real processes found."""
    folder = tmp_path_factory.mktemp("processes")
    in_processes(one_of_two, folder, WORLD)
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


@pytest.mark.parametrize("name", DISTRIBUTED)
@pytest.mark.parametrize("split", SPLITS)
def test_two_processes_equal_one(two_processes: list[dict], split: str, name: str) -> None:
    alone = step(network(), DISTRIBUTED[name](None), *images_and_labels())
    for found in two_processes:
        close(found[split, name]["value"], alone["value"])
        close(found[split, name]["without gradient"], alone["value"])
        for ours, expected in zip(found[split, name]["parameters"], alone["parameters"], strict=True):
            close(ours, expected)


@pytest.mark.parametrize("name", DISTRIBUTED)
@pytest.mark.parametrize("split", SPLITS)
def test_local_gradients_are_the_world_size_times_larger(two_processes: list[dict], split: str, name: str) -> None:
    """DDP's mean divides by it."""
    alone = step(network(), DISTRIBUTED[name](None), *images_and_labels())
    together = torch.cat([found[split, name]["logits"] for found in two_processes])
    close(together, WORLD * alone["logits"])


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A group of one process."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", LOOPBACK)
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield distributed.group.WORLD
    distributed.destroy_process_group()


@each_region_loss
def test_a_group_of_one_changes_nothing(case: Case, group: Any) -> None:
    x, labels = batch_of()
    grouped = value_and_gradient(case.make(batch=True, process_group=group), x, labels)
    for found, expected in zip(grouped, value_and_gradient(case.make(batch=True), x, labels), strict=True):
        assert torch.equal(found, expected)


def test_a_group_needs_sums_over_the_batch(group: Any) -> None:
    with pytest.raises(ValueError, match="process_group adds up sums over the batch: it needs batch=True"):
        DiceLoss(process_group=group)
    with pytest.raises(ValueError, match="reduction='none'"):
        CrossEntropyLoss(process_group=group, reduction="none")
    with pytest.raises(ValueError, match="must agree in process_group"):
        DiceLoss(batch=True, process_group=group) + CrossEntropyLoss()
