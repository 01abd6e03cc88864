import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from polydice import CrossEntropyLoss, DiceLoss, PixelSums, pixel_sums
from polydice.kernels import reference
from polydice.kernels.fields import FIELDS, SUMS
from tests.reference import (
    ACTIVATIONS,
    Case,
    dense_masks,
    each_loss,
    predictions,
    value_and_gradient,
)

SAME = 1e-12  # the same sums in another order
EACH_ACTIVATION = pytest.mark.parametrize("activation", ACTIVATIONS)
LABEL_TYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def close(found: PixelSums, expected: PixelSums) -> None:
    for name in FIELDS:
        theirs = getattr(expected, name)
        if theirs is not None:
            torch.testing.assert_close(
                getattr(found, name), theirs, rtol=SAME, atol=SAME, msg=lambda m, n=name: f"{n} {m}"
            )


def gradient_of(sums: PixelSums, x: Tensor) -> Tensor:
    """Of all sums at once, each in its own proportion."""
    total = sum((k + 1) * value.sum() for k, value in enumerate(sums[:-1]) if value is not None and value.requires_grad)
    return torch.autograd.grad(total, x)[0]


# The sums are what they are said to be


@pytest.mark.parametrize("masked", ["", "boolean", "float"])
@pytest.mark.parametrize("kind", ["labels", "masks", "soft"])
@EACH_ACTIVATION
def test_sums_and_gradients_equal_the_dense_ones(activation: str, kind: str, masked: str) -> None:
    x = predictions((3, 4, 70), activation).requires_grad_()
    target = torch.randint(4, (3, 70)) if kind == "labels" else torch.rand(3, 4, 70, dtype=torch.float64)
    if kind == "masks":
        target = target > 0.5
    y = dense_masks(target, 4) if kind == "labels" else target
    mask = {"": None, "boolean": torch.rand(3, 70) > 0.3, "float": torch.rand(3, 70).relu()}[masked]
    found = pixel_sums(x, target, activation=activation, mask=mask)
    expected = reference.pixel_sums(x, y, activation=activation, mask=mask)
    close(found, expected)
    torch.testing.assert_close(gradient_of(found, x), gradient_of(expected, x), rtol=SAME, atol=SAME)
    assert found.labels == (kind == "labels")


@EACH_ACTIVATION
def test_wanted_sums_come_alone_and_unchanged(activation: str) -> None:
    x, labels = predictions((2, 3, 40), activation), torch.randint(3, (2, 40))
    everything = pixel_sums(x, labels, activation=activation)
    for name in FIELDS:
        if name == "cross_entropy" and activation == "none":
            assert everything.cross_entropy is None
            continue
        alone = pixel_sums(x, labels, activation=activation, want=[name])
        assert [field for field in FIELDS if getattr(alone, field) is not None] == [name]
        torch.testing.assert_close(getattr(alone, name), getattr(everything, name), rtol=SAME, atol=SAME)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("kind", ["labels", "soft"])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_sums_on_request_equal_the_dense_ones(activation: str, kind: str, gamma: float) -> None:
    x = predictions((3, 4, 70), activation).requires_grad_()
    target = torch.randint(4, (3, 70)) if kind == "labels" else torch.rand(3, 4, 70, dtype=torch.float64)
    mask, want = torch.rand(3, 70), ["focal", "uniform"] if activation == "softmax" else ["focal"]
    found = pixel_sums(x, target, activation=activation, mask=mask, gamma=gamma, want=want)
    expected = reference.pixel_sums(x, target, activation=activation, mask=mask, gamma=gamma)
    for name in want:
        ours, theirs, slope = getattr(found, name), getattr(expected, name), torch.randn(3, 4, dtype=torch.float64)
        torch.testing.assert_close(ours, theirs, rtol=SAME, atol=SAME)
        gradients = [torch.autograd.grad((slope * each).sum(), x, retain_graph=True)[0] for each in (ours, theirs)]
        torch.testing.assert_close(*gradients, rtol=SAME, atol=SAME)


