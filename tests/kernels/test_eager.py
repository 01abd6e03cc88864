import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from polydice import CrossEntropyLoss, DiceLoss, PolyDice1Loss, pixel_sums
from polydice.kernels import blocks, reference
from polydice.kernels.fields import FIELDS
from tests.reference import (
    ACTIVATIONS,
    Case,
    dense_masks,
    each_loss,
    predictions,
    value_and_gradient,
)

SAME = 1e-12  # the same float64 sums in another order
RUN = blocks.RUN
EACH_ACTIVATION = pytest.mark.parametrize("activation", ACTIVATIONS)


def weighted_total(sums: object, names: tuple[str, ...]) -> Tensor:
    """One number that depends on every sum, on each in its own proportion."""
    return sum((k + 1) * getattr(sums, name).sum() for k, name in enumerate(names))


def compare_with_dense(x: Tensor, target: Tensor, y: Tensor, activation: str, mask: Tensor | None = None) -> None:
    names = tuple(name for name in FIELDS if activation != "none" or name != "cross_entropy")
    varying = tuple(name for name in names if name not in ("target", "target_sq", "pixels"))
    x = x.detach().requires_grad_()
    found, expected = (
        pixel_sums(x, target, activation=activation, mask=mask),
        reference.pixel_sums(x, y, activation=activation, mask=mask),
    )
    for name in names:
        torch.testing.assert_close(getattr(found, name), getattr(expected, name), rtol=SAME, atol=SAME)
    ours, theirs = (torch.autograd.grad(weighted_total(sums, varying), x)[0] for sums in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=SAME, atol=SAME)


# Blocks


@pytest.mark.parametrize("pixels", [1, RUN - 1, RUN, RUN + 1, 3 * RUN - 1, 3 * RUN, 3 * RUN + 7])
@EACH_ACTIVATION
def test_sizes_around_a_run(activation: str, pixels: int) -> None:
    labels = torch.randint(3, (2, pixels))
    compare_with_dense(predictions((2, 3, pixels), activation), labels, dense_masks(labels, 3), activation)


@pytest.mark.parametrize("block", [1, 3 * RUN, 3 * RUN + 1, 6 * RUN, 20 * RUN])
@pytest.mark.parametrize("pixels", [RUN, 2 * RUN - 1, 2 * RUN + 1, 5 * RUN + 3])
@EACH_ACTIVATION
def test_several_blocks(monkeypatch: pytest.MonkeyPatch, activation: str, pixels: int, block: int) -> None:
    """Of pixels where an image is larger than a block, of images where it is smaller, with a short last one."""
    monkeypatch.setattr(blocks, "CPU_BLOCK", block)
    labels, mask = torch.randint(3, (5, pixels)), torch.rand(5, pixels)
    compare_with_dense(predictions((5, 3, pixels), activation), labels, dense_masks(labels, 3), activation, mask)


@EACH_ACTIVATION
def test_several_blocks_of_soft_masks(monkeypatch: pytest.MonkeyPatch, activation: str) -> None:
    monkeypatch.setattr(blocks, "CPU_BLOCK", 3 * RUN)
    y = torch.rand(3, 3, 4 * RUN + 5, dtype=torch.float64)
    compare_with_dense(predictions(y.shape, activation), y, y, activation)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("shape", [(1, 3, 300, 300), (4, 9, 224, 224), (70, 3, 32, 32)])
@EACH_ACTIVATION
def test_real_sizes_with_blocks_as_they_are(activation: str, shape: tuple[int, ...], layout: str) -> None:
    x, labels = predictions(shape, activation), torch.randint(shape[1], (shape[0], *shape[2:]))
    if layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    compare_with_dense(x.flatten(2), labels.flatten(1), dense_masks(labels.flatten(1), shape[1]), activation)


@pytest.mark.parametrize("where", [0, -1])
def test_a_bad_label_is_found_in_any_block(monkeypatch: pytest.MonkeyPatch, where: int) -> None:
    monkeypatch.setattr(blocks, "CPU_BLOCK", 3 * RUN)
    labels = torch.randint(3, (2, 4 * RUN))
    labels[where, where] = 7
    with pytest.raises(ValueError, match="label 7 is not in"):
        pixel_sums(torch.randn(2, 3, 4 * RUN), labels)


def test_more_pixels_than_float32_can_count() -> None:
    """2^24 ones are as far as a float32 sum goes."""
    count = (1 << 24) + 1024
    sums = pixel_sums(torch.zeros(1, 1, count), torch.ones(1, count, dtype=torch.uint8), activation="sigmoid")
    assert sums.pixels.item() == sums.target.item() == count
    assert sums.prediction.item() == count / 2


# Floating types

# Half-precision input is converted, not computed with: what remains is the rounding of the result to float32, and of
# the gradient to its own type, relative to the largest one.
HALF_TOLERANCE = 1e-3
EPS = {torch.float16: torch.finfo(torch.float16).eps, torch.bfloat16: torch.finfo(torch.bfloat16).eps}
# As a gradient scaler does: a mean over 4 million pixels has gradients below the smallest float16.
LOSS_SCALE = 2.0**16


