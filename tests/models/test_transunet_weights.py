from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from numpy.typing import NDArray
from scipy import ndimage

from polydice.models.transunet import TransUNet
from polydice.models.transunet_weights import load_weights
from polydice.models.unet import UNet

Shapes = dict[str, tuple[int, ...]]
BLOCKS = ((64, 64, 3), (256, 128, 4), (512, 256, 9))  # features before and in the middle, units


def official_shapes(grid: int = 14) -> Shapes:
    """What is in R50+ViT-B_16.npz, but for the sizes of the classifier."""
    shapes: Shapes = {"conv_root/kernel": (7, 7, 3, 64), "gn_root/scale": (1, 1, 1, 64), "gn_root/bias": (1, 1, 1, 64)}
    for number, (before, middle, units) in enumerate(BLOCKS, start=1):
        after = 4 * middle
        for unit in range(1, units + 1):
            name = f"block{number}/unit{unit}"
            shapes[f"{name}/conv1/kernel"] = (1, 1, before if unit == 1 else after, middle)
            shapes[f"{name}/conv2/kernel"] = (3, 3, middle, middle)
            shapes[f"{name}/conv3/kernel"] = (1, 1, middle, after)
            for norm, features in (("gn1", middle), ("gn2", middle), ("gn3", after)):
                shapes[f"{name}/{norm}/scale"] = shapes[f"{name}/{norm}/bias"] = (features,)
            if unit == 1:
                shapes[f"{name}/conv_proj/kernel"] = (1, 1, before, after)
                shapes[f"{name}/gn_proj/scale"] = shapes[f"{name}/gn_proj/bias"] = (after,)
    shapes |= {"embedding/kernel": (1, 1, 1024, 768), "embedding/bias": (768,)}
    shapes["Transformer/posembed_input/pos_embedding"] = (1, 1 + grid**2, 768)
    for layer in range(12):
        name = f"Transformer/encoderblock_{layer}"
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            shapes[f"{name}/{norm}/scale"] = shapes[f"{name}/{norm}/bias"] = (768,)
        attention = f"{name}/MultiHeadDotProductAttention_1"
        for part in ("query", "key", "value"):
            shapes |= {f"{attention}/{part}/kernel": (768, 12, 64), f"{attention}/{part}/bias": (12, 64)}
        shapes |= {f"{attention}/out/kernel": (12, 64, 768), f"{attention}/out/bias": (768,)}
        shapes |= {f"{name}/MlpBlock_3/Dense_0/kernel": (768, 3072), f"{name}/MlpBlock_3/Dense_0/bias": (3072,)}
        shapes |= {f"{name}/MlpBlock_3/Dense_1/kernel": (3072, 768), f"{name}/MlpBlock_3/Dense_1/bias": (768,)}
    shapes |= {"Transformer/encoder_norm/scale": (768,), "Transformer/encoder_norm/bias": (768,)}
    classifier: Shapes = {"head/kernel": (768, 9), "head/bias": (9,), "cls": (1, 1, 768)}
    return shapes | classifier | {"pre_logits/kernel": (768, 768), "pre_logits/bias": (768,)}


