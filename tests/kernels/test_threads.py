import os
import subprocess
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from polydice import CrossEntropyLoss, PolyDice1Loss
from polydice.kernels import threads
from polydice.kernels.threads import on_threads

LARGE = (3, 4, 256, 256)  # as many elements as six threads get work of


@pytest.fixture
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def value_and_gradient(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.clone().requires_grad_()
    value = (PolyDice1Loss(0.2, impl="eager") + CrossEntropyLoss(impl="eager"))(logits, labels)
    return value.detach(), torch.autograd.grad(value, logits)[0]


def large() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(LARGE[1], (LARGE[0], *LARGE[2:]), generator=generator)
    return torch.randn(LARGE, generator=generator), labels


@pytest.mark.usefixtures("three_threads")
def test_every_piece_is_taken_once_by_threads_that_compute_alone() -> None:
    taken: list[tuple[int, str, int]] = []

    def work(pieces: Iterator[int]) -> None:
        for piece in pieces:
            time.sleep(0.01)  # the others have a turn
            taken.append((piece, threading.current_thread().name, torch.get_num_threads()))

    on_threads(work, range(12), most=8)
    assert sorted(piece for piece, _, _ in taken) == list(range(12))
    assert {threads for _, _, threads in taken} == {1}
    assert len({name for _, name, _ in taken}) > 1
    assert torch.get_num_threads() == 3  # here, and in threads to come
    others: list[int] = []
    thread = threading.Thread(target=lambda: others.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert others == [3]


@pytest.mark.usefixtures("three_threads")
def test_no_more_threads_than_torch_may_use_and_than_there_is_work_for() -> None:
    for allowed, most, expected in ((3, 8, 3), (3, 2, 2), (1, 8, 1)):
        torch.set_num_threads(allowed)
        calls: list[int] = []

        def work(pieces: Iterator[int], calls: list[int] = calls) -> None:
            calls.append(sum(time.sleep(0.01) is None for _ in pieces))

        on_threads(work, range(12), most)
        assert sum(calls) == 12
        assert len(calls) <= expected


@pytest.mark.usefixtures("three_threads")
def test_of_several_failures_the_first_piece_s_is_raised_and_the_rest_is_left() -> None:
    seen: list[int] = []

    def work(pieces: Iterator[int]) -> None:
        for piece in pieces:
            seen.append(piece)
            time.sleep(0.01 * (4 - piece))  # of the bad ones, the first fails last
            if piece in (1, 2):
                raise ValueError(f"piece {piece}")

    with pytest.raises(ValueError, match="piece 1"):
        on_threads(work, range(1000), most=3)
    assert len(seen) < 20
    assert torch.get_num_threads() == 3


@pytest.mark.usefixtures("three_threads")
def test_an_interrupt_is_raised_before_what_failed() -> None:
    def work(pieces: Iterator[int]) -> None:
        for piece in pieces:
            time.sleep(0.01)  # the others have a turn
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            raise ValueError(f"piece {piece}")

    with pytest.raises(KeyboardInterrupt):
        on_threads(work, range(1000), most=3)


@pytest.mark.usefixtures("three_threads")
def test_where_the_system_has_no_more_threads_there_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    def start_once(run: Callable[..., None], given: tuple[Any, ...]) -> int:
        monkeypatch.setattr(threads, "start_new_thread", refuse)
        return start_new_thread(run, given)

    def refuse(*_: Any) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "start_new_thread", start_once)
    taken: list[int] = []
    on_threads(taken.extend, range(1000), most=3)
    assert sorted(taken) == list(range(1000))


@pytest.mark.usefixtures("three_threads")
def test_the_same_bits_from_any_number_of_threads() -> None:
    found = value_and_gradient(*large())
    again = value_and_gradient(*large())
    torch.set_num_threads(1)
    alone = value_and_gradient(*large())
    for one, two, three in zip(found, again, alone, strict=True):
        assert torch.equal(one, two)
        assert torch.equal(one, three)


@pytest.mark.usefixtures("three_threads")
def test_the_caller_s_modes() -> None:
    """Threads do not inherit them; what they compute is the same, and can be used in them."""
    logits, labels = large()
    expected, _ = value_and_gradient(logits, labels)
    loss = PolyDice1Loss(0.2, impl="eager") + CrossEntropyLoss(impl="eager")
    with torch.inference_mode():
        assert torch.equal(loss(logits.clone(), labels), expected)
    with torch.no_grad():
        assert torch.equal(loss(logits, labels), expected)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(loss(logits, labels), expected)


@pytest.mark.usefixtures("three_threads")
def test_a_bad_label_is_refused_from_whichever_thread_meets_it() -> None:
    logits, labels = large()
    labels[-1, -1, -1] = 9
    with pytest.raises(ValueError, match="label 9 is not in"):
        PolyDice1Loss(0.2, impl="eager")(logits, labels)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_computes_too() -> None:
    """In a process of its own: torch's threads, which other tests have started, do not survive a fork. Without a GPU in
    sight: torch has a thread for each that it sees, and then refuses to go backward in a fork, whatever the loss."""
    script = """
import os, torch
from polydice import PolyDice1Loss
torch.set_num_threads(2)
torch.manual_seed(0)
logits, labels = torch.randn(3, 4, 256, 256, requires_grad=True), torch.randint(4, (3, 256, 256))
def gradient():
    return torch.autograd.grad(PolyDice1Loss(0.2, impl="eager")(logits, labels), logits)[0]
before = gradient()
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(gradient(), before) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    subprocess.run(
        [sys.executable, "-c", script], check=True, timeout=120, env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    )
