import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polydice.data.generate import generated_folder
from tests.data.conftest import real_set

__all__ = ["real_set"]


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty-five images of 32 x 32 pixels, each a group by itself."""
    return generated_folder(tmp_path_factory.mktemp("images"), 25, size=32)


@pytest.fixture(scope="session")
def three_classes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty-five images of 32 x 32 pixels with two kinds of lesions."""
    return generated_folder(tmp_path_factory.mktemp("three"), 25, size=32, classes=3)


@pytest.fixture(scope="session")
def partly(three_classes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, but a third of them has no labels of the first kind and a third none of the second; and says so."""
    folder = tmp_path_factory.mktemp("partly") / "set"
    shutil.copytree(three_classes, folder)
    rows = ["case,classes"]
    for place, mask in enumerate(sorted((folder / "masks").iterdir())):
        if missing := place % 3:
            labels = np.array(Image.open(mask))
            Image.fromarray(np.where(labels == missing, 0, labels).astype(np.uint8)).save(mask)
            rows.append(f"{mask.stem},0;{3 - missing}")
    (folder / "annotated.csv").write_text("\n".join(rows) + "\n")
    return folder


@pytest.fixture(scope="session")
def volumes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine volumes of 20 voxels along each edge."""
    return generated_folder(tmp_path_factory.mktemp("volumes"), 9, size=20, dims=3, lesion=(3.0, 5.0))
