import json
import math
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from polydice.data.batches import Batch, Batches
from polydice.data.cases import Dataset
from polydice.data.files import read_mask
from polydice.data.readers import open_dataset
from polydice.models import build
from polydice.training import loop
from polydice.training.checkpoint import load, load_weights
from polydice.training.loop import TrainingError, train, train_epoch
from polydice.training.objective import objective
from polydice.training.processes import Process
from polydice.training.run import Run
from polydice.training.scoring import score
from polydice.training.watch import Epoch
from tests.training.runs import ended, history, python, small, spoilt, train_until, training_batches, weights

ALONE = Process(0, 1, torch.device("cpu"))


# A run that is killed and resumed ends as one that never was


@pytest.mark.parametrize(
    ("options", "kills"), [({}, 20), ({"optimizer": "adamw", "rate": 0.01}, 10)], ids=["sgd", "adamw"]
)
def test_killed_at_random_moments_a_run_ends_the_same(
    images: Path, tmp_path: Path, options: dict[str, Any], kills: int
) -> None:
    told = python(
        # Each life is a twelfth of the run at most, so all moments are met: starting, training, saving. Should the run
        # end nevertheless, another one takes the other kills.
        "data, folder, wanted, more = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])\n"
        "loss = 'TvMFDiceLoss(kappa=0.0, batch=True) + CrossEntropyLoss()'\n"
        "options = dict(epochs=40, save_every=0.0, loss=loss, resume=True, **more)\n"
        "began = time.monotonic()\n"
        "assert wait([fork(small(data, folder / 'whole', **options))])\n"
        "length, kills, run = time.monotonic() - began, 0, 0\n"
        "random.seed(0)\n"
        "while True:\n"
        "    child = fork(small(data, folder / f'killed-{run}', **options))\n"
        "    if kills < wanted:\n"
        "        time.sleep(random.uniform(0, length / 12))\n"
        "        os.kill(child, signal.SIGKILL)\n"
        "    _, status = os.waitpid(child, 0)\n"
        "    if os.WIFSIGNALED(status):\n"
        "        kills += 1\n"
        "        continue\n"
        "    assert status == 0\n"
        "    if kills == wanted: break\n"
        "    run += 1\n"
        "print(kills)\n",
        images,
        tmp_path,
        kills,
        json.dumps(options),
    )
    assert told == f"{kills}\n"
    whole = ended(tmp_path / "whole")
    for folder in tmp_path.glob("killed-*"):
        assert ended(folder) == whole


def test_killed_between_any_two_writes_a_run_ends_the_same(images: Path, tmp_path: Path) -> None:
    """The n-th life ends at its n-th write, before that is forced to the disk: so every gap between two files of a run
    is met, until a life has fewer writes than that."""
    lives = python(
        "data, folder = map(Path, sys.argv[1:])\n"
        "options = dict(epochs=4, save_every=0.0, resume=True)\n"
        "assert wait([fork(small(data, folder / 'whole', **options))])\n"
        "fsync, calls = os.fsync, 0\n"
        "def fatal(descriptor):\n"
        "    global calls\n"
        "    calls += 1\n"
        "    if calls == lives: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    fsync(descriptor)\n"
        "os.fsync = fatal\n"
        "lives, status = 0, None\n"
        "while status != 0:\n"
        "    lives += 1\n"
        "    _, status = os.waitpid(fork(small(data, folder / 'killed', **options)), 0)\n"
        "    assert status in (0, signal.SIGKILL)\n"
        "print(lives)\n",
        images,
        tmp_path,
    )
    assert int(lives) > 10
    assert ended(tmp_path / "killed") == ended(tmp_path / "whole")


