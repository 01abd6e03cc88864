"""How figures look: one colour per family of losses, one set of rcParams, and files that are the same every time."""

from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure

# After Okabe and Ito: told apart by the colour-blind, and by lightness in print.
COLOURS = {
    "DiceLoss": "#000000",
    "DropDiceLoss": "#0072B2",
    "PolyDice1Loss": "#D55E00",
    "PolyDiceLoss": "#D55E00",
    "TvMFDiceLoss": "#CC79A7",
    "TverskyLoss": "#009E73",
    "FocalTverskyLoss": "#56B4E9",
    "CrossEntropyLoss": "#7F7F7F",
    "PolyCE1Loss": "#E69F00",
    "FocalLoss": "#8B5E3C",
}
MORE = ("#882255", "#44AA99", "#332288", "#999933")  # after Tol, for what is of no family
INK, GREY, FAINT = "#333333", "#666666", "#F0F0F0"  # what belongs to no loss: drawn, said beside it, and areas

# Figures are drawn inside `with rc_context(RC):`, so that nobody else's are changed.
RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 10,
    "mathtext.fontset": "stix",
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.labelsize": 10,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "lines.linewidth": 2,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
    "savefig.dpi": 200,
    "svg.hashsalt": "polydice",  # names inside the file are made from it, not at random
}


def shades(colour: str, count: int) -> list[str]:
    """`count` shades of a family's colour, from light to dark; one is the colour itself.

    >>> shades("#0072B2", 3)
    ['#55a1cc', '#0072b2', '#003959']
    """
    steps = [(2 * index + 1) / count - 1 for index in range(count)]
    return [mixed(colour, "white", -step / 2) if step < 0 else mixed(colour, "black", 0.75 * step) for step in steps]


def mixed(colour: str, other: str, share: float) -> str:
    """A colour with a share of another in it.

    >>> mixed("#0072B2", "white", 0.5)
    '#80b8d8'
    """
    red, green, blue = (
        (1 - share) * own + share * part for own, part in zip(to_rgb(colour), to_rgb(other), strict=True)
    )
    return to_hex((red, green, blue))


def save(figure: Figure, path: Path) -> list[Path]:
    """Writes `path`.svg and `path`.png: the same bytes for the same figure, as they carry no date."""
    svg, png = path.with_name(f"{path.name}.svg"), path.with_name(f"{path.name}.png")
    with rc_context(RC):
        figure.savefig(svg, metadata={"Date": None})
        figure.savefig(png, metadata={"Software": None})
    return [svg, png]
