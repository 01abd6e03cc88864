import math
from collections import Counter
from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import monai.losses
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

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
from tests.fuzz_losses import ROUNDING, fuzz
from tests.reference import (
    ANGULAR_CASES,
    CASES,
    GAMMA,
    SQUARED_CASES,
    Case,
    Reference,
    Sums,
    dense_masks,
    each_loss,
    each_loss_and_activation,
    each_region_loss,
    each_squared_loss,
    float32_pixels,
    losses_and_activations,
    mp,
    mpf,
    predictions,
    value_and_gradient,
)

# What the library promises, against 50 digits: value, gradient.
TOLERANCE = {torch.float64: (1e-9, 1e-9), torch.float32: (1e-6, 1e-4)}
# A value is small near a perfect prediction: below this its error is absolute.
VALUE_FLOOR = 0.1
# And so is a gradient: there its error is relative to this share of the one a uniform prediction has.
UNIFORM_SHARE = 0.01
# The same numbers in another order, or another form: a few hundred roundings.
SAME = 1e-12
FOCAL_LEAST_NOISE = 1e-3  # in float32: the power's slope grows without bound below
THETAS = (1e-6, 1e-4, 1e-3, 1e-2, 0.1, 0.5, 1.2, math.pi / 2)
SCALES = (1e-3, 0.03, 0.5, 1.0)
PRECISE = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


def check(case: Case, found: tuple[Tensor, Tensor], exact: tuple[mpf, Tensor], uniform: Tensor, where: str) -> None:
    """Value and gradient within what is promised for their type."""
    value, gradient = found
    for_value, for_gradient = TOLERANCE[gradient.dtype]
    value_error = abs(value.item() - float(exact[0])) / max(abs(float(exact[0])), VALUE_FLOOR)
    assert value_error <= for_value, f"value of {case.name} at {where}"
    size = max(exact[1].abs().max().item(), UNIFORM_SHARE * uniform.abs().max().item())
    gradient_error = (gradient.double() - exact[1]).abs().max().item() / size
    assert gradient_error <= for_gradient, f"gradient of {case.name} at {where}"


@cache
def two_masks() -> Tensor:
    y = torch.zeros(1, 2, 20, dtype=torch.float64)
    y[0, 0, :8] = 1
    y[0, 1, 8:13] = 1
    return y


@cache
def at_angle(theta: float, scale: float, dtype: torch.dtype) -> Tensor:
    """A prediction at that angle to the masks, smaller than they are: its scale with δ = 0 is the one given."""
    y = two_masks()
    beside = torch.linspace(0.7, 1, 20, dtype=torch.float64) * (1 - y)  # stays below 1 at every angle
    directions = [v / v.norm(dim=2, keepdim=True) for v in (y, beside)]
    volume = (1 - math.sqrt(1 - scale**2)) / scale * y.norm(dim=2, keepdim=True)
    return (volume * (math.cos(theta) * directions[0] + math.sin(theta) * directions[1])).to(dtype)


@cache
def exact_at_angle(theta: float, scale: float, dtype: torch.dtype, delta: float) -> Reference:
    return Reference(at_angle(theta, scale, dtype), two_masks(), "none", delta)


@cache
def exact_at_uniform(scale: float, delta: float) -> Reference:
    """A prediction of the same volume and no direction: probabilities as such have no uniform one."""
    norm = at_angle(0.5, scale, torch.float64).norm(dim=2, keepdim=True)
    return Reference((norm / math.sqrt(20)).expand(1, 2, 20), two_masks(), "none", delta)


@PRECISE
@each_region_loss
def test_every_angle_and_scale_against_50_digits(case: Case, dtype: torch.dtype) -> None:
    for delta in (0.0, 1.0):
        loss = case.make(activation="none", **case.smoothing(delta))
        for theta in THETAS:
            if case.name == "focal" and dtype == torch.float32 and theta < FOCAL_LEAST_NOISE:
                continue
            for scale in SCALES:
                found = value_and_gradient(loss, at_angle(theta, scale, dtype), two_masks().to(dtype))
                exact = exact_at_angle(theta, scale, dtype, delta).evaluate(case)
                uniform = exact_at_uniform(scale, delta).evaluate(case)[1]
                check(case, found, exact, uniform, f"θ={theta:.3g} s={scale} δ={delta}")