def timm_shapes(grid: int = 14) -> Shapes:
    """The state dict of timm's vit_base_r50_s16_224 (384 has another grid), but for the size of the classifier."""
    shapes: Shapes = {"cls_token": (1, 1, 768), "pos_embed": (1, 1 + grid**2, 768)}
    stem = "patch_embed.backbone.stem"
    shapes |= {f"{stem}.conv.weight": (64, 3, 7, 7), f"{stem}.norm.weight": (64,), f"{stem}.norm.bias": (64,)}
    for stage, (before, middle, units) in enumerate(BLOCKS):
        after = 4 * middle
        for unit in range(units):
            name = f"patch_embed.backbone.stages.{stage}.blocks.{unit}"
            shapes[f"{name}.conv1.weight"] = (middle, after if unit else before, 1, 1)
            shapes[f"{name}.conv2.weight"] = (middle, middle, 3, 3)
            shapes[f"{name}.conv3.weight"] = (after, middle, 1, 1)
            norms = [("norm1", middle), ("norm2", middle), ("norm3", after)]
            if unit == 0:
                shapes[f"{name}.downsample.conv.weight"] = (after, before, 1, 1)
                norms.append(("downsample.norm", after))
            for norm, features in norms:
                shapes[f"{name}.{norm}.weight"] = shapes[f"{name}.{norm}.bias"] = (features,)
    shapes |= {"patch_embed.proj.weight": (768, 1024, 1, 1), "patch_embed.proj.bias": (768,)}
    for layer in range(12):
        for module, out, before in (
            ("attn.qkv", 2304, 768),
            ("attn.proj", 768, 768),
            ("mlp.fc1", 3072, 768),
            ("mlp.fc2", 768, 3072),
        ):
            shapes |= {f"blocks.{layer}.{module}.weight": (out, before), f"blocks.{layer}.{module}.bias": (out,)}
        for norm in ("norm1", "norm2"):
            shapes |= {f"blocks.{layer}.{norm}.weight": (768,), f"blocks.{layer}.{norm}.bias": (768,)}
    shapes |= {"norm.weight": (768,), "norm.bias": (768,)}
    return shapes | {"head.weight": (9, 768), "head.bias": (9,)}


def official_places(file: dict[str, NDArray[np.float32]]) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Every parameter of the encoder and what the published code puts there, but for the position embedding."""

    def conv(ours: str, theirs: str) -> tuple[str, NDArray[np.float32]]:
        return f"{ours}.weight", np.einsum("hwio->oihw", file[f"{theirs}/kernel"])

    def norm(ours: str, theirs: str) -> Iterator[tuple[str, NDArray[np.float32]]]:
        yield f"{ours}.weight", file[f"{theirs}/scale"].reshape(-1)
        yield f"{ours}.bias", file[f"{theirs}/bias"].reshape(-1)

    def dense(ours: str, theirs: str) -> Iterator[tuple[str, NDArray[np.float32]]]:
        kernel, bias = file[f"{theirs}/kernel"], file[f"{theirs}/bias"].reshape(-1)
        yield f"{ours}.weight", kernel.reshape(-1 if kernel.shape[0] == 12 else kernel.shape[0], len(bias)).transpose()
        yield f"{ours}.bias", bias

    resnet = "embeddings.hybrid_model"
    yield conv(f"{resnet}.root.conv", "conv_root")
    yield from norm(f"{resnet}.root.gn", "gn_root")
    for block, units in ((1, 3), (2, 4), (3, 9)):
        for unit in range(1, units + 1):
            ours, theirs = f"{resnet}.body.block{block}.unit{unit}", f"block{block}/unit{unit}"
            for i in (1, 2, 3):
                yield conv(f"{ours}.conv{i}", f"{theirs}/conv{i}")
                yield from norm(f"{ours}.gn{i}", f"{theirs}/gn{i}")
            if unit == 1:
                yield conv(f"{ours}.downsample", f"{theirs}/conv_proj")
                yield from norm(f"{ours}.gn_proj", f"{theirs}/gn_proj")
    yield conv("embeddings.patch_embeddings", "embedding")
    yield "embeddings.patch_embeddings.bias", file["embedding/bias"]
    for i in range(12):
        ours, theirs = f"encoder.layer.{i}", f"Transformer/encoderblock_{i}"
        yield from norm(f"{ours}.attention_norm", f"{theirs}/LayerNorm_0")
        yield from norm(f"{ours}.ffn_norm", f"{theirs}/LayerNorm_2")
        for part in ("query", "key", "value", "out"):
            yield from dense(f"{ours}.attn.{part}", f"{theirs}/MultiHeadDotProductAttention_1/{part}")
        yield from dense(f"{ours}.ffn.fc1", f"{theirs}/MlpBlock_3/Dense_0")
        yield from dense(f"{ours}.ffn.fc2", f"{theirs}/MlpBlock_3/Dense_1")
    yield from norm("encoder.encoder_norm", "Transformer/encoder_norm")


def timm_places(file: dict[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter of the encoder and the tensor of timm's state dict that belongs there, but for the positions."""

    def module(ours: str, theirs: str, rows: slice = slice(None)) -> Iterator[tuple[str, torch.Tensor]]:
        for leaf in ("weight", "bias"):
            if f"{theirs}.{leaf}" in file:
                yield f"{ours}.{leaf}", file[f"{theirs}.{leaf}"][rows]

    resnet, backbone = "embeddings.hybrid_model", "patch_embed.backbone"
    yield from module(f"{resnet}.root.conv", f"{backbone}.stem.conv")
    yield from module(f"{resnet}.root.gn", f"{backbone}.stem.norm")
    for stage, units in ((0, 3), (1, 4), (2, 9)):
        for unit in range(units):
            ours, theirs = f"{resnet}.body.block{stage + 1}.unit{unit + 1}", f"{backbone}.stages.{stage}.blocks.{unit}"
            for i in (1, 2, 3):
                yield from module(f"{ours}.conv{i}", f"{theirs}.conv{i}")
                yield from module(f"{ours}.gn{i}", f"{theirs}.norm{i}")
            yield from module(f"{ours}.downsample", f"{theirs}.downsample.conv")
            yield from module(f"{ours}.gn_proj", f"{theirs}.downsample.norm")
    yield from module("embeddings.patch_embeddings", "patch_embed.proj")
    for i in range(12):
        ours, theirs = f"encoder.layer.{i}", f"blocks.{i}"
        yield from module(f"{ours}.attention_norm", f"{theirs}.norm1")
        yield from module(f"{ours}.ffn_norm", f"{theirs}.norm2")
        for start, part in ((0, "query"), (768, "key"), (1536, "value")):
            yield from module(f"{ours}.attn.{part}", f"{theirs}.attn.qkv", slice(start, start + 768))
        yield from module(f"{ours}.attn.out", f"{theirs}.attn.proj")
        yield from module(f"{ours}.ffn.fc1", f"{theirs}.mlp.fc1")
        yield from module(f"{ours}.ffn.fc2", f"{theirs}.mlp.fc2")
    yield from module("encoder.encoder_norm", "norm")


