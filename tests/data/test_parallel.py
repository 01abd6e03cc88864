import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from polydice.data.parallel import in_parallel


def square(number: int) -> int:
    return number * number


@pytest.mark.parametrize("workers", [1, 2, 30, None])
@pytest.mark.parametrize("count", [0, 1, 20])
def test_results_come_in_order(workers: int | None, count: int) -> None:
    assert list(in_parallel(square, range(count), "squaring", workers)) == [number**2 for number in range(count)]


def test_items_are_worked_on_at_the_same_time() -> None:
    together = threading.Barrier(3, timeout=10)  # nobody passes before the third is there
    assert sorted(in_parallel(lambda _: together.wait(), range(3), "waiting", 3)) == [0, 1, 2]


def test_work_does_not_run_far_ahead_of_who_takes_the_results() -> None:
    begun = []
    results = in_parallel(begun.append, range(100), "beginning", 2)
    next(results)
    time.sleep(0.2)
    assert len(begun) == 3
    results.close()
    assert len(begun) == 3


def test_an_error_reaches_the_caller_and_ends_the_work() -> None:
    begun = []

    def refuse(number: int) -> int:
        begun.append(number)
        if number == 3:
            raise ValueError("not 3")
        return number

    with pytest.raises(ValueError, match="not 3"):
        list(in_parallel(refuse, range(100), "refusing", 2))
    assert len(begun) <= 6


def test_workers_must_be_some() -> None:
    with pytest.raises(ValueError, match="workers must be at least 1: 0"):
        list(in_parallel(square, [1], "squaring", 0))


def test_several_threads_may_each_do_so() -> None:
    with ThreadPoolExecutor(3) as pool:
        sums = pool.map(lambda count: sum(in_parallel(square, range(count), "squaring", 2)), (5, 6, 7))
    assert list(sums) == [30, 55, 91]
