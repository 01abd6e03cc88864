"""Whether features and head go through one kernel or by slabs, and how a tile of theirs lies on the threads."""

from typing import NamedTuple

import torch
import triton

from polydice.kernels.tiles import INTERPRETED_PROGRAMS, shared_memory

LEAST = 16  # classes, features and pixels of a product of matrices
MOST = 1 << 14  # classes x features whose weight, and its gradient, the threads of a program hold
MOST_FLOAT32 = 1 << 9  # whose products no tensor core makes
MOST_CLASSES = 256
MOST_FEATURES = 256


class HeadTile(NamedTuple):
    """classes x features x pixels, a power of two each; warps, the stages of loading ahead, programs on a
    multiprocessor at a time; and which pixels one thread holds: pairs that lie `near` apart, and so many of them."""

    classes: int
    features: int
    pixels: int
    warps: int
    stages: int
    resident: int
    near: int = 8
    registers: int | None = None  # of a thread at most

    @property
    def repeats(self) -> int:
        """The tensor cores take 16 pixels to a warp at a time."""
        return max(1, self.pixels // (2 * self.near * self.warps)) if self.near == 8 else 1

    @property
    def elements(self) -> int:
        """That wait in shared memory at most: tiles of features, the weight in two layouts, the logits' gradient."""
        tiles = (self.stages + 1) * self.pixels * self.features
        return tiles + 2 * self.classes * self.features + self.classes * self.pixels


def fits(weight: torch.Size, dtype: torch.dtype, device: torch.device) -> bool:
    """The rule: one kernel while its tile fits, else slabs. The weight's shape, `[C, F]`, and the features' type."""
    classes, width = weight
    block = head_tile(classes, width, dtype, backward=True)
    most = MOST if dtype.itemsize == 2 else MOST_FLOAT32
    if block.classes * block.features > most or block.classes > MOST_CLASSES or block.features > MOST_FEATURES:
        return False
    return device.type != "cuda" or block.elements * dtype.itemsize <= shared_memory(device)


def head_tile(classes: int, width: int, dtype: torch.dtype, backward: bool) -> HeadTile:
    """By the registers, shared memory and instructions that the compiler says it takes on an H200: nothing is spilled
    up to 64 classes x 32 features, and 32 bytes backward at 128 x 32. `backward`: the pass it is for."""
    rows, columns = _padded(classes), _padded(width)
    if dtype.itemsize > 2:
        return HeadTile(rows, columns, 64, warps=4, stages=1, resident=4, near=1)
    if rows <= 32:
        small = rows * columns <= 512
        pixels = 64 if columns > 64 or (backward and not small) else 128
        resident = (4 if rows * columns <= 1024 else 2) if backward or not small else 6
        return HeadTile(rows, columns, pixels, warps=4, stages=3, resident=resident)
    if rows <= 128 and rows * columns <= 1 << 12:
        return HeadTile(rows, columns, 64, warps=4, stages=2, resident=2)
    return HeadTile(rows, columns, 128, warps=8, stages=2, resident=1)


def head_programs(device: torch.device, block: HeadTile) -> int:
    """That run at a time on a device."""
    if device.type != "cuda":
        return INTERPRETED_PROGRAMS
    return block.resident * int(torch.cuda.get_device_properties(device).multi_processor_count)


def _padded(count: int) -> int:
    return max(LEAST, int(triton.next_power_of_2(count)))
