"""`polydice predict`: label maps of images and volumes."""

import sys
from pathlib import Path
from typing import Annotated

import tyro


def predict(
    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")],
    inputs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="INPUT ...")],
    out: Annotated[Path, tyro.conf.arg(metavar="DIR")],
    overlay: bool = False,
    flips: bool = False,
    device: str | None = None,
    batch: int = 8,
) -> int:
    """Segments images and volumes of any size: a label map for each, in its own size, geometry and format.

    PNG, JPEG and BMP give an 8-bit PNG, TIFF gives TIFF, NIfTI gives NIfTI with the same matrices. The values are the
    numbers of the classes, so a map of 0 and 1 looks black: --overlay shows what is in it. A network for slices takes
    volumes slice by slice. The channels of one case are files CASE_0000, CASE_0001, ..., or one file.

    The exit status is 1 if some inputs could not be used (the others are done), 2 if nothing could be, and else 0.

    Args:
        checkpoint: the folder of a training run, or a file of weights in it.
        inputs: PNG, JPEG, TIFF, BMP or NIfTI files, and folders of them.
        out: where the label maps go.
        overlay: also NAME_overlay.png, outlines on the image; of a volume, on the slice with most foreground.
        flips: average over all flips of the image: 4 times the work in 2D, 8 times in 3D.
        device: cpu, cuda or cuda:N. If not given, a GPU where there is one.
        batch: images, slices or windows at a time.
    """
    import torch

    from polydice.data.cases import DataError
    from polydice.training import predict as library
    from polydice.training.checkpoint import CheckpointError

    try:
        written = library.predict(checkpoint, inputs, out, overlay=overlay, flips=flips, device=device, batch=batch)
    except library.NotAllDoneError as failed:
        print("\n".join(f"polydice predict: {problem}" for problem in failed.problems), file=sys.stderr)
        print(f"{out}: {len(failed.written)} of {len(failed.written) + len(failed.problems)} label maps")
        return 1
    except torch.OutOfMemoryError:
        print("polydice predict: out of memory: try a smaller --batch, or --device cpu", file=sys.stderr)
        return 2
    except (CheckpointError, DataError, ImportError, OSError, ValueError) as problem:
        print(f"polydice predict: {problem}", file=sys.stderr)
        return 2
    print(f"{out}: {len(written)} label map{'s' * (len(written) != 1)}")
    return 0
