"""A 3D U-Net: MONAI's with residual units and instance norm, for volumes of any size."""

from torch import Tensor, nn
from torch.nn import functional as F

try:
    from monai.networks.nets.unet import UNet
except ImportError as error:
    raise ImportError("the 3D U-Net is MONAI's: pip install 'polydice[study]'") from error


class UNet3D(nn.Module):
    """Volumes `[B, channels, D, H, W]` to logits `[B, classes, D, H, W]`.

    `width` is the number of features of the finest level; each of the `depth` halvings but the first doubles it.
    Sides that 2^depth does not divide are padded with zeros at their end, and the logits cut back.

    >>> import torch
    >>> UNet3D(1, 3, width=4, depth=2)(torch.zeros(1, 1, 35, 50, 41)).shape
    torch.Size([1, 3, 35, 50, 41])
    """

    def __init__(self, channels: int, classes: int, *, width: int = 32, depth: int = 4) -> None:
        super().__init__()
        if width < 1 or depth < 1:
            raise ValueError(f"width and depth must be at least 1: {width=}, {depth=}")
        self.channels = channels
        self.stride = 2**depth
        self.net = UNet(
            spatial_dims=3,
            in_channels=channels,
            out_channels=classes,
            channels=[width * 2**level for level in range(depth + 1)],
            strides=[2] * depth,
            num_res_units=2,
            norm=("instance", {"affine": True}),
        )

    def forward(self, volume: Tensor) -> Tensor:
        if volume.ndim != 5 or volume.shape[1] != self.channels:
            raise ValueError(f"this 3D U-Net takes [B, {self.channels}, D, H, W]; it was given {list(volume.shape)}")
        sides = volume.shape[2:]
        if max(sides) <= self.stride:  # a single voxel would be left, and it has no variance of its own
            raise ValueError(
                f"this 3D U-Net takes volumes with a side over {self.stride}; it was given {list(volume.shape)}: "
                f"choose a smaller depth"
            )
        missing = [-side % self.stride for side in sides]
        logits: Tensor = self.net(F.pad(volume, [pad for end in reversed(missing) for pad in (0, end)]))
        depth, height, width = sides
        return logits[..., :depth, :height, :width]
