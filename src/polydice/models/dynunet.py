"""A 3D U-Net in nnU-Net's shape, of MONAI's blocks: full resolution at its first level, and a 1×1 head."""

from torch import Tensor, nn
from torch.nn import functional as F

try:
    from monai.networks.nets import dynunet
except ImportError as error:
    raise ImportError("DynUNet is MONAI's: pip install 'polydice[study]'") from error

MOST_FEATURES = 320  # of a level, as in nnU-Net


class DynUNet(nn.Module):
    """Volumes `[B, channels, D, H, W]` to logits `[B, classes, D, H, W]`.

    MONAI's DynUNet with 3×3×3 convolutions, instance norm and leaky ReLU. `width` is the number of features at full
    resolution; each of the `depth` halvings doubles it, up to 320. With `deep_supervision`, training mode returns the
    logits at full, half, quarter, … resolution; evaluation mode always the first alone. Sides that 2^depth does not
    divide are padded with zeros at their end, and the logits cut back.

    `features` stops before the last convolution, one of `heads`: what `HeadLoss` takes.

    >>> import torch
    >>> DynUNet(1, 3, width=4, depth=2)(torch.zeros(1, 1, 35, 50, 41)).shape
    torch.Size([1, 3, 35, 50, 41])
    """

    def __init__(
        self, channels: int, classes: int, *, width: int = 32, depth: int = 5, deep_supervision: bool = False
    ) -> None:
        super().__init__()
        if width < 1 or depth < 2:
            raise ValueError(f"width must be at least 1, depth at least 2: {width=}, {depth=}")
        self.channels = channels
        self.stride = 2**depth
        self.deep_supervision = deep_supervision
        net = dynunet.DynUNet(
            spatial_dims=3,
            in_channels=channels,
            out_channels=classes,
            kernel_size=[3] * (depth + 1),
            strides=[1] + [2] * depth,
            upsample_kernel_size=[2] * depth,
            filters=[min(width * 2**level, MOST_FEATURES) for level in range(depth + 1)],
            deep_supervision=deep_supervision,
            deep_supr_num=depth - 1,
            trans_bias=True,
        )
        # Its blocks, each once: MONAI's module holds all of them twice, and keeps the coarser logits from call to call.
        self.down = nn.ModuleList([net.input_block, *net.downsamples, net.bottleneck])
        self.up = net.upsamples
        outputs = [net.output_block, *(net.deep_supervision_heads if deep_supervision else [])]
        self.heads = nn.ModuleList(block.conv.conv for block in outputs)

    def features(self, volume: Tensor) -> Tensor | list[Tensor]:
        """`[B, width, D, H, W]`, what the heads make logits of; a list of them where `forward` returns a list."""
        levels = self._levels(volume)
        return levels if self.deep_supervision and self.training else levels[0]

    def forward(self, volume: Tensor) -> Tensor | list[Tensor]:
        features = self.features(volume)
        if isinstance(features, Tensor):
            return self.heads[0](features)  # type: ignore[no-any-return]
        return [head(x) for head, x in zip(self.heads, features, strict=True)]

    def _levels(self, volume: Tensor) -> list[Tensor]:
        """The features on the way up, the finest first; each level has half the sides of the one before."""
        if volume.ndim != 5 or volume.shape[1] != self.channels:
            raise ValueError(f"this DynUNet takes [B, {self.channels}, D, H, W]; it was given {list(volume.shape)}")
        sides = volume.shape[2:]
        if max(sides) <= self.stride:  # a single voxel would be left, and it has no variance of its own
            raise ValueError(
                f"this DynUNet takes volumes with a side over {self.stride}; it was given {list(volume.shape)}: "
                f"choose a smaller depth"
            )
        x = F.pad(volume, [pad for side in reversed(sides) for pad in (0, -side % self.stride)])
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
        x = skips.pop()
        levels: list[Tensor] = []
        for block in self.up:
            x = block(x, skips.pop())
            levels.insert(0, x)
        return [_cut(x, [-(-side // 2**level) for side in sides]) for level, x in enumerate(levels)]


def _cut(x: Tensor, sides: list[int]) -> Tensor:
    depth, height, width = sides
    return x[..., :depth, :height, :width]
