import os
import runpy
import warnings
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest

from tests.data.conftest import real_set

__all__ = ["real_set"]

STARTUP = Path(__file__).parent / "startup"
collect_ignore = ["startup", "train_lightning.py"]  # scripts, not tests
startup = runpy.run_path(str(STARTUP / "sitecustomize.py"))

with warnings.catch_warnings(action="ignore"):  # of what the hosts import, which is not theirs to change either
    for host in ("lightning", "nnunetv2.training.nnUNetTrainer.nnUNetTrainer", "segmentation_models_pytorch"):
        with suppress(ImportError):
            import_module(host)


def pytest_itemcollected(item: pytest.Item) -> None:
    """A warning is an error, as in all tests, if polydice gives it; the hosts' own are shown."""
    item.add_marker(pytest.mark.filterwarnings("default", "error:::polydice"))


@pytest.fixture(scope="package", autouse=True)
def _startup_of_other_processes() -> Iterator[None]:
    """What `startup` did for this process, the processes that a host starts do for themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(STARTUP), os.environ.get("PYTHONPATH")])))
        yield
