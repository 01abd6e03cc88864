"""Pretrained weights for TransUNet's encoder: the official `R50+ViT-B_16.npz`, or a timm `vit_base_r50_s16_*`."""

import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from math import isqrt
from pathlib import Path

import torch
from torch import Tensor

from polydice.models.transunet import HEADS, LAYERS, TOKEN, UNITS, TransUNet, resize

WANTED = (
    "The published TransUNet starts from ImageNet-21k weights: the file R50+ViT-B_16.npz of Google's ViT release, or a "
    "timm vit_base_r50_s16_* state dict. Without them its transformer starts at random, and a few hundred or thousand "
    "images are too few to reach the published figures."
)

# What the parts are called by us (and the published code), in the official file and by timm.
UNIT = (
    *((f"conv{i}", f"conv{i}", f"conv{i}") for i in (1, 2, 3)),
    *((f"gn{i}", f"gn{i}", f"norm{i}") for i in (1, 2, 3)),
)
SHORTCUT = (("downsample", "conv_proj", "downsample.conv"), ("gn_proj", "gn_proj", "downsample.norm"))
LAYER = (
    ("attention_norm", "LayerNorm_0", "norm1"),
    ("attn.query", "MultiHeadDotProductAttention_1/query", "attn.qkv"),
    ("attn.key", "MultiHeadDotProductAttention_1/key", "attn.qkv"),
    ("attn.value", "MultiHeadDotProductAttention_1/value", "attn.qkv"),
    ("attn.out", "MultiHeadDotProductAttention_1/out", "attn.proj"),
    ("ffn_norm", "LayerNorm_2", "norm2"),
    ("ffn.fc1", "MlpBlock_3/Dense_0", "mlp.fc1"),
    ("ffn.fc2", "MlpBlock_3/Dense_1", "mlp.fc2"),
)
POSITIONS = ("embeddings.position_embeddings", "Transformer/posembed_input/pos_embedding", "pos_embed")
STACKED = ("query", "key", "value")  # in timm's qkv
CLASSIFIER = {"official": r"(head|pre_logits)/.+|cls", "timm": r"(head|pre_logits)\..+|cls_token"}  # of no use here

Conversion = tuple[tuple[int, ...], Callable[[Tensor], Tensor]]  # a tensor's shape in a file, and the way to ours


def load_weights(model: TransUNet, path: str | Path) -> None:
    """Fills the encoder from a file; the decoder stays as it is. Where the file does not fit, nothing is changed.

    `.npz` is the official file, `.safetensors` or `.pth` a state dict of timm. A position embedding for another grid
    is resized. timm's model has the same tensors but is another function, which a warning says.
    """
    path = Path(path)
    if not isinstance(model, TransUNet):
        raise TypeError(f"{path}: pretrained weights are for TransUNet, not for {type(model).__name__}")
    if 3 not in model.takes:
        raise ValueError(f"{path}: pretrained weights take 1 or 3 channels, this model was built for {model.takes[0]}")
    official = path.suffix == ".npz"
    classifier = CLASSIFIER["official" if official else "timm"]
    found = {name: value for name, value in _read(path).items() if not re.fullmatch(classifier, name)}
    parameters = dict(model.transformer.named_parameters())
    places = _places(parameters, official)
    _check_names(path, found, set(places.values()))
    loaded = {}
    for name, place in places.items():
        value, parameter = found[place], parameters[name]
        if name == POSITIONS[0]:
            loaded[name] = _positions(path, place, value, isqrt(parameter.shape[1]))
            continue
        if value.shape[:-1] == (1, 1, 1):  # a group norm's, shaped for [B, H, W, C]
            value = value.flatten()
        shape, convert = (_official_layout if official else _timm_layout)(name, tuple(parameter.shape))
        if value.shape != shape:
            raise ValueError(f"{path}: {place} is {list(value.shape)}, expected {list(shape)}")
        loaded[name] = convert(value)
    model.transformer.load_state_dict(loaded)
    if not official:
        warnings.warn(
            f"{path}: timm's model has TransUNet's tensors but pads and normalises otherwise, so these weights are a "
            f"start, but not the published one: that is R50+ViT-B_16.npz",
            stacklevel=2,
        )


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}. {WANTED}")
    try:
        if path.suffix == ".npz":
            import numpy as np

            with np.load(path) as arrays:
                return {name: torch.from_numpy(array) for name, array in arrays.items()}
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # each format has its own
        raise ValueError(f"{path} cannot be read as weights: {error}") from error