@cache
def noisy(noise: float, activation: str, kind: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Reference]:
    """Logits whose probabilities are about `noise` off, their target, both in 50 digits."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(16).remainder(3).expand(2, 16)
    y = dense_masks(labels, 3)
    x = (y if activation == "softmax" else 2 * y - 1) * math.log(1 / noise)
    x = (x + torch.randn(2, 3, 16, generator=generator, dtype=torch.float64) / 2).to(dtype)
    if kind == "soft":
        labels = y = (0.1 + 0.8 * y).to(dtype)
    return x, labels, Reference(x, y, activation)


@cache
def exact_at_zero_logits(activation: str, kind: str) -> Reference:
    _, labels, _ = noisy(0.1, activation, kind, torch.float64)
    y = dense_masks(labels, 3) if kind == "labels" else labels
    return Reference(torch.zeros(2, 3, 16), y, activation)


@PRECISE
@pytest.mark.parametrize("kind", ["labels", "soft"])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@each_loss
def test_logits_of_every_confidence_against_50_digits(
    case: Case, activation: str, kind: str, dtype: torch.dtype
) -> None:
    loss = case.make(activation=activation)
    uniform = exact_at_zero_logits(activation, kind).evaluate(case)[1]
    for noise in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 0.4):
        if case.name == "focal" and dtype == torch.float32 and noise < FOCAL_LEAST_NOISE:
            continue
        x, target, exact = noisy(noise, activation, kind, dtype)
        check(case, value_and_gradient(loss, x, target), exact.evaluate(case), uniform, f"noise={noise}")


@pytest.mark.parametrize("noise", [1e-3, 0.1])
@each_loss
def test_a_million_pixels_against_50_digits(case: Case, noise: float) -> None:
    x, labels, _ = noisy(noise, "softmax", "labels", torch.float32)
    x, labels, copies = x[:1], labels[:1], 1 << 16
    y = dense_masks(labels, 3)
    value, gradient = value_and_gradient(case.make(), x.repeat(1, 1, copies), labels.repeat(1, copies))
    gradient = gradient.unflatten(2, (copies, -1))
    assert torch.equal(gradient, gradient[:, :, :1].expand_as(gradient))  # the same pixel has the same gradient
    exact = Reference(x, y, "softmax", copies=copies).evaluate(case)
    uniform = Reference(torch.zeros(1, 3, 16), y, "softmax", copies=copies).evaluate(case)[1]
    check(case, (value, gradient[:, :, 0]), exact, uniform, "a million pixels")


@pytest.mark.parametrize("shift", [100.0, 10000.0])
@each_loss
def test_a_shift_of_all_logits_changes_nothing(case: Case, shift: float) -> None:
    """A softmax does not see it. Binary fractions, so that the shifted logits are exact in float32."""
    labels = torch.randint(3, (2, 50))
    x = torch.randint(-2048, 2048, (2, 3, 50)) / 512
    value, gradient = value_and_gradient(case.make(), x, labels)
    shifted = value_and_gradient(case.make(), x + shift, labels)
    for_value, for_gradient = TOLERANCE[torch.float32]
    torch.testing.assert_close(shifted[0], value, rtol=for_value, atol=for_value * VALUE_FLOOR)
    torch.testing.assert_close(shifted[1], gradient, rtol=0, atol=for_gradient * gradient.abs().max().item())


@pytest.mark.parametrize("margin", [4.0, 8.0, 12.0, 15.0])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_cross_entropy_of_a_confident_truth_keeps_its_digits(activation: str, margin: float) -> None:
    """log(1 + e^−m), which is far smaller than the logits that it is formed of."""
    x = torch.tensor([-margin, margin]).expand(1, 10, 2).mT
    labels = torch.ones(1, 10, dtype=torch.long)
    gap = 2 * margin if activation == "softmax" else margin
    value = CrossEntropyLoss(activation=activation)(x, labels).item()
    assert abs(value - float(mp.log1p(mp.exp(-mpf(gap))))) <= TOLERANCE[torch.float32][0] * VALUE_FLOOR


# Identities


def same(one: torch.nn.Module, other: torch.nn.Module, activation: str = "softmax") -> None:
    x, labels = predictions((3, 4, 30), activation), torch.randint(4, (3, 30))
    for ours, theirs in zip(value_and_gradient(one, x, labels), value_and_gradient(other, x, labels), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=SAME, atol=SAME)


@pytest.mark.parametrize("smooth", [0.0, 1e-5, 1.0, 100.0])
@pytest.mark.parametrize("order", [10, 20, 10**4])
def test_the_whole_series_is_dice(order: int, smooth: float) -> None:
    same(DropDiceLoss(order, smooth=smooth), DiceLoss(smooth=smooth))


@pytest.mark.parametrize("scale", ["coupled", "detached", "none"])
def test_poly_of_no_epsilon_is_drop_of_order_one(scale: str) -> None:
    same(PolyDice1Loss(0.0, scale=scale), DropDiceLoss(1, scale=scale))


@pytest.mark.parametrize("scale", ["coupled", "detached", "none"])
def test_given_coefficients_of_the_cosine_are_drop(scale: str) -> None:
    same(PolyDiceLoss((1 / 2, -1 / 24), scale=scale), DropDiceLoss(2, scale=scale))


@pytest.mark.parametrize("smooth", [0.0, 1.0, 10.0])
def test_balanced_tversky_is_the_unsquared_dice(smooth: float) -> None:
    same(TverskyLoss(0.5, 0.5, smooth=smooth / 2), DiceLoss(squared=False, smooth=smooth))


def test_focal_tversky_of_gamma_one_is_tversky() -> None:
    same(FocalTverskyLoss(0.4, 0.6, gamma=1.0), TverskyLoss(0.4, 0.6))


def test_tvmf_of_kappa_zero_is_the_squared_misalignment() -> None:
    """φ = cos at κ = 0."""
    x, labels = torch.randn(2, 3, 30, dtype=torch.float64), torch.randint(3, (2, 30))
    s = pixel_sums(x, labels)
    cosine = s.intersection / (s.target_sq * s.prediction_sq).sqrt()
    torch.testing.assert_close(TvMFDiceLoss(0.0)(x, labels), (1 - cosine).square().mean(), rtol=SAME, atol=SAME)


def test_poly_ce_of_no_epsilon_is_cross_entropy() -> None:
    same(PolyCE1Loss(0.0), CrossEntropyLoss())
    same(PolyCE1Loss(0.0, activation="sigmoid"), CrossEntropyLoss(activation="sigmoid"), "sigmoid")


# A perfect prediction


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@each_loss
def test_a_perfect_prediction_costs_nothing_and_moves_nothing(case: Case, activation: str, dtype: torch.dtype) -> None:
    labels = torch.randint(3, (2, 40))
    x = torch.where(dense_masks(labels, 3) > 0, 1000.0, -torch.inf).to(dtype)  # e^−1000 is 0 in every type
    value, gradient = value_and_gradient(case.make(activation=activation), x, labels)
    assert value == 0
    assert not gradient.any()


@pytest.mark.parametrize("soft", [False, True])
@each_squared_loss
def test_the_mask_itself_costs_nothing_and_moves_nothing(case: Case, soft: bool) -> None:
    y = torch.rand(2, 3, 40, dtype=torch.float64) if soft else dense_masks(torch.randint(3, (2, 40)), 3)
    value, gradient = value_and_gradient(case.make(activation="none"), y, y)
    # Soft values are squared and summed in roundings.
    assert value.abs() <= SAME * soft
    assert gradient.abs().max() <= SAME * soft


# t-vMF is of fourth order there: its Hessian is 0.
CURVED_CASES = [case for case in SQUARED_CASES if not case.name.startswith("tvmf")]
# The next order is smaller by η: third derivatives over second ones, for masks of a few pixels.
NEXT_ORDER = 10


def hessian_times(case: Case, y: Tensor, u: Tensor) -> Tensor:
    """Hu at ŷ = y: the gradient a step away, so small that 25 digits of the quotient are H."""
    step = mpf(10) ** -25
    return Reference(y, y, "none", move=(step, u)).evaluate(case)[1] / float(step)


@pytest.mark.parametrize(
    ("eta", "dtype"),
    [(1e-3, torch.float64), (1e-5, torch.float64), (1e-7, torch.float64), (1e-3, torch.float32), (1e-4, torch.float32)],
)
@pytest.mark.parametrize("case", CURVED_CASES, ids=[case.name for case in CURVED_CASES])
def test_beside_a_perfect_prediction_the_gradient_is_the_hessians(case: Case, eta: float, dtype: torch.dtype) -> None:
    y = two_masks()
    inwards = (1 - 2 * y) * torch.randn(1, 2, 20, dtype=torch.float64).abs()  # it stays a probability
    predicted = (y + eta * inwards).to(dtype)
    u = (predicted.double() - y) / eta  # what the type made of it
    expected = eta * hessian_times(case, y, u)
    _, gradient = value_and_gradient(case.make(activation="none"), predicted, y.to(dtype))
    error = (gradient.double() - expected).abs().max() / expected.abs().max()
    assert error <= NEXT_ORDER * eta + TOLERANCE[dtype][1]


def test_a_clamped_arccos_has_a_dead_gradient_there() -> None:
    """What the test above is for: the usual way to write the angle fails it."""
    y, eta = two_masks(), 1e-5
    u = torch.randn(1, 2, 20, dtype=torch.float64)

    def clamped(predicted: Tensor) -> Tensor:
        a, b, i = y.square().sum(2), predicted.square().sum(2), (y * predicted).sum(2)
        r = (a * b).sqrt()
        s, c = (2 * r + 1) / (a + b + 1), (2 * i + 1) / (2 * r + 1)
        theta = c.clamp(-1 + 1e-7, 1 - 1e-7).acos()
        return (1 - s + s * theta.square() / 2).mean()

    predicted = (y + eta * u).requires_grad_()
    (gradient,) = torch.autograd.grad(clamped(predicted), predicted)
    drop1 = next(case for case in CASES if case.name == "drop1")
    expected = eta * hessian_times(drop1, y, u)
    assert (gradient - expected).abs().max() / expected.abs().max() > 0.5


# The geometry of the paper


def slope_in_volume(loss: torch.nn.Module, theta: float) -> float:
    """dL/dk of a prediction k·(…) at that angle, at half the mask's volume."""
    y, k = two_masks(), torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    return torch.autograd.grad(loss(k * at_angle(theta, 1.0, torch.float64), y), k)[0].item()


