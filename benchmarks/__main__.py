"""The command line of the benchmarks."""

import shlex
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.head import run as run_head
from benchmarks.loss import run, run_annotated, run_check
from benchmarks.sizes import parse_head_size, parse_size


def main(arguments: Sequence[str]) -> int:
    parser = ArgumentParser("python -m benchmarks", description="Speed and memory against the peers.")
    commands = parser.add_subparsers(dest="command", required=True)
    loss = commands.add_parser(
        "loss", help="one loss, forward and backward, for each size and each library that is installed"
    )
    data = commands.add_parser("data", help="augmented batches of images and of patches; on a CPU against MONAI")
    head = commands.add_parser("head", help="a network's last convolution and the loss, together and apart")
    nnunet = commands.add_parser("nnunet", help="the loss of nnU-Net's trainer, its own and with our Dice in it")
    train = commands.add_parser("train", help="the U-Net's training, validation every second epoch included")
    step = commands.add_parser(
        "step", help="a training step of a 3D network with 118 classes, its head in the loss and apart"
    )
    predict = commands.add_parser("predict", help="the label map of 384³ voxels with 118 classes")
    train.add_argument("--data", type=Path, metavar="DIR", required=True, help="folder of a data set of images")
    of_a_device = {"loss": loss, "head": head, "data": data, "nnunet": nnunet, "train": train}
    for name, command in (of_a_device | {"step": step, "predict": predict}).items():
        where = f"where to write (default: results/{name}-speed/DEVICE)"
        command.add_argument("--device", choices=["cpu", "cuda"], required=True)
        command.add_argument("--out", type=Path, metavar="DIR", help=where)
        command.add_argument("--quick", action="store_true", help="few repetitions: to see that it works")
    steady = commands.add_parser(
        "steady", help="a loss as it is called against cross-entropy, in one fresh process after another"
    )
    steady.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="(default: cpu)")
    steady.add_argument("--processes", type=int, default=20, metavar="N", help="how many (default: 20)")
    steady.add_argument("--busy", type=int, default=0, metavar="N", help="as many others keep the cores busy meanwhile")
    steady.add_argument("--masks", action="store_true", help="sigmoid and masks, against binary cross-entropy")
    steady.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: results/loss-speed/DEVICE)")
    steady.add_argument("--quick", action="store_true", help="few repetitions: to see that it works")
    channels = partial(parse_size, least=1)
    steady.add_argument("--sizes", type=channels, nargs="+", metavar="SIZE", help="such as 24x9x224x224")
    loss.add_argument("--sizes", type=parse_size, nargs="+", metavar="SIZE", help="such as 2x14x96x96x96:bfloat16")
    head.add_argument(
        "--sizes", type=parse_head_size, nargs="+", metavar="SIZE", help="such as 2x32-14x96x96x96:bfloat16"
    )
    loss.add_argument("--only", nargs="+", metavar="NAME", help="of all that could be measured, as the table names it")
    loss.add_argument("--check", action="store_true", help="only whether the limits for a CPU are kept; else exit 1")
    loss.add_argument("--annotated", action="store_true", help="only what it costs to say which classes are annotated")
    given = parser.parse_args(arguments)
    if given.command == "loss" and given.check:
        if given.device != "cpu" or given.sizes or given.out or given.annotated or given.only:
            parser.error("--check has its own sizes and losses, on --device cpu, and writes nothing")
        return run_check(given.quick)
    if given.command == "steady":
        from benchmarks.steady import run as run_steady

        out = given.out or Path("results", "loss-speed", given.device)
        out.mkdir(parents=True, exist_ok=True)
        return run_steady(given.device, out, given.sizes, given.processes, given.busy, given.masks, given.quick)
    measures = "annotated" if given.command == "loss" and given.annotated else given.command
    out = given.out or Path("results", f"{measures}-speed", given.device)
    if given.command == "nnunet":
        from benchmarks.nnunet_loss import run as run_nnunet  # it needs nnU-Net, or its loss classes

        measured = partial(run_nnunet, given.device, out, given.quick)
    elif given.command == "head":
        measured = partial(run_head, given.device, out, given.sizes, given.quick)
    elif given.command == "data":
        from benchmarks.data import run as run_data  # it needs the study extra, which the losses do not

        measured = partial(run_data, given.device, out, given.quick)
    elif given.command == "step":
        from benchmarks.step import run as run_step  # as above

        measured = partial(run_step, given.device, out, given.quick)
    elif given.command == "predict":
        from benchmarks.predict import run as run_predict  # as above

        measured = partial(run_predict, given.device, out, given.quick)
    elif given.command == "train":
        from benchmarks.train import run as run_train  # as above

        measured = partial(run_train, given.device, given.data, out, given.quick)
    elif measures == "annotated":
        measured = partial(run_annotated, given.device, out, given.sizes, given.quick)
    else:
        measured = partial(run, given.device, out, given.sizes, given.quick, given.only)
    out.mkdir(parents=True, exist_ok=True)
    (out / "command.txt").write_text(shlex.join(["python", "-m", "benchmarks", *arguments]) + "\n")
    return measured()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
