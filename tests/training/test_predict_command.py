import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from polydice.cli import main
from polydice.training.checkpoint import save_weights
from polydice.training.config import Precision
from polydice.training.loop import train
from polydice.training.predict import load
from tests.data.write import picture, volume
from tests.training.networks import saved, thresholding
from tests.training.runs import small


def run(*arguments: object) -> int:
    return main(["predict", *map(str, arguments)])


def noise(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def test_a_folder_of_a_run_and_a_folder_of_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved(tmp_path / "run" / "best.safetensors", thresholding(3), size=16)
    for name in ("a", "b"):
        picture(tmp_path / "in" / f"{name}.png", noise(20, 30, 3))
    assert run(tmp_path / "run", tmp_path / "in", "--out", tmp_path / "out", "--overlay", "--flips") == 0
    made = ["a.png", "a_overlay.png", "b.png", "b_overlay.png"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == made
    assert capsys.readouterr().out == f"{tmp_path / 'out'}: 2 label maps\n"


@pytest.mark.parametrize("trained", ["bfloat16", "float32"])
def test_the_precision_is_that_of_the_training(trained: Precision, images: Path, tmp_path: Path) -> None:
    """Told by the label maps of logits that differ: bfloat16 has three digits."""
    train(small(images, tmp_path / "run", epochs=8, rate=0.1, precision=trained))
    assert load(tmp_path / "run").network.half == (trained == "bfloat16")
    maps = {}
    for name in ("own", "bfloat16", "float32"):
        options = [] if name == "own" else ["--precision", name]
        assert run(tmp_path / "run", images / "images", "--out", tmp_path / name, *options) == 0
        maps[name] = [path.read_bytes() for path in sorted((tmp_path / name).iterdir())]
    assert len(maps["own"]) == 25
    assert maps["own"] == maps[trained]
    assert maps["bfloat16"] != maps["float32"]


def test_files_that_cannot_be_used_are_named_and_the_others_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = saved(tmp_path / "w", thresholding(), size=16)
    good = picture(tmp_path / "good.png", noise(20, 30))
    (tmp_path / "cut.png").write_bytes(good.read_bytes()[:60])
    picture(tmp_path / "rgb.png", noise(20, 30, 3))
    picture(tmp_path / "deep.png", noise(20, 30).astype(np.uint16))
    volume(tmp_path / "four.nii", noise(3, 4, 20, 30))
    volume(tmp_path / "empty.nii", noise(0, 20, 30))
    reasons = {
        "cut.png": "is truncated",
        "rgb.png": "it has 3 channels, but the network takes 1",
        "deep.png": "must be 8 bits a channel",
        "four.nii": "it has 3 channels",
        "empty.nii": "must hold numbers",
        "lost.png": "is not there",
    }
    assert run(weights, *(tmp_path / name for name in reasons), good, "--out", tmp_path / "out") == 1
    told = capsys.readouterr()
    assert told.out == f"{tmp_path / 'out'}: 1 of 7 label maps\n"
    for line, (name, reason) in zip(told.err.splitlines(), reasons.items(), strict=True):
        assert line.startswith(f"polydice predict: {tmp_path / name}: ")
        assert reason in line
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["good.png"]


def test_a_script_is_told_what_was_done_and_what_was_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = saved(tmp_path / "w", thresholding(), size=16)
    good, lost = picture(tmp_path / "good.png", noise(20, 30)), tmp_path / "lost.png"
    assert run(weights, good, lost, "--out", tmp_path / "out", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["written"] == [str(tmp_path / "out" / "good.png")]
    assert [problem.startswith(str(lost)) for problem in told["problems"]] == [True]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["run", "x.png"], "best.safetensors: No such file"),
        (["random.pth", "x.png"], "was not written by polydice"),
        (["bare", "x.png"], "does not say what network it holds"),
        (["w", "x.png", "--device", "abacus"], "device 'abacus' cannot be used"),
        (["w", "x.png", "--batch", "0"], "batch must be at least 1: 0"),
        (["w", "run"], "run holds no images"),
        (["w", "x.png", "y/x.jpg"], "would both be written to out/x.png"),
        (["w", "x.png", "--out", "."], "is an input and would be replaced"),
        (["w", "x.png", "--out", "random.pth"], "random.pth is a file: label maps go into a folder"),
    ],
)
def test_what_cannot_begin_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(Path("w"), thresholding(3), size=16)
    save_weights(Path("bare"), {"w": torch.zeros(1)})
    Path("random.pth").write_bytes(b"no weights")
    Path("run").mkdir()
    picture(Path("x.png"), noise(20, 30, 3))
    assert run(*arguments, *([] if "--out" in arguments else ["--out", "out"])) == 2
    told = capsys.readouterr()
    assert told.out == ""
    (line,) = told.err.splitlines()
    assert line.startswith("polydice predict: ")
    assert reason in line
    assert not Path("out").exists()