def test_sums_on_request_come_only_then() -> None:
    x, labels = torch.randn(2, 3, 40), torch.randint(3, (2, 40))
    assert pixel_sums(x, labels).focal is None
    assert pixel_sums(x, labels, gamma=1.0).focal is not None
    for options, message in (
        ({"want": ["focal"]}, "needs its γ"),
        ({"want": ["focal"], "gamma": -1.0}, "gamma must be finite and at least 0: -1.0"),
        ({"want": ["focal"], "gamma": 1.0, "activation": "none"}, "activation='none' has none to offer"),
        ({"want": ["uniform"], "activation": "sigmoid"}, "is that of a softmax, not of activation='sigmoid'"),
    ):
        with pytest.raises(ValueError, match=message):
            pixel_sums(x, labels, **options)


def test_the_order_of_wishes_does_not_matter() -> None:
    x, labels = torch.randn(2, 3, 40), torch.randint(3, (2, 40))
    one, other = (pixel_sums(x, labels, want=want) for want in (FIELDS, FIELDS[::-1]))
    assert all(torch.equal(getattr(one, name), getattr(other, name)) for name in FIELDS)


@pytest.mark.parametrize(
    ("dtype", "accumulated"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_sums_are_float32_and_float64_for_float64(dtype: torch.dtype, accumulated: torch.dtype) -> None:
    x = torch.randn(2, 3, 40).to(dtype).requires_grad_()
    sums = pixel_sums(x, torch.randint(3, (2, 40)), want=SUMS, gamma=2.0)
    assert {getattr(sums, name).dtype for name in SUMS} == {accumulated}
    assert gradient_of(sums, x).dtype == dtype


# Shapes and layouts


@pytest.mark.parametrize("spatial", [(), (12,), (4, 5), (3, 4, 5)])
@pytest.mark.parametrize("channel", [False, True])
@pytest.mark.parametrize("kind", ["labels", "soft"])
@EACH_ACTIVATION
def test_any_number_of_spatial_axes(activation: str, kind: str, channel: bool, spatial: tuple[int, ...]) -> None:
    pixels = math.prod(spatial)
    x, mask = predictions((2, 3, pixels), activation), torch.rand(2, pixels)
    target = torch.randint(3, (2, pixels)) if kind == "labels" else torch.rand(2, 3, pixels)
    flat = pixel_sums(x, target, activation=activation, mask=mask)
    plane = (2, 1, *spatial) if channel else (2, *spatial)
    shaped_target = target.reshape(plane if kind == "labels" else (2, 3, *spatial))
    shaped = pixel_sums(x.reshape(2, 3, *spatial), shaped_target, activation=activation, mask=mask.reshape(plane))
    close(shaped, flat)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels_last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(2, 3).contiguous().transpose(2, 3),
    "batch_last": lambda t: t.movedim(0, 3).contiguous().movedim(3, 0),
    "every_second": lambda t: torch.stack([t, t + 1], 4)[..., 0],
    "cropped": lambda t: torch.nn.functional.pad(t, (1, 2, 3, 4))[:, :, 3:-4, 1:-2],
    "channels_of_more": lambda t: torch.cat([t, t, t], 1)[:, t.shape[1] : 2 * t.shape[1]],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["labels", "soft"])
@EACH_ACTIVATION
def test_the_layout_in_memory_does_not_matter(activation: str, kind: str, layout: str) -> None:
    arrange = LAYOUTS[layout]
    x = predictions((2, 3, 18, 17), activation)
    target = torch.randint(3, (2, 1, 18, 17)) if kind == "labels" else torch.rand(2, 3, 18, 17)
    mask = torch.rand(2, 1, 18, 17)
    arranged = arrange(x).requires_grad_()
    assert torch.equal(arranged, x)
    found = pixel_sums(arranged, arrange(target), activation=activation, mask=arrange(mask))
    x.requires_grad_()
    expected = pixel_sums(x, target, activation=activation, mask=mask)
    close(found, expected)
    torch.testing.assert_close(gradient_of(found, arranged), gradient_of(expected, x), rtol=SAME, atol=SAME)


def test_an_expanded_prediction_gathers_the_gradient_of_its_copies() -> None:
    one = torch.randn(1, 3, 1, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(3, (2, 50))
    found = gradient_of(pixel_sums(one.expand(2, 3, 50), labels), one)
    expected = gradient_of(pixel_sums(one.repeat(2, 1, 50), labels), one)
    torch.testing.assert_close(found, expected, rtol=SAME, atol=SAME)


# What a target means


@pytest.mark.parametrize("dtype", LABEL_TYPES)
@EACH_ACTIVATION
def test_labels_of_any_integer_type(activation: str, dtype: torch.dtype) -> None:
    x, labels = predictions((2, 3, 40), activation), torch.randint(3, (2, 40))
    labels[0, :5] = 100
    options = {"activation": activation, "ignore_index": 100}
    close(pixel_sums(x, labels.to(dtype), **options), pixel_sums(x, labels, **options))


@pytest.mark.parametrize("dtype", [*LABEL_TYPES, torch.bool, torch.float16, torch.float32])
def test_masks_of_any_type(dtype: torch.dtype) -> None:
    x, y = torch.randn(2, 3, 40, dtype=torch.float64), torch.randint(2, (2, 3, 40))
    found = pixel_sums(x, y.to(dtype), activation="sigmoid")
    close(found, pixel_sums(x, y.double(), activation="sigmoid"))
    assert not found.labels


@pytest.mark.parametrize("activation", ["sigmoid", "none"])
@pytest.mark.parametrize("shape", [(2, 40), (2, 1, 40)])
def test_label_one_is_the_foreground_of_a_single_channel(shape: tuple[int, ...], activation: str) -> None:
    x, labels = predictions((2, 1, 40), activation), torch.randint(2, shape)
    found = pixel_sums(x, labels, activation=activation)
    assert found.labels
    close(found, pixel_sums(x, labels.reshape(2, 1, 40).double(), activation=activation))


@pytest.mark.parametrize("classes", [2, 5])
def test_with_sigmoid_label_c_belongs_to_channel_c(classes: int) -> None:
    x, labels = torch.randn(2, classes, 40, dtype=torch.float64), torch.randint(classes, (2, 40))
    found = pixel_sums(x, labels, activation="sigmoid")
    close(found, pixel_sums(x, dense_masks(labels, classes), activation="sigmoid"))


# Pixels that do not count


@pytest.mark.parametrize("ignored", [-1, 1, 255])
@EACH_ACTIVATION
def test_an_ignored_label_is_a_pixel_masked_out(activation: str, ignored: int) -> None:
    x, labels = predictions((2, 3, 40), activation), torch.randint(3, (2, 40))
    labels[:, ::4] = ignored
    found = pixel_sums(x, labels, activation=activation, ignore_index=ignored)
    keep = labels != ignored
    close(found, pixel_sums(x, labels.masked_fill(~keep, 0), activation=activation, mask=keep))
    assert found.pixels[:, 0].tolist() == keep.sum(1).tolist()


def test_mask_and_ignore_index_together_leave_out_what_either_does() -> None:
    x, labels, mask = torch.randn(2, 3, 40).double(), torch.randint(3, (2, 40)), torch.rand(2, 40)
    labels[:, 5:20], mask[:, :10] = 9, 0
    found = pixel_sums(x, labels, ignore_index=9, mask=mask)
    both = torch.where(labels == 9, 0, mask)
    close(found, pixel_sums(x, labels.where(labels != 9, 0), mask=both))


@pytest.mark.parametrize(
    ("dtype", "ignored"),
    [(torch.uint8, ignored) for ignored in (256, -256, 300, -100, -1)]
    + [(torch.int8, ignored) for ignored in (256, -256, 300, 255)],
)
def test_an_ignore_index_that_the_labels_cannot_hold_matches_none_of_them(ignored: int, dtype: torch.dtype) -> None:
    """It must not wrap around: 256 is 0 to a byte, and would hide the background."""
    x, labels = torch.randn(2, 3, 40).double(), torch.randint(3, (2, 40))
    close(pixel_sums(x, labels.to(dtype), ignore_index=ignored), pixel_sums(x, labels))
    wrapped = torch.tensor(ignored).to(dtype)
    if wrapped not in range(3):
        labels[0, 0] = wrapped
        with pytest.raises(ValueError, match=f"label {wrapped.item()} "):
            pixel_sums(x, labels.to(dtype), ignore_index=ignored)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("by", ["boolean", "float", "ignore_index"])
@each_loss
def test_what_lies_under_the_mask_does_no_harm(case: Case, by: str, poison: float) -> None:
    x, labels = torch.randn(2, 3, 40), torch.randint(3, (2, 40))
    hidden = torch.rand(2, 40) > 0.6
    mask = {"boolean": ~hidden, "float": (~hidden).float() * 0.5, "ignore_index": None}[by]
    given = labels.masked_fill(hidden, 255) if by == "ignore_index" else labels
    loss = case.make(ignore_index=255 if by == "ignore_index" else None)
    clean = value_and_gradient(loss, x, given, mask)
    poisoned = value_and_gradient(loss, x.masked_fill(hidden.unsqueeze(1), poison), given, mask)
    for found, expected in zip(poisoned, clean, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert not poisoned[1].masked_select(hidden.unsqueeze(1)).any()


def test_a_nan_in_a_hidden_part_of_the_target_does_no_harm() -> None:
    x, y = torch.randn(2, 3, 40).double(), torch.rand(2, 3, 40).double()
    keep = torch.rand(2, 40) > 0.4
    poisoned = y.masked_fill(~keep.unsqueeze(1), math.nan)
    close(pixel_sums(x, poisoned, mask=keep), pixel_sums(x, y, mask=keep))


@pytest.mark.parametrize("bad", [-7, 3, 1000])
def test_a_bad_label_under_the_mask_does_no_harm(bad: int) -> None:
    x, labels, keep = torch.randn(2, 3, 40).double(), torch.randint(3, (2, 40)), torch.rand(2, 40) > 0.4
    close(pixel_sums(x, labels.where(keep, bad), mask=keep), pixel_sums(x, labels, mask=keep))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@each_loss
def test_minus_infinity_is_a_class_ruled_out(case: Case, activation: str, dtype: torch.dtype) -> None:
    """As the limit of ever smaller logits; −1000 is already at it."""
    labels = torch.randint(2, (2, 40))
    x = torch.randn(2, 3, 40).to(dtype)
    x[:, 2] = -1000
    limit = value_and_gradient(case.make(activation=activation), x, labels)
    x[:, 2] = -torch.inf
    value, gradient = value_and_gradient(case.make(activation=activation), x, labels)
    assert torch.equal(value, limit[0])
    assert torch.equal(gradient, limit[1])
    assert not gradient[:, 2].any()


def test_a_label_that_was_ruled_out_has_infinite_cross_entropy() -> None:
    x = torch.tensor([[[0.0], [-torch.inf]]], requires_grad=True)
    loss = CrossEntropyLoss()(x, torch.tensor([[1]]))
    loss.backward()
    assert loss == torch.inf
    assert x.grad.flatten().tolist() == [1, -1]  # as F.cross_entropy: p − y
    assert DiceLoss()(x, torch.tensor([[1]])).isfinite()


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@each_loss
def test_nan_and_infinite_logits_are_never_silent(case: Case, poison: float) -> None:
    """The image's loss is NaN, and nobody else's."""
    x, labels = torch.randn(3, 3, 40), torch.randint(3, (3, 40))
    x[1, 0, 7] = poison
    assert case.make()(x, labels).isnan()
    values = case.make(reduction="none")(x, labels)
    # A class's cross-entropy is made of its own pixels alone.
    assert values[1].isnan().all() if case.region else values[1].isnan().any()
    assert values[[0, 2]].isfinite().all()


# Nothing to sum


@pytest.mark.parametrize("shape", [(0, 3, 8, 8), (2, 3, 0, 8), (2, 3, 0)])
@EACH_ACTIVATION
def test_no_images_or_no_pixels_give_empty_sums(activation: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(*shape, requires_grad=True)
    sums = pixel_sums(x, torch.zeros(shape[0], *shape[2:], dtype=torch.long), activation=activation)
    assert sums.intersection.shape == shape[:2]
    assert not any(value.any() for value in sums[:-1] if value is not None)
    assert gradient_of(sums, x).shape == shape


# Bad input


LOGITS = torch.zeros(2, 3, 8, 8)
LABELS = torch.zeros(2, 8, 8, dtype=torch.long)


@pytest.mark.parametrize(
    ("logits", "target", "options", "error", "shown"),
    [
        (LOGITS, LABELS[:, :7], {}, ValueError, ["[2, 3, 8, 8] float32", "[2, 7, 8] int64"]),
        (LOGITS, LABELS[:1], {}, ValueError, ["[2, 3, 8, 8] float32", "[1, 8, 8] int64"]),
        (LOGITS, LABELS[0], {}, ValueError, ["[2, 3, 8, 8] float32", "[8, 8] int64"]),
        (LOGITS, LABELS[:, None, None], {}, ValueError, ["[2, 1, 1, 8, 8] int64"]),
        (LOGITS, torch.zeros(2, 2, 8, 8), {}, ValueError, ["[2, 2, 8, 8] float32"]),
        (LOGITS, LABELS.float(), {}, ValueError, ["[2, 8, 8] float32", "class labels must be integers", "long()"]),
        (LOGITS, LABELS.float()[:, None], {}, ValueError, ["[2, 1, 8, 8] float32", "class labels must be integers"]),
        (LOGITS, LABELS.bool(), {}, ValueError, ["[2, 8, 8] bool"]),
        (LOGITS, LOGITS.to(torch.complex64), {}, ValueError, ["[2, 3, 8, 8] complex64"]),
        (LOGITS.long(), LABELS, {}, TypeError, ["logits must be floating", "[2, 3, 8, 8] int64"]),
        (LOGITS.to(torch.complex64), LABELS, {}, TypeError, ["logits must be floating", "complex64"]),
        (torch.zeros(8), LABELS, {}, ValueError, ["[B, C, *spatial]", "[8] float32"]),
        (torch.zeros(2, 0, 8), torch.zeros(2, 8).long(), {}, ValueError, ["no channel", "[2, 0, 8]"]),
        (LOGITS[:, :1], LABELS, {}, ValueError, ["softmax over one channel", "activation='sigmoid'", "[2, 1, 8, 8]"]),
        (LOGITS, LABELS, {"activation": "relu"}, ValueError, ["activation='relu'", "'softmax', 'sigmoid', 'none'"]),
        (LOGITS, LABELS, {"impl": "fast"}, ValueError, ["impl='fast'", "'auto', 'fused', 'eager'"]),
        (LOGITS, LABELS, {"want": ["overlap"]}, ValueError, ["want='overlap'", "'intersection'"]),
        (LOGITS, LABELS, {"want": []}, ValueError, ["want must name each sum once, and at least one"]),
        (LOGITS, LABELS, {"want": ["pixels", "pixels"]}, ValueError, ["('pixels', 'pixels')"]),
        (LOGITS, LABELS, {"want": ["cross_entropy"], "activation": "none"}, ValueError, ["activation='none'"]),
        (LOGITS, LOGITS, {"ignore_index": 255}, ValueError, ["ignore_index=255 needs labels", "mask="]),
        (LOGITS, LABELS, {"mask": LABELS}, TypeError, ["mask must be boolean", "[2, 8, 8] int64"]),
        (LOGITS, LABELS, {"mask": LOGITS}, ValueError, ["mask must be [B, *spatial]", "[2, 3, 8, 8] float32"]),
        (LOGITS, LABELS, {"mask": torch.ones(8, 8)}, ValueError, ["mask must be [B, *spatial]", "[8, 8] float32"]),
        (LOGITS, LABELS.to("meta"), {}, ValueError, ["logits are on cpu", "target on meta"]),
        (LOGITS, LABELS, {"mask": torch.ones(2, 8, 8, device="meta")}, ValueError, ["mask on meta"]),
    ],
)
def test_bad_input_is_refused_and_shown(
    logits: Tensor, target: Tensor, options: dict, error: type[Exception], shown: list[str]
) -> None:
    with pytest.raises(error) as caught:
        pixel_sums(logits, target, **options)
    for part in shown:
        assert part in str(caught.value)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "none"])
@pytest.mark.parametrize("bad", [-1, 3, 255, -(2**40), 2**40])
def test_a_bad_label_is_named(bad: int, activation: str) -> None:
    labels = LABELS.clone()
    labels[1, 7, 7] = bad
    with pytest.raises(ValueError, match=rf"label {bad} is not in \[0, 3\)"):
        pixel_sums(LOGITS, labels, activation=activation)


def test_a_bad_label_that_is_ignored_is_none() -> None:
    labels = LABELS.clone()
    labels[1, 7, 7] = 255
    assert pixel_sums(LOGITS, labels, ignore_index=255).pixels[1, 0] == 63
    with pytest.raises(ValueError, match="label 255 is not in"):
        pixel_sums(LOGITS, labels, ignore_index=254)


def test_a_single_channel_has_two_labels() -> None:
    x = torch.zeros(1, 1, 3)
    assert pixel_sums(x, torch.tensor([[0, 1, 1]]), activation="sigmoid").target.item() == 2
    with pytest.raises(ValueError, match=r"label 2 is not in \[0, 2\)"):
        pixel_sums(x, torch.tensor([[0, 1, 2]]), activation="sigmoid")


@pytest.mark.parametrize("bad", [-1, 2, 255])
def test_integer_masks_hold_zeros_and_ones(bad: int) -> None:
    y = torch.zeros(2, 3, 8, 8, dtype=torch.long)
    y[1, 2, 7, 7] = bad
    with pytest.raises(ValueError, match=rf"mask value {bad} is not in \[0, 2\)"):
        pixel_sums(LOGITS, y)


# Values that are none: seen on a CPU, where the block is in cache anyway

MASKS = torch.zeros(2, 3, 8, 8)


def with_value(tensor: Tensor, value: float) -> Tensor:
    changed = tensor.clone()
    changed[1, ..., 7, 7] = value
    return changed


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("value", "shown"), [(255.0, "from 0 to 255"), (-1.0, "from -1 to 0"), (1.01, "1.01"), (-0.01, "-0.01")]
)
def test_masks_beyond_0_and_1_are_refused(value: float, shown: str, dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match=r"masks must lie in \[0, 1\]: they are from .* divided by 255") as caught:
        pixel_sums(LOGITS, with_value(MASKS, value).to(dtype))
    assert shown in str(caught.value) or dtype == torch.float16


@pytest.mark.parametrize("value", [4.0, -3.0, 1.01, -0.01])
def test_logits_given_for_probabilities_are_refused(value: float) -> None:
    for target in (LABELS, MASKS):
        with pytest.raises(ValueError, match=r"activation='none' takes probabilities.* they are from .* 'softmax' and"):
            pixel_sums(with_value(LOGITS, value), target, activation="none")


def test_a_negative_weight_of_a_pixel_is_refused() -> None:
    weight = with_value(torch.ones(2, 8, 8), -0.5)
    with pytest.raises(ValueError, match=r"the weights in a mask must not be negative: they are from -0.5 to 1"):
        pixel_sums(LOGITS, LABELS, mask=weight)


@pytest.mark.parametrize("value", [1.0009, -0.0009])
def test_rounding_is_no_mistake(value: float) -> None:
    assert pixel_sums(with_value(LOGITS, value), with_value(MASKS, value), activation="none").target.isfinite().all()


@pytest.mark.parametrize("value", [255.0, -1.0, math.nan, math.inf])
def test_what_is_no_mask_does_no_harm_where_it_does_not_count(value: float) -> None:
    keep = with_value(torch.ones(2, 8, 8), 0.0)
    dirty = pixel_sums(with_value(LOGITS, value), with_value(MASKS, value), activation="none", mask=keep)
    close(dirty, pixel_sums(LOGITS, MASKS, activation="none", mask=keep))
    ignored = LABELS.clone()
    ignored[1, 7, 7] = 9
    assert pixel_sums(with_value(LOGITS, value), ignored, activation="none", ignore_index=9).pixels[1, 0] == 63


def test_the_loss_of_a_nan_in_a_mask_is_nan() -> None:
    assert DiceLoss()(LOGITS, with_value(MASKS, math.nan)).isnan()
    many = torch.rand(2, 2, 300, 300)  # of which pixels are float32
    assert DiceLoss(impl="eager")(torch.randn_like(many), with_value(many, math.nan)).isnan()


@pytest.mark.parametrize("kind", [list, np.asarray])
def test_a_mask_must_be_a_tensor(kind: Callable) -> None:
    mask = kind(torch.ones(2, 8, 8).tolist())
    for call in (lambda: pixel_sums(LOGITS, LABELS, mask=mask), lambda: DiceLoss()(LOGITS, LABELS, mask)):
        with pytest.raises(ValueError, match=f"mask must be a tensor: {type(mask).__name__}"):
            call()


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is said where there is no CUDA")
def test_fused_is_refused_where_it_cannot_run() -> None:
    with pytest.raises(ValueError, match=r"impl='fused' .*the logits are on cpu"):
        pixel_sums(LOGITS, LABELS, impl="fused")


def test_auto_takes_the_plain_pass_on_a_cpu() -> None:
    x, labels = torch.randn(2, 3, 40), torch.randint(3, (2, 40))
    auto, plain = (pixel_sums(x, labels, impl=impl) for impl in ("auto", "eager"))
    assert all(torch.equal(getattr(auto, name), getattr(plain, name)) for name in FIELDS)
