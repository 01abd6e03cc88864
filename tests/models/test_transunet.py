import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from polydice.models.transunet import TransUNet

UNITS = {"block1": (64, 3), "block2": (128, 4), "block3": (256, 9)}  # features in the middle, number of units


@pytest.fixture(scope="module")
def model() -> TransUNet:
    """In float64, in evaluation mode, with norms, biases and positions that do something, and a decoder that hands
    on what it is given: its random start would let differences in the encoder die away."""
    torch.manual_seed(0)
    model = TransUNet(3, 4, size=64).double().eval()
    for name, tensor in model.state_dict().items():
        if name.endswith("running_var"):
            tensor.uniform_(0.5, 2)
        elif tensor.is_floating_point() and (tensor.ndim == 1 or "position" in name):
            tensor.add_(torch.randn_like(tensor), alpha=0.2)
        elif name.startswith("decoder") and tensor.ndim == 4:
            tensor.mul_(math.sqrt(6))  # from torch's variance, 1/3n, to He's, 2/n
    return model


class Reference:
    """The fact sheet of the published model, written out on a dict of its weights."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        self.weights = weights

    def __call__(self, image: Tensor) -> Tensor:
        embeddings = "transformer.embeddings"
        x, skips = self.resnet(image, f"{embeddings}.hybrid_model")
        height, width = x.shape[2:]
        x = self.conv(x, f"{embeddings}.patch_embeddings").flatten(2).transpose(1, 2)
        positions = self.weights[f"{embeddings}.position_embeddings"].unflatten(1, (4, 4))
        x = x + stretch(positions.permute(0, 3, 1, 2), height, width).flatten(2).transpose(1, 2)
        for i in range(12):
            layer = f"transformer.encoder.layer.{i}"
            x = x + self.attention(self.layer_norm(x, f"{layer}.attention_norm"), f"{layer}.attn")
            x = x + self.mlp(self.layer_norm(x, f"{layer}.ffn_norm"), f"{layer}.ffn")
        x = self.layer_norm(x, "transformer.encoder.encoder_norm")
        x = x.transpose(1, 2).reshape(len(x), 768, height, width)
        x = self.conv_norm_relu(x, "decoder.conv_more")
        for i in range(4):
            x = stretch(x, 2 * x.shape[2], 2 * x.shape[3])
            x = torch.cat([x, skips[i]], 1) if i < 3 else x
            x = self.conv_norm_relu(x, f"decoder.blocks.{i}.conv1")
            x = self.conv_norm_relu(x, f"decoder.blocks.{i}.conv2")
        return self.conv(x, "segmentation_head.0", padding=1)

    def resnet(self, image: Tensor, name: str) -> tuple[Tensor, list[Tensor]]:
        root = self.standardised(image, f"{name}.root.conv", stride=2, padding=3)
        root = self.group_norm(root, f"{name}.root.gn").relu()
        x = root.unfold(2, 3, 2).unfold(3, 3, 2).amax((4, 5))  # a pool that drops what does not fill its window
        x = block1 = self.block(x, f"{name}.body.block1", stride=1)
        x = block2 = self.block(x, f"{name}.body.block2", stride=2)
        x = self.block(x, f"{name}.body.block3", stride=2)
        padded = block1.new_zeros(*block1.shape[:2], image.shape[2] // 4, image.shape[3] // 4)
        padded[:, :, : block1.shape[2], : block1.shape[3]] = block1
        return x, [block2, padded, root]

    def block(self, x: Tensor, name: str, stride: int) -> Tensor:
        for i in range(UNITS[name[-6:]][1]):
            unit = f"{name}.unit{i + 1}"
            y = self.group_norm(self.standardised(x, f"{unit}.conv1"), f"{unit}.gn1").relu()
            y = self.standardised(y, f"{unit}.conv2", stride=1 if i else stride, padding=1)
            y = self.group_norm(y, f"{unit}.gn2").relu()
            y = self.group_norm(self.standardised(y, f"{unit}.conv3"), f"{unit}.gn3")
            if i == 0:
                x = self.standardised(x, f"{unit}.downsample", stride=stride)
                x = self.group_norm(x, f"{unit}.gn_proj", groups=x.shape[1], eps=1e-5)
            x = (x + y).relu()
        return x

    def standardised(self, x: Tensor, name: str, stride: int = 1, padding: int = 0) -> Tensor:
        kernel = self.weights[f"{name}.weight"]
        centred = kernel - kernel.mean((1, 2, 3), keepdim=True)
        return F.conv2d(
            x, centred / (centred.square().mean((1, 2, 3), keepdim=True) + 1e-5).sqrt(), None, stride, padding
        )

    def group_norm(self, x: Tensor, name: str, groups: int = 32, eps: float = 1e-6) -> Tensor:
        return self.scaled(normalised(x.reshape(len(x), groups, -1), eps).reshape(x.shape), name, (-1, 1, 1))

    def layer_norm(self, x: Tensor, name: str) -> Tensor:
        return self.scaled(normalised(x, 1e-6), name, (-1,))

    def scaled(self, x: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
        return x * self.weights[f"{name}.weight"].view(shape) + self.weights[f"{name}.bias"].view(shape)

    def dense(self, x: Tensor, name: str) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def attention(self, x: Tensor, name: str) -> Tensor:
        query, key, value = (self.dense(x, f"{name}.{part}") for part in ("query", "key", "value"))
        heads = []
        for head in range(12):
            own = slice(64 * head, 64 * head + 64)
            scores = query[..., own] @ key[..., own].transpose(1, 2) / 8
            heads.append(scores.softmax(-1) @ value[..., own])
        return self.dense(torch.cat(heads, -1), f"{name}.out")

    def mlp(self, x: Tensor, name: str) -> Tensor:
        x = self.dense(x, f"{name}.fc1")
        return self.dense(x * (1 + torch.erf(x / math.sqrt(2))) / 2, f"{name}.fc2")

    def conv(self, x: Tensor, name: str, padding: int = 0) -> Tensor:
        return F.conv2d(x, self.weights[f"{name}.weight"], self.weights[f"{name}.bias"], padding=padding)

    def conv_norm_relu(self, x: Tensor, name: str) -> Tensor:
        x = F.conv2d(x, self.weights[f"{name}.0.weight"], padding=1)
        mean, variance = (self.weights[f"{name}.1.running_{part}"].view(-1, 1, 1) for part in ("mean", "var"))
        return self.scaled((x - mean) / (variance + 1e-5).sqrt(), f"{name}.1", (-1, 1, 1)).relu()


def normalised(x: Tensor, eps: float) -> Tensor:
    """Over the last axis, with the biased variance."""
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()


def stretch(x: Tensor, height: int, width: int) -> Tensor:
    """Bilinear with the corners on the corners: a matrix of weights for each of the two axes."""

    def weights(old: int, new: int) -> Tensor:
        at = torch.arange(new).double() * (old - 1) / (new - 1)
        return (1 - (at[:, None] - torch.arange(old)).abs()).clamp(min=0)

    return weights(x.shape[2], height) @ x @ weights(x.shape[3], width).T


@pytest.mark.parametrize("sides", [(64, 64), (32, 96), (128, 80)])
def test_the_network_is_the_published_one(model: TransUNet, sides: tuple[int, int]) -> None:
    image = torch.rand(2, 3, *sides).double()
    with torch.no_grad():
        torch.testing.assert_close(model(image), Reference(model.state_dict())(image), rtol=1e-11, atol=1e-11)


def test_one_channel_is_repeated_three_times(model: TransUNet) -> None:
    image = torch.rand(1, 1, 64, 64).double()
    with torch.no_grad():
        assert torch.equal(model(image), model(torch.cat([image] * 3, dim=1)))


def test_the_maps_of_a_224_image_have_the_published_sizes() -> None:
    resnet = TransUNet(3, 2).transformer.embeddings.hybrid_model
    sizes = {}
    for name, module in (("root", resnet.root), *resnet.body.named_children()):
        module.register_forward_hook(
            lambda _, given, out, name=name: sizes.update({name: (*given[0].shape[1:], *out.shape[1:])})
        )
    with torch.no_grad():
        last, skips = resnet(torch.rand(1, 3, 224, 224))
    assert sizes == {
        "root": (3, 224, 224, 64, 112, 112),
        "block1": (64, 55, 55, 256, 55, 55),
        "block2": (256, 55, 55, 512, 28, 28),
        "block3": (512, 28, 28, 1024, 14, 14),
    }
    assert last.shape == (1, 1024, 14, 14)
    assert [skip.shape[1:] for skip in skips] == [(512, 28, 28), (256, 56, 56), (64, 112, 112)]
    assert skips[1][:, :, 55].count_nonzero() == 0
    assert skips[1][:, :, :, 55].count_nonzero() == 0


def published_names() -> Iterator[str]:
    """The parameters of the published code."""

    def both(*modules: str) -> Iterator[str]:
        for module in modules:
            yield from (f"{module}.weight", f"{module}.bias")

    resnet = "transformer.embeddings.hybrid_model"
    yield f"{resnet}.root.conv.weight"
    yield from both(f"{resnet}.root.gn")
    for block, (_, units) in UNITS.items():
        for unit in range(1, units + 1):
            name = f"{resnet}.body.{block}.unit{unit}"
            yield from (f"{name}.conv1.weight", f"{name}.conv2.weight", f"{name}.conv3.weight")
            yield from both(f"{name}.gn1", f"{name}.gn2", f"{name}.gn3")
            if unit == 1:
                yield f"{name}.downsample.weight"
                yield from both(f"{name}.gn_proj")
    yield from both("transformer.embeddings.patch_embeddings")
    yield "transformer.embeddings.position_embeddings"
    for i in range(12):
        layer = f"transformer.encoder.layer.{i}"
        yield from both(f"{layer}.attention_norm", f"{layer}.ffn_norm", f"{layer}.ffn.fc1", f"{layer}.ffn.fc2")
        yield from both(*(f"{layer}.attn.{part}" for part in ("query", "key", "value", "out")))
    yield from both("transformer.encoder.encoder_norm")
    for convs in ("conv_more", *(f"blocks.{i}.conv{j}" for i in range(4) for j in (1, 2))):
        yield f"decoder.{convs}.0.weight"
        yield from both(f"decoder.{convs}.1")
    yield from both("segmentation_head.0")


def test_the_parameters_have_their_published_names_and_number() -> None:
    parameters = dict(TransUNet(3, 2).named_parameters())
    names = list(published_names())
    assert sorted(parameters) == sorted(names)
    assert sum(parameter.numel() for parameter in parameters.values()) == 105_276_066  # 105 M within 0.3 %


def test_dropout_is_a_tenth_and_spares_attention() -> None:
    transformer = TransUNet(3, 2, size=64).transformer  # in training mode
    tokens = torch.rand(64, 16, 768)
    layer = transformer.encoder.layer[0]
    embedded, _ = transformer.embeddings(torch.rand(8, 3, 64, 64))
    for dropped in (embedded, layer.ffn(tokens)):
        rate = (dropped == 0).double().mean().item()
        assert abs(rate - 0.1) < 6 * math.sqrt(0.1 * 0.9 / dropped.numel())  # six standard deviations
    assert torch.equal(layer.attn(tokens), layer.attn(tokens))
    hidden: list[Tensor] = []
    layer.ffn.fc2.register_forward_pre_hook(lambda _, given: hidden.append(given[0]))
    layer.ffn(tokens)
    assert abs((hidden[0] == 0).double().mean().item() - 0.1) < 6 * math.sqrt(0.09 / hidden[0].numel())


def test_the_random_start_is_the_published_one() -> None:
    transformer = TransUNet(3, 2, size=64).transformer
    assert transformer.embeddings.position_embeddings.count_nonzero() == 0
    for layer in transformer.encoder.layer:
        for dense in (layer.ffn.fc1, layer.ffn.fc2):
            bound = math.sqrt(6 / (768 + 3072))
            assert 0.99 * bound < dense.weight.abs().max() <= bound
            assert 0 < dense.bias.abs().max() < 1e-5
        assert 0.99 / math.sqrt(768) < layer.attn.query.weight.abs().max() <= 1 / math.sqrt(768)
    firsts = {layer.attn.query.weight[0, 0].item() for layer in transformer.encoder.layer}
    assert len(firsts) == 12  # no layer is a copy of another


def test_what_does_not_fit_is_refused_with_its_shape(model: TransUNet) -> None:
    with pytest.raises(ValueError, match=r"takes \[B, 1 or 3, H, W\]; it was given \[1, 2, 64, 64\]"):
        model(torch.zeros(1, 2, 64, 64))
    with pytest.raises(ValueError, match=r"multiples of 16, at least 32; it was given \[1, 3, 64, 72\]"):
        model(torch.zeros(1, 3, 64, 72))
    with pytest.raises(ValueError, match=r"at least 32; it was given \[1, 3, 16, 64\]"):
        model(torch.zeros(1, 3, 16, 64))
    with pytest.raises(ValueError, match=r"it was given \[3, 64, 64\]"):
        model(torch.zeros(3, 64, 64))
    with pytest.raises(ValueError, match="a multiple of 16, at least 32: 100"):
        TransUNet(3, 2, size=100)