@pytest.mark.parametrize("epsilon", [-0.05, 0.0, 0.5])
def test_beyond_the_fold_the_coupled_loss_rewards_a_volume_mismatch(epsilon: float) -> None:
    fold = 1 / math.sqrt(0.5 + epsilon)
    options = {"activation": "none", "smooth": 0.0}
    coupled = PolyDice1Loss(epsilon, **options)
    assert slope_in_volume(coupled, fold - 1e-3) < 0 < slope_in_volume(coupled, fold + 1e-3)
    detached = PolyDice1Loss(epsilon, scale="detached", **options)
    assert slope_in_volume(detached, fold + 1e-3) < 0
    unscaled = PolyDice1Loss(epsilon, scale="none", activation="none")
    assert abs(slope_in_volume(unscaled, fold + 1e-3)) < SAME


def test_without_a_fold_there_is_none() -> None:
    """ε ≤ (2/π)² − ½ = −0.0947: the angle at which it would come is beyond π/2."""
    loss = PolyDice1Loss(4 / math.pi**2 - 0.5 - 1e-4, activation="none", smooth=0.0)
    assert all(slope_in_volume(loss, theta) < 0 for theta in torch.linspace(0, math.pi / 2, 50).tolist())


# The angle alone

ANGULAR = pytest.mark.parametrize("case", ANGULAR_CASES, ids=[case.name for case in ANGULAR_CASES])


def two_small_objects(side: int = 224) -> Tensor:
    """Two classes of 36 pixels each."""
    labels = torch.zeros(1, side, side, dtype=torch.long)
    labels[0, 20:26, 30:36], labels[0, 100:106, 90:96] = 1, 2
    return labels


@pytest.mark.parametrize("gap", [5.0, 20.0, 40.0, 44.0, 58.0, 110.0, 1e4])
@ANGULAR
def test_predicting_nothing_costs_more_than_finding_half(case: Case, gap: float) -> None:
    labels = two_small_objects()
    found = labels.clone()
    found[:, 23:26], found[:, 103:106] = 0, 0  # the lower half of both is missed
    half = gap * dense_masks(found.flatten(1), 3).view(1, 3, 224, 224)
    nothing = torch.zeros_like(half)
    nothing[:, 0] = gap
    loss = case.make(include_background=False)
    assert loss(nothing.float(), labels) > 1.1 * loss(half.float(), labels)


@pytest.mark.parametrize("gap", [58.0, 104.0, 360.0, 1e4])
@ANGULAR
def test_a_present_class_predicted_by_exactly_nothing_is_at_a_right_angle(case: Case, gap: float) -> None:
    """b = 256²·e^−116 is less than the smallest normal float32: it counts as 0, and its slope too."""
    x = torch.zeros(1, 2, 256, 256)
    x[:, 0] = gap
    labels = torch.zeros(1, 256, 256, dtype=torch.long)
    labels[:, :6, :6] = 1
    value, gradient = value_and_gradient(case.make(reduction="none"), x, labels)
    at_right_angle = Sums(*map(mpf, (0, 1, 1, 1, 1, 0, 1)))
    assert value[0, 1].item() == pytest.approx(float(mp.re(case.formula(at_right_angle, mpf(0), at_right_angle))))
    assert gradient.isfinite().all()


@ANGULAR
def test_a_dying_class_is_revived(case: Case) -> None:
    """As long as b is a number the logits of its pixels are raised: nothing is clamped."""
    labels = two_small_objects(32 * 4)
    for gap in (5.0, 10.0, 20.0, 40.0):
        x = torch.zeros(1, 3, 128, 128)
        x[:, 0] = gap
        _, gradient = value_and_gradient(case.make(), x, labels)
        for c in (1, 2):
            assert gradient[0, c][labels[0] == c].mean() < -1e-4
    assert gradient.abs().max() < 0.01


@ANGULAR
def test_an_absent_class_has_no_direction(case: Case) -> None:
    x, labels = torch.randn(2, 3, 60, dtype=torch.float64), torch.randint(2, (2, 60))
    value, gradient = value_and_gradient(case.make(reduction="none", weight=[0.0, 0.0, 1.0]), x, labels)
    assert not value[:, 2].any()
    assert not gradient.any()


