import pytest
import torch

from polydice.base import RegionLoss
from polydice.losses import DiceLoss, DropDiceLoss, PolyDice1Loss, TvMFDiceLoss
from polydice.studies.plane import OPTIONS, at, slopes

S = torch.tensor([0.05, 0.1, 0.5, 0.95], dtype=torch.float64)
THETA = torch.linspace(0, 3.1, 50, dtype=torch.float64)[:, None]


@pytest.mark.parametrize(
    ("loss", "q", "slope"),
    [
        (DiceLoss(**OPTIONS), 1 - THETA.cos(), THETA.sin()),
        (DropDiceLoss(1, **OPTIONS), THETA**2 / 2, THETA),
        (DropDiceLoss(2, **OPTIONS), THETA**2 / 2 - THETA**4 / 24, THETA - THETA**3 / 6),
        (PolyDice1Loss(0.3, **OPTIONS), 0.8 * THETA**2, 1.6 * THETA),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_loss_is_the_papers_formula_of_scale_and_angle(
    loss: RegionLoss, q: torch.Tensor, slope: torch.Tensor
) -> None:
    by_s, by_theta = slopes(loss, S, THETA)
    torch.testing.assert_close(at(loss, S, THETA), (1 - S) + S * q, rtol=0, atol=1e-12)
    torch.testing.assert_close(by_s, (q - 1).expand_as(by_s), rtol=0, atol=1e-11)
    torch.testing.assert_close(by_theta, S * slope, rtol=0, atol=1e-11)


def test_t_vmf_dice_does_not_depend_on_the_scale() -> None:
    values = at(TvMFDiceLoss(2), S, THETA)
    torch.testing.assert_close(values, values[:, :1].expand_as(values), rtol=0, atol=1e-12)
