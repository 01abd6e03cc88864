"""The command line of the benchmarks."""

import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from benchmarks.loss import run, run_check
from benchmarks.sizes import parse_size


def main(arguments: Sequence[str]) -> int:
    parser = ArgumentParser("python -m benchmarks", description="Speed and memory of the losses against their peers.")
    loss = parser.add_subparsers(dest="command", required=True).add_parser(
        "loss", help="one loss, forward and backward, for each size and each library that is installed"
    )
    loss.add_argument("--device", choices=["cpu", "cuda"], required=True)
    loss.add_argument("--out", type=Path, metavar="DIR", help="where to write (default: results/loss-speed/DEVICE)")
    loss.add_argument("--sizes", type=parse_size, nargs="+", metavar="SIZE", help="such as 2x14x96x96x96:bfloat16")
    loss.add_argument("--quick", action="store_true", help="few repetitions: to see that it works")
    loss.add_argument("--check", action="store_true", help="only whether the limits for a CPU are kept; else exit 1")
    given = parser.parse_args(arguments)
    if given.check:
        if given.device != "cpu" or given.sizes or given.out:
            parser.error("--check has its own sizes, on --device cpu, and writes nothing")
        return run_check(given.quick)
    out = given.out or Path("results", "loss-speed", given.device)
    return run(given.device, out, given.sizes, given.quick, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