@pytest.mark.parametrize("kappa", [0.0, 2.0, 32.0])
@pytest.mark.parametrize("volume", [1.0, 1e-3])
def test_tvmf_is_the_published_one(kappa: float, volume: float) -> None:
    """(1 − φ)² of torch's own cosine similarity, over the batch as its authors have it."""
    p, labels = volume * torch.rand(2, 3, 60, dtype=torch.float64), torch.randint(3, (2, 60))
    y = dense_masks(labels, 3)
    cosine = F.cosine_similarity(p.transpose(0, 1).flatten(1), y.transpose(0, 1).flatten(1))
    phi = (1 + cosine) / (1 + kappa * (1 - cosine)) - 1
    loss = TvMFDiceLoss(kappa, activation="none", batch=True)
    torch.testing.assert_close(loss(p, labels), (1 - phi).square().mean(), rtol=SAME, atol=SAME)


# Gradients of every finite logit


@pytest.mark.parametrize("reduction", ["none", "sum"])
@pytest.mark.parametrize("pixels", [torch.float32, torch.float64])
@pytest.mark.parametrize("smooth", [0.0, 1e-5, 1.0])
@each_loss
def test_every_gap_has_a_finite_gradient(case: Case, smooth: float, pixels: torch.dtype, reduction: str) -> None:
    """1/b of a subnormal b is how NaN came in; and a scaler of gradients must not bring it back."""
    loss = case.make(reduction=reduction, **case.smoothing(smooth))
    gaps = torch.tensor([*range(40, 112), 360.0, 372.0, 745.0, 1e4])
    for labels in (torch.zeros(16).long(), torch.ones(16).long(), torch.arange(16) % 2):
        for favoured in (0, 1):
            x = torch.zeros(len(gaps), 2, 16)
            x[:, favoured] = gaps[:, None]
            target = labels.expand(len(gaps), 16)
            with nullcontext() if pixels == torch.float64 else float32_pixels():
                value, gradient = value_and_gradient(lambda *given: 2.0**16 * loss(*given), x, target)
            assert value.isfinite().all()
            assert value.min() >= -(2.0**16) * ROUNDING
            assert gradient.isfinite().all(), gaps[~gradient.isfinite().flatten(1).all(1)]


def test_a_subnormal_sum_of_squares_counts_as_nothing() -> None:
    x = torch.zeros(1, 2, 4, 4)
    x[:, 0] = 360
    value, gradient = value_and_gradient(PolyDice1Loss(0.5), x, torch.zeros(1, 4, 4).long())
    assert value == 0
    assert gradient.isfinite().all()


@pytest.mark.parametrize("scale", ["coupled", "detached"])
def test_rounding_of_a_vanishing_prediction_stays_rounding(scale: str) -> None:
    """The squared error of weighted pixels is rounded by many times √(ab) there, and 1 − c was NaN with it."""
    x, weight = torch.zeros(1, 2, 400), 1e5 * torch.rand(1, 400)
    labels = torch.arange(400).remainder(3).clamp(max=1).view(1, 400)
    loss = PolyDice1Loss(0.5, scale=scale, smooth=0.0, reduction="none")
    for gap in range(10, 45):
        x[:, 0] = gap
        value, gradient = value_and_gradient(loss, x, labels, weight)
        assert value[0, 1] == pytest.approx(1, abs=1e-3)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("size", [1e10, 3e25, 1e37])
def test_cross_entropy_of_huge_logits_is_torchs(size: float) -> None:
    x, ones = torch.full((1, 1, 3), -size), torch.ones(1, 1, 3)
    expected = F.binary_cross_entropy_with_logits(x, ones)
    torch.testing.assert_close(CrossEntropyLoss(activation="sigmoid")(x, ones), expected)
    x, labels = torch.tensor([[[size], [0.0], [-size]]]), torch.tensor([[2]])
    torch.testing.assert_close(CrossEntropyLoss()(x, labels), F.cross_entropy(x, labels))


def test_a_thousand_random_inputs() -> None:
    """A million, and the table: `python -m tests.fuzz_losses`, results/fuzz."""
    table = fuzz(1000)
    total = sum(table.values(), Counter())
    assert total["inputs"] == 1000
    assert {what: number for what, number in total.items() if what not in ("inputs", "∞, documented") and number} == {}


# What surrounds an image, and the order of its pixels


@each_region_loss
def test_an_image_does_not_see_the_batch_around_it(case: Case) -> None:
    x, labels = torch.randn(4, 3, 300, dtype=torch.float64), torch.randint(3, (4, 300))
    loss = case.make(reduction="none")
    together, gradient = value_and_gradient(loss, x, labels)
    for image in range(4):
        alone, its_gradient = value_and_gradient(loss, x[image : image + 1], labels[image : image + 1])
        torch.testing.assert_close(together[image : image + 1], alone, rtol=SAME, atol=SAME)
        torch.testing.assert_close(gradient[image : image + 1], its_gradient, rtol=SAME, atol=SAME)


@given(st.permutations(range(40)), st.sampled_from(CASES), st.sampled_from(["softmax", "sigmoid"]))
def test_the_order_of_pixels_does_not_matter(order: list[int], case: Case, activation: str) -> None:
    x, labels = torch.randn(2, 3, 40, dtype=torch.float64), torch.randint(3, (2, 40))
    loss = case.make(activation=activation)
    value, gradient = value_and_gradient(loss, x, labels)
    permuted, its_gradient = value_and_gradient(loss, x[:, :, order], labels[:, order])
    torch.testing.assert_close(permuted, value, rtol=SAME, atol=SAME)
    torch.testing.assert_close(its_gradient, gradient[:, :, order], rtol=SAME, atol=SAME)


# Gradients, numerically and inside a larger graph


def target_of(kind: str, shape: tuple[int, int, int]) -> Tensor:
    if kind == "labels":
        return torch.arange(shape[2]).remainder(shape[1]).expand(shape[0], -1)
    soft = torch.rand(*shape, dtype=torch.float64)
    soft[:, :, 0] = 1  # no class is absent: a plain square root has no slope there
    return soft > 0.5 if kind == "masks" else soft


REDUCTION = pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
KIND = pytest.mark.parametrize("kind", ["labels", "masks", "soft"])


# A detached scale's gradient is not that of its value: it has a test of its own.
@REDUCTION
@KIND
@losses_and_activations([case for case in CASES if case.name != "poly1-detached"])
def test_gradcheck(case: Case, activation: str, kind: str, reduction: str) -> None:
    x, target = predictions((2, 2, 3), activation).requires_grad_(), target_of(kind, (2, 2, 3))
    loss = case.make(activation=activation, reduction=reduction)
    assert torch.autograd.gradcheck(lambda logits: loss(logits, target), x)


