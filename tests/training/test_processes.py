import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from polydice.models import build
from polydice.training.checkpoint import load_weights
from polydice.training.config import Settings
from polydice.training.loop import TrainingError, train
from polydice.training.processes import joined
from tests.training.runs import ROOT, ended, free_port, history, options, python, small, training_batches, weights

# Two processes add up a batch's gradient in another order than one does. A sum of n float32 numbers of one sign is off
# by √n/2 units in the last place, 6e-8, on average; here n is 4·32·32 pixels, so a gradient is off by 2e-6 of itself,
# and so is the path that the weights take. What layers pass on to each other, and steps to the next ones, may leave
# five times that. A loss that is not shared, or shared twice, is off by the whole of it.
PATH = 1e-5

RUNS = {  # no batch norm, whose statistics are each process's own on a CPU; 15 images train, 5 validate: an odd number
    "batch": {"norm": "instance", "loss": "PolyDice1Loss(0.5, batch=True) + CrossEntropyLoss()"},
    "image": {"norm": "instance", "loss": "DiceLoss(batch=False)"},
    "mixed": {"norm": "instance", "loss": "DiceLoss() + 0.5 * CrossEntropyLoss(weight=[1, 3])"},
    "clipped": {"norm": "instance", "loss": "TvMFDiceLoss(kappa=2.0, batch=True)", "clip": 0.1},
    "deep": {"norm": "instance", "deep_supervision": True, "head": "fused"},
    "annotated": {"norm": "instance", "loss": "DiceLoss(batch=True) + CrossEntropyLoss()"},  # its own data
    "stopped": {"save_every": 0.0, "epochs": 8},
    "norms": {"batch": 14, "epochs": 1},
}
COMMON: dict[str, Any] = {"epochs": 2, "rate": 0.05}


def with_a_nan(volumes: Path, out: Path) -> Settings:
    """A run whose third batch holds, in the half of the second process, a slice that is to be spoilt."""
    return small(volumes, out, batch=8, epochs=1, size=20, folds=3, loss="DiceLoss()")


