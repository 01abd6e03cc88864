"""How a tile of the pass over the pixels lies on the threads, and how many programs a device takes: as measured."""

from typing import NamedTuple

import torch
import triton

MOST_GROUPS = 24  # classes that a thread can hold of each of its pixels
ROWS = 8  # of a group, of many classes
SHARED_MEMORY = 99 * 1024  # of a multiprocessor that does not say: the least of those in use
INTERPRETED_PROGRAMS = 6  # where there is no device to fill: few, but several


class Tile(NamedTuple):
    """So many groups of classes (a power of two each) x pixels; the neighbours that one thread holds; warps, and the
    stages of loading ahead; programs on a multiprocessor at a time."""

    groups: int
    classes: int
    pixels: int
    vector: int
    warps: int
    stages: int
    resident: int
    registers: int | None = None  # of a thread at most


def tile(
    classes: int, pixels: int, half: bool, channels_last: bool, entropy: bool, backward: bool, limited: bool = False
) -> Tile:
    """Measured on an H200. Up to 24 classes stay within a thread; more are shared out over lanes and warps, so that a
    thread holds 64 elements of the tile. `half`: logits of 16 bits. `entropy`: the cross-entropy is among the sums.
    `limited`: labels of classes that are not annotated everywhere, of which few are held to `_registers`."""
    block = triton.next_power_of_2(classes)
    if channels_last and classes in (8, 16):  # a pixel's logits are one wide load
        return Tile(1, classes, 128, vector=4, warps=1, stages=2, resident=8)
    if classes <= MOST_GROUPS:
        found = _few_classes(classes, pixels, half, backward)
        return found._replace(registers=_registers(classes, half, backward)) if limited else found
    if block == 32:
        if backward:
            return Tile(1, block, 128, vector=8 if half else 4, warps=2, stages=3, resident=6, registers=168)
        return Tile(1, block, 256, vector=4, warps=4, stages=1, resident=2)
    if block > 256:  # a tile of these classes leaves no room to load ahead
        return Tile(1, block, 16, vector=4, warps=16, stages=1, resident=4)
    groups = triton.cdiv(classes, ROWS)
    if backward and not channels_last:
        most = 232 if block == 128 and not entropy else None
        stages = 2 if limited and entropy else 4  # a thread has no registers left for more
        return Tile(groups, ROWS, 64, vector=4, warps=block // 32, stages=stages, resident=256 // block, registers=most)
    if half and groups * ROWS < block <= 128 and not entropy:  # so many less that half as many programs again fit
        return Tile(groups, ROWS, 32, vector=4, warps=block // 64, stages=3, resident=768 // block, registers=168)
    return Tile(groups, ROWS, 32, vector=4, warps=block // 64, stages=3, resident=512 // block)


def _few_classes(classes: int, pixels: int, half: bool, backward: bool) -> Tile:
    if backward:
        if classes <= 4:
            vector, warps, stages, resident = 8 if half else 4, 4, 1, 16
        elif classes <= 10:
            vector, warps, stages, resident = 4, 2, 2, 8
        else:
            vector, warps, stages, resident = (8, 2, 3, 8) if half and classes <= 16 else (4, 2, 1, 8)
    elif classes <= 4:
        vector, warps, stages, resident = 8 if half and pixels > 1 << 17 else 4, 8, 1, 3
    elif classes <= 10:
        vector, warps, stages, resident = 4, 8, 1, 2
    elif classes <= 16:
        vector, warps, stages, resident = (4, 4, 3, 3) if half else (2, 8, 1, 2)
    else:
        vector, warps, stages, resident = 4, 4, 1, 2
    return Tile(classes, 1, 32 * warps * vector, vector, warps, stages, resident)


def _registers(classes: int, half: bool, backward: bool) -> int | None:
    """With which, where some classes are not annotated, as many programs are on a multiprocessor as where all are. Left
    to itself the compiler takes more, for what comes after the loop over the tiles, and half of the programs wait for
    the others."""
    if classes <= 4:
        return 48 if backward else 80
    if classes <= 10:
        return 128
    return (168 if half else 128) if classes <= 16 else None


def fitting(block: Tile, bytes_each: int, device: torch.device) -> Tile:
    """Without loading ahead where the device's shared memory does not hold the tiles that wait."""
    if device.type != "cuda":
        return block
    waiting = (block.stages - 1) * block.groups * block.classes * block.pixels * bytes_each
    return block if waiting <= 0.9 * shared_memory(device) else block._replace(stages=1)


def shared_memory(device: torch.device) -> int:
    """Bytes that a program may have, of a CUDA device."""
    return getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", SHARED_MEMORY)


def resident(device: torch.device, block: Tile) -> int:
    if device.type != "cuda":
        return INTERPRETED_PROGRAMS
    return block.resident * torch.cuda.get_device_properties(device).multi_processor_count
