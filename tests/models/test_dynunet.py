import sys

import pytest
import torch
from monai.networks.nets.dynunet import DynUNet as Published
from torch.nn import functional as F

from polydice import CrossEntropyLoss, DiceLoss, HeadLoss
from polydice.models.dynunet import DynUNet


def monai(depth: int, filters: list[int], **options: object) -> Published:
    return Published(
        3, 2, 4, kernel_size=[3] * (depth + 1), strides=[1] + [2] * depth, upsample_kernel_size=[2] * depth,
        filters=filters, trans_bias=True, **options,
    )  # fmt: skip


def test_it_is_monais() -> None:
    """Of the same seed, with MONAI's norms and activations; its first level is at full resolution."""
    torch.manual_seed(0)
    expected = monai(3, [4, 8, 16, 32]).eval()
    torch.manual_seed(0)
    model = DynUNet(2, 4, width=4, depth=3).eval()
    volume = torch.rand(1, 2, 16, 24, 32)
    assert torch.equal(model(volume), expected(volume))
    assert model.down[0](volume).shape == (1, 4, 16, 24, 32)


def test_deep_supervision_is_monais_before_it_enlarges_the_coarse_logits() -> None:
    torch.manual_seed(0)
    expected = monai(3, [4, 8, 16, 32], deep_supervision=True, deep_supr_num=2).train()
    torch.manual_seed(0)
    model = DynUNet(2, 4, width=4, depth=3, deep_supervision=True).train()
    volume = torch.rand(1, 2, 16, 24, 32)
    found = model(volume)
    assert [each.shape[2:] for each in found] == [(16, 24, 32), (8, 12, 16), (4, 6, 8)]
    enlarged = [F.interpolate(each, volume.shape[2:]) for each in found]
    assert torch.equal(torch.stack(enlarged, 1), expected(volume))
    assert torch.equal(model.eval()(volume), found[0])


def test_the_default_is_nnunets_shape() -> None:
    """Six levels of 32 to 320 features, and a 1×1×1 head. nnU-Net's PlainConvUNet has two convolutions a level too."""
    model = DynUNet(1, 118)
    assert [block.conv2.conv.out_channels for block in model.down] == [32, 64, 128, 256, 320, 320]
    assert str(model.heads) == "ModuleList(\n  (0): Conv3d(32, 118, kernel_size=(1, 1, 1), stride=(1, 1, 1))\n)"


def test_its_head_goes_with_the_loss() -> None:
    torch.manual_seed(0)
    model = DynUNet(1, 5, width=4, depth=2).double()
    volume, labels = torch.rand(1, 1, 11, 9, 14).double(), torch.randint(5, (1, 11, 9, 14))
    loss = DiceLoss() + CrossEntropyLoss()
    expected = torch.autograd.grad(loss(model(volume), labels), [*model.parameters()])
    found = torch.autograd.grad(HeadLoss(loss, model.heads[0])(model.features(volume), labels), [*model.parameters()])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("sides", [(35, 50, 41), (7, 33, 16), (1, 1, 9)])
def test_any_size_comes_back(sides: tuple[int, int, int]) -> None:
    model = DynUNet(2, 3, width=2, depth=3, deep_supervision=True)
    coarse = [[-(-side // 2**level) for side in sides] for level in range(3)]
    assert [[*each.shape] for each in model(torch.rand(1, 2, *sides))] == [[1, 3, *each] for each in coarse]


def test_sides_are_padded_with_zeros_at_their_end() -> None:
    model = DynUNet(1, 2, width=2, depth=2)
    volume = torch.rand(1, 1, 9, 8, 14)
    padded = F.pad(volume, (0, 2, 0, 0, 0, 3))
    assert torch.equal(model(volume), model(padded)[:, :, :9, :, :14])


def test_what_does_not_fit_is_refused_with_its_shape() -> None:
    with pytest.raises(ValueError, match=r"a side over 4; it was given \[1, 1, 4, 2, 4\]: choose a smaller depth"):
        DynUNet(1, 2, width=2, depth=2)(torch.zeros(1, 1, 4, 2, 4))
    with pytest.raises(ValueError, match=r"takes \[B, 1, D, H, W\]; it was given \[1, 2, 32, 32, 32\]"):
        DynUNet(1, 2, width=2, depth=2)(torch.zeros(1, 2, 32, 32, 32))
    with pytest.raises(ValueError, match="depth at least 2: width=4, depth=1"):
        DynUNet(1, 2, width=4, depth=1)


def test_without_monai_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "polydice.models.dynunet")
    monkeypatch.setitem(sys.modules, "monai.networks.nets", None)
    with pytest.raises(ImportError, match=r"pip install 'polydice\[study\]'"):
        import polydice.models.dynunet  # noqa: F401
