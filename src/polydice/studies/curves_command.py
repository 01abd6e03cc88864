"""`polydice curves`: the losses drawn."""

import sys
from pathlib import Path
from typing import Annotated

import tyro


def curves(out: Annotated[Path, tyro.conf.arg(metavar="DIR")] = Path("runs", "curves")) -> int:
    """Draws the losses: the paper's figures and what they leave out, as SVG and PNG, and a page to play with.

    - overview: a mask and a prediction as vectors, Dice as scale and angle, the angle as a polynomial
    - dropdice, polydice1: the paper's Figures 2 and 3, loss against angle, with the reachable range marked
    - gradients: the slopes of these curves
    - fold: where PolyDice-1 rewards a volume mismatch, in the plane of scale and angle
    - losses: all losses of the library against the overlap of mask and prediction
    - explore.html: curves and slopes with sliders for s, K, ε, κ and δ; a browser is all it needs

    Example: polydice curves --out figures

    Args:
        out: where the files go.
    """
    from polydice.studies.curves import write

    try:
        written = write(out)
    except OSError as problem:
        print(f"polydice curves: {problem}", file=sys.stderr)
        return 2
    print("\n".join(map(str, written)))
    return 0
