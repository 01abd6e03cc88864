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
from tests.training.runs import small, weights

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


class Headed(nn.Module):
    """Ends in a 1×1 convolution, or goes on after it."""

    def __init__(
        self, channels: int, classes: int, *, scale: float = 1.0, width: int = 2, extra: int = 0, drop: float = 0.0
    ) -> None:
        super().__init__()
        self.drop = nn.Dropout(drop)
        self.body = nn.Conv2d(channels, width, 3, padding=1)
        self.heads = nn.ModuleList([nn.Conv2d(width + extra, classes, 1)])
        self.own, self.scale = nn.Conv2d(width, classes, 1), scale

    def features(self, image: Tensor) -> Tensor:
        found: Tensor = self.body(image)
        return found

    def forward(self, image: Tensor) -> Tensor:
        features = self.drop(self.features(image))
        found: Tensor = (self.own if self.heads[0].in_channels != features.shape[1] else self.heads[0])(features)
        return found * self.scale


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


def test_a_head_is_tried_too(images: Path, images_prepared: Prepared) -> None:
    """A network that does more after its head would be trained and averaged over windows as if it did not."""
    settings = small(images, Path("run"), width=2, depth=None)
    try_network(replace(settings, model=f"{__name__}:Headed"), images_prepared)
    told = r"Headed.* has `features` and `heads`, but heads\[0\]\(features\(images\)\) are not its logits, they give"
    with pytest.raises(ValueError, match=rf"{told.replace('logits,', 'logits in training,')} other"):
        try_network(replace(settings, model=f"{__name__}:Headed(drop=0.5)"), images_prepared)
    with pytest.raises(ValueError, match=rf"{told} other values, \[2, 2, 32, 32\]: give `features` or"):
        try_network(replace(settings, model=f"{__name__}:Headed(scale=2.0)"), images_prepared)
    with pytest.raises(ValueError, match=rf"{told} RuntimeError: .*expected .* to have 5 channels"):
        try_network(replace(settings, model=f"{__name__}:Headed(extra=3)"), images_prepared)


def test_a_network_of_somebody_elses_is_trained_without_its_logits(images: Path, tmp_path: Path) -> None:
    ways = [
        replace(small(images, tmp_path / head, width=2, depth=None, epochs=1), model=f"{__name__}:Headed", head=head)
        for head in ("plain", "fused")
    ]
    plain, fused = map(train, ways)
    assert (plain["head"], fused["head"]) == ("plain", "fused")
    torch.testing.assert_close(weights(tmp_path / "fused"), weights(tmp_path / "plain"), rtol=1e-5, atol=1e-6)


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
