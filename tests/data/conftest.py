import os
from collections.abc import Callable
from pathlib import Path

import pytest

RealSet = Callable[[str], Path]


@pytest.fixture(scope="session")
def real_set() -> RealSet:
    """The folder of a real data set, by its name: `real_set("acdc")`. The test is skipped where the set is not."""
    beside = Path(__file__).parents[3] / "shared" / "data"
    data = Path(os.environ.get("POLYDICE_DATA", beside))

    def find(name: str) -> Path:
        if not (data / name).is_dir():
            pytest.skip(
                f"no real data: {data / name} does not exist (set POLYDICE_DATA to the folder that holds {name})"
            )
        return data / name

    return find
