"""Results that are read later, when the device has been given more to do."""

import torch
from torch import Tensor


class Later:
    """A tensor on the host, on its way behind all that its device has been given so far; nobody writes to it again.

    To read a tensor is to wait until its device has nothing left to do, and the device then waits for the host.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._arrived = None
        if tensor.device.type != "cuda":
            self._copy = tensor.cpu()
        else:
            self._copy = torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)
            self._arrived = torch.cuda.current_stream(tensor.device).record_event()

    def read(self) -> Tensor:
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._copy
