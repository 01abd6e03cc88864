"""A label map shown on its image: the outline of every class, in a colour of its own."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw, ImageFont
from scipy import ndimage

from polydice.data.overview import COLOURS

SMALLEST = 512  # pixels along the longer side: a smaller image is enlarged by a whole factor


def overlay(image: NDArray[Any], labels: NDArray[np.uint8], classes: Sequence[str], title: str) -> Image.Image:
    """The image `[channels, y, x]`, bytes or in [0, 1], with the outlines of labels `[y, x]`, and their names below it.

    Three bytes are a colour. Of anything else the first channel is shown, its brightest half percent cut off.
    """
    factor = -(-SMALLEST // max(labels.shape))
    picture, labels = _enlarged(visible(image), factor), _enlarged(labels, factor)
    width = max(2, round(max(labels.shape) / 300))
    outlines = {label: _outline(labels == label, width) for label in range(1, len(classes))}
    picture[ndimage.binary_dilation(np.any([*outlines.values()], axis=0))] = 0  # to be seen on bright ground, too
    for label, outline in outlines.items():
        picture[outline] = ImageColor.getrgb(_colour(label))
    return _captioned(Image.fromarray(picture), classes, title)


def _colour(label: int) -> str:
    return COLOURS[(label - 1) % len(COLOURS)]


def _outline(inside: NDArray[np.bool_], width: int) -> NDArray[np.bool_]:
    """Its outermost pixels, those at the edge of the image among them."""
    return np.asarray(inside & ~ndimage.binary_erosion(inside, iterations=width))


def visible(image: NDArray[Any]) -> NDArray[np.uint8]:
    """`[channels, y, x]` to `[y, x, 3]`: colours, or the first channel, its brightest half percent cut off."""
    if image.dtype == np.uint8 and len(image) == 3:
        return np.moveaxis(image, 0, -1)
    grey = image[0].astype(np.float32)
    bright = max(float(np.percentile(grey, 99.5)), 1e-6)
    return np.repeat((grey / bright * 255).clip(0, 255).astype(np.uint8)[..., None], 3, axis=-1)


def _enlarged(array: NDArray[np.uint8], factor: int) -> NDArray[np.uint8]:
    return array.repeat(factor, axis=0).repeat(factor, axis=1)


def _captioned(picture: Image.Image, classes: Sequence[str], title: str) -> Image.Image:
    size = max(14, max(picture.size) // 45)
    font = ImageFont.load_default(size)
    words = [(title, "white")] if title else []
    words += [(name, _colour(label)) for label, name in enumerate(classes) if label > 0]
    places, x, y = [], size, size // 2
    for text, _ in words:
        length = int(font.getlength(text))
        if x > size and x + length > picture.width - size:
            x, y = size, y + 3 * size // 2
        places.append((x, y))
        x += length + size
    whole = Image.new("RGB", (picture.width, picture.height + y + 2 * size), "#222222")
    whole.paste(picture)
    draw = ImageDraw.Draw(whole)
    for (text, colour), (x, y) in zip(words, places, strict=True):
        draw.text((x, picture.height + y), text, colour, font)
    return whole
