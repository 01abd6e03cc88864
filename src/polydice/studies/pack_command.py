"""`polydice pack`: the runs of a study in one file."""

import sys
from pathlib import Path
from typing import Annotated

import tyro


def pack(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")],
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None,
) -> int:
    """Puts the runs of a study into one file, runs.jsonl.gz, from which it is reported on, pooled and gone on with.

    The record has all that reports need of a run that is finished, or that has diverged; what is left out is said. Runs
    that the record has already stay in it, so that more can be added later. Nothing is removed: once packed, the folder
    `runs` of the study is needed for its weights alone. The exit status is 2 if nothing could be packed, and else 0.

    Example: polydice pack runs/mine

    Example: polydice pack runs/mine --out results/mine

    Args:
        folder: the folder of the study.
        out: the folder of the record. If not given, the study's own. Another folder gets recipe.toml, study.json and
            chosen.json too, without paths of this machine: it is what to hand on, or to keep.
    """
    from polydice.studies.pack import pack
    from polydice.studies.study import open_study

    try:
        packed = pack(open_study(folder), out or folder)
    except (OSError, ValueError) as problem:
        print(f"polydice pack: {problem}", file=sys.stderr)
        return 2
    for line in packed.left_out:
        print(f"left out: {line}", file=sys.stderr)
    print(f"{packed.runs} runs, {packed.new} of them new", file=sys.stderr)
    print(packed.record)
    return 0
