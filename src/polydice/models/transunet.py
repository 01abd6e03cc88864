"""TransUNet, R50-ViT-B/16 (Chen et al., 2021): a ResNet's features are the tokens of a transformer, a U-Net decodes.

This computes what the published code computes. Parameters have the names they have there, so that its checkpoints
load with `load_state_dict`; `transunet_weights.py` loads what the encoder was pretrained to.
"""

from collections import OrderedDict
from math import isqrt

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PATCH = 16  # pixels per token, each way
TOKEN = 768  # features of a token
HEADS = 12
LAYERS = 12
UNITS = (3, 4, 9)  # bottlenecks of the three blocks of the ResNet
DROPOUT = 0.1


class TransUNet(nn.Module):
    """Images `[B, channels, H, W]` to logits `[B, classes, H, W]`, H and W multiples of 16 and at least 32.

    One channel is repeated to three, which is what pretrained weights take; any other number has a root of its own.
    `size` is the side of the images that the position embedding is for; for other images it is resized. The start is
    that of the published code: the position embedding 0, the MLPs Xavier's with biases of 1e-6, the rest torch's own.
    """

    def __init__(self, channels: int, classes: int, *, size: int = 224) -> None:
        super().__init__()
        if size % PATCH or size < 2 * PATCH:
            raise ValueError(f"size must be a multiple of {PATCH}, at least {2 * PATCH}: {size}")
        self.takes = (1, 3) if channels in (1, 3) else (channels,)
        self.transformer = Transformer(3 if channels == 1 else channels, size // PATCH)
        self.decoder = Decoder()
        self.segmentation_head = nn.Sequential(nn.Conv2d(16, classes, 3, padding=1))

    def forward(self, image: Tensor) -> Tensor:
        if image.ndim != 4 or image.shape[1] not in self.takes:
            channels = " or ".join(map(str, self.takes))
            raise ValueError(f"this TransUNet takes [B, {channels}, H, W]; it was given {list(image.shape)}")
        height, width = image.shape[2:]
        if height % PATCH or width % PATCH or min(height, width) < 2 * PATCH:
            raise ValueError(
                f"TransUNet takes sides that are multiples of {PATCH}, at least {2 * PATCH}; "
                f"it was given {list(image.shape)}"
            )
        if image.shape[1] == 1:
            image = image.expand(-1, 3, -1, -1)
        tokens, skips = self.transformer(image)
        grid = tokens.transpose(1, 2).unflatten(2, (height // PATCH, width // PATCH))
        logits: Tensor = self.segmentation_head(self.decoder(grid, skips))
        return logits


# The encoder: a ResNet whose features are the tokens of a transformer.


class StandardisedConv(nn.Conv2d):
    """A convolution with (w − mean)/√(variance + 1e-5) of each output channel's kernel, and no bias."""

    def __init__(self, before: int, after: int, kernel: int, stride: int = 1) -> None:
        super().__init__(before, after, kernel, stride, padding=kernel // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), correction=0, keepdim=True)
        weight = (self.weight - mean) / (variance + 1e-5).sqrt()
        return F.conv2d(x, weight, None, self.stride, self.padding)


class Bottleneck(nn.Module):
    """ReLU(shortcut + 1×1, 3×3, 1×1 convolutions), the stride in the 3×3."""

    def __init__(self, before: int, middle: int, stride: int) -> None:
        super().__init__()
        after = 4 * middle
        self.conv1 = StandardisedConv(before, middle, 1)
        self.gn1 = nn.GroupNorm(32, middle, eps=1e-6)
        self.conv2 = StandardisedConv(middle, middle, 3, stride)
        self.gn2 = nn.GroupNorm(32, middle, eps=1e-6)
        self.conv3 = StandardisedConv(middle, after, 1)
        self.gn3 = nn.GroupNorm(32, after, eps=1e-6)
        self.project = before != after
        if self.project:
            self.downsample = StandardisedConv(before, after, 1, stride)
            self.gn_proj = nn.GroupNorm(after, after, eps=1e-5)  # one group per channel

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.gn1(self.conv1(x)), inplace=True)
        y = F.relu(self.gn2(self.conv2(y)), inplace=True)
        y = self.gn3(self.conv3(y))
        shortcut = self.gn_proj(self.downsample(x)) if self.project else x
        return F.relu(y + shortcut, inplace=True)


def bottlenecks(units: int, before: int, middle: int, stride: int) -> nn.Sequential:
    """`before` features to 4·middle; the stride is the first one's."""
    sequence = [Bottleneck(before, middle, stride), *(Bottleneck(4 * middle, middle, 1) for _ in range(units - 1))]
    return nn.Sequential(OrderedDict((f"unit{i}", unit) for i, unit in enumerate(sequence, start=1)))


class ResNet(nn.Module):
    """Images to features `[B, 1024, H/16, W/16]` and the skips, the coarsest first."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        conv, norm = StandardisedConv(channels, 64, 7, stride=2), nn.GroupNorm(32, 64, eps=1e-6)
        self.root = nn.Sequential(OrderedDict(conv=conv, gn=norm, relu=nn.ReLU(inplace=True)))
        first, second, third = UNITS
        self.body = nn.Sequential(
            OrderedDict(
                block1=bottlenecks(first, 64, middle=64, stride=1),
                block2=bottlenecks(second, 256, middle=128, stride=2),
                block3=bottlenecks(third, 512, middle=256, stride=2),
            )
        )

    def forward(self, image: Tensor) -> tuple[Tensor, list[Tensor]]:
        block1, block2, block3 = self.body
        half = self.root(image)  # [B, 64, H/2, W/2]
        quarter = block1(F.max_pool2d(half, 3, stride=2))  # [B, 256, H/4 − 1, W/4 − 1]: the pool does not pad
        eighth = block2(quarter)  # [B, 512, H/8, W/8]
        return block3(eighth), [eighth, F.pad(quarter, (0, 1, 0, 1)), half]


class Embeddings(nn.Module):
    """Images to tokens `[B, H·W/256, 768]` that know their place, and the ResNet's skips."""

    def __init__(self, channels: int, grid: int) -> None:
        super().__init__()
        self.hybrid_model = ResNet(channels)
        self.patch_embeddings = nn.Conv2d(1024, TOKEN, 1)
        self.position_embeddings = nn.Parameter(torch.zeros(1, grid**2, TOKEN))
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, image: Tensor) -> tuple[Tensor, list[Tensor]]:
        features, skips = self.hybrid_model(image)
        positions = resize(self.position_embeddings, features.shape[2], features.shape[3])
        return self.dropout(self.patch_embeddings(features).flatten(2).transpose(1, 2) + positions), skips


def resize(positions: Tensor, height: int, width: int) -> Tensor:
    """`[1, side², 768]`, a square grid, to `[1, height·width, 768]`: bilinear, corner to corner."""
    side = isqrt(positions.shape[1])
    if (side, side) == (height, width):
        return positions
    grid = positions.transpose(1, 2).unflatten(2, (side, side))
    return F.interpolate(grid, (height, width), mode="bilinear", align_corners=True).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(TOKEN, TOKEN) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            project(x).unflatten(2, (HEADS, TOKEN // HEADS)).transpose(1, 2)  # [B, heads, tokens, 64]
            for project in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(TOKEN, 4 * TOKEN)
        self.fc2 = nn.Linear(4 * TOKEN, TOKEN)
        self.dropout = nn.Dropout(DROPOUT)
        for layer in (self.fc1, self.fc2):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.normal_(layer.bias, std=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(F.gelu(self.fc1(x)))
        out: Tensor = self.dropout(self.fc2(x))
        return out


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(TOKEN, eps=1e-6)
        self.attn = Attention()
        self.ffn_norm = nn.LayerNorm(TOKEN, eps=1e-6)
        self.ffn = MLP()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.attention_norm(x))
        out: Tensor = x + self.ffn(self.ffn_norm(x))
        return out


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.encoder_norm = nn.LayerNorm(TOKEN, eps=1e-6)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.encoder_norm(self.layer(tokens))
        return out


class Transformer(nn.Module):
    def __init__(self, channels: int, grid: int) -> None:
        super().__init__()
        self.embeddings = Embeddings(channels, grid)
        self.encoder = Encoder()

    def forward(self, image: Tensor) -> tuple[Tensor, list[Tensor]]:
        tokens, skips = self.embeddings(image)
        return self.encoder(tokens), skips


# The decoder.


def conv_norm_relu(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True)
    )


class DecoderBlock(nn.Module):
    def __init__(self, before: int, skip: int, after: int) -> None:
        super().__init__()
        self.conv1 = conv_norm_relu(before + skip, after)
        self.conv2 = conv_norm_relu(after, after)

    def forward(self, x: Tensor, skip: Tensor | None) -> Tensor:
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)
        out: Tensor = self.conv2(self.conv1(x if skip is None else torch.cat([x, skip], dim=1)))
        return out


class Decoder(nn.Module):
    """The grid of tokens `[B, 768, H/16, W/16]` and the skips to features `[B, 16, H, W]`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_more = conv_norm_relu(TOKEN, 512)
        widths = ((512, 512, 256), (256, 256, 128), (128, 64, 64), (64, 0, 16))  # before, skip, after
        self.blocks = nn.ModuleList(DecoderBlock(*block) for block in widths)

    def forward(self, grid: Tensor, skips: list[Tensor]) -> Tensor:
        x: Tensor = self.conv_more(grid)
        for block, skip in zip(self.blocks, [*skips, None], strict=True):
            x = block(x, skip)
        return x
