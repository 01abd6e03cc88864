import os
import signal
import threading
from collections.abc import Iterator

import pytest

from polydice.training.interrupt import Interrupt


@pytest.fixture(autouse=True)
def _listening() -> Iterator[None]:
    """Control-C means what it means to Python, though it may be ignored here."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_asks_and_the_second_stops(capsys: pytest.CaptureFixture[str]) -> None:
    with Interrupt() as interrupt:
        assert not interrupt.asked
        press()
        assert interrupt.asked
        assert capsys.readouterr().err == "\nstopping after this epoch; Ctrl-C again stops at once\n"
        with pytest.raises(KeyboardInterrupt):
            press()


def test_afterwards_all_is_as_before() -> None:
    with Interrupt():
        pass
    with pytest.raises(KeyboardInterrupt):
        press()


def test_who_ignores_it_goes_on_doing_so() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupt() as interrupt:
        press()
        assert not interrupt.asked
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_another_thread_is_not_asked() -> None:
    asked = []

    def work() -> None:
        with Interrupt() as interrupt:
            asked.append(interrupt.asked)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert asked == [False]
