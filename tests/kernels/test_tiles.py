from itertools import product

import pytest
import torch

triton = pytest.importorskip("triton")


@pytest.mark.parametrize(("half", "channels_last", "entropy", "backward"), list(product((False, True), repeat=4)))
def test_a_tile_holds_all_classes_and_no_more_than_a_thread_can(
    half: bool, channels_last: bool, entropy: bool, backward: bool
) -> None:
    from polydice.kernels.tiles import MOST_GROUPS, tile

    for classes, pixels in product(range(1, 600), (1, 224**2, 128**3)):
        found = tile(classes, pixels, half, channels_last, entropy, backward)
        rows = found.groups * found.classes
        assert rows >= classes, "no class is left out"
        assert found.classes == triton.next_power_of_2(found.classes), "as Triton's tensors are"
        assert found.pixels == triton.next_power_of_2(found.pixels)
        assert found.pixels % found.vector == 0
        assert rows * found.pixels <= 128 * 32 * found.warps, "elements of a thread"
        assert found.resident >= 1
        assert found.vector % 2 == 0, "neighbours are multiplied in pairs"
        if classes <= MOST_GROUPS:
            assert rows == classes, "no row is padding"


@pytest.mark.parametrize(("half", "backward"), list(product((False, True), repeat=2)))
def test_a_limit_of_registers_lets_the_programs_be_on_a_multiprocessor(half: bool, backward: bool) -> None:
    from polydice.kernels.tiles import tile

    for classes, entropy in product(range(2, 25), (False, True)):
        free = tile(classes, 128**3, half, False, entropy, backward)
        found = tile(classes, 128**3, half, False, entropy, backward, limited=True)
        assert found._replace(registers=None) == free, "nothing else is changed"
        if found.registers is not None and not backward:
            assert found.registers * 32 * found.warps * found.resident <= 65536, "all of them, at a time"


@pytest.mark.parametrize("backward", [False, True])
def test_a_tile_of_features_holds_the_head_and_no_more_than_a_thread_can(backward: bool) -> None:
    from polydice.kernels.head_tiles import fits, head_tile

    for classes, width, dtype in product(
        (1, 3, 14, 17, 64, 118, 256), (1, 16, 24, 64, 256), (torch.float32, torch.half)
    ):
        if not fits(torch.Size((classes, width)), dtype, torch.device("cpu")):
            continue
        found = head_tile(classes, width, dtype, backward)
        assert found.classes >= max(16, classes), "a product of matrices takes sixteen of each"
        assert found.features >= max(16, width)
        assert found.pixels % (2 * found.near * found.repeats) == 0, "pairs of pixels, and groups of them"
        assert found.classes * found.pixels <= 128 * 32 * found.warps, "elements of a thread"


@pytest.mark.parametrize(
    ("classes", "width", "dtype", "expected"),
    [
        (118, 32, torch.bfloat16, True),
        (128, 128, torch.float16, True),
        (129, 128, torch.bfloat16, False),  # 256 x 128
        (257, 16, torch.bfloat16, False),
        (3, 300, torch.bfloat16, False),
        (14, 32, torch.float32, True),
        (118, 32, torch.float32, False),
    ],
)
def test_a_head_goes_through_one_kernel_while_it_fits(
    classes: int, width: int, dtype: torch.dtype, expected: bool
) -> None:
    from polydice.kernels.head_tiles import fits

    assert fits(torch.Size((classes, width)), dtype, torch.device("cpu")) is expected
