"""Writes NAME-dark.png beside a figure on white, for README on a dark page: `python docs/figures/dark.py NAME.png`

Lightness is turned round and hues stay, as on the site (docs/static/site.css). What was white is clear.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image


def main(path: Path) -> None:
    light = np.asarray(Image.open(path).convert("RGB"), dtype=np.int32)
    highest, lowest = light.max(2, keepdims=True), light.min(2, keepdims=True)
    dark = light + 255 - (highest + lowest)  # HSL's lightness is the mean of the two
    shining = dark.max(2, keepdims=True)
    colours = 255 * dark // np.maximum(shining, 1)
    opaque = np.minimum(shining + highest - lowest, 255)  # a light colour must not become too dark to see
    picture = Image.fromarray(np.uint8(np.concatenate([colours, opaque], 2)))
    picture.save(path.with_name(f"{path.stem}-dark.png"), optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
