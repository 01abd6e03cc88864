"""The command line. It must answer --help at once, so it imports nothing heavy by itself."""

import argparse
from collections.abc import Sequence

from polydice import __version__

DESCRIPTION = """\
Polynomial Dice losses for medical image segmentation.

polydice is a library; in a training script:

    from polydice import PolyDice1Loss
    loss = PolyDice1Loss(epsilon=0.2)
    loss(logits, labels).backward()
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "polydice", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"polydice {__version__}")
    parser.parse_args(arguments)
    parser.print_help()
    return 0
