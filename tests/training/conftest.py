from pathlib import Path

import pytest

from polydice.data.generate import generated_folder
from tests.data.conftest import real_set

__all__ = ["real_set"]


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty-five images of 32 x 32 pixels, each a group by itself."""
    return generated_folder(tmp_path_factory.mktemp("images"), 25, size=32)


@pytest.fixture(scope="session")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine volumes of 20 voxels along each edge."""
    return generated_folder(tmp_path_factory.mktemp("volumes"), 9, size=20, dims=3, lesion=(3.0, 5.0))
