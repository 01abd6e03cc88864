from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from polydice.recommended import START
from polydice.training.config import Settings
from polydice.training.loop import train
from polydice.training.optimizer import make_optimizer, set_rate
from tests.training.runs import ended, history, small, train_until

STEPS = 7


def stepped(**given: Any) -> np.ndarray[Any, Any]:
    """Where STEPS steps take the weights 1, -2, 3 of ½·Σ k·w², k = 1, 2, 3, in float64."""
    settings = Settings(data=Path("data"), out=Path("out"), **given)
    weights = nn.Parameter(torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64))
    optimizer = make_optimizer(settings, [weights], fused=False)
    for step in range(STEPS):
        set_rate(optimizer, settings, step, STEPS)
        weights.grad = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64) * weights.detach()
        optimizer.step()
    return weights.detach().numpy()


def rates(first: float, power: float = 0.9) -> list[float]:
    return [first * (1 - step / STEPS) ** power for step in range(STEPS)]


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_has_its_decay_in_the_gradient(nesterov: bool) -> None:
    """v ← µ·v + g, w ← w − rate·v, with g + λ·w for g; Nesterov's form steps by g + µ·v."""
    weights, velocity = np.array([1.0, -2.0, 3.0]), np.zeros(3)
    for rate in rates(0.05, 0.7):
        gradient = np.array([1, 2, 3]) * weights + 0.01 * weights
        velocity = 0.8 * velocity + gradient
        weights = weights - rate * (gradient + 0.8 * velocity if nesterov else velocity)
    found = stepped(optimizer="sgd", rate=0.05, momentum=0.8, decay=0.01, nesterov=nesterov, power=0.7)
    np.testing.assert_allclose(found, weights, rtol=1e-12)


def test_adamw_keeps_its_decay_out_of_its_moments() -> None:
    """m ← β₁·m + (1 − β₁)·g, v ← β₂·v + (1 − β₂)·g², w ← (1 − rate·λ)·w − rate·m̂/(√v̂ + 1e-8)."""
    weights, m, v = np.array([1.0, -2.0, 3.0]), np.zeros(3), np.zeros(3)
    for step, rate in enumerate(rates(0.02), start=1):
        gradient = np.array([1, 2, 3]) * weights
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
        moved = rate * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
        weights = (1 - rate * 0.1) * weights - moved
    np.testing.assert_allclose(stepped(optimizer="adamw", rate=0.02, decay=0.1), weights, rtol=1e-12)


def test_what_is_not_given_is_what_each_optimiser_has() -> None:
    assert (
        stepped(optimizer="sgd") == stepped(optimizer="sgd", rate=START.rate["sgd"], momentum=0.9, decay=1e-4)
    ).all()
    assert (stepped(optimizer="adamw") == stepped(optimizer="adamw", rate=START.rate["adamw"], decay=0.01)).all()


@pytest.mark.parametrize("given", [{"optimizer": "adamw"}, {"nesterov": True}, {}], ids=["adamw", "nesterov", "sgd"])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(
    images: Path, tmp_path: Path, given: dict[str, Any]
) -> None:
    options = {"epochs": 4, "save_every": 0.0, "rate": 0.02} | given
    train(small(images, tmp_path / "whole", **options))
    train_until(2, small(images, tmp_path / "stopped", **options))
    assert len(history(tmp_path / "stopped")) == 2
    train(small(images, tmp_path / "stopped", **options, resume=True))
    assert ended(tmp_path / "stopped") == ended(tmp_path / "whole")
