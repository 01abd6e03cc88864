"""`polydice predict`: label maps of images and volumes."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from polydice.training.config import Precision
from polydice.values import Count


def predict(
    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")],
    inputs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="INPUT ...")],
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    overlay: bool = False,
    flips: bool = False,
    device: str | None = None,
    precision: Precision | None = None,
    batch: Count | None = None,
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Segments images and volumes of any size: a label map for each, in its own size, geometry and format.

    PNG, JPEG, BMP and GIF give an 8-bit PNG, TIFF gives TIFF, NIfTI gives NIfTI with the same matrices. The values are
    the numbers of the classes, so a map of 0 and 1 looks black: --overlay shows what is in it. A network for slices
    takes volumes slice by slice. The channels of one case are files CASE_0000, CASE_0001, ..., or one file. Of a folder
    with dataset.json, as nnU-Net and the Decathlon have it, the images in imagesTs are taken.

    The exit status is 1 if some inputs could not be used (the others are done), 2 if nothing could be, and else 0.

    Example: polydice predict runs/cvc frames/ --out labels --overlay

    Example: polydice predict runs/hippocampus scan.nii.gz --out labels --flips

    Args:
        checkpoint: the folder of a training run, for the weights that count in it, or a file of weights in it.
        inputs: PNG, JPEG, TIFF, BMP, GIF or NIfTI files, folders of them, and data sets with imagesTs.
        out: where the label maps go.
        overlay: also NAME_overlay.png, outlines on the image; of a volume, on the slice with most foreground.
        flips: average over all flips of the image: 4 times the work in 2D, 8 times in 3D.
        device: cpu, cuda or cuda:N. If not given, a GPU where there is one.
        precision: float32, bfloat16, or auto: bfloat16 on a GPU. If not given, as the network was trained.
        batch: images, slices or windows at a time. If not given 8, or 2 windows.
        json_output: print the label maps, and what could not be used, as JSON.
    """
    import torch

    from polydice.data.cases import DataError
    from polydice.training import predict as library
    from polydice.training.checkpoint import CheckpointError

    written: Sequence[Path]
    problems: Sequence[str] = ()
    try:
        written = library.predict(
            checkpoint, inputs, out, overlay=overlay, flips=flips, device=device, precision=precision, batch=batch
        )
    except library.NotAllDoneError as failed:
        written, problems = failed.written, failed.problems
    except torch.OutOfMemoryError:
        print("polydice predict: out of memory: try a smaller --batch, or --device cpu", file=sys.stderr)
        return 2
    except (CheckpointError, DataError, ImportError, OSError, ValueError) as problem:
        print(f"polydice predict: {problem}", file=sys.stderr)
        return 2
    for each in problems:
        print(f"polydice predict: {each}", file=sys.stderr)
    if json_output:
        print(json.dumps({"written": [str(path) for path in written], "problems": [*problems]}, indent=1))
    else:
        of = f" of {len(written) + len(problems)}" if problems else ""
        print(f"{out}: {len(written)}{of} label map{'s' * (bool(problems) or len(written) != 1)}")
    return 1 if problems else 0
