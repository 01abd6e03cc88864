import pytest
import torch
from torch import nn

from polydice import CrossEntropyLoss, DiceLoss, PolyDice1Loss, TvMFDiceLoss
from polydice.data.cases import Regions
from polydice.training.mixed import Mixed
from polydice.training.objective import adapt, adaptive, objective, supervised
from polydice.training.processes import Process

ALONE = Process(0, 1, torch.device("cpu"))


def test_the_loss_is_the_one_that_is_spelt() -> None:
    assert repr(objective("DiceLoss(batch=True) + CrossEntropyLoss()", ALONE)) == (
        "DiceLoss(batch=True) + CrossEntropyLoss()"
    )


@pytest.mark.parametrize(
    "text",
    [
        "DiceLoss(reduction='none')",
        "DiceLoss(activation='none')",
        "DiceLoss(reduction='none') + CrossEntropyLoss(reduction='none')",
    ],
)
def test_what_is_no_number_of_logits_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^loss .*: 'none' will not do, a network gives logits and is trained on one"):
        objective(text, ALONE)


def test_pixels_without_a_label_are_ignored_at_every_resolution() -> None:
    """Whatever the network says there."""
    loss = objective("DiceLoss(batch=True) + CrossEntropyLoss()", ALONE, ignore=255)
    labels = torch.randint(2, (2, 8, 8), dtype=torch.uint8)
    labels[:, :4] = 255
    logits = [torch.randn(2, 2, side, side) for side in (8, 4)]
    other = [each.clone() for each in logits]
    for each in other:
        each[:, :, : each.shape[2] // 2] = 9 * torch.randn_like(each[:, :, : each.shape[2] // 2])
    assert supervised(loss, logits, labels) == supervised(loss, other, labels)
    with pytest.raises(ValueError, match="pixels without a label are 255 here: leave ignore_index out"):
        objective("DiceLoss(ignore_index=0)", ALONE, ignore=255)


def test_one_resolution_is_the_loss_itself() -> None:
    logits, labels = torch.randn(2, 3, 8, 8), torch.randint(3, (2, 8, 8), dtype=torch.uint8)
    assert supervised(DiceLoss(), logits, labels) == DiceLoss()(logits, labels)


def test_coarser_logits_weigh_half_as_much_and_see_every_second_label() -> None:
    """1, ½ and ¼, over their sum; the label of a coarse pixel is that of the fine pixel next to its centre."""
    labels = torch.randint(3, (2, 8, 8), dtype=torch.uint8)
    logits = [torch.randn(2, 3, side, side, requires_grad=True) for side in (8, 4, 2)]
    loss = DiceLoss() + CrossEntropyLoss()
    found = supervised(loss, logits, labels)
    each = [loss(logits[0], labels), loss(logits[1], labels[:, 1::2, 1::2]), loss(logits[2], labels[:, 2::4, 2::4])]
    torch.testing.assert_close(found, (each[0] + each[1] / 2 + each[2] / 4) / 1.75)
    found.backward()
    assert all(level.grad is not None for level in logits)


def test_what_is_annotated_is_told_at_every_resolution() -> None:
    labels = torch.randint(2, (2, 8, 8), dtype=torch.uint8)
    logits = [torch.randn(2, 3, side, side) for side in (8, 4)]
    annotated = torch.tensor([[True, True, True], [True, True, False]])
    loss = DiceLoss() + CrossEntropyLoss()
    each = [
        loss(logits[0], labels, annotated=annotated), loss(logits[1], labels[:, 1::2, 1::2], annotated=annotated)
    ]  # fmt: skip
    found = supervised(loss, logits, labels, annotated=annotated)
    torch.testing.assert_close(found, (each[0] + each[1] / 2) / 1.5)
    assert found != supervised(loss, logits, labels)


def test_kappa_is_adapted_wherever_there_is_one() -> None:
    term = TvMFDiceLoss(kappa=1.0)
    loss = 2 * term + CrossEntropyLoss()
    adapt(adaptive(loss), torch.tensor([1.0, 0.5, float("nan")]))
    assert term.kappa.tolist() == [32.0, 16.0, 0.0]
    assert not adaptive(loss, kappa=False)
    assert not adaptive(DiceLoss())
    DiceLoss().adapt([1.0, 0.5])  # nothing to do


def test_epsilon_is_adapted_where_it_is_said_to_follow() -> None:
    still, moving = PolyDice1Loss(0.5), PolyDice1Loss(0.5, follow=0.2)
    for kappa in (True, False):  # which is another's
        assert adaptive(still + moving, kappa) == [moving]
    adapt(adaptive(still + moving), torch.tensor([1.0, 0.5, float("nan")]))
    assert moving.epsilon.tolist() == [0.2, 0.1, 0.0]
    assert still.epsilon == 0.5


class Twice(nn.Module):
    """Somebody's loss that is made of one of polydice's."""

    def __init__(self) -> None:
        super().__init__()
        self.loss = TvMFDiceLoss(kappa=0.0)

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return 2 * self.loss(logits, target)


def test_kappa_is_adapted_inside_a_loss_of_somebody_elses_too() -> None:
    loss = objective(f"DiceLoss() + {__name__}:Twice()", ALONE)
    assert isinstance(loss, Mixed)
    adapt(adaptive(loss), torch.tensor([1.0, 0.5]))
    inner = loss.others[0].module
    assert isinstance(inner, Twice)
    assert inner.loss.kappa.tolist() == [32.0, 16.0]


class Grouped(nn.Module):
    process_group = None


def test_a_loss_of_another_package_must_know_of_other_processes() -> None:
    two = Process(0, 2, torch.device("cpu"))
    with pytest.raises(ValueError, match=r"2 processes have a part of each batch, and torch.nn:Cross.* has no"):
        objective("DiceLoss() + torch.nn:CrossEntropyLoss()", two)
    loss = objective(f"DiceLoss() + {__name__}:Grouped()", two)
    assert isinstance(loss, Mixed)
    assert isinstance(loss.others[0].module, Grouped)


def test_kappa_is_adapted_beside_a_loss_of_another_package() -> None:
    loss = objective("TvMFDiceLoss(kappa=1.0) + torch.nn:CrossEntropyLoss()", ALONE)
    adapt(adaptive(loss), torch.tensor([1.0, 0.5]))
    assert isinstance(loss, Mixed)
    assert loss.own.terms[0][1].kappa.tolist() == [32.0, 16.0]
    assert not adaptive(objective("torch.nn:CrossEntropyLoss()", ALONE))


def test_regions_are_masks_and_what_is_void_counts_nowhere() -> None:
    """As the loss of the masks alone, of the pixels alone that have a label, at every resolution."""
    torch.manual_seed(0)
    regions = Regions(((0,), (1, 2), (2,)), (1, 2))
    labels = torch.randint(3, (2, 6, 8), dtype=torch.uint8)
    labels[:, 3:] = 255
    logits = [torch.randn(2, 2, 6 // size, 8 // size, requires_grad=True) for size in (1, 2)]
    text = "DiceLoss(batch=True) + CrossEntropyLoss()"
    loss = objective(text, ALONE, ignore=255, regions=regions)
    found = supervised(loss, logits[0], labels, 255, regions)
    masks = torch.stack([labels[:, :3] > 0, labels[:, :3] == 2], 1)
    alone = DiceLoss(batch=True, activation="sigmoid") + CrossEntropyLoss(activation="sigmoid")
    torch.testing.assert_close(found, alone(logits[0][:, :, :3], masks))
    found.backward()
    assert logits[0].grad is not None
    assert not logits[0].grad[:, :, 3:].any()
    smaller = supervised(loss, logits[1], labels[:, 1::2, 1::2], 255, regions)
    torch.testing.assert_close(supervised(loss, logits, labels, 255, regions), (2 * found + smaller) / 3)
