"""What is refused is in tests/test_foreign.py, as a study says it."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from polydice.data.prepare import Preparation, Prepared, prepare
from polydice.data.readers import open_dataset
from polydice.training.loop import train
from polydice.training.predict import predict
from polydice.training.rehearsal import try_loss, try_network
from tests.training.runs import small

SEEN: list[tuple[int, ...]] = []


class Volumes(nn.Module):
    """A network of volumes, which notes what it is shown."""

    dims = 3

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(channels, classes, 3, padding=1)

    def forward(self, volume: Tensor) -> Tensor:
        SEEN.append(tuple(volume.shape))
        found: Tensor = self.conv(volume)
        return found


class Noted(nn.CrossEntropyLoss):
    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        SEEN.append((*logits.shape, int(target.max())))
        return super().forward(logits, target)


@pytest.fixture
def images_prepared(images: Path, tmp_path: Path) -> Prepared:
    return prepare(open_dataset(images), Preparation(2, 32), tmp_path)


def test_polydices_own_are_not_tried(images: Path, images_prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = small(images, Path("run"))
    for name in ("rand", "randn"):
        monkeypatch.setattr(torch, name, None)
    try_network(settings, images_prepared)
    try_loss(settings, images_prepared)


def test_a_loss_is_tried_on_images_of_the_set_with_pixels_without_a_label(
    images: Path, images_prepared: Prepared
) -> None:
    SEEN.clear()
    settings = small(images, Path("run"), loss=f"DiceLoss() + 0.5 * {__name__}:Noted()")
    try_loss(settings, images_prepared)
    assert SEEN == [(2, 2, 32, 32, 1)]
    images_prepared.ignore = 255
    try_loss(settings, images_prepared)
    assert SEEN[1] == (2, 2, 32, 32, 255)


def test_a_network_of_volumes_is_tried_trained_and_predicts_by_patches(volumes: Path, tmp_path: Path) -> None:
    SEEN.clear()
    settings = replace(
        small(volumes, tmp_path / "run", folds=3, epochs=1, batch=2, width=None, depth=None),
        model=f"{__name__}:Volumes", patch=(16, 16, 16),
    )  # fmt: skip
    assert settings.dims == 3
    assert train(settings)["model"]["name"] == f"{__name__}:Volumes"
    assert SEEN[0] == (1, 1, 16, 16, 16)
    assert {shape[2:] for shape in SEEN} == {(16, 16, 16)}
    assert len(predict(tmp_path / "run", sorted((volumes / "images").iterdir())[:1], tmp_path / "labels")) == 1
