import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polydice.geometry import (
    TINY,
    cosine_coefficients,
    misalignment,
    misdirection,
    mismatch,
    polynomial,
    ratio,
    root,
    squared_angle,
)
from tests.reference import mp, mpf

# A handful of correctly rounded operations.
ROUNDINGS = 8
ANGLES_X = [0.0, 1e-300, 1e-30, 1e-16, 1e-12, 1e-8, 1e-4, 0.01, 0.1, 0.5, 0.75, 1.0]


def exact_squared_angle(x: float) -> mpf:
    return mp.re(mp.acos(1 - mpf(x)) ** 2)  # beyond c = 1 the arccosine is imaginary, its square real


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("x", [*ANGLES_X, -1e-3, -1e-8, -1e-16])
def test_squared_angle_and_its_slope_have_all_digits(x: float, dtype: torch.dtype) -> None:
    given_x = torch.tensor(x, dtype=dtype, requires_grad=True)
    t = squared_angle(given_x)
    t.backward()
    with mp.workdps(700):  # 1 − 1e-300 needs them
        exact = exact_squared_angle(given_x.item())
        theta = mp.sqrt(exact) if exact > 0 else mp.sqrt(-exact) * 1j
        slope = mpf(2) if exact == 0 else mp.re(2 * theta / mp.sin(theta))
        tolerance = ROUNDINGS * torch.finfo(dtype).eps
        smallest = torch.finfo(dtype).tiny
        assert abs(t.item() - exact) <= tolerance * abs(exact) + smallest
        assert abs(given_x.grad.item() - slope) <= tolerance * slope


def test_slope_is_finite_where_arccos_has_none() -> None:
    x = torch.zeros((), requires_grad=True)
    squared_angle(x).backward()
    assert x.grad == 2
    c = torch.ones((), requires_grad=True)
    c.acos().square().backward()
    assert not c.grad.isfinite()  # what autograd makes of the plain formula


def test_slope_is_multiplied_by_the_incoming_gradient() -> None:
    x = torch.tensor([0.1, 0.4], dtype=torch.float64, requires_grad=True)
    plain, scaled = (torch.autograd.grad(squared_angle(x), x, torch.tensor(g).double())[0] for g in ([1, 1], [3, -2]))
    assert torch.equal(scaled, plain * torch.tensor([3, -2]))


