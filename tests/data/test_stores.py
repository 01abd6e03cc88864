import numpy as np
import torch

from polydice.data.stores import _overlap, mapped


def test_a_read_only_array_becomes_a_tensor_without_a_copy() -> None:
    array = np.arange(6, dtype=np.uint8)
    array.flags.writeable = False
    tensor = mapped(array)
    assert tensor.data_ptr() == array.ctypes.data
    assert torch.equal(tensor, torch.arange(6, dtype=torch.uint8))


def test_what_a_box_and_a_volume_have_in_common() -> None:
    inside, part = _overlap((-2, 3, 4), (5, 5, 5), (10, 6, 20))
    assert inside == (slice(2, 5), slice(0, 3), slice(0, 5))
    assert part == (slice(0, 3), slice(3, 6), slice(4, 9))
