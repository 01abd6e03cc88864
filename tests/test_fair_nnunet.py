"""results/fair/nnunet.py: what it makes of its records. That it trains is seen where nnU-Net is."""

import json
import runpy
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[1] / "results/fair/nnunet.py"))
VOXELS = {  # found and true, found, true
    "a": [[8, 10, 10], [0, 0, 0]],
    "b": [[3, 4, 6], [1, 1, 3]],
}


def test_the_dice_of_cases_and_of_all_their_voxels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [("nnUNetTrainer", VOXELS), ("nnUNetTrainerDice", {"a": [[10, 10, 10], [0, 0, 0]], "b": VOXELS["b"]})]
    records = [{"trainer": trainer, "fold": 2, "voxels": voxels} for trainer, voxels in runs]
    file = tmp_path / "records.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert list(SCRIPT["recorded"](file)) == [("nnUNetTrainer", 2), ("nnUNetTrainerDice", 2)]
    SCRIPT["show"](file)
    # Classes 22/30 and 2/4 of all voxels, then 26/30 and 2/4; cases 16/20 and (6/10 + 2/4)/2, then 1 and the same.
    expected = {"dice_foreground": ("61.67", "68.33", "+6.67"), "dice_case": ("67.50", "77.50", "+10.00")}
    printed = capsys.readouterr().out.splitlines()
    for place, (score, (own, other, difference)) in enumerate(expected.items()):
        name, first, second = printed[3 * place : 3 * place + 3]
        assert (name, first.split(), second.split()[:3]) == (
            score,
            ["nnUNetTrainer", own],
            ["nnUNetTrainerDice", other, difference],
        )
