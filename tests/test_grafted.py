"""results/fair/grafted.py, with which a study asks whether a loss's step or its shape helps."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from polydice import foreign
from polydice.studies.recipe import read
from polydice.training.expression import parse_loss
from polydice.training.objective import adapt, adaptive

FAIR = Path(__file__).parents[1] / "results" / "fair"
DICE, DETACHED, TVMF = "DiceLoss(batch=True)", "PolyDice1Loss(0.5, batch=True, scale='detached')", "TvMFDiceLoss(3.0)"
TOLERANCE = 1e-5  # of float32: gradients are summed over a few thousand pixels


@pytest.fixture(autouse=True)
def beside() -> None:
    foreign.look_in(FAIR)


def grafted(direction: str, size: str) -> torch.nn.Module:
    return parse_loss(f'grafted:Grafted("{direction}", "{size}")')


def gradient(loss: torch.nn.Module, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.clone().requires_grad_()
    value = loss(logits, labels)
    value.backward()
    assert logits.grad is not None
    return value.detach(), logits.grad


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 3, 24, 20), torch.randint(3, (2, 24, 20), dtype=torch.uint8)


@pytest.mark.parametrize(("direction", "size"), [(DICE, TVMF), (TVMF, DETACHED), (DETACHED, f"3 * {DICE}")])
def test_value_and_direction_are_those_of_the_one_and_the_size_is_that_of_the_other(
    direction: str, size: str, batch: tuple[Tensor, Tensor]
) -> None:
    value, found = gradient(grafted(direction, size), *batch)
    expected, own = gradient(parse_loss(direction), *batch)
    _, other = gradient(parse_loss(size), *batch)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(found.norm(), other.norm(), rtol=TOLERANCE, atol=0)
    assert cosine_similarity(found.flatten(), own.flatten(), 0) > 1 - TOLERANCE
    assert (own.norm() / other.norm() - 1).abs() > 0.1  # else nothing would be seen


def test_grafted_on_itself_a_loss_is_itself(batch: tuple[Tensor, Tensor]) -> None:
    found, own = gradient(grafted(DETACHED, DETACHED), *batch), gradient(parse_loss(DETACHED), *batch)
    torch.testing.assert_close(found, own)


def test_its_gradient_is_passed_on_and_scaled(batch: tuple[Tensor, Tensor]) -> None:
    """It need not be the last: a factor, as that of a coarser resolution, is part of the gradient."""
    _, once = gradient(grafted(DICE, TVMF), *batch)
    _, thrice = gradient(parse_loss(f'3 * grafted:Grafted("{DICE}", "{TVMF}")'), *batch)
    torch.testing.assert_close(thrice, 3 * once)


def test_a_perfect_prediction_has_no_gradient() -> None:
    labels = torch.randint(3, (1, 8, 8), generator=torch.Generator().manual_seed(0))
    logits = 1000 * torch.nn.functional.one_hot(labels, 3).movedim(-1, 1).float()
    _, found = gradient(grafted(DICE, "CrossEntropyLoss()"), logits, labels)
    assert (found == 0).all()


def test_kappa_follows_the_validation_on_either_side() -> None:
    loss = grafted("TvMFDiceLoss(0.0)", "TvMFDiceLoss(0.0)")
    adapt(adaptive(loss), torch.tensor([1.0, 0.5, 0.0]))  # type: ignore[arg-type]
    kept = {name: each.tolist() for name, each in loss.state_dict().items()}
    assert set(map(tuple, kept.values())) == {(32.0, 16.0, 0.0)}
    assert len(kept) == 2


@pytest.mark.parametrize("path", sorted(FAIR.glob("*.toml")), ids=lambda path: path.stem)
def test_the_recipes_beside_it_can_be_read_and_their_rates_are_four_fold_apart(path: Path) -> None:
    rates = read(path).tune.lists.get("rate", [])
    assert [high / low for low, high in pairwise(rates)] == pytest.approx([4] * (len(rates) - 1))
