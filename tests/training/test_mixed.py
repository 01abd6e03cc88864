import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydice import CrossEntropyLoss, DiceLoss
from polydice.training.expression import parse_loss
from polydice.training.mixed import Foreign, Mixed


def given() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 3, 8, 8, requires_grad=True), torch.randint(3, (2, 8, 8), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("text", "factors"),
    [
        ("torch.nn:CrossEntropyLoss()", (0, 1)),
        ("torch.nn:CrossEntropyLoss", (0, 1)),
        ("DiceLoss() + torch.nn:CrossEntropyLoss()", (1, 1)),
        ("torch.nn:CrossEntropyLoss() * 0.5 + 2 * DiceLoss()", (2, 0.5)),
        ("3 * (0.25 * torch.nn:CrossEntropyLoss() + DiceLoss() + torch.nn:CrossEntropyLoss())", (3, 3.75)),
        ("DiceLoss() + 0.5 * torch.nn:CrossEntropyLoss() + DiceLoss()", (2, 0.5)),
    ],
)
def test_a_sum_is_what_it_says_whoever_the_losses_are_of(text: str, factors: tuple[float, float]) -> None:
    logits, labels = given()
    loss = parse_loss(text)
    found = loss(logits, labels)
    wanted = factors[0] * DiceLoss()(logits, labels) + factors[1] * F.cross_entropy(logits, labels.long())
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(torch.autograd.grad(found, logits), torch.autograd.grad(wanted, logits))
    assert repr(parse_loss(repr(loss))) == repr(loss)


def test_polydices_own_terms_are_one_sum() -> None:
    loss = parse_loss("DiceLoss() + torch.nn:CrossEntropyLoss() + 2 * CrossEntropyLoss()")
    assert isinstance(loss, Mixed)
    assert repr(loss.own) == "DiceLoss() + 2.0 * CrossEntropyLoss()"
    assert repr(loss) == "DiceLoss() + 2.0 * CrossEntropyLoss() + torch.nn:CrossEntropyLoss()"


@pytest.mark.parametrize("text", ["torch.nn:CrossEntropyLoss() + 1", "torch.nn:CrossEntropyLoss() * DiceLoss()"])
def test_only_losses_are_added_and_only_numbers_multiply(text: str) -> None:
    with pytest.raises(ValueError, match="unsupported operand"):
        parse_loss(text)


def test_half_precision_and_bytes_are_not_for_others() -> None:
    """Most losses would add up in the precision they are given, and take no labels of one byte."""
    logits, labels = given()
    found = parse_loss("torch.nn:CrossEntropyLoss()")(logits.bfloat16(), labels)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, CrossEntropyLoss()(logits.bfloat16().float(), labels))


class Masked(nn.Module):
    def forward(self, logits: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        assert mask is not None
        assert target.max() < 3
        return (F.cross_entropy(logits, target, reduction="none") * mask).sum() / mask.sum()


def test_pixels_without_a_label_are_masked_or_left_to_the_loss() -> None:
    logits, labels = given()
    labels[:, :3] = 255
    wanted = CrossEntropyLoss(ignore_index=255)(logits, labels)
    torch.testing.assert_close(parse_loss("torch.nn:CrossEntropyLoss()", ignore_index=255)(logits, labels), wanted)
    torch.testing.assert_close(Foreign("Masked()", Masked(), 255)(logits, labels), wanted)
    text = f"{__name__}:Masked()"
    torch.testing.assert_close(parse_loss(text, ignore_index=255)(logits, labels), wanted)
    for refused in ("torch.nn:MSELoss()", "torch.nn:CrossEntropyLoss(ignore_index=0)"):
        with pytest.raises(ValueError, match=r"pixels without a label are 255 here, and .*Loss\(.*\) does not"):
            parse_loss(refused, ignore_index=255)


class Mine(DiceLoss):
    """Derived from polydice's: one of them."""


def test_a_loss_derived_from_polydices_is_one_of_them() -> None:
    loss = parse_loss(f"{__name__}:Mine(batch=True) + CrossEntropyLoss()", ignore_index=255)
    assert not isinstance(loss, Mixed)
    assert repr(loss) == "Mine(batch=True, ignore_index=255) + CrossEntropyLoss(ignore_index=255)"
