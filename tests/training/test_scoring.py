import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from polydice.data.generate import generate
from polydice.data.prepare import Preparation, Prepared, prepare
from polydice.data.readers import open_dataset
from polydice.studies.record import RECORD, read_record
from polydice.training.inference import Network
from polydice.training.metrics import surface
from polydice.training.scoring import collapse, completed, remarks, score, validation
from tests.data.write import volume
from tests.training.networks import THRESHOLD, thresholding

SPACING = (3.0, 1.0, 0.5)
KEPT = Path(__file__).parents[2] / "results" / "paper"


def prepared_volumes(folder: Path, *spacings: tuple[float, float, float] | None) -> Prepared:
    """Volumes of 12 slices of 16 x 16, as slices; with as many different ones as there are spacings."""
    images, labels = generate(len(spacings), size=16, dims=3, lesion=(2.0, 4.0))
    for number, spacing in enumerate(spacings):
        volume(folder / "images" / f"{number}.nii", images[number, 0, :12], spacing)
        volume(folder / "masks" / f"{number}.nii", labels[number, :12], spacing)
    return prepare(open_dataset(folder), Preparation(2, 16), folder / "cache")


def truth_and_guess(prepared: Prepared, case: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Of a whole case, and what the network that thresholds makes of it."""
    items = prepared.cases[case].items
    guess = prepared.images[items.start : items.stop, 0] > THRESHOLD
    return np.array(prepared.labels[items.start : items.stop]), guess.astype(np.uint8)


@pytest.mark.parametrize("batch", [5, 12, 40])
def test_slices_are_put_back_into_volumes(tmp_path: Path, batch: int) -> None:
    """Batches of 5 lie across volumes of 12 slices; the cases are not in their order."""
    prepared = prepared_volumes(tmp_path, SPACING, SPACING, SPACING)
    found = score(Network(thresholding()), prepared, (2, 0), batch, surfaces=True)
    assert [row["id"] for row in found["cases"]] == ["2", "0"]
    dice = []
    for row, case in zip(found["cases"], (2, 0), strict=True):
        truth, guess = truth_and_guess(prepared, case)
        hit, wrong = np.sum((truth == 1) & (guess == 1)), np.sum(truth != guess)
        assert row["confusion"][1][1] == hit
        assert np.sum(row["confusion"]) == truth.size == 12 * 16 * 16
        assert row["dice"][1] == pytest.approx(2 * hit / (2 * hit + wrong))
        dice.append(row["dice"][1])
        expected = surface(torch.from_numpy(guess), torch.from_numpy(truth), 2, SPACING)
        assert row["hd95"] == [None, float(expected.hd95[1])]
        assert row["nsd"] == [None, float(expected.nsd[1])]
        in_pixels = surface(torch.from_numpy(guess), torch.from_numpy(truth), 2)
        assert row["hd95"][1] != float(in_pixels.hd95[1])  # or the test would show nothing
    assert found["test"]["cases"] == 2
    assert found["test"]["dice_case"] == pytest.approx(np.mean(dice))
    assert found["test"]["surface"]["unit"] == "mm"


def test_where_one_spacing_is_not_known_all_distances_are_in_pixels(tmp_path: Path) -> None:
    prepared = prepared_volumes(tmp_path, SPACING, None)
    found = score(Network(thresholding()), prepared, (0, 1), 12, surfaces=True)
    assert found["test"]["surface"]["unit"] == "px"
    truth, guess = truth_and_guess(prepared, 0)
    expected = surface(torch.from_numpy(guess), torch.from_numpy(truth), 2)
    assert found["cases"][0]["hd95"] == [None, float(expected.hd95[1])]


def test_images_are_cases_by_themselves_and_surfaces_may_be_left_out(images: Path, tmp_path: Path) -> None:
    prepared = prepare(open_dataset(images), Preparation(2, 32), tmp_path)
    found = score(Network(thresholding()), prepared, (3, 4, 9), 2, surfaces=False)
    assert [row["id"] for row in found["cases"]] == ["00003", "00004", "00009"]
    assert all(row.keys() == {"id", "group", "confusion", "dice"} for row in found["cases"])
    assert "surface" not in found["test"]


def test_a_case_without_anything_has_no_dice(tmp_path: Path) -> None:
    volume(tmp_path / "images" / "a.nii", np.linspace(0, 0.4, 4 * 16 * 16, dtype=np.float32).reshape(4, 16, 16))
    volume(tmp_path / "masks" / "a.nii", np.zeros((4, 16, 16), np.uint8))
    (tmp_path / "classes.txt").write_text("background\nlesion\n")
    prepared = prepare(open_dataset(tmp_path), Preparation(2, 16), tmp_path / "cache")
    model = thresholding()
    with torch.no_grad():
        model.heads[0].bias[1] = -2.0  # nothing is as bright
    found = score(Network(model), prepared, (0,), 4, surfaces=True)
    assert found["cases"][0]["dice"] == [1.0, None]
    assert found["cases"][0]["hd95"] == [None, None]
    assert found["test"]["dice_case"] is None


def kept(run: str) -> dict[str, Any]:
    """A result that was written before there was `dice_foreground`."""
    study, _, place = run.partition("/")
    result: dict[str, Any] = json.loads(read_record(KEPT / study / RECORD)[place].line)["result"]
    assert "dice_foreground" not in result["test"]
    return result


def test_a_result_of_before_has_the_scores_that_follow_from_its_matrices() -> None:
    before = kept("question-acdc/acdc/unet/dice/fold-0/seed-0")
    result = completed(kept("question-acdc/acdc/unet/dice/fold-0/seed-0"))
    for now, then in ((result, before), (result["last"], before["last"])):
        assert now["test"] | then["test"] == now["test"], "nothing that was there is changed"
        assert now["test"]["dice_foreground"] == pytest.approx(np.mean(then["test"]["dice_global_per_class"][1:]))
    assert remarks(result) == []
    assert validation(result) == before["validation_dice_global"], "which chose its weights"


def test_the_class_that_died_out_in_a_kept_run_is_named() -> None:
    result = completed(kept("extinct-small/hippocampus/unet3d/polydice-1-e-0.5/fold-0/seed-1"))
    assert collapse(result["test"]) == "has lost Anterior, in the truth of test cases and predicted in none"
    assert remarks(result) == [collapse(result["test"])]