@REDUCTION
@KIND
@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "none"])
def test_gradcheck_of_the_detached_scale_held_fixed(activation: str, kind: str, reduction: str) -> None:
    x, target = predictions((2, 2, 3), activation).requires_grad_(), target_of(kind, (2, 2, 3))

    def scale_and_cosine(logits: Tensor) -> tuple[Tensor, Tensor]:
        sums = pixel_sums(logits, target, activation=activation)
        a, b, i = sums.target_sq, sums.prediction_sq, sums.intersection
        r = (a * b).sqrt()
        return (2 * r + 1) / (a + b + 1), (2 * i + 1) / (2 * r + 1)

    held = scale_and_cosine(x)[0].detach()

    def frozen(logits: Tensor) -> Tensor:
        s, c = scale_and_cosine(logits)
        losses = 1 - s + held * (0.5 + 0.25) * c.acos().square()
        return {"mean": losses.mean, "sum": losses.sum, "none": lambda: losses}[reduction]()

    assert torch.autograd.gradcheck(frozen, x)
    loss = PolyDice1Loss(0.25, scale="detached", activation=activation, reduction=reduction)
    (expected,) = torch.autograd.grad(frozen(x).sum(), x)
    value, gradient = value_and_gradient(loss, x, target)
    torch.testing.assert_close(value, frozen(x).detach(), rtol=SAME, atol=SAME)
    # The plain arccosine loses half the digits of a small angle; these angles are not that small.
    torch.testing.assert_close(gradient, expected, rtol=1e-9, atol=1e-9)


@each_loss_and_activation
def test_the_loss_need_not_be_the_last_layer(case: Case, activation: str) -> None:
    x, labels = predictions((2, 3, 20), activation), torch.randint(3, (2, 20))
    loss = case.make(activation=activation)
    value, gradient = value_and_gradient(loss, x, labels)
    below = x.clone().requires_grad_()
    (loss(below * 1, labels).square() * 3 + below.sum()).backward()
    torch.testing.assert_close(below.grad, 6 * value * gradient + 1, rtol=SAME, atol=SAME)


@each_loss
def test_each_value_has_its_own_incoming_gradient(case: Case) -> None:
    x, labels = torch.randn(2, 3, 20, dtype=torch.float64, requires_grad=True), torch.randint(3, (2, 20))
    values = case.make(reduction="none")(x, labels)
    incoming = torch.randn_like(values)
    (together,) = torch.autograd.grad(values, x, incoming, retain_graph=True)
    one_by_one = sum(
        weight * torch.autograd.grad(value, x, retain_graph=True)[0]
        for weight, value in zip(incoming.flatten(), values.flatten(), strict=True)
    )
    torch.testing.assert_close(together, one_by_one, rtol=SAME, atol=SAME)


@each_loss
def test_targets_and_pixel_masks_get_no_gradient(case: Case) -> None:
    x = torch.randn(2, 3, 20, requires_grad=True)
    target, mask = torch.rand(2, 3, 20, requires_grad=True), torch.rand(2, 20, requires_grad=True)
    case.make()(x, target, mask).backward()
    assert x.grad is not None
    assert target.grad is None
    assert mask.grad is None


# The peers


def agree(ours: torch.nn.Module, theirs, x: Tensor, target: Tensor, their_target: Tensor | None = None) -> None:
    value, gradient = value_and_gradient(ours, x, target)
    peer = target if their_target is None else their_target
    expected, their_gradient = value_and_gradient(lambda logits, given, _: theirs(logits, given), x, peer)
    torch.testing.assert_close(value, expected.reshape(()), rtol=SAME, atol=SAME)
    torch.testing.assert_close(gradient, their_gradient, rtol=SAME, atol=SAME)


def image_batch(classes: int = 4) -> tuple[Tensor, Tensor]:
    return torch.randn(3, classes, 9, 11, dtype=torch.float64), torch.randint(classes, (3, 9, 11))


def one_hot(labels: Tensor) -> Tensor:
    return F.one_hot(labels).movedim(3, 1).double()  # MONAI's own is float32, and so are its norms


@pytest.mark.parametrize("smooth", [1e-5, 1.0])
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("include_background", [False, True])
@pytest.mark.parametrize("squared", [False, True])
def test_agrees_with_monai_dice(squared: bool, include_background: bool, batch: bool, smooth: float) -> None:
    x, labels = image_batch()
    common = {"include_background": include_background, "batch": batch}
    ours = DiceLoss(squared=squared, smooth=smooth, **common)
    theirs = monai.losses.DiceLoss(softmax=True, squared_pred=squared, smooth_nr=smooth, smooth_dr=smooth, **common)
    agree(ours, theirs, x, labels, one_hot(labels))


def test_agrees_with_monai_dice_on_soft_masks_and_sigmoid() -> None:
    x, _ = image_batch()
    ours = DiceLoss(activation="sigmoid")
    theirs = monai.losses.DiceLoss(sigmoid=True, squared_pred=True, smooth_nr=1.0, smooth_dr=1.0)
    agree(ours, theirs, x, torch.rand_like(x))


@pytest.mark.parametrize(("alpha", "beta"), [(0.3, 0.7), (0.7, 0.3), (0.5, 0.5)])
@pytest.mark.parametrize("batch", [False, True])
def test_agrees_with_monai_tversky(alpha: float, beta: float, batch: bool) -> None:
    x, labels = image_batch()
    ours = TverskyLoss(alpha, beta, batch=batch)
    theirs = monai.losses.TverskyLoss(softmax=True, alpha=alpha, beta=beta, smooth_nr=1.0, smooth_dr=1.0, batch=batch)
    agree(ours, theirs, x, labels, one_hot(labels))


WEIGHTS = [0.5, 2.0, 0.0, 1.25]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("ignore_index", [None, 1, 255, -100])
@pytest.mark.parametrize("weight", [None, WEIGHTS])
def test_agrees_with_torch_cross_entropy(weight: list | None, ignore_index: int | None, reduction: str) -> None:
    x, labels = image_batch()
    if ignore_index is not None:
        labels[:, :3] = ignore_index
    ours = CrossEntropyLoss(weight=weight, ignore_index=ignore_index, reduction=reduction)
    torch_weight = None if weight is None else torch.tensor(weight, dtype=torch.float64)
    ignored = -100 if ignore_index is None else ignore_index
    agree(
        ours,
        lambda z, t: F.cross_entropy(z, t, weight=torch_weight, ignore_index=ignored, reduction=reduction),
        x,
        labels,
    )


