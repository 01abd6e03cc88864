from itertools import product

import pytest

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
        if classes <= MOST_GROUPS:
            assert rows == classes, "no row is padding"