POSITIONS = "embeddings.position_embeddings"
ROUNDING = 4e-6  # of numbers below 1 by weights from coordinates up to 24, each within 24·2^-24


def random_arrays(shapes: Shapes) -> dict[str, NDArray[np.float32]]:
    """No two numbers are likely to be the same."""
    random = np.random.default_rng(0)
    return {name: random.random(shape, dtype=np.float32) for name, shape in shapes.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Emptied at once: the files have up to 400 MB."""
    yield tmp_path
    for file in tmp_path.iterdir():
        file.unlink()


def test_every_tensor_of_the_official_file_finds_its_place(folder: Path) -> None:
    file, path = random_arrays(official_shapes()), folder / "R50+ViT-B_16.npz"
    np.savez(path, **file)
    for size in (224, 96, 256):
        model = TransUNet(1, 2, size=size)
        decoder = {name: value.clone() for name, value in model.decoder.state_dict().items()}
        load_weights(model, path)
        parameters = dict(model.transformer.named_parameters())
        positions = parameters.pop(POSITIONS).detach()
        expected = resized(file["Transformer/posembed_input/pos_embedding"], size // 16)
        np.testing.assert_allclose(positions, expected, atol=0 if size == 224 else ROUNDING)
    expected = dict(official_places(file))
    assert parameters.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(parameters[name].detach(), value, err_msg=name)
    classifier = {"head/kernel", "head/bias", "pre_logits/kernel", "pre_logits/bias", "cls"}
    assert len(parameters) + 1 == len(file.keys() - classifier)  # none is left over
    assert all(torch.equal(value, decoder[name]) for name, value in model.decoder.state_dict().items())


@pytest.mark.parametrize(("name", "grid"), [("model.safetensors", 14), ("model.pth", 24)])
def test_every_tensor_of_timm_finds_its_place_and_a_warning_says_what_it_is(folder: Path, name: str, grid: int) -> None:
    file = {name: torch.from_numpy(array) for name, array in random_arrays(timm_shapes(grid)).items()}
    (safetensors.torch.save_file if name.endswith(".safetensors") else torch.save)(file, folder / name)
    model = TransUNet(3, 2)
    with pytest.warns(UserWarning, match="pads and normalises otherwise"):
        load_weights(model, folder / name)
    parameters = dict(model.transformer.named_parameters())
    positions = parameters.pop(POSITIONS).detach()
    np.testing.assert_allclose(positions, resized(file["pos_embed"].numpy(), 14), atol=ROUNDING)
    expected = dict(timm_places(file))
    assert parameters.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(parameters[name], value), name


def resized(positions: NDArray[np.float32], side: int) -> NDArray[np.float32]:
    """As the published code resizes them, the class token dropped."""
    grid = positions[0, 1:].reshape(int((positions.shape[1] - 1) ** 0.5), -1, 768)
    return np.asarray(ndimage.zoom(grid, (side / len(grid), side / len(grid), 1), order=1)).reshape(1, side**2, 768)


@pytest.fixture(scope="module")
def model() -> TransUNet:
    return TransUNet(3, 2, size=32)


def names_only(path: Path, names: set[str]) -> Path:
    np.savez(path, **{name: np.zeros(1, dtype=np.float32) for name in names})
    return path


def test_missing_and_unknown_names_are_listed(model: TransUNet, tmp_path: Path) -> None:
    names = official_shapes().keys() - {"block2/unit4/gn2/bias", "conv_root/kernel"} | {
        "block4/unit1/conv1/kernel",
        "cls2",
    }
    message = r"missing block2/unit4/gn2/bias, conv_root/kernel; unknown block4/unit1/conv1/kernel, cls2$"
    with pytest.raises(ValueError, match=message):
        load_weights(model, names_only(tmp_path / "weights.npz", names))
    with pytest.raises(ValueError, match=r"unknown nothing$"):
        load_weights(model, names_only(tmp_path / "weights.npz", set(official_shapes()) - {"embedding/bias"}))
    with pytest.raises(ValueError, match=r"and 333 more; unknown weight$"):
        load_weights(model, names_only(tmp_path / "weights.npz", {"weight"}))


def test_the_classifier_may_be_absent(model: TransUNet, tmp_path: Path) -> None:
    names = {name for name in official_shapes() if not name.startswith(("head", "pre_logits", "cls"))}
    with pytest.raises(ValueError, match="is \\[1\\], expected"):  # the names are fine, the shapes are not
        load_weights(model, names_only(tmp_path / "weights.npz", names))


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("block1/unit1/conv1/kernel", (1, 1, 64, 32), r"\[1, 1, 64, 64\]"),
        ("Transformer/encoderblock_3/MultiHeadDotProductAttention_1/key/kernel", (768, 64, 12), r"\[768, 12, 64\]"),
        ("Transformer/posembed_input/pos_embedding", (1, 196, 768), r"\[1, 1 \+ n², 768\]"),
        ("gn_root/scale", (1, 1, 1, 32), r"\[64\]"),
    ],
)
def test_a_wrong_shape_changes_nothing(
    model: TransUNet, folder: Path, name: str, shape: tuple[int, ...], expected: str
) -> None:
    shapes = official_shapes() | {name: shape}
    np.savez(folder / "weights.npz", **{name: np.zeros(shape, dtype=np.int8) for name, shape in shapes.items()})
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match=f"weights.npz: {name} is .* expected {expected}"):
        load_weights(model, folder / "weights.npz")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_an_absent_file_says_what_is_wanted_and_what_doing_without_means(model: TransUNet, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"R50\+ViT-B_16\.npz.*starts at random.*too few") as error:
        load_weights(model, tmp_path / "absent.npz")
    assert "absent.npz" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["weights.npz", "weights.safetensors", "weights.pth"])
def test_a_file_that_is_broken_is_named(model: TransUNet, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"not a file of weights")
    with pytest.raises(ValueError, match=f"{name} cannot be read as weights"):
        load_weights(model, tmp_path / name)


def test_models_the_weights_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1 or 3 channels, this model was built for 4"):
        load_weights(TransUNet(4, 2, size=32), tmp_path / "weights.npz")
    with pytest.raises(TypeError, match="for TransUNet, not for UNet"):
        load_weights(UNet(3, 2, width=2), tmp_path / "weights.npz")  # type: ignore[arg-type]
