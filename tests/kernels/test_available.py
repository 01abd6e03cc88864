import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from polydice import DiceLoss
from polydice.kernels import available


def test_without_triton_cuda_tensors_say_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(available, "_TRITON_OBSTACLE", "Triton 3.2.0 is older than 3.6")
    available.warn_without_triton.cache_clear()
    with FakeTensorMode():  # a CUDA tensor, but for its memory
        x, labels = torch.empty(2, 3, 8, device="cuda"), torch.zeros(2, 8, device="cuda", dtype=torch.long)
        DiceLoss(impl="eager")(x, labels)
        with pytest.warns(UserWarning, match=r"kernels are not used: Triton 3.2.0 is older than 3.6\. .* plain pass"):
            DiceLoss()(x, labels)
        DiceLoss()(x, labels)
    available.warn_without_triton.cache_clear()
