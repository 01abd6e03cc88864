import pytest
import torch

from polydice.training.later import Later


@pytest.mark.parametrize("device", ["cpu", *["cuda"] * torch.cuda.is_available()])
def test_what_is_read_later_is_what_it_was(device: str) -> None:
    later = Later(torch.arange(6, device=device).view(2, 3))
    assert later.read().device.type == "cpu"
    assert later.read().tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_reading_does_not_wait_for_what_came_after() -> None:
    later = Later(torch.ones(3, device="cuda"))
    torch.cuda._sleep(2_000_000_000)  # clock cycles: about a second
    end = torch.cuda.current_stream().record_event()
    assert later.read().tolist() == [1, 1, 1]
    assert not end.query()
