import sys

import pytest
import torch
from torch.nn import functional as F

from polydice.models.unet3d import UNet3D


@pytest.mark.parametrize("sides", [(35, 50, 41), (48, 64, 48), (7, 33, 16), (1, 1, 9)])
def test_any_size_comes_back(sides: tuple[int, int, int]) -> None:
    model = UNet3D(2, 3, width=2, depth=3).eval()
    assert model(torch.rand(1, 2, *sides)).shape == (1, 3, *sides)


def test_sides_are_padded_with_zeros_at_their_end() -> None:
    model = UNet3D(1, 2, width=2, depth=2)
    volume = torch.rand(1, 1, 9, 8, 14)
    padded = F.pad(volume, (0, 2, 0, 0, 0, 3))
    assert torch.equal(model(volume), model(padded)[:, :, :9, :, :14])


def test_the_default_size_and_the_small_one() -> None:
    for options, parameters in (({}, 19_223_664), ({"width": 16, "depth": 3}, 1_188_924)):
        assert sum(parameter.numel() for parameter in UNet3D(1, 3, **options).parameters()) == parameters


def test_the_volumes_of_a_batch_are_kept_apart() -> None:
    model = UNet3D(1, 2, width=2, depth=2).double()
    volumes = torch.rand(2, 1, 12, 16, 20).double()
    torch.testing.assert_close(model(volumes), torch.cat([model(volume[None]) for volume in volumes]))


def test_what_does_not_fit_is_refused_with_its_shape() -> None:
    with pytest.raises(ValueError, match=r"a side over 16; it was given \[1, 1, 16, 8, 16\]: choose a smaller depth"):
        UNet3D(1, 2, width=2)(torch.zeros(1, 1, 16, 8, 16))
    with pytest.raises(ValueError, match=r"takes \[B, 1, D, H, W\]; it was given \[1, 2, 32, 32, 32\]"):
        UNet3D(1, 2, width=2)(torch.zeros(1, 2, 32, 32, 32))
    with pytest.raises(ValueError, match="width=4, depth=0"):
        UNet3D(1, 2, width=4, depth=0)


def test_without_monai_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "polydice.models.unet3d")
    monkeypatch.setitem(sys.modules, "monai.networks.nets.unet", None)
    with pytest.raises(ImportError, match=r"pip install 'polydice\[study\]'"):
        import polydice.models.unet3d  # noqa: F401
