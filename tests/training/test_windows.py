"""MONAI's sliding windows are the reference."""

import pytest
import torch
from monai.inferers.utils import sliding_window_inference
from torch import nn

from polydice.training.windows import OVERLAP, planes
from tests.training.test_predict import LargestTensor

CPU = torch.device("cpu")


@pytest.mark.parametrize("windows", [1, 3])
@pytest.mark.parametrize("shape", [(16, 8, 8), (40, 21, 17), (7, 30, 9), (5, 5, 5), (17, 8, 9), (33, 4, 40)])
def test_planes_are_those_of_monai(shape: tuple[int, int, int], windows: int) -> None:
    """Volumes of the size of a window, larger, and smaller along some axes or all; the network sees its neighbours and
    where it is in the window."""
    volume, patch = torch.rand(2, *shape), (16, 8, 8)
    net = nn.Conv3d(2, 3, 3, padding=1)
    with torch.no_grad():
        found = list(planes(volume, patch, net, windows, CPU))
        expected = sliding_window_inference(volume[None], patch, windows, net, OVERLAP, mode="gaussian")
    assert len(found) == shape[0]
    torch.testing.assert_close(torch.stack(found, 1), expected[0], rtol=1e-5, atol=1e-6)


def test_a_volume_may_be_deep() -> None:
    """What is kept is as deep as a window: nothing but the volume itself grows with its depth."""
    volume = torch.rand(1, 100, 16, 16)
    with torch.no_grad(), LargestTensor() as memory:
        for plane in planes(volume, (8, 8, 8), nn.Conv3d(1, 30, 1), 2, CPU):
            assert plane.shape == (30, 16, 16)
    assert memory.largest == 30 * 8 * 16 * 16 * 4
