import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from polydice.models.unet import UNet


def count(model: UNet) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_the_textbook_network_has_its_number_of_parameters() -> None:
    assert count(UNet(3, 2)) == 31_037_698
    assert count(UNet(1, 4)) == 31_037_698 - 2 * 64 * 9 + 2 * 65  # two input channels fewer, two classes more


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_one_level_is_the_drawing_written_out(layout: torch.memory_format) -> None:
    model = UNet(2, 3, width=4, depth=1).double().eval()
    for name, tensor in model.state_dict().items():
        if tensor.ndim == 1:  # norms and biases that do something
            tensor.uniform_(0.5, 1.5) if "var" in name or "weight" in name else tensor.normal_()
    w = model.state_dict()

    def convs(x: Tensor, name: str) -> Tensor:
        for i in (0, 3):
            mean, variance, scale, shift = (
                w[f"{name}.{i + 1}.{part}"][:, None, None] for part in ("running_mean", "running_var", "weight", "bias")
            )
            x = F.conv2d(x, w[f"{name}.{i}.weight"], padding=1)
            x = ((x - mean) / (variance + 1e-5).sqrt() * scale + shift).clamp(min=0)
        return x

    image = torch.rand(2, 2, 6, 8).double()
    fine = convs(image, "down.0")
    coarse = convs(fine.unfold(2, 2, 2).unfold(3, 2, 2).amax((4, 5)), "down.1")
    up = torch.einsum("bihw,iojk->bohjwk", coarse, w["up.0.weight"]).flatten(4, 5).flatten(2, 3)
    merged = convs(torch.cat([fine, up + w["up.0.bias"][:, None, None]], 1), "merge.0")
    logits = torch.einsum("bihw,oi->bohw", merged, w["heads.0.weight"][:, :, 0, 0]) + w["heads.0.bias"][:, None, None]
    torch.testing.assert_close(model.to(memory_format=layout)(image.contiguous(memory_format=layout)), logits)


@pytest.mark.parametrize("sides", [(16, 16), (48, 64), (17, 31), (50, 37), (33, 16)])
def test_any_size_comes_back(sides: tuple[int, int]) -> None:
    assert UNet(1, 2, width=2).eval()(torch.rand(1, 1, *sides)).shape == (1, 2, *sides)


def test_deep_supervision_returns_every_resolution_in_training_only() -> None:
    model = UNet(1, 2, width=2, deep_supervision=True)
    image = torch.rand(2, 1, 37, 64)
    shapes = [logits.shape for logits in model(image)]
    assert shapes == [(2, 2, 37, 64), (2, 2, 18, 32), (2, 2, 9, 16), (2, 2, 4, 8)]
    assert model.eval()(image).shape == (2, 2, 37, 64)


def test_deep_supervision_leaves_the_full_resolution_as_it_is() -> None:
    plain, deep = UNet(1, 2, width=2), UNet(1, 2, width=2, deep_supervision=True)
    assert deep.load_state_dict(plain.state_dict(), strict=False).unexpected_keys == []
    image = torch.rand(2, 1, 32, 32)
    assert torch.equal(deep(image)[0], plain(image))


def test_instance_norm_keeps_the_images_of_a_batch_apart() -> None:
    images = torch.rand(3, 1, 32, 32).double()
    together = {norm: UNet(1, 2, width=2, norm=norm).double() for norm in ("instance", "batch")}
    apart = {norm: torch.cat([model(image[None]) for image in images]) for norm, model in together.items()}
    torch.testing.assert_close(together["instance"](images), apart["instance"])
    assert not torch.allclose(together["batch"](images), apart["batch"], rtol=0.1)


def test_what_does_not_fit_is_refused_with_both_shapes() -> None:
    with pytest.raises(ValueError, match=r"\[B, 3, H, W\] with H and W at least 16; it was given \[1, 3, 15, 40\]"):
        UNet(3, 2, width=2)(torch.zeros(1, 3, 15, 40))
    with pytest.raises(ValueError, match=r"at least 32; it was given \[1, 3, 16, 40\]"):
        UNet(3, 2, width=2, norm="instance")(torch.zeros(1, 3, 16, 40))
    with pytest.raises(ValueError, match=r"it was given \[1, 1, 32, 32\]"):
        UNet(3, 2, width=2)(torch.zeros(1, 1, 32, 32))
    with pytest.raises(ValueError, match=r"it was given \[3, 32, 32\]"):
        UNet(3, 2, width=2)(torch.zeros(3, 32, 32))


def test_options_without_meaning_are_refused() -> None:
    with pytest.raises(ValueError, match="norm='group' is none of 'batch', 'instance'"):
        UNet(3, 2, norm="group")
    with pytest.raises(ValueError, match="width=0, depth=4"):
        UNet(3, 2, width=0)
