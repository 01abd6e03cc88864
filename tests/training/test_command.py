import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from polydice.cli import main
from polydice.training.checkpoint import load
from polydice.training.config import Settings
from polydice.training.loop import train
from tests.training.runs import ROOT, ended, history, options, python, small, train_until


def failed(capsys: pytest.CaptureFixture[str], settings: Settings, *more: str) -> str:
    """The one line that `polydice train` says when it fails."""
    assert main(["train", *options(settings), *more]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("polydice train: ")
    return said.err.removeprefix("polydice train: ").strip()


def test_a_run_from_the_command_line(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = small(images, tmp_path / "run", epochs=2)
    assert main(["train", *options(settings)]) == 0
    said = capsys.readouterr()
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    last, best = (
        ", ".join(f"{name} {each['test'][name]:.4f}" for name in ("dice_foreground", "dice_case", "dice_global"))
        for each in (result["last"], result)
    )
    assert said.out.startswith(
        f"{tmp_path / 'run'}: {last} on 5 test cases (weights of epoch 2, the last; "
        f"{best} with those of epoch {result['best_epoch']}, the best on validation); 25 of 25 cases"
    )
    line = r"loss 0\.\d{4}, dice_foreground 0\.\d{4}, dice_case 0\.\d{4}\n"
    assert re.fullmatch(f"run: epoch 1 of 2, {line}run: epoch 2 of 2, {line}", said.err), "no terminal is here"
    assert said.out.splitlines()[0].endswith("; 25 of 25 cases, 25 groups, 2 classes: background, lesion 1")
    train(replace(settings, out=tmp_path / "other"))
    assert ended(tmp_path / "run") == ended(tmp_path / "other")


def test_the_score_that_counts_is_told_first(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = small(images, tmp_path / "run", epochs=1, score="dice_global")
    assert main(["train", *options(settings)]) == 0
    assert capsys.readouterr().out.startswith(f"{tmp_path / 'run'}: dice_global 0.")


def test_the_weights_that_count_are_told_first(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = small(images, tmp_path / "run", epochs=3, rate=0.3, weights="best")
    assert main(["train", *options(settings)]) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    best, last = (each["test"]["dice_foreground"] for each in (result, result["last"]))
    said = capsys.readouterr().out
    assert said.startswith(f"{tmp_path / 'run'}: dice_foreground {best:.4f}, dice_case ")
    assert f"(weights of epoch {result['best_epoch']}, the best on validation; dice_foreground {last:.4f}, " in said
    assert " with those of epoch 3, the last); " in said


def test_a_run_that_finds_nothing_is_named(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With weight 0 on the lesions, cross-entropy teaches the background alone."""
    settings = small(images, tmp_path / "run", epochs=2, rate=0.1, loss="CrossEntropyLoss(weight=[1.0, 0.0])")
    assert main(["train", *options(settings)]) == 0
    scores, named = capsys.readouterr().out.splitlines()
    assert "dice_foreground 0.0000, dice_case 0.0000" in scores
    assert named == f"{tmp_path / 'run'}: predicts nothing, not one pixel of foreground in any test case"
    test = json.loads((tmp_path / "run" / "result.json").read_text())["test"]
    assert (test["predicts_nothing"], test["lost_classes"]) == (True, ["lesion 1"])
    assert test["dice_global"] > 0.4, "what the background pays for finding nothing"


def emptied(images: Path, folder: Path, cases: range) -> Path:
    """The same images; these cases have no foreground."""
    shutil.copytree(images, folder / "data")
    for case in cases:
        Image.new("L", (32, 32)).save(folder / "data" / "masks" / f"{case:05d}.png")
    return folder / "data"


def test_where_there_is_no_foreground_its_dice_is_not_0_but_not_defined(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = small(emptied(images, tmp_path, range(5)), tmp_path / "run", epochs=1, split="contiguous")
    assert main(["train", *options(settings)]) == 0
    scores, why = capsys.readouterr().out.splitlines()
    assert "dice_foreground not defined, dice_case not defined, dice_global " in scores
    assert "0.0000" not in scores
    assert why == f"{tmp_path / 'run'}: Dice of the foreground is not defined, since no test case has any"
    test = json.loads((tmp_path / "run" / "result.json").read_text())["test"]
    assert (test["dice_foreground"], test["dice_case"], test["predicts_nothing"]) == (None, None, False)


def test_a_validation_without_foreground_chooses_nothing(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would have chosen the weights before the first step, or those that find least."""
    settings = small(emptied(images, tmp_path, range(5, 10)), tmp_path / "run", epochs=3, split="contiguous", rate=0.3)
    assert main(["train", *options(settings)]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[-1].endswith("nothing was chosen on validation, where no case has foreground: the last weights count")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["best_epoch"], result["validation_dice_foreground"]) == (3, None)
    assert result["cases"] == result["last"]["cases"]


def test_a_set_with_errors_is_refused_or_trained_on_without_them(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "set"
    shutil.copytree(images, folder)
    lost = sorted((folder / "masks").iterdir())[:4]
    for path in lost:
        path.unlink()
    settings = small(folder, tmp_path / "run", epochs=1)
    assert main(["train", *options(settings)]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"polydice train: {folder} has 4 errors and is not trained on:"
    assert [line.split() for line in said[1:5]] == [
        ["error", f"images/{path.name}", "has", "no", "mask"] for path in lost
    ]
    assert said[5] == (
        f"`polydice data {folder}` says everything about it; --skip-errors goes on with the other 21 of 25 cases"
    )
    assert main(["train", *options(replace(settings, skip_errors=True))]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("set: 21 of 25 cases, 21 groups, 2 classes: background, lesion 1\nrun: epoch 1 of 1, ")
    assert said.out.splitlines()[0].endswith("; 21 of 25 cases, 21 groups, 2 classes: background, lesion 1")


def test_a_script_is_told_the_scores(images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = small(images, tmp_path / "run", epochs=1)
    assert main(["train", *options(settings), "--json"]) == 0
    told, result = json.loads(capsys.readouterr().out), json.loads((tmp_path / "run" / "result.json").read_text())
    names = ("best_epoch", "validation_dice_foreground", "validation_dice_global", "test")
    last = {name: result["last"][name] for name in names}
    same = {name: result[name] for name in (*names, "used")}
    assert told == {"run": str(settings.out), "weights": "last", **same, "last": last}
    assert told["test"]["cases"] == 5


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"data": Path("/nowhere")}, "/nowhere is not a folder"),
        ({"loss": "DiceLos()"}, "loss 'DiceLos()': DiceLos is none of the losses; did you mean DiceLoss?"),
        ({"loss": "DiceLoss(weight=[1, 2, 3])"}, "weight has 3 entries, the logits have 2 classes"),
        ({"batch": 16}, "15 items do not make one batch of 16: take a smaller batch"),
        ({"folds": 26}, "25 groups (patients, sequences) cannot be spread over 26 parts: take fewer folds"),
        ({"size": 3}, "this U-Net takes [B, 1, H, W] with H and W at least 4; it was given [4, 1, 3, 3]"),
        ({"layout": "nifty"}, "nifty"),
        ({"device": "cuda:99"}, "device 'cuda:99' cannot be used"),
        ({"device": "meta"}, "device 'meta' cannot be used: Tensor.item() cannot be called on meta tensors"),
        ({"model": "unet3d", "patch": (8, 8, 8)}, "case 00000: it is a single image, not a volume"),
    ],
)
def test_what_cannot_be_trained_is_one_clear_line(
    images: Path, tmp_path: Path, given: dict[str, Any], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert problem in failed(capsys, replace(small(images, tmp_path / "run", epochs=1), **given))


def test_settings_that_cannot_be_are_refused_without_a_traceback(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for wrong, problem in [
        (["--epochs", "0"], "epochs must be at least 1: 0"),
        (["--epochs", "ten"], "--epochs"),
        (["--model", "resnet"], "no model is called 'resnet'; there are unet, transunet, unet3d"),
        (["--model", "unet3d", "--norm", "batch"], "unet3d has no norm: batch"),
        (["--colour", "red"], "--colour"),
        (["--save-every", "inf"], "save_every must be finite: inf"),
        (["--clip", "inf"], "clip must be finite: inf"),
        (["--power", "inf"], "power must be finite: inf"),
        (["--rotation", "nan"], "rotation must not be negative: nan"),
        (["--seed", str(2**64)], f"seed must be at most {2**64 - 1}: {2**64}"),
    ]:
        with pytest.raises(SystemExit) as end:
            main(["train", "--data", str(images), "--out", str(tmp_path / "run"), *wrong])
        said = capsys.readouterr()
        assert end.value.code == 2
        assert problem in " ".join((said.err + said.out).replace("│", " ").split())
        assert "Traceback" not in said.err + said.out


def test_a_corrupt_checkpoint_is_one_clear_line_and_what_it_says_helps(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = small(images, tmp_path / "run", epochs=4, save_every=0.0)
    train(replace(settings, out=tmp_path / "whole"))
    train_until(3, settings)
    last = tmp_path / "run" / "checkpoint-000003"
    data = bytearray((last / "weights.safetensors").read_bytes())
    data[len(data) // 2] ^= 1
    (last / "weights.safetensors").write_bytes(data)
    line = failed(capsys, replace(settings, resume=True))
    assert line == (
        f"{last / 'weights.safetensors'} is damaged: its SHA-256 is not the one in its header; "
        f"delete the folder {last} to resume from checkpoint-000002, which is intact"
    )
    shutil.rmtree(last)
    assert main(["train", *options(replace(settings, resume=True))]) == 0
    assert ended(tmp_path / "run") == ended(tmp_path / "whole")


def test_a_disk_that_fails_loses_nothing(images: Path, tmp_path: Path) -> None:
    """On a file system of its own, which turns read-only while a run is under way, and then fills up."""
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f'mount -t tmpfs -o size=1m none "{disk}" && exec "$@"'
    prefix = ("unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh")
    if shutil.which("unshare") is None or subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
        pytest.skip("mounting a small file system is not permitted here")
    settings = small(images, tmp_path / "whole", epochs=40, save_every=0.0)
    train(settings)
    told = python(
        "import subprocess\n"
        "from polydice.cli import main\n"
        "folder = Path(sys.argv[1])\n"
        "def fill():\n"
        "    with open(folder / 'filled', 'wb', buffering=0) as file, contextlib.suppress(OSError):\n"
        "        while True: file.write(bytes(1000))\n"
        "def remount(how):\n"
        "    command = ['mount', '-o', f'remount,{how}', folder]\n"
        "    while subprocess.run(command, capture_output=True).returncode: pass  # it waits for files to be closed\n"
        "def start():\n"
        "    child = os.fork()\n"
        "    if child: return child\n"
        "    torch.set_num_threads(1)\n"
        "    os.dup2(1, 2)\n"
        "    os._exit(main(['train', *sys.argv[2:], '--out', str(folder / 'run')]))\n"
        "def tell_end(child):\n"
        "    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n"
        "    print(status, *sorted(os.listdir(folder / 'run')), flush=True)\n"
        "def wait_for_another_checkpoint():\n"
        "    before = sorted(folder.glob('run/checkpoint-*'))\n"
        "    while sorted(folder.glob('run/checkpoint-*')) <= before: time.sleep(0.001)\n"
        "child = start()\n"
        "wait_for_another_checkpoint()\n"
        "remount('ro')\n"
        "tell_end(child)\n"
        "remount('rw')\n"
        "child = start()\n"
        "wait_for_another_checkpoint()\n"
        "fill()\n"
        "tell_end(child)\n"
        "(folder / 'filled').unlink()\n"
        "tell_end(start())\n"
        "shutil.copytree(folder / 'run', folder.parent / 'run')\n",
        disk,
        *options(replace(settings, resume=True)),
        prefix=prefix,
    )
    begins, *lines = [line for line in told.splitlines() if not line.startswith("run: epoch ")]
    assert begins == f"there is nothing to resume in {disk / 'run'}: the training begins"
    read_only, first, full, second, done, last = lines
    for line, why in ((read_only, "Read-only file system"), (full, "No space left on device")):
        assert line.startswith("polydice train: cannot ")
        assert str(disk / "run") in line
        assert why in line
    for names in (first, second):
        assert names.startswith("1 ")
        assert "checkpoint-" in names
    assert done.startswith(f"{disk / 'run'}: dice_foreground ")
    assert last.startswith("0 best.safetensors folds.json")
    assert ended(tmp_path / "run") == ended(tmp_path / "whole")


def test_a_folder_that_cannot_be_is_one_clear_line(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    line = failed(capsys, small(images, tmp_path / "file" / "run"))
    assert line == f"cannot save {tmp_path / 'file' / 'run' / 'settings.json'}: Not a directory"


def test_control_c_saves_and_says_how_to_go_on(images: Path, tmp_path: Path) -> None:
    settings = small(images, tmp_path / "run", epochs=100_000, save_every=1e6)
    child = subprocess.Popen(
        [sys.executable, "-m", "polydice", "train", *options(settings)],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # it may have been ignored here
    )
    while not (settings.out / "history.jsonl").exists():
        assert child.poll() is None
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, said = child.communicate()
    told = [line for line in said.splitlines() if line.startswith("run: epoch ")]
    assert told[0].startswith("run: epoch 1 of 100000, loss ")
    assert "\n".join(line for line in said.splitlines() if line not in told) + "\n" == (
        "\nstopping after this epoch; Ctrl-C again stops at once\n"
        f"polydice train: interrupted; the same command with --resume goes on with {settings.out}\n"
    )
    assert child.returncode == 130
    saved = load(settings.out)
    assert saved is not None
    assert saved.state["epoch"] == len(history(settings.out)) >= 1


def test_out_of_memory_says_what_to_do(
    images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def greedy(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.00 GiB.\nGPU 0 has ...")

    monkeypatch.setattr("polydice.training.loop.train", greedy)
    line = failed(capsys, small(images, tmp_path / "run"))
    assert line == "CUDA out of memory. Tried to allocate 3.00 GiB. Take a smaller --batch or --size."


def test_the_help_does_not_wait_for_torch() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "polydice", "train", "--help"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert "polydice.training.config" in loaded
    assert not loaded & {"torch", "numpy", "monai"}
    assert "--data PATH" in ran.stdout