@pytest.fixture(scope="module")
def four_million() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(2, (1, 2048, 2048), generator=generator, dtype=torch.uint8)
    x = torch.randn(1, 2, 2048, 2048, generator=generator)
    x[:, 1] += 2 * labels - 1
    return x, labels


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@each_loss
def test_half_precision_of_four_million_pixels(
    case: Case, dtype: torch.dtype, four_million: tuple[Tensor, Tensor]
) -> None:
    x, labels = four_million
    x = x.to(dtype)

    def scaled(logits: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
        return LOSS_SCALE * case.make()(logits, target, mask)

    value, gradient = value_and_gradient(scaled, x, labels)
    exact, exact_gradient = value_and_gradient(scaled, x.double(), labels)
    assert value.dtype == torch.float32
    assert gradient.dtype == dtype
    torch.testing.assert_close(value.double(), exact, rtol=HALF_TOLERANCE, atol=0)
    largest = exact_gradient.abs().max().item()
    torch.testing.assert_close(gradient.double(), exact_gradient, rtol=0, atol=EPS[dtype] * largest)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@EACH_ACTIVATION
def test_every_floating_type_is_read_exactly(activation: str, dtype: torch.dtype) -> None:
    """The sums of what was given, not of a coarser copy: as those of its float64 copy."""
    x, labels = predictions((2, 3, 500), activation, dtype), torch.randint(3, (2, 500))
    found, exact = (pixel_sums(logits, labels, activation=activation) for logits in (x, x.double()))
    tolerance = SAME if dtype == torch.float64 else 1e-6  # of float32 probabilities, summed
    for name in FIELDS:
        if getattr(exact, name) is not None:
            torch.testing.assert_close(getattr(found, name).double(), getattr(exact, name), rtol=tolerance, atol=0)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@each_loss
def test_autocast_changes_nothing(case: Case, activation: str) -> None:
    x, labels = torch.randn(2, 3, 300), torch.randint(3, (2, 300))
    loss = case.make(activation=activation)
    plain = value_and_gradient(loss, x, labels)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = value_and_gradient(loss, x, labels)
    assert cast[0].dtype == torch.float32
    assert all(torch.equal(one, other) for one, other in zip(plain, cast, strict=True))


# Memory

EXTRA_SHARE = 0.05  # of the logits, beyond inputs and gradient


def peak_bytes(action: object) -> int:
    """The most that was allocated at once while the action ran, beyond what was there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        kept = action()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    assert kept is not None
    return peak


def test_the_measure_of_memory_sees_what_cross_entropy_keeps() -> None:
    x, labels = torch.randn(2, 4, 100, 100, requires_grad=True), torch.randint(4, (2, 100, 100))
    peak = peak_bytes(lambda: torch.autograd.grad(torch.nn.functional.cross_entropy(x, labels), x))
    assert peak >= 2 * x.nbytes  # the logarithms of all probabilities, and the gradient


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
@each_loss
def test_next_to_no_memory_beyond_the_gradient(case: Case, activation: str) -> None:
    x, labels = torch.randn(24, 9, 224, 224, requires_grad=True), torch.randint(9, (24, 224, 224))
    loss = case.make(activation=activation, impl="eager")
    extra = peak_bytes(lambda: torch.autograd.grad(loss(x, labels), x)) - x.nbytes
    assert extra / x.nbytes < EXTRA_SHARE


def test_a_sum_with_ignored_pixels_needs_no_more_memory() -> None:
    x, labels = torch.randn(24, 9, 224, 224, requires_grad=True), torch.randint(9, (24, 224, 224))
    loss = PolyDice1Loss(0.2, ignore_index=0, impl="eager") + CrossEntropyLoss(ignore_index=0, impl="eager")
    extra = peak_bytes(lambda: torch.autograd.grad(loss(x, labels), x)) - x.nbytes
    assert extra / x.nbytes < EXTRA_SHARE


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["labels", "soft"])
@each_loss
def test_nothing_but_the_inputs_is_kept_for_backward(case: Case, kind: str, masked: bool) -> None:
    x = torch.randn(2, 3, 50, 50, requires_grad=True)
    target = torch.randint(3, (2, 50, 50)) if kind == "labels" else torch.rand(2, 3, 50, 50)
    mask = torch.rand(2, 50, 50) if masked else None
    inputs = {tensor.data_ptr() for tensor in (x, target, mask) if tensor is not None}
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        case.make()(x, target, mask)
    assert x.data_ptr() in {tensor.data_ptr() for tensor in kept}
    others = [tensor for tensor in kept if tensor.data_ptr() not in inputs]
    # A few [B, C] tensors.
    assert all(tensor.numel() <= 2 * 3 * len(FIELDS) for tensor in others)


# A bad label on an accelerator


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
def test_a_bad_label_on_an_accelerator_makes_its_image_nan() -> None:
    x = torch.randn(3, 3, 400, device="cuda", requires_grad=True)
    labels = torch.randint(3, (3, 400), device="cuda")
    labels[1, 7] = 3
    values = DiceLoss(reduction="none", impl="eager")(x, labels)
    assert values[1].isnan().all()
    assert values[[0, 2]].isfinite().all()
    assert torch.zeros(1, device="cuda").item() == 0  # the device still works