def test_weights_and_kappa_keep_the_digits_they_are_given_with() -> None:
    x, labels = image_batch()
    weight = torch.tensor([0.1, 0.7, 1 / 3, 1.3], dtype=torch.float64)
    expected = F.cross_entropy(x, labels, weight=weight)
    for kind in (weight, weight.tolist()):
        found = CrossEntropyLoss(weight=kind)(x, labels)
        torch.testing.assert_close(found, expected, rtol=TOLERANCE[torch.float64][0], atol=0)
    s = pixel_sums(x, labels)
    c = s.intersection / (s.target_sq * s.prediction_sq).sqrt()
    expected = (2 - (1 + c) / (1 + 0.1 * (1 - c))).square().mean()
    torch.testing.assert_close(TvMFDiceLoss(0.1)(x, labels), expected, rtol=TOLERANCE[torch.float64][0], atol=0)


@pytest.mark.parametrize("weight", [None, WEIGHTS])
def test_agrees_with_torch_cross_entropy_of_soft_masks(weight: list | None) -> None:
    """torch divides by the pixels there, not by their weights."""
    x, _ = image_batch()
    y = torch.rand_like(x).softmax(1)
    torch_weight = None if weight is None else torch.tensor(weight, dtype=torch.float64)
    agree(CrossEntropyLoss(weight=weight), lambda z, t: F.cross_entropy(z, t, weight=torch_weight), x, y)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weight", [None, WEIGHTS])
@pytest.mark.parametrize("soft", [False, True])
def test_agrees_with_torch_binary_cross_entropy(soft: bool, weight: list | None, reduction: str) -> None:
    x, labels = image_batch()
    y = torch.rand_like(x) if soft else one_hot(labels)
    torch_weight = None if weight is None else torch.tensor(weight, dtype=torch.float64).view(4, 1, 1)
    agree(
        CrossEntropyLoss(activation="sigmoid", weight=weight, reduction=reduction),
        lambda z, t: F.binary_cross_entropy_with_logits(z, t, weight=torch_weight, reduction=reduction),
        x,
        y if soft else labels,
        y,
    )


def test_agrees_with_torch_binary_cross_entropy_of_one_channel() -> None:
    x, labels = torch.randn(3, 1, 50, dtype=torch.float64), torch.randint(2, (3, 50))
    agree(
        CrossEntropyLoss(activation="sigmoid"),
        F.binary_cross_entropy_with_logits,
        x,
        labels,
        labels.double().unsqueeze(1),
    )


def test_cross_entropy_without_background_leaves_its_pixels_out() -> None:
    x, labels = image_batch()
    weight = torch.tensor([0.0, 1, 1, 1], dtype=torch.float64)
    agree(CrossEntropyLoss(include_background=False), lambda z, t: F.cross_entropy(z, t, weight=weight), x, labels)


def test_binary_cross_entropy_without_background_leaves_its_channel_out() -> None:
    x, labels = image_batch()
    y = one_hot(labels)
    agree(
        CrossEntropyLoss(activation="sigmoid", include_background=False),
        lambda z, t: F.binary_cross_entropy_with_logits(z[:, 1:], t[:, 1:]),
        x,
        y,
    )


def test_unreduced_cross_entropy_is_the_sum_over_each_class() -> None:
    x, labels = image_batch()
    values = CrossEntropyLoss(reduction="none", weight=WEIGHTS)(x, labels)
    pixels = F.cross_entropy(x, labels, weight=torch.tensor(WEIGHTS, dtype=torch.float64), reduction="none")
    expected = torch.stack([(pixels * (labels == c)).sum((1, 2)) for c in range(4)], 1)
    torch.testing.assert_close(values, expected, rtol=SAME, atol=SAME)


def test_poly_ce_is_polyloss_pixel_by_pixel() -> None:
    x, labels = image_batch()
    weight = torch.tensor(WEIGHTS, dtype=torch.float64)

    def poly(logits: Tensor, target: Tensor) -> Tensor:
        p_t = logits.softmax(1).gather(1, target.unsqueeze(1)).squeeze(1)
        return (weight[target] * (-p_t.log() + 0.7 * (1 - p_t))).sum() / weight[target].sum()

    agree(PolyCE1Loss(0.7, weight=WEIGHTS), poly, x, labels)


def test_poly_ce_of_a_sigmoid_takes_the_probability_of_the_truth() -> None:
    x, labels = torch.randn(3, 1, 50, dtype=torch.float64), torch.randint(2, (3, 50))

    def poly(logits: Tensor, target: Tensor) -> Tensor:
        p = logits.sigmoid().squeeze(1)
        p_t = torch.where(target == 1, p, 1 - p)
        return (-p_t.log() + 0.7 * (1 - p_t)).mean()

    agree(PolyCE1Loss(0.7, activation="sigmoid"), poly, x, labels)


