"""Classes that overlap, and pixels without a label: from nnU-Net's dataset.json to results and label maps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from polydice.data.files import read_mask
from polydice.training.loop import train
from polydice.training.predict import predict
from tests.data import write
from tests.training.runs import history, small

MEMBERS = [[0], [1, 2], [2]]
OPTIONS: dict[int, dict[str, Any]] = {2: {"size": 24}, 3: {"model": "unet3d", "patch": (12, 24, 24), "rotation": 0.0}}


def dice_of_regions(guess: NDArray[Any], truth: NDArray[Any], void: int) -> list[float]:
    """Of each by itself, as nnU-Net scores label maps."""
    found = []
    for labels in MEMBERS:
        one, other = np.isin(guess, labels) & (truth != void), np.isin(truth, labels)
        found.append(2 * (one & other).sum() / (one.sum() + other.sum()))
    return found


@pytest.mark.parametrize("dims", [2, 3])
def test_regions_are_learnt_scored_and_written(dims: int, tmp_path: Path) -> None:
    settings = small(
        write.regions(tmp_path / "set", dims), tmp_path / "run", epochs=60, folds=3, rate=0.1, batch=2, surfaces=True,
        validate_every=60, loss="DiceLoss(batch=True) + CrossEntropyLoss()", **OPTIONS[dims],
    )  # fmt: skip
    result = train(settings)
    assert result["classes"] == ("background", "organ", "tumour")
    assert result["regions"] == {"members": ((0,), (1, 2), (2,)), "order": (1, 2)}
    assert result["model"]["classes"] == 2, "a channel for each region, and none for the background"
    assert min(result["last"]["test"]["dice_case_per_class"]) > 0.85
    assert min(result["last"]["test"]["surface"]["nsd_per_class"][1:]) > 0.85

    ids = [case["id"] for case in result["last"]["cases"]]
    sources = [next((tmp_path / "set" / "imagesTr").glob(f"{case}_0000.*")) for case in ids]
    maps = predict(tmp_path / "run", sources, tmp_path / "maps", overlay=True, device="cpu")
    for case, path in zip(result["last"]["cases"], maps, strict=True):
        guess = read_mask(path)
        truth = read_mask(next((tmp_path / "set" / "labelsTr").glob(f"{case['id']}.*")))
        assert set(np.unique(guess)) == {0, 1, 2}
        assert case["dice"] == pytest.approx(dice_of_regions(guess, truth, void=3), rel=1e-12)  # nothing is resized


class Entropy(nn.Module):
    """Somebody's loss of masks."""

    def forward(self, logits: Tensor, masks: Tensor, mask: Tensor) -> Tensor:
        each = F.binary_cross_entropy_with_logits(logits, masks, reduction="none").mean(1)
        return (each * mask).sum() / mask.sum()


def test_a_loss_of_somebody_elses_is_given_masks_and_a_mask(tmp_path: Path) -> None:
    data, epochs = write.regions(tmp_path / "set", 2), []
    for loss in ("CrossEntropyLoss()", f"{__name__}:Entropy()"):
        train(small(data, tmp_path / loss[0], epochs=1, folds=3, batch=2, size=24, loss=loss))
        epochs.append(history(tmp_path / loss[0]))
    assert epochs[0][0]["loss"] == pytest.approx(epochs[1][0]["loss"], rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "told"),
    [
        ("DiceLoss(activation='softmax')", "leave activation out"),
        ("DiceLoss(include_background=False)", "leave include_background out"),
        ("DiceLoss(ignore_index=3)", "leave ignore_index out"),
        ("torch.nn:BCEWithLogitsLoss()", "there are pixels without a label, .* must take a mask"),
        ("DiceLoss(weight=(1, 1, 1))", "weight"),
    ],
)
def test_losses_that_do_not_suit_regions(loss: str, told: str, tmp_path: Path) -> None:
    data = write.regions(tmp_path / "set", 2)
    with pytest.raises(ValueError, match=told):
        train(small(data, tmp_path / "run", epochs=1, folds=3, batch=2, size=24, loss=loss))