def test_what_is_random_in_a_network_goes_on_too(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TransUNet has dropout; here the U-Net is given some."""

    def with_dropout(*given: object, **options: object) -> torch.nn.Module:
        return torch.nn.Sequential(build(*given, **options), torch.nn.Dropout2d(0.2))  # type: ignore[arg-type]

    monkeypatch.setattr("polydice.training.run.build", with_dropout)
    options = {"epochs": 4, "save_every": 0.0}
    train(small(images, tmp_path / "whole", **options))
    train_until(2, small(images, tmp_path / "stopped", **options))
    torch.randn(3)
    train(small(images, tmp_path / "stopped", **options, resume=True))
    assert ended(tmp_path / "stopped") == ended(tmp_path / "whole")
    losses = [row["loss"] for row in history(tmp_path / "whole")]
    monkeypatch.setattr("polydice.training.run.build", build)
    train(small(images, tmp_path / "without", **options))
    assert losses != [row["loss"] for row in history(tmp_path / "without")]  # or the test would show nothing


@pytest.mark.parametrize("loss", ["DiceLoss()", "TvMFDiceLoss(kappa=1.0)"])
@pytest.mark.parametrize("every", [1, 2])
def test_how_often_a_run_is_saved_changes_nothing(images: Path, tmp_path: Path, loss: str, every: int) -> None:
    options = {"epochs": 5, "validate_every": every, "loss": loss, "adapt_kappa": True}
    train(small(images, tmp_path / "often", save_every=0.0, **options))
    train(small(images, tmp_path / "never", save_every=1e9, **options))
    assert ended(tmp_path / "often") == ended(tmp_path / "never")


def test_an_epoch_is_over_and_told_before_the_next_begins(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    def noted(run: Run, after_step: Callable[[], object]) -> Epoch:
        told.append(history(tmp_path / "run") if run.epoch else [])
        return train_epoch(run, after_step)

    monkeypatch.setattr("polydice.training.loop.train_epoch", noted)
    train(small(images, tmp_path / "run", epochs=4, validate_every=2, save_every=1e9))
    rows = history(tmp_path / "run")
    assert told == [rows[:0], rows[:1], rows[:2], rows[:3]]
    assert ["dice_foreground" in row for row in rows] == [False, True, False, True]


# The folder of a run


def test_a_folder_with_a_run_is_left_alone_without_resume(images: Path, tmp_path: Path) -> None:
    settings = small(images, tmp_path / "run", epochs=1)
    train(settings)
    before = ended(tmp_path / "run")
    with pytest.raises(TrainingError, match=r"run holds a run: --resume goes on with it, or take another folder"):
        train(settings)
    assert ended(tmp_path / "run") == before


def test_other_settings_are_refused_and_named(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_until(1, small(images, tmp_path / "run", epochs=2, save_every=0.0))
    with pytest.raises(
        TrainingError, match=r"run with other settings \(epochs 2 -> 3; rate 0\.04 -> 0\.1\): take another folder"
    ):
        train(small(images, tmp_path / "run", epochs=3, rate=0.1, save_every=0.0, resume=True))


def test_other_data_are_refused(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    for name in ("images", "masks"):
        (data / name).mkdir(parents=True)
        for file in sorted((images / name).iterdir()):
            (data / name / file.name).write_bytes(file.read_bytes())
    train_until(1, small(data, tmp_path / "run", epochs=2, save_every=0.0))
    first, second = sorted((data / "images").iterdir())[:2]
    first.write_bytes(second.read_bytes())
    with pytest.raises(TrainingError, match=r"run holds a run on other data: data-\w+, and not data-\w+"):
        train(small(data, tmp_path / "run", epochs=2, resume=True))


def test_a_finished_run_gives_its_result_at_once(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = train(small(images, tmp_path / "run", epochs=1))
    monkeypatch.setattr("polydice.training.loop.open_dataset", None)  # nothing is read again
    assert train(small(images, tmp_path / "run", epochs=1, resume=True)) == json.loads(json.dumps(result))


def test_resumed_before_its_first_checkpoint_a_run_starts_over(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Run, "save", lambda run: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(small(images, tmp_path / "run", epochs=2, save_every=0.0))
    assert len(history(tmp_path / "run")) == 1
    train(small(images, tmp_path / "run", epochs=2, save_every=0.0, resume=True))
    train(small(images, tmp_path / "other", epochs=2))
    assert ended(tmp_path / "run") == ended(tmp_path / "other")


def test_a_run_that_failed_before_an_epoch_was_over_has_not_taken_the_folder(images: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="weight has 3 entries, the logits have 2 classes"):
        train(small(images, tmp_path / "run", epochs=1, loss="DiceLoss(weight=[1, 2, 3])"))
    assert (tmp_path / "run" / "settings.json").exists()
    train(small(images, tmp_path / "run", epochs=1, loss="DiceLoss(weight=[1, 2])"))
    assert json.loads((tmp_path / "run" / "settings.json").read_text())["loss"] == "DiceLoss(weight=[1, 2])"


def test_settings_that_cannot_be_read_are_named(images: Path, tmp_path: Path) -> None:
    train(small(images, tmp_path / "run", epochs=1))
    (tmp_path / "run" / "settings.json").write_text("{")
    with pytest.raises(TrainingError, match=r"settings\.json cannot be read .*: take another folder"):
        train(small(images, tmp_path / "run", epochs=1, resume=True))


def test_what_a_finished_run_leaves(images: Path, tmp_path: Path) -> None:
    result = train(small(images, tmp_path / "run", epochs=2, surfaces=True))
    assert sorted(os.listdir(tmp_path / "run")) == [
        "best.safetensors", "folds.json", "history.jsonl", "last.safetensors", "result.json", "settings.json",
    ]  # fmt: skip
    assert json.loads(json.dumps(result)) == json.loads((tmp_path / "run" / "result.json").read_text())
    assert {"settings", "model", "best_epoch", "validation_dice_global", "test", "cases", "versions"} <= result.keys()
    assert result["test"]["cases"] == len(result["cases"]) == 5
    folds = json.loads((tmp_path / "run" / "folds.json").read_text())
    assert [case["id"] for case in result["cases"]] == folds[0]["test"]


# What the loop does, step by step


def test_the_weights_are_those_of_sgd_written_by_hand(images: Path, tmp_path: Path) -> None:
    """v ← µ·v + g + λ·w, w ← w − rate·v, rate = 0.05·(1 − step/steps)^0.9, on the same batches.

    Both round each update to float32 (6e-8 of the weight); in 9 steps the difference stays below 1e-5.
    """
    settings = small(images, tmp_path / "run", epochs=3, rate=0.05, momentum=0.8, decay=1e-3, seed=3)
    train(settings)
    batches = training_batches(settings)
    torch.manual_seed(settings.seed)
    model = build("unet", 1, 2, width=4, depth=2)
    loss = objective(settings.loss, ALONE)
    velocity = [torch.zeros_like(weight) for weight in model.parameters()]
    losses, step = [], 0
    for epoch in range(3):
        for batch in batches.epoch(epoch):
            value = loss(model(batch.images), batch.labels)
            gradients = torch.autograd.grad(value, list(model.parameters()))
            rate = 0.05 * (1 - step / 9) ** 0.9
            with torch.no_grad():
                for weight, v, gradient in zip(model.parameters(), velocity, gradients, strict=True):
                    v.mul_(0.8).add_(gradient).add_(weight, alpha=1e-3)
                    weight.sub_(v, alpha=rate)
            losses.append(value.detach().item())
            step += 1
    found, _ = load_weights(tmp_path / "run" / "last.safetensors")
    for name, expected in model.state_dict().items():
        torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-6)
    rows = history(tmp_path / "run")
    assert [row["loss"] for row in rows] == pytest.approx([np.mean(losses[k : k + 3]) for k in (0, 3, 6)], rel=1e-6)


def test_the_rate_falls_as_a_polynomial(images: Path, tmp_path: Path) -> None:
    train(small(images, tmp_path / "run", epochs=5, rate=0.02, power=0.7))
    rows = history(tmp_path / "run")
    assert [row["step"] for row in rows] == [3, 6, 9, 12, 15]
    # That of an epoch's last step.
    assert [row["rate"] for row in rows] == [pytest.approx(0.02 * (1 - step / 15) ** 0.7) for step in (2, 5, 8, 11, 14)]


@pytest.mark.parametrize("clip", [None, 1e-3])
def test_gradients_are_clipped_and_their_norm_is_told(images: Path, tmp_path: Path, clip: float | None) -> None:
    """Without momentum and decay, one step moves the weights by rate times the norm."""
    settings = small(images, tmp_path / "run", epochs=1, batch=15, momentum=0.0, decay=0.0, rate=0.5, clip=clip)
    train(settings)
    (row,) = history(tmp_path / "run")
    torch.manual_seed(settings.seed)
    before = dict(build("unet", 1, 2, width=4, depth=2).named_parameters())
    after, _ = load_weights(tmp_path / "run" / "last.safetensors")
    moved = torch.cat([(after[name] - weight.detach()).double().flatten() for name, weight in before.items()])
    assert float(moved.norm()) == pytest.approx(0.5 * row["gradient_norm"], rel=1e-3)
    assert (row["gradient_norm"] == pytest.approx(1e-3, rel=1e-3)) == (clip is not None)
    weights = torch.cat([after[name].double().flatten() for name in before])
    assert row["weight_norm"] == pytest.approx(float(weights.norm()), rel=1e-5)


def test_validations_are_as_often_as_asked_and_the_last_epoch_has_one(images: Path, tmp_path: Path) -> None:
    result = train(small(images, tmp_path / "run", epochs=5, validate_every=2))
    rows = history(tmp_path / "run")
    assert [row["epoch"] for row in rows if "dice_global" in row] == [2, 4, 5]
    assert all(math.isfinite(row["loss"]) for row in rows)
    best = max((row for row in rows if "dice_foreground" in row), key=lambda row: row["dice_foreground"])
    assert (result["best_epoch"], result["validation_dice_foreground"]) == (best["epoch"], best["dice_foreground"])
    assert result["validation_dice_global"] == best["dice_global"]


def test_rare_validations_do_not_hold_up_checkpoints(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_until(2, small(images, tmp_path / "run", epochs=9, validate_every=9, save_every=0.0))
    assert [row["epoch"] for row in history(tmp_path / "run")] == [1, 2]
    found = load(tmp_path / "run")
    assert found is not None
    assert found.state["epoch"] == 2


def test_checkpoints_wait_for_their_time(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = []
    monkeypatch.setattr(Run, "save", lambda run: saved.append(run.epoch))
    train(small(images, tmp_path / "run", epochs=3, save_every=1000.0))
    assert saved == []  # not even at the end: what is written then is the result


@pytest.mark.parametrize("score", ["dice_foreground", "dice_global"])
def test_the_best_weights_are_kept_and_tested(
    images: Path, tmp_path: Path, score: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Had the second epoch of four the best validation, its weights are those that a run of two epochs ends with: at a
    constant rate both have done the same. Of two that are equally good the first is kept. The other score plays no
    part."""
    other = "dice_global" if score == "dice_foreground" else "dice_foreground"
    scores = iter([{score: counts, other: 1 - counts} for counts in (0.2, 0.5, 0.5, 0.4)])
    with monkeypatch.context() as patch:
        patch.setattr("polydice.training.loop.summary", lambda *_: next(scores))
        result = train(small(images, tmp_path / "run", epochs=4, power=0.0, score=score))
    assert (result["best_epoch"], result[f"validation_{score}"]) == (2, 0.5)
    short = train(small(images, tmp_path / "short", epochs=2, power=0.0, validate_every=2))
    best, _ = load_weights(tmp_path / "run" / "best.safetensors")
    last, _ = load_weights(tmp_path / "short" / "last.safetensors")
    assert all(torch.equal(best[name], last[name]) for name in best)
    assert result["cases"] == short["cases"]


def test_the_last_weights_are_tested_beside_the_best(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"epochs": 6, "rate": 0.3, "power": 0.0, "surfaces": False}
    scores = iter([{"dice_foreground": each, "dice_global": each} for each in (0.2, 0.5, 0.4, 0.4, 0.4, 0.4)])
    with monkeypatch.context() as patch:
        patch.setattr("polydice.training.loop.summary", lambda *_: next(scores))
        result = train(small(images, tmp_path / "run", **options))
    last_is_best = train(small(images, tmp_path / "other", validate_every=6, **options))
    wanted = {name: last_is_best[name] for name in ("best_epoch", "test", "cases")}
    validated = {name: last_is_best[name] for name in ("validation_dice_foreground", "validation_dice_global")}
    assert last_is_best["last"] == wanted | validated
    assert result["last"] == wanted | {"validation_dice_foreground": 0.4, "validation_dice_global": 0.4}
    assert result["last"]["test"]["dice_case"] > 0.3, "it has learnt something since"
    assert result["test"]["dice_case"] < 0.1


@pytest.mark.parametrize("kind", ["last", "best"])
def test_until_a_run_ends_the_weights_that_count_are_in_their_file(images: Path, tmp_path: Path, kind: str) -> None:
    train_until(2, small(images, tmp_path / "run", epochs=3, save_every=0.0, weights=kind, rate=0.3))
    assert [path.name for path in (tmp_path / "run").glob("*.safetensors")] == [f"{kind}.safetensors"]
    checkpoint = load(tmp_path / "run")
    assert checkpoint is not None
    found, _ = load_weights(tmp_path / "run" / f"{kind}.safetensors")
    prefix = {"last": "model.", "best": "best."}[kind]
    assert all(torch.equal(found[name], checkpoint.weights[prefix + name]) for name in found)


@pytest.mark.parametrize(("kind", "times"), [("last", 1), ("best", 2)])
def test_weights_that_are_the_last_and_the_best_are_tested_once(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, times: int
) -> None:
    """Unless the surfaces of the best alone are asked for."""
    tested = []
    monkeypatch.setattr(loop, "score", lambda *given: tested.append(given[-1]) or score(*given))
    result = train(small(images, tmp_path / "run", epochs=1, surfaces=True, weights=kind))
    assert len(tested) == times
    assert result["last"]["best_epoch"] == result["best_epoch"] == 1
    assert result["last"]["test"]["dice_case"] == result["test"]["dice_case"]


@pytest.mark.parametrize("kind", ["last", "best"])
def test_surfaces_are_of_the_weights_that_count_at_least(images: Path, tmp_path: Path, kind: str) -> None:
    result = train(small(images, tmp_path / "run", epochs=1, surfaces=True, weights=kind))
    assert "surface" in result["test"]
    assert ("surface" in result["last"]["test"]) == (kind == "last")


@pytest.mark.parametrize("adapt", [True, False])
def test_kappa_follows_the_validation_and_is_kept(
    images: Path, tmp_path: Path, adapt: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"epochs": 3, "save_every": 0.0, "loss": "TvMFDiceLoss(kappa=1.0)", "adapt_kappa": adapt}
    train_until(2, small(images, tmp_path / "run", **options))
    found = load(tmp_path / "run")
    assert found is not None
    expected = [32 * dice for dice in history(tmp_path / "run")[-1]["dice_global_per_class"]] if adapt else 1.0
    assert found.state["loss"]["kappa"].tolist() == expected


@pytest.mark.parametrize("follow", [0.5, None])
def test_epsilon_follows_the_validation_and_is_kept(images: Path, tmp_path: Path, follow: float | None) -> None:
    options = {"epochs": 3, "save_every": 0.0, "loss": f"PolyDice1Loss(0.25, follow={follow})"}
    train_until(2, small(images, tmp_path / "run", **options))
    found = load(tmp_path / "run")
    assert found is not None
    expected = [follow * dice for dice in history(tmp_path / "run")[-1]["dice_global_per_class"]] if follow else 0.25
    assert found.state["loss"]["epsilon"].tolist() == expected


# What is no number


def left_out_at_first(batches: Batches) -> tuple[int, int, Batch]:
    """An item that the first epoch leaves out and the second has, with its step and batch."""
    first = {item for batch in batches.epoch(0) for item in batch.items.tolist()}
    for step, batch in enumerate(batches.epoch(1), start=len(batches) + 1):
        for item in batch.items.tolist():
            if item not in first:
                return item, step, batch
    raise AssertionError("the first epoch has every item")


def test_a_nan_stops_the_run_and_names_step_cases_and_checkpoint(volumes: Path, tmp_path: Path) -> None:
    settings = small(volumes, tmp_path / "run", batch=16, epochs=3, save_every=0.0, size=20, folds=3)
    train(replace(settings, out=tmp_path / "whole"))
    batches = training_batches(settings)
    item, step, batch = left_out_at_first(batches)
    prepared = batches.prepared
    with spoilt(prepared, item), pytest.raises(TrainingError) as caught:
        train(settings)
    cases = sorted({prepared.cases[prepared.case_of[other]].id for other in batch.items.tolist()})
    assert len(cases) < len(prepared.cases) // 3 * 2  # not simply all
    assert str(caught.value) == (
        f"the loss became nan at step {step} (epoch 2), on a batch of {', '.join(cases)}; "
        f"the last good checkpoint is {tmp_path / 'run' / 'checkpoint-000001'}, after epoch 1"
    )
    train(replace(settings, resume=True))  # the image is mended, and the run goes on as if nothing had happened
    assert ended(tmp_path / "run") == ended(tmp_path / "whole")


def test_a_long_epoch_is_looked_at_in_its_middle(
    volumes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = small(volumes, tmp_path / "run", batch=8, epochs=1, size=20, folds=3)
    batches = training_batches(settings)
    monkeypatch.setattr("polydice.training.loop.LOOK", 2)
    monkeypatch.setattr("polydice.training.loop.validate", None)  # is not reached
    with spoilt(batches.prepared, int(next(batches.epoch(0)).items[0])), pytest.raises(TrainingError, match="step 1 "):
        train(settings)


def test_a_nan_at_the_end_of_an_epoch_is_not_taken_for_one_of_the_next(
    volumes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The epoch is looked at before its last step, and the next epoch has no numbers either."""
    settings = small(volumes, tmp_path / "run", batch=8, epochs=2, size=20, folds=3)
    batches = training_batches(settings)
    steps = len(batches)
    *earlier, last = batches.epoch(0)
    seen = {item for batch in earlier for item in batch.items.tolist()}
    item = next(item for item in last.items.tolist() if item not in seen)
    monkeypatch.setattr("polydice.training.loop.LOOK", steps - 1)
    with spoilt(batches.prepared, item), pytest.raises(TrainingError, match=rf"at step {steps} \(epoch 1\)"):
        train(settings)


def test_weights_that_the_last_step_has_spoilt_are_never_saved(images: Path, tmp_path: Path) -> None:
    """The only loss was a number, but no float32 can hold a weight that is moved by 1e40 times itself."""
    settings = small(images, tmp_path / "run", batch=15, epochs=1, rate=1e38, decay=100.0, save_every=0.0)
    with pytest.raises(TrainingError) as caught:
        train(settings)
    cases = json.loads((tmp_path / "run" / "folds.json").read_text())[0]["train"]
    assert str(caught.value) == (
        f"the gradient or the weights became infinite or NaN at step 1 (epoch 1), on a batch of {', '.join(cases)}; "
        "the last good checkpoint is none: nothing was saved yet"
    )
    assert sorted(os.listdir(tmp_path / "run")) == ["folds.json", "settings.json"]


# Volumes


@pytest.mark.parametrize("patch", [(16, 16, 16), (24, 16, 24), None])
def test_volumes_are_trained_on_in_patches_and_tested_whole(
    volumes: Path, tmp_path: Path, patch: tuple[int, int, int] | None
) -> None:
    """Patches that are smaller than the volumes of 20³, larger along two axes, and what holds them all: 32³."""
    settings = small(volumes, tmp_path / "run", model="unet3d", patch=patch, batch=2, epochs=2, folds=3, rate=0.1)
    result = train(replace(settings, surfaces=True))
    assert result["patch"] == (patch or (32, 32, 32))
    assert np.sum([case["confusion"] for case in result["cases"]], (1, 2)).tolist() == [20**3] * 3
    assert result["test"]["surface"]["unit"] == "mm"
    rows = history(tmp_path / "run")
    assert rows[1]["loss"] < rows[0]["loss"]


def test_volumes_are_trained_on_with_deep_supervision(volumes: Path, tmp_path: Path) -> None:
    options = {"width": 4, "depth": 2, "deep_supervision": True}
    settings = small(volumes, tmp_path / "run", model="dynunet", patch=(16, 16, 16), batch=2, epochs=2, folds=3,
                     rate=0.1, **options)  # fmt: skip
    assert train(settings)["model"] == {"name": "dynunet", "channels": 1, "classes": 2, "options": options}
    rows = history(tmp_path / "run")
    assert rows[1]["loss"] < rows[0]["loss"]


# What is trained on


def with_void(folder: Path, images: Path, void: int) -> Path:
    """The images, with masks of 0 and 1 that have a margin without a label."""
    for kind in ("images", "masks"):
        (folder / kind).mkdir(parents=True)
    for case in open_dataset(images).cases:
        shutil.copy(case.images[0], folder / "images")
        mask = (read_mask(case.masks[0]) > 0).astype(np.uint8)
        mask[:6] = void
        Image.fromarray(mask).save(folder / "masks" / case.masks[0].name)
    return folder


def test_pixels_without_a_label_are_neither_trained_on_nor_scored(images: Path, tmp_path: Path) -> None:
    """The same run, whatever the label is that they have; and 26 of 32 rows are counted."""
    options = {"epochs": 2, "loss": "DiceLoss(batch=True) + CrossEntropyLoss()", "surfaces": True, "rotation": 0.0}
    results = [
        train(
            small(
                with_void(tmp_path / f"{void}" / "set", images, void), tmp_path / f"run{void}", ignore=void, **options
            )
        )
        for void in (255, 77)
    ]
    assert results[0]["test"] == results[1]["test"]
    assert torch.equal(weights(tmp_path / "run255"), weights(tmp_path / "run77"))
    for case in results[0]["cases"]:
        assert torch.tensor(case["confusion"]).sum() == 26 * 32
    assert results[0]["used"]["ignore"] == 255
    with pytest.raises(ValueError, match="give --ignore 255"):
        train(small(tmp_path / "255" / "set", tmp_path / "refused", **options))


def test_the_result_says_what_was_used(images: Path, tmp_path: Path) -> None:
    folder = tmp_path / "set"
    shutil.copytree(images, folder)
    told: list[Dataset] = []
    for path in sorted((folder / "masks").iterdir())[:3]:
        path.write_bytes(b"")
    with pytest.raises(ValueError, match=f"polydice data {folder}"):
        train(small(folder, tmp_path / "run", epochs=1), told.append)
    assert not told
    result = train(small(folder, tmp_path / "run", epochs=1, skip_errors=True), told.append)
    assert result["used"] == {
        "cases": 22, "of": 25, "groups": 22, "classes": ["background", "lesion 1"], "ignore": None
    }  # fmt: skip
    assert json.loads((tmp_path / "run" / "result.json").read_text())["used"] == result["used"]
    assert [len(dataset.cases) for dataset in told] == [22]