# Focal loss


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"weight": WEIGHTS}, {"include_background": False}, {"reduction": "sum"}], ids=str
)
def test_focal_of_gamma_zero_is_cross_entropy(options: dict, soft: bool, activation: str) -> None:
    x, labels = image_batch()
    target = torch.rand_like(x) if soft else labels
    losses = [kind(activation=activation, **options) for kind in (lambda **o: FocalLoss(0, **o), CrossEntropyLoss)]
    for found, expected in zip(*(value_and_gradient(loss, x, target) for loss in losses), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("gamma", [0.5, 2.0, 5.0])
def test_agrees_with_monai_focal_loss(gamma: float) -> None:
    """Which computes in float32. Of a softmax, its mean is over the channels too."""
    x, labels = image_batch()
    for activation, share in (("softmax", 4), ("sigmoid", 1)):
        theirs = monai.losses.FocalLoss(gamma=gamma, use_softmax=activation == "softmax")
        found = value_and_gradient(FocalLoss(gamma, activation=activation), x, labels)
        expected = value_and_gradient(lambda z, y, _, f=theirs, n=share: n * f(z, y), x, one_hot(labels))
        for ours, peer in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, peer.double(), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("gap", [1.0, 20.0, 40.0, 200.0])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_focal_loss_keeps_its_digits_near_certainty(activation: str, gap: float) -> None:
    """1 − p is far below the last digit of p."""
    x = torch.tensor([[[gap], [0.0]]] if activation == "softmax" else [[[gap]]], dtype=torch.float64)
    y = torch.tensor([[[1.0], [0.0]]] if activation == "softmax" else [[[1.0]]], dtype=torch.float64)
    with mp.workdps(400):
        exact = Reference(x, y, activation)
        value, gradient = exact.evaluate(next(case for case in CASES if case.name == "focal-ce"))
    found = value_and_gradient(FocalLoss(GAMMA, activation=activation), x, y)
    assert abs(found[0].item() / value - 1) < 1e-13
    torch.testing.assert_close(found[1], gradient, rtol=1e-13, atol=0)


def test_focal_loss_of_classes_ruled_out() -> None:
    x = torch.tensor([[[1.0, 2.0], [-torch.inf, 0.0]]], dtype=torch.float64)
    for activation in ("softmax", "sigmoid"):
        loss = FocalLoss(0.5, activation=activation)
        for value in value_and_gradient(loss, x, torch.tensor([[0, 1]])):
            assert value.isfinite().all()
        assert loss(x, torch.tensor([[1, 0]])).isposinf()


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_focal_gradients(activation: str, gamma: float) -> None:
    x, labels = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True), torch.randint(3, (2, 5))
    for options in ({}, {"weight": [0.5, 1.0, 2.0]}, {"ignore_index": 1}, {"reduction": "none"}):
        loss = FocalLoss(gamma, activation=activation, **options)
        assert torch.autograd.gradcheck(loss, (x, labels))
    assert torch.autograd.gradcheck(FocalLoss(gamma, activation=activation), (x, torch.rand(2, 3, 5)))


def test_focal_losses_of_a_sum_share_their_gamma() -> None:
    x, labels = image_batch(3)
    loss = FocalLoss(1.5) + 2 * FocalLoss(1.5, weight=[1.0, 2.0, 3.0]) + FocalTverskyLoss(gamma=2.0)
    torch.testing.assert_close(loss(x, labels), sum(factor * term(x, labels) for factor, term in loss.terms))
    with pytest.raises(ValueError, match=r"focal losses of a sum must agree in gamma: \[1.0, 2.0\]"):
        FocalLoss() + FocalLoss(1.0)


# Label smoothing


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weight", [None, WEIGHTS])
@pytest.mark.parametrize("ignored", [-100, 1])
@pytest.mark.parametrize("smoothing", [0.1, 1.0])
def test_agrees_with_torch_label_smoothing(smoothing: float, ignored: int, weight: list | None, reduction: str) -> None:
    x, labels = image_batch()
    given = {"label_smoothing": smoothing, "reduction": reduction}
    torch_weight = None if weight is None else torch.tensor(weight, dtype=torch.float64)
    theirs = partial(F.cross_entropy, weight=torch_weight, ignore_index=ignored, **given)
    agree(CrossEntropyLoss(weight=weight, ignore_index=ignored, **given), theirs, x, labels)
    if ignored == -100:
        y = torch.rand_like(x).softmax(1)
        agree(CrossEntropyLoss(weight=weight, **given), theirs, x, y)


# t-vMF's κ


def test_kappa_may_be_one_per_class() -> None:
    x, labels = image_batch(3)
    each = TvMFDiceLoss([0.0, 4.0, 32.0], reduction="none")(x, labels)
    for c, kappa in enumerate([0.0, 4.0, 32.0]):
        assert torch.equal(each[:, c], TvMFDiceLoss(kappa, reduction="none")(x, labels)[:, c])


@pytest.mark.parametrize("dice", [[1.0, 0.5, 0.0], torch.tensor([1.0, 0.5, 0.0])])
def test_update_kappa_is_32_times_dice(dice: list | Tensor) -> None:
    x, labels = image_batch(3)
    loss = TvMFDiceLoss(0.0)
    loss.update_kappa(dice)
    assert loss.kappa.tolist() == [32, 16, 0]
    assert torch.equal(loss(x, labels), TvMFDiceLoss([32.0, 16.0, 0.0])(x, labels))


def test_an_updated_kappa_survives_a_checkpoint() -> None:
    trained = TvMFDiceLoss(0.0)
    trained.update_kappa([0.25, 0.5])
    fresh = TvMFDiceLoss(0.0)
    fresh.load_state_dict(trained.state_dict())
    assert fresh.kappa.tolist() == [8, 16]


def test_kappa_of_the_wrong_length_is_refused() -> None:
    x, labels = image_batch(3)
    with pytest.raises(ValueError, match="kappa has 2 entries, the logits have 3 classes"):
        TvMFDiceLoss([1.0, 2.0])(x, labels)


@pytest.mark.parametrize("dice", [[0.5, 1.5], [-0.1, 0.5], [math.nan], [], 0.5])
def test_dice_outside_its_range_is_refused(dice: object) -> None:
    with pytest.raises(ValueError, match="dice_per_class"):
        TvMFDiceLoss(0.0).update_kappa(dice)


# PolyDice-1's ε


def test_epsilon_may_be_one_per_class() -> None:
    x, labels = image_batch(3)
    for scale in ("coupled", "detached", "none"):
        each = PolyDice1Loss([-0.25, 0.0, 0.5], scale=scale, reduction="none")(x, labels)
        for c, epsilon in enumerate([-0.25, 0.0, 0.5]):
            alone = PolyDice1Loss(epsilon, scale=scale, reduction="none")(x, labels)
            assert torch.equal(each[:, c], alone[:, c])


@pytest.mark.parametrize("epsilon", [0.3, [0.1, 0.2, 0.3], torch.tensor([0.5, 0.25, -0.125])])
def test_an_updated_epsilon_is_heard(epsilon: object) -> None:
    x, labels = image_batch(3)
    loss = PolyDice1Loss(0.0)
    before = loss(x, labels)
    loss.update_epsilon(epsilon)
    assert torch.equal(loss(x, labels), PolyDice1Loss(epsilon)(x, labels))
    assert not torch.equal(loss(x, labels), before)


def test_an_epsilon_that_follows_dice() -> None:
    loss = PolyDice1Loss(0.125, follow=0.5)
    assert loss.adaptive
    assert not PolyDice1Loss(0.125).adaptive
    loss.adapt(torch.tensor([1.0, 0.5, 0.0]))
    assert repr(loss) == "PolyDice1Loss(epsilon=[0.5, 0.25, 0.0], follow=0.5)"
    still = PolyDice1Loss(0.125)
    still.adapt([1.0, 0.5, 0.0])
    assert still.epsilon == 0.125
    with pytest.raises(ValueError, match="dice_per_class must be one number in"):
        loss.adapt([0.5, 1.5])


