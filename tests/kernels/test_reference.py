"""The reference against 50 digits, and the plain pass against the reference. The fused one: test_triton.py."""

import pytest
import torch
from mpmath import mpf
from torch import Tensor

from polydice import PixelSums, pixel_sums
from polydice.kernels import reference
from tests.reference import ACTIVATIONS, GAMMA, Reference, dense_masks, predictions

SAME = 1e-12  # the same float64 sums in another order


def values(sums: PixelSums) -> list[Tensor]:
    return [value for value in sums[:-1] if value is not None]


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_sums_in_50_digits(activation: str) -> None:
    x, y = predictions((2, 3, 9), activation), torch.rand(2, 3, 9, dtype=torch.float64)
    exact = Reference(x, y, activation)
    found = reference.pixel_sums(x, y, activation=activation, gamma=GAMMA)
    for image in range(2):
        for channel in range(3):
            sums = exact._sums(exact.y[image][channel], exact.p[image][channel])
            expected = {
                "intersection": sums.i,
                "prediction": sums.p,
                "prediction_sq": sums.b,
                "target": sums.t,
                "target_sq": sums.a,
                "error_sq": sums.a + sums.b - 2 * sums.i,
                "pixels": mpf(9),
            } | ({} if activation == "none" else {"cross_entropy": sums.ce, "focal": sums.focal})
            for name, value in expected.items():
                assert abs(getattr(found, name)[image, channel].item() - value) < SAME, name
    assert (found.cross_entropy is None) == (activation == "none")


def targets(kind: str, classes: int, size: tuple[int, ...]) -> tuple[Tensor, int | None]:
    """A target, and the label to ignore."""
    labels = torch.randint(max(classes, 2), (2, *size))
    return {
        "labels": (labels, None),
        "labels with a channel": (labels.unsqueeze(1).to(torch.uint8), None),
        "ignored": (labels.masked_fill(torch.rand(2, *size) > 0.7, 255), 255),
        "soft": (torch.rand(2, classes, *size), None),
        "boolean": (torch.rand(2, classes, *size) > 0.5, None),
        "integer masks": (torch.randint(2, (2, classes, *size)), None),
    }[kind]


@pytest.mark.parametrize("masked", ["", "boolean", "float"])
@pytest.mark.parametrize("kind", ["labels", "labels with a channel", "ignored", "soft", "boolean", "integer masks"])
@pytest.mark.parametrize(
    ("activation", "classes"), [("softmax", 3), ("sigmoid", 3), ("none", 3), ("sigmoid", 1), ("none", 1)]
)
def test_the_plain_pass_makes_these_sums_and_gradients(activation: str, classes: int, kind: str, masked: str) -> None:
    size = (5, 6)
    target, ignore_index = targets(kind, classes, size)
    mask = {"": None, "boolean": torch.rand(2, *size) > 0.3, "float": torch.rand(2, *size)}[masked]
    x = predictions((2, classes, *size), activation)
    if masked == "boolean":
        x.masked_fill_(~mask.unsqueeze(1), torch.nan)  # nothing is read there
    x.requires_grad_()
    options = {"activation": activation, "ignore_index": ignore_index, "mask": mask}
    found, expected = pixel_sums(x, target, **options), reference.pixel_sums(x, target, **options)
    assert found.labels == expected.labels
    gradients = []
    for sums in (found, expected):
        differentiable = [(k + 1) * value.sum() for k, value in enumerate(sums[:-1]) if value is not None]
        gradients.append(torch.autograd.grad(sum(differentiable), x)[0])
    for one, other in zip([*values(found), gradients[0]], [*values(expected), gradients[1]], strict=True):
        torch.testing.assert_close(one, other, rtol=SAME, atol=SAME)


def test_labels_are_masks_of_one_class_each() -> None:
    x, labels = torch.randn(2, 4, 30, dtype=torch.float64), torch.randint(4, (2, 30))
    of_labels, of_masks = (reference.pixel_sums(x, y, gamma=2.0) for y in (labels, dense_masks(labels, 4)))
    assert all(torch.equal(*pair) for pair in zip(values(of_labels), values(of_masks), strict=True))


def test_a_forbidden_class_that_is_not_the_truth_costs_nothing() -> None:
    x, labels = torch.randn(1, 3, 8, dtype=torch.float64), torch.zeros(1, 8, dtype=torch.long)
    x[:, 2] = -torch.inf
    assert reference.pixel_sums(x, labels).cross_entropy.isfinite().all()