@pytest.fixture(scope="module")
def trained(images: Path, volumes: Path, partly: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every run, by two processes; `resumed` was killed in its first epochs, and resumed; `begun` is what
    the killing left. In `nan` a slice is NaN, and `refused` is to be trained without `resume`: what the processes say
    is in a file."""
    folder = tmp_path_factory.mktemp("together")
    python(
        "import json\n"
        "from dataclasses import replace\n"
        "from tests.training.test_processes import with_a_nan\n"
        "data, volumes, partly, folder, runs = *map(Path, sys.argv[1:5]), json.loads(sys.argv[5])\n"
        "for name, options in runs.items():\n"
        "    place = partly if name == 'annotated' else data\n"
        "    assert wait(fork_together(small(place, folder / name, **options))), name\n"
        "\n"
        "settings = small(data, folder / 'resumed', **runs['stopped'])\n"
        "children = fork_together(settings)\n"
        "while not (settings.out / 'last.safetensors').exists(): time.sleep(0.005)\n"
        "for child in children: os.kill(child, signal.SIGKILL)\n"
        "wait(children)\n"
        "assert not (settings.out / 'result.json').exists()\n"
        "shutil.copytree(settings.out, folder / 'begun')\n"
        "assert wait(fork_together(replace(settings, resume=True)))\n"
        "\n"
        "def all_fail(settings, said):\n"
        "    os.dup2(os.open(said, os.O_CREAT | os.O_WRONLY), 2)\n"
        "    assert all([os.waitpid(child, 0)[1] for child in fork_together(settings)])\n"
        "settings = with_a_nan(volumes, folder / 'nan')\n"
        "batches = training_batches(settings)\n"
        "with spoilt(batches.prepared, list(batches.epoch(0))[2].items[-1]):\n"
        "    all_fail(settings, folder / 'nan.txt')\n"
        "all_fail(small(data, folder / 'batch'), folder / 'refused.txt')\n",
        images,
        volumes,
        partly,
        folder,
        json.dumps({name: COMMON | given for name, given in RUNS.items()}),
    )
    return folder


@pytest.mark.parametrize("name", ["batch", "image", "mixed", "clipped", "deep", "annotated"])
def test_two_processes_train_to_the_weights_of_one(
    name: str, trained: Path, images: Path, partly: Path, tmp_path: Path
) -> None:
    data, classes = (partly, 3) if name == "annotated" else (images, 2)
    result = train(small(data, tmp_path / "one", **COMMON, **RUNS[name]))
    torch.manual_seed(0)
    options = {"deep_supervision": True} if name == "deep" else {}
    model = build("unet", 1, classes, width=4, depth=2, norm="instance", **options)
    start = torch.cat([model.state_dict()[key].flatten().double() for key in sorted(model.state_dict())])
    one, two = weights(tmp_path / "one"), weights(trained / name)
    assert float((two - one).norm()) < PATH * float((one - start).norm())
    for ours, theirs in zip(history(trained / name), history(tmp_path / "one"), strict=True):
        assert ours.keys() == theirs.keys()
        assert (ours["epoch"], ours["step"], ours["rate"]) == (theirs["epoch"], theirs["step"], theirs["rate"])
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=PATH)
        # A pixel on the border between two classes may fall to the other side.
        assert ours["dice_global"] == pytest.approx(theirs["dice_global"], abs=1e-3)
    tested = json.loads((trained / name / "result.json").read_text())
    assert [case["id"] for case in tested["cases"]] == [case["id"] for case in result["cases"]]
    assert tested["test"]["dice_global"] == pytest.approx(result["test"]["dice_global"], abs=1e-3)


def test_two_processes_that_are_killed_and_resumed_end_the_same(trained: Path) -> None:
    """With batch norms, whose statistics are of each process's images, and shared after an epoch."""
    assert ended(trained / "resumed") == ended(trained / "stopped")


def test_another_number_of_processes_does_not_go_on_with_a_run(trained: Path, images: Path) -> None:
    settings = small(images, trained / "begun", **COMMON | RUNS["stopped"], resume=True)
    with pytest.raises(
        TrainingError, match=r"begun holds a run of 2 processes, .* with 1: resume it with 2 \(torchrun"
    ):
        train(settings)
    assert not (trained / "begun" / "result.json").exists()


def test_batch_norms_have_seen_the_images_of_both(trained: Path, images: Path, tmp_path: Path) -> None:
    """After one step, the mean of the first norm's input is that of the whole batch."""
    train(small(images, tmp_path / "one", **COMMON | RUNS["norms"]))
    (one, _), (two, _) = (load_weights(out / "last.safetensors") for out in (tmp_path / "one", trained / "norms"))
    torch.testing.assert_close(two["down.0.1.running_mean"], one["down.0.1.running_mean"])
    assert float(one["down.0.1.running_mean"].abs().max()) > 1e-3


def test_a_nan_in_one_process_stops_both_and_names_the_whole_batch(trained: Path, volumes: Path) -> None:
    batches = training_batches(with_a_nan(volumes, trained))
    prepared, batch = batches.prepared, list(batches.epoch(0))[2]
    cases = ", ".join(sorted({prepared.cases[prepared.case_of[item]].id for item in batch.items}))
    expected = f"TrainingError: the loss became nan at step 3 (epoch 1), on a batch of {cases}; the last good"
    assert (trained / "nan.txt").read_text().count(expected) == 2


def test_what_one_process_refuses_ends_the_others_with_one_line(trained: Path) -> None:
    """The first one sees that the folder holds a run, and leaves."""
    said = (trained / "refused.txt").read_text()
    assert said.count(f"TrainingError: {trained / 'batch'} holds a run: --resume goes on with it") == 1
    assert said.count("ConnectionError: another process of this run has ended, and says why") == 1


def test_torchrun_trains_one_run(images: Path, tmp_path: Path, trained: Path) -> None:
    settings = small(images, tmp_path / "run", **COMMON, **RUNS["batch"])
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
    command += ["-m", "polydice", "train", *options(settings)]
    paths = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, capture_output=True, text=True, env=os.environ | paths)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("test cases") == 1  # the first process alone speaks
    assert ended(tmp_path / "run") == ended(trained / "batch")


def test_a_process_by_itself() -> None:
    with joined("cpu") as process:
        assert (process.rank, process.world, process.first) == (0, 1, True)
        assert process.of_first(3) == 3
        assert process.of_all(3) == [3]
        tensor, module = torch.ones(2), torch.nn.BatchNorm2d(1)
        assert process.total(tensor) is tensor
        assert process.together(module) is module


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:3", "quantum"])
def test_a_device_that_is_not_there_is_named(device: str) -> None:
    with pytest.raises(ValueError, match=f"^device '{device}' cannot be used: .+$"), joined(device):
        pass