@pytest.mark.parametrize("alone", [True, False])
def test_an_updated_epsilon_survives_a_checkpoint(alone: bool) -> None:
    def make() -> Any:
        return PolyDice1Loss(0.0) if alone else CrossEntropyLoss() + PolyDice1Loss(0.0)

    trained, fresh = make(), make()
    trained.terms[-1][1].update_epsilon([0.25, 0.5])
    fresh.load_state_dict(trained.state_dict())
    assert fresh.terms[-1][1].epsilon.tolist() == [0.25, 0.5]


def test_a_checkpoint_of_before_leaves_epsilon_as_it_is() -> None:
    loss = CrossEntropyLoss() + PolyDice1Loss(0.5, weight=[1.0, 2.0])
    loss.load_state_dict({"losses.1.weight": torch.tensor([3.0, 4.0])})
    assert loss.losses[1].epsilon == 0.5
    assert loss.losses[1].weight.tolist() == [3, 4]


def test_an_epsilon_that_is_a_parameter_learns() -> None:
    x, labels = image_batch(3)
    loss = PolyDice1Loss(0.0)
    loss.epsilon = nn.Parameter(torch.tensor(0.0, dtype=torch.float64))
    loss(x, labels).backward()
    assert loss.epsilon.grad > 0


def test_epsilon_of_the_wrong_length_is_refused() -> None:
    x, labels = image_batch(3)
    with pytest.raises(ValueError, match="epsilon has 2 entries, the logits have 3 classes"):
        PolyDice1Loss([1.0, 2.0])(x, labels)


def test_an_epsilon_with_which_perfect_is_not_best_is_warned_of() -> None:
    PolyDice1Loss(-0.5)
    with pytest.warns(UserWarning, match=r"epsilon=-0.75 is below -1/2: .* a perfect prediction is not its minimum"):
        loss = PolyDice1Loss(-0.75, activation="none", smooth=0.0)
    with pytest.warns(UserWarning, match=r"epsilon=\[0.0, -0.6\] is below -1/2"):
        PolyDice1Loss(0.0).update_epsilon([0.0, -0.6])
    perfect = torch.tensor([[[1.0, 0.0]]])
    assert loss(perfect[..., [1, 0]], perfect) < loss(perfect, perfect)


# Arguments that make no sense


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: DropDiceLoss(0), ValueError, "order must be at least 1: 0"),
        (lambda: DropDiceLoss(-3), ValueError, "order must be at least 1: -3"),
        (lambda: DropDiceLoss(1.5), TypeError, "order must be an integer: 1.5"),
        (lambda: DropDiceLoss(True), TypeError, "order must be an integer: True"),
        (lambda: DropDiceLoss(2, scale="fixed"), ValueError, "scale='fixed' is none of 'coupled', 'detached', 'none'"),
        (lambda: PolyDiceLoss(()), ValueError, "coefficients is empty"),
        (lambda: PolyDiceLoss((0.5, math.nan)), ValueError, "coefficients must be finite: nan"),
        (lambda: PolyDiceLoss(("0.5",)), TypeError, "coefficients must be a number: '0.5'"),
        (lambda: PolyDice1Loss("0.5"), TypeError, "epsilon must be a number: '0.5'"),
        (lambda: PolyDice1Loss(None), TypeError, "epsilon must be one number or one per class: None"),
        (lambda: TvMFDiceLoss([1.0, "2"]), TypeError, r"kappa must be one number or one per class: \[1\.0, '2'\]"),
        (lambda: PolyDice1Loss(math.inf), ValueError, "epsilon must be finite: inf"),
        (lambda: PolyDice1Loss([[0.1]]), ValueError, "epsilon must be finite, one number or one per class"),
        (lambda: PolyDice1Loss(0.1, follow=math.nan), ValueError, "follow must be finite: nan"),
        (lambda: TverskyLoss(-0.1, 0.7), ValueError, "alpha must be finite and at least 0: -0.1"),
        (lambda: TverskyLoss(0.3, math.nan), ValueError, "beta must be finite and at least 0: nan"),
        (lambda: FocalTverskyLoss(gamma=0.0), ValueError, "gamma must be positive: 0.0"),
        (lambda: TvMFDiceLoss(-1.0), ValueError, "kappa must be finite and not negative"),
        (lambda: TvMFDiceLoss([[1.0]]), ValueError, "kappa must be finite and not negative"),
        (lambda: PolyCE1Loss(math.nan), ValueError, "epsilon must be finite: nan"),
        (lambda: FocalLoss(-1.0), ValueError, "gamma must be finite and at least 0: -1.0"),
        (lambda: FocalLoss(activation="none"), ValueError, "activation='none'"),
        (lambda: CrossEntropyLoss(label_smoothing=1.5), ValueError, r"label_smoothing must be in \[0, 1\]: 1.5"),
        (lambda: CrossEntropyLoss(label_smoothing=0.1, activation="sigmoid"), ValueError, "for sigmoid, smooth the ma"),
        (lambda: PolyCE1Loss(label_smoothing=0.1), TypeError, "label_smoothing"),
        (lambda: CrossEntropyLoss(activation="none"), ValueError, "activation='none'"),
        (lambda: PolyCE1Loss(activation="none"), ValueError, "activation='none'"),
        (lambda: TvMFDiceLoss(2.0, smooth=0.0), TypeError, "argument 'smooth'; its options are kappa, batch, absent"),
        (lambda: PolyDice1Loss(0.5, scale="none", smooth=0.0), ValueError, "angle alone, which has no δ: smooth=0.0"),
        (lambda: DropDiceLoss(2, scale="none", smooth=1e-5), ValueError, "angle alone, which has no δ: smooth=1e-05"),
        (lambda: CrossEntropyLoss(batch=True), TypeError, "batch"),
        (lambda: CrossEntropyLoss(smooth=1.0), TypeError, "smooth"),
        (lambda: CrossEntropyLoss(absent="skip"), TypeError, "absent"),
        (lambda: DiceLoss(scale="none"), TypeError, "scale"),
        (lambda: TverskyLoss(squared=False), TypeError, "squared"),
        (lambda: DiceLoss(1.0), TypeError, "positional"),
    ],
)
def test_a_wrong_argument_is_refused_and_shown(make, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
