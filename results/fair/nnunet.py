"""nnU-Net's own training on Hippocampus, with its loss and with ours: step 4 of PLAN.md. From the repository's root:

    python results/fair/nnunet.py prepare ../shared/data/Task04_Hippocampus runs/nnunet
    python results/fair/nnunet.py train runs/nnunet nnUNetTrainer nnUNetTrainerTvMFCE --out records.jsonl
    python results/fair/nnunet.py show records.jsonl

`prepare` makes nnU-Net's plan, its preprocessed volumes and five folds that keep people whole; it needs no GPU. `train`
trains each trainer on each fold as nnU-Net does (3d_fullres: its augmentation, deep supervision, optimiser and
schedule), for fewer epochs and iterations than its 1000 and 250, several at a time, and counts the voxels of the fold's
validation cases. A run that is recorded is not made again, and one that was stopped goes on from its last checkpoint.
What a run prints is in the folder `logs`; the end of it is shown if the run fails.
`show` prints the Dice of every trainer, and the differences to the first, fold by fold.

A record is a line: trainer, fold, what was trained, and `voxels`: of each case and class, how many were found and are
true, found, and true. The spacing of Hippocampus is what nnU-Net plans: its volumes are not resampled, and the voxels
of the preprocessed grid are those of the files.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from itertools import product
from pathlib import Path
from statistics import fmean
from time import monotonic, sleep
from typing import Any

SET, CONFIGURATION, FOLDS = "Dataset004_Hippocampus", "3d_fullres", 5
OWN = "nnUNetTrainer"  # with its default, Dice + cross-entropy
LABELS = {"background": 0, "anterior": 1, "posterior": 2}


def places(home: Path) -> None:
    """Where nnU-Net looks, of this process and those that it starts."""
    for name in ("raw", "preprocessed", "results"):
        os.environ[f"nnUNet_{name}"] = str(home.resolve() / name)


def prepare(data: Path, home: Path) -> None:
    from polydice.data.folds import split
    from polydice.data.readers import open_dataset

    places(home)
    found, raw = open_dataset(data), home / "raw" / SET
    for part in ("imagesTr", "labelsTr"):
        (raw / part).mkdir(parents=True, exist_ok=True)
    for case in found.cases:
        shutil.copy(case.images[0], raw / "imagesTr" / f"{case.id}_0000.nii.gz")
        shutil.copy(case.masks[0], raw / "labelsTr" / f"{case.id}.nii.gz")
    about = {"channel_names": {"0": "MRI"}, "labels": LABELS, "numTraining": len(found.cases), "file_ending": ".nii.gz"}
    (raw / "dataset.json").write_text(json.dumps(about))
    plan = Path(sys.executable).with_name("nnUNetv2_plan_and_preprocess")
    subprocess.run([plan, "-d", "4", "-c", CONFIGURATION], check=True)
    parts = [{found.cases[place].id for place in fold.test} for fold in split(found.cases, folds=FOLDS)]
    everyone = sorted(case.id for case in found.cases)
    folds = [{"train": [case for case in everyone if case not in part], "val": sorted(part)} for part in parts]
    (home / "preprocessed" / SET / "splits_final.json").write_text(json.dumps(folds))


def train(
    home: Path, trainers: list[str], folds: list[int], out: Path, jobs: int, seconds: float, settings: list[str]
) -> None:
    """So many runs at a time; after so many seconds what still runs is stopped, to go on the next time."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    places(home)
    os.environ.setdefault("nnUNet_compile", "0")  # it would take longer than these runs gain by it
    os.environ.setdefault("nnUNet_n_proc_DA", str(max(1, len(os.sched_getaffinity(0)) // jobs)))
    for record in recorded(out).values():
        if not {f"--epochs={record['epochs']}", f"--iterations={record['iterations']}"} <= set(settings):
            sys.exit(
                f"{out} has runs of {record['epochs']} epochs of {record['iterations']} iterations: take another file"
            )
    start, failed = monotonic(), 0
    running: dict[str, subprocess.Popen[bytes]] = {}
    waiting = [(trainer, fold) for fold, trainer in product(folds, trainers)]
    waiting = [run for run in waiting if run not in recorded(out)]
    logs = home / "logs"
    logs.mkdir(exist_ok=True)
    try:
        while (waiting or running) and monotonic() - start < seconds:
            while waiting and len(running) < jobs:
                trainer, fold = waiting.pop(0)
                command = [sys.executable, __file__, "one", str(home), trainer, str(fold), str(out), *settings]
                with (logs / f"{trainer}-{fold}.txt").open("ab") as log:
                    running[log.name] = subprocess.Popen(
                        command, start_new_session=True, stdout=log, stderr=subprocess.STDOUT
                    )
            sleep(0.5)
            for name in [name for name, process in running.items() if process.poll() is not None]:
                if running.pop(name).returncode:
                    failed += 1
                    print(f"{name}:", *last_lines(Path(name)), sep="\n  ", file=sys.stderr, flush=True)
    finally:
        for process in running.values():
            os.killpg(process.pid, signal.SIGKILL)  # also the processes that augment for it
    print(f"{monotonic() - start:.0f} s, {len(recorded(out))} runs recorded; ", end="")
    print(f"now {failed} failed, {len(running)} were stopped, {len(waiting)} have not begun")


def last_lines(file: Path, count: int = 15) -> list[str]:
    with file.open(errors="replace") as lines:
        return [line.rstrip() for line in deque(lines, count)]


def one(home: Path, name: str, fold: int, out: Path, epochs: int, iterations: int, device: str) -> None:
    import torch
    from nnunetv2.run.run_training import get_trainer_from_args, maybe_load_checkpoint

    from polydice.integrations.nnunet import FOLDER

    places(home)
    os.environ["nnUNet_extTrainer"] = FOLDER  # noqa: SIM112
    torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
    trainer: Any = get_trainer_from_args(
        "4", CONFIGURATION, fold, name, continue_training=True, device=torch.device(device)
    )
    trainer.num_epochs, trainer.num_iterations_per_epoch = epochs, iterations
    trainer.num_val_iterations_per_epoch, trainer.save_every = max(1, iterations // 5), 5
    trainer.logger.plot_progress_png = lambda _: None
    save = trainer.save_checkpoint

    def save_whole(file: str) -> None:
        """Or not at all: a run may be stopped at any moment."""
        save(f"{file}.part")
        os.replace(f"{file}.part", file)

    trainer.save_checkpoint = save_whole
    torch.manual_seed(fold)  # the same weights to begin with, for all trainers
    maybe_load_checkpoint(trainer, True, False)
    trainer.run_training()
    log = trainer.logger.local_logger.my_fantastic_logging
    times = zip(log["epoch_start_timestamps"], log["epoch_end_timestamps"], strict=True)
    record = {
        "trainer": name, "fold": fold, "epochs": epochs, "iterations": iterations, "torch": torch.__version__,
        "seconds": round(sum(end - begin for begin, end in times)),
        "pseudo_dice": [round(float(value), 4) for value in log["mean_fg_dice"]],
        "voxels": voxels(trainer),
    }  # fmt: skip
    with out.open("a") as file:
        file.write(json.dumps(record, separators=(",", ":")) + "\n")


def voxels(trainer: Any) -> dict[str, list[list[int]]]:
    """Of every validation case and class: found and true, found, true. Predicted as nnU-Net validates."""
    import torch
    from nnunetv2.inference.predict_from_raw_data import nnUNetPredictor

    trainer.set_deep_supervision_enabled(False)
    trainer.network.eval()
    predictor = nnUNetPredictor(device=trainer.device, verbose=False, allow_tqdm=False)
    predictor.manual_initialization(
        trainer.network, trainer.plans_manager, trainer.configuration_manager, None, trainer.dataset_json,
        type(trainer).__name__, trainer.inference_allowed_mirroring_axes,
    )  # fmt: skip
    counted = {}
    data = trainer.dataset_class(trainer.preprocessed_dataset_folder, trainer.do_split()[1])
    for case in data.identifiers:
        image, labels, _, _ = data.load_case(case)
        logits = predictor.predict_sliding_window_return_logits(torch.from_numpy(image[:]))
        found, true = logits.argmax(0).cpu().numpy(), labels[:][0]
        pairs = [(found == label, true == label) for label in LABELS.values() if label]
        counted[case] = [[int((a & b).sum()), int(a.sum()), int(b.sum())] for a, b in pairs]
    return counted


def recorded(out: Path) -> dict[tuple[str, int], dict[str, Any]]:
    """By trainer and fold, nnU-Net's own trainer first, whichever run has ended first."""
    records = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    records.sort(key=lambda record: (record["trainer"] != OWN, record["trainer"], record["fold"]))
    return {(record["trainer"], record["fold"]): record for record in records}


def dice(counts: list[list[int]]) -> float:
    """The mean over classes, of classes that are there; in points."""
    return 100 * fmean(2 * both / (found + true) for both, found, true in counts if found + true)


def scored(records: dict[tuple[str, int], dict[str, Any]], score: str) -> dict[tuple[str, int], float]:
    """`dice_foreground`, of the voxels of all cases of a fold, or `dice_case`, the mean of the cases."""
    values = {}
    for run, record in records.items():
        cases = list(record["voxels"].values())
        pooled = [[sum(column) for column in zip(*of_class, strict=True)] for of_class in zip(*cases, strict=True)]
        values[run] = dice(pooled) if score == "dice_foreground" else fmean(map(dice, cases))
    return values


def show(out: Path) -> None:
    records = recorded(out)
    trainers = list(dict.fromkeys(trainer for trainer, _ in records))
    for score in ("dice_foreground", "dice_case"):
        print(score)
        values = scored(records, score)
        for trainer in trainers:
            folds = [fold for fold in range(FOLDS) if (trainer, fold) in values]
            paired = [fold for fold in folds if (trainers[0], fold) in values]
            differences = [values[trainer, fold] - values[trainers[0], fold] for fold in paired]
            print(f"  {trainer:45} {fmean(values[trainer, fold] for fold in folds):6.2f}", end="")
            if trainer != trainers[0] and differences:
                each = " ".join(f"{difference:+.2f}" for difference in differences)
                print(f"  {fmean(differences):+.2f} to {trainers[0]}: {each}", end="")
            print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("prepare")
    command.add_argument("data", type=Path)
    command.add_argument("home", type=Path)
    command = commands.add_parser("train")
    command.add_argument("home", type=Path)
    command.add_argument("trainers", nargs="+")
    command.add_argument("--folds", type=int, nargs="+", default=range(FOLDS))
    command.add_argument("--out", type=Path, required=True)
    command.add_argument("--jobs", type=int, default=1)
    command.add_argument("--seconds", type=float, default=float("inf"))
    alone = commands.add_parser("one")  # a run, as `train` starts it
    for name, kind in (("home", Path), ("trainer", str), ("fold", int), ("out", Path)):
        alone.add_argument(name, type=kind)
    for each in (command, alone):
        each.add_argument("--epochs", type=int, default=50)
        each.add_argument("--iterations", type=int, default=50)
        each.add_argument("--device", default="cuda")
    commands.add_parser("show").add_argument("out", type=Path)
    given = parser.parse_args()
    if given.command == "prepare":
        prepare(given.data, given.home)
    elif given.command == "train":
        settings = [f"--{name}={getattr(given, name)}" for name in ("epochs", "iterations", "device")]
        train(given.home, given.trainers, given.folds, given.out, given.jobs, given.seconds, settings)
    elif given.command == "one":
        one(given.home, given.trainer, given.fold, given.out, given.epochs, given.iterations, given.device)
    else:
        show(given.out)


if __name__ == "__main__":
    main()
