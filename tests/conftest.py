import hypothesis
import pytest
import torch

from polydice.kernels import node

# The same examples every time: a failure on one machine is a failure on all. No deadline: other work shares the cores.
hypothesis.settings.register_profile("polydice", derandomize=True, deadline=None, max_examples=30)
hypothesis.settings.load_profile("polydice")

# What is compiled beside a process is there sooner or later: tests say which of the two they mean.
node._SEARCH.give_up()

# Two threads that wait for each other on cores that others use take a hundred times as long as one.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_random_numbers() -> None:
    torch.manual_seed(0)