def test_squared_angle_passes_gradcheck() -> None:
    x = torch.tensor([1e-3, 0.2, 0.9], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(squared_angle, x)


def sums_of(y: list[mpf], p: list[mpf]) -> tuple[mpf, mpf, mpf, mpf]:
    pairs = list(zip(y, p, strict=True))
    return (
        mp.fsum(v * v for v in y),
        mp.fsum(q * q for q in p),
        mp.fsum((v - q) ** 2 for v, q in pairs),
        mp.fsum(v * q for v, q in pairs),
    )


@pytest.mark.parametrize("noise", [1e-1, 1e-3, 1e-5, 1e-7])
@pytest.mark.parametrize("smooth", [0.0, 1.0])
def test_nothing_cancels_near_a_perfect_prediction(noise: float, smooth: float) -> None:
    y = [mpf(1)] * 7 + [mpf(0)] * 5
    p = [v + mpf(noise) * u for v, u in zip(y, torch.randn(12).tolist(), strict=True)]
    a, b, e, i = sums_of(y, p)
    r = mp.sqrt(a * b)
    x, lost = (2 * r - 2 * i) / (2 * r + smooth), 1 - (2 * r + smooth) / (a + b + smooth)
    given_a, given_b, given_e = (torch.tensor(float(v), dtype=torch.float64) for v in (a, b, e))
    # √a − √b keeps the rounding of a and b, relative to noise: so does its square.
    tolerance = ROUNDINGS * torch.finfo(torch.float64).eps / noise
    assert abs(misalignment(given_a, given_b, given_e, smooth).item() / x - 1) <= tolerance
    assert abs(mismatch(given_a, given_b, smooth).item() / lost - 1) <= tolerance


@pytest.mark.parametrize("volume", [1e-6, 1e-3, 0.1, 10.0])
def test_misdirection_keeps_its_digits_where_volumes_differ(volume: float) -> None:
    """The form with Σ(y − ŷ)² alone would lose as many digits as the volumes differ by."""
    theta = mpf("0.01")
    a, b = mpf(7), 7 * mpf(volume) ** 2
    i = mp.sqrt(a * b) * mp.cos(theta)
    sums = [torch.tensor(float(v), dtype=torch.float64) for v in (a, b, a + b - 2 * i, i)]
    x = misdirection(*sums)
    # 1 − c is θ²/2 = 5e-5 of sums that are each rounded once.
    assert abs(x.item() / (1 - mp.cos(theta)) - 1) <= ROUNDINGS * torch.finfo(torch.float64).eps / 5e-5


@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6), st.floats(0, 1), st.floats(0, 100))  # Σy², Σŷ², cosine, δ
def test_scale_times_cosine_is_the_smoothed_dice(a: float, b: float, cosine: float, smooth: float) -> None:
    a, b = torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64)
    i = cosine * (a * b).sqrt()
    s = 1 - mismatch(a, b, smooth)
    c = 1 - misalignment(a, b, a + b - 2 * i, smooth)
    torch.testing.assert_close(s * c, (2 * i + smooth) / (a + b + smooth), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("smooth", [0.0, 1.0])
def test_an_absent_class_is_aligned_and_costs_its_prediction(smooth: float) -> None:
    zero, b = torch.zeros(1, dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    assert misalignment(zero, b, b, smooth).item() == 0
    assert mismatch(zero, b, smooth).item() == pytest.approx(0.5 / (0.5 + smooth), rel=1e-15)


@pytest.mark.parametrize("smooth", [0.0, 1.0])
@pytest.mark.parametrize("empty", ["mask", "prediction", "both"])
def test_slopes_are_finite_where_a_norm_vanishes(smooth: float, empty: str) -> None:
    a = torch.full((1,), 0.0 if empty != "prediction" else 2.0, dtype=torch.float64, requires_grad=True)
    b = torch.full((1,), 0.0 if empty != "mask" else 2.0, dtype=torch.float64, requires_grad=True)
    e = (a + b).detach().requires_grad_()
    value = mismatch(a, b, smooth) + squared_angle(misalignment(a, b, e, smooth))
    assert all(slope.isfinite().all() for slope in torch.autograd.grad(value, (a, b, e)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("a", "b", "i", "expected"),
    [
        (36.0, 0.0, 0.0, 1.0),  # predicted by exactly nothing
        (36.0, TINY / 2, 1e-20, 1.0),  # which a subnormal b counts as
        (0.0, 5.0, 0.0, 0.0),  # absent: it has no direction
        (0.0, 0.0, 0.0, 0.0),
        (1e-30, 1e-30, 1e-30, 0.0),  # a·b is 0 in float32, and neither of them is
        (2.0, 8e-38, 2e-19, 0.5),  # a direction still
    ],
)
def test_the_angle_alone_where_there_is_next_to_nothing(
    a: float, b: float, i: float, expected: float, dtype: torch.dtype
) -> None:
    given_a, given_b, e, given_i = (torch.tensor(value, dtype=dtype) for value in (a, b, a + b - 2 * i, i))
    given_b.requires_grad_()
    x = misdirection(given_a, given_b, e, given_i)
    assert x.item() == pytest.approx(expected, abs=1e-6)
    (slope,) = torch.autograd.grad(x, given_b)
    assert slope.isfinite()
    assert slope == 0 or (a > 0 and b > TINY)


def test_ratio_knows_nothing_where_the_denominator_is_zero() -> None:
    n, d = (torch.tensor(v, requires_grad=True) for v in ([3.0, 3.0], [0.0, 2.0]))
    value = ratio(n, d)
    assert value.tolist() == [0, 1.5]
    slopes = torch.autograd.grad(value.sum(), (n, d))
    assert [slope.tolist() for slope in slopes] == [[0, 0.5], [0, -0.75]]


def test_root_has_slope_zero_at_zero() -> None:
    square = torch.tensor([0.0, 4.0], requires_grad=True)
    value = root(square)
    value.sum().backward()
    assert value.tolist() == [0, 2]
    assert square.grad.tolist() == [0, 0.25]


def test_coefficients_are_those_of_the_cosine() -> None:
    exact = [float((-1) ** (k - 1) / mp.factorial(2 * k)) for k in range(1, 13)]
    # One division each: the k-th carries k roundings.
    assert cosine_coefficients(12) == pytest.approx(exact, rel=12 * torch.finfo(torch.float64).eps)


def test_coefficients_stop_where_they_underflow() -> None:
    endless = cosine_coefficients(10**6)
    assert endless == cosine_coefficients(len(endless))
    assert 0 not in endless


def test_polynomial_has_no_constant_term() -> None:
    t = torch.tensor([0.0, 0.5, 2.0], dtype=torch.float64)
    torch.testing.assert_close(polynomial((3.0, -1.0, 0.25), t), 3 * t - t**2 + 0.25 * t**3, rtol=1e-15, atol=0)