def _places(parameters: Mapping[str, Tensor], official: bool) -> dict[str, str]:
    """The name in the file of each of our parameters."""
    places = {POSITIONS[0]: POSITIONS[1] if official else POSITIONS[2]}
    for ours, in_official, in_timm in _modules():
        for name in (f"{ours}.weight", f"{ours}.bias"):
            if name in parameters:
                leaf = name.rpartition(".")[2]
                if official and leaf == "weight":
                    leaf = "scale" if parameters[name].ndim == 1 else "kernel"
                places[name] = f"{in_official}/{leaf}" if official else f"{in_timm}.{leaf}"
    return places


def _modules() -> Iterator[tuple[str, str, str]]:
    """Every module of the encoder that has parameters: its name here, in the official file and in timm."""
    yield "embeddings.hybrid_model.root.conv", "conv_root", "patch_embed.backbone.stem.conv"
    yield "embeddings.hybrid_model.root.gn", "gn_root", "patch_embed.backbone.stem.norm"
    for block, units in enumerate(UNITS):
        for unit in range(units):
            for ours, official, timm in UNIT + (() if unit else SHORTCUT):
                yield (
                    f"embeddings.hybrid_model.body.block{block + 1}.unit{unit + 1}.{ours}",
                    f"block{block + 1}/unit{unit + 1}/{official}",
                    f"patch_embed.backbone.stages.{block}.blocks.{unit}.{timm}",
                )
    yield "embeddings.patch_embeddings", "embedding", "patch_embed.proj"
    for layer in range(LAYERS):
        for ours, official, timm in LAYER:
            yield (
                f"encoder.layer.{layer}.{ours}",
                f"Transformer/encoderblock_{layer}/{official}",
                f"blocks.{layer}.{timm}",
            )
    yield "encoder.encoder_norm", "Transformer/encoder_norm", "norm"


def _check_names(path: Path, found: Collection[str], expected: Collection[str]) -> None:
    missing, unknown = (
        [name for name in some if name not in others] for some, others in ((expected, found), (found, expected))
    )
    if missing or unknown:
        raise ValueError(f"{path} is not the file expected: missing {_listed(missing)}; unknown {_listed(unknown)}")


def _listed(names: Sequence[str], most: int = 20) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return (", ".join(sorted(names)[:most]) or "nothing") + more


def _official_layout(name: str, shape: tuple[int, ...]) -> Conversion:
    """HWIO convolutions, in × out matrices, and attention with an axis of its own for the heads."""
    per_head = (HEADS, TOKEN // HEADS)
    *_, module, leaf = name.split(".")
    if module in STACKED:
        return ((TOKEN, *per_head), lambda x: x.flatten(1).T) if leaf == "weight" else (per_head, Tensor.flatten)
    if module == "out" and leaf == "weight":
        return (*per_head, TOKEN), lambda x: x.flatten(0, 1).T
    if len(shape) == 4:
        return (*shape[2:], shape[1], shape[0]), lambda x: x.permute(3, 2, 0, 1)
    return shape[::-1], lambda x: x.T if x.ndim == 2 else x


def _timm_layout(name: str, shape: tuple[int, ...]) -> Conversion:
    """As ours, but for query, key and value, which are stacked."""
    module = name.split(".")[-2]
    if module not in STACKED:
        return shape, lambda x: x
    return (3 * shape[0], *shape[1:]), lambda x: x.chunk(3)[STACKED.index(module)]


def _positions(path: Path, place: str, value: Tensor, side: int) -> Tensor:
    """`[1, 1 + n², 768]`, a class token and a square grid, to `[1, side², 768]`."""
    tokens = value.shape[1] - 1 if value.ndim == 3 else 0
    if tokens < 1 or value.shape != (1, 1 + isqrt(tokens) ** 2, TOKEN):
        raise ValueError(f"{path}: {place} is {list(value.shape)}, expected [1, 1 + n², {TOKEN}]")
    return resize(value[:, 1:].float(), side, side)
