import unicodedata
from pathlib import Path

import numpy as np
import pytest

from polydice.data.readers import open_dataset
from polydice.data.readers.layout import incomplete
from tests.data import write

MASK = np.array([[0, 255]], np.uint8)


def pair(folder: Path, image: str, mask: str) -> None:
    write.picture(folder / "images" / image, MASK)
    write.picture(folder / "masks" / mask, MASK)


@pytest.mark.parametrize(
    ("image", "mask", "how"),
    [
        (
            unicodedata.normalize("NFC", "Müller.png"),
            unicodedata.normalize("NFD", "Müller.png"),
            "in how an accent is stored (composed or decomposed)",
        ),
        ("Anna.png", "anna.png", "in upper and lower case"),
        ("anna_1.png", "anna-1.png", "in _, - and spaces"),
        ("anna 1.png", "Anna_1.png", "in _, - and spaces"),
    ],
)
def test_names_that_differ_in_spelling_alone_are_said_to(image: str, mask: str, how: str, tmp_path: Path) -> None:
    pair(tmp_path, "good.png", "good.png")
    pair(tmp_path, image, mask)
    pair(tmp_path, "other.png", "another.png")
    findings = {finding.where: finding.what for finding in open_dataset(tmp_path).findings}
    advice = f", but one differs only {how}: rename one of them"
    assert findings == {
        f"images/{image}": f"has no mask{advice} (masks/{mask})",
        f"masks/{mask}": f"has no image{advice} (images/{image})",
        "images/other.png": "has no mask",
        "masks/another.png": "has no image",
    }


@pytest.mark.parametrize(
    ("name", "todo"),
    [("a.webp", "save it as PNG"), ("a.npy", "save it as PNG or TIFF"), ("a.dcm", "convert it to NIfTI")],
)
def test_images_that_are_not_read_are_errors_that_say_what_to_do(name: str, todo: str, tmp_path: Path) -> None:
    pair(tmp_path, "good.png", "good.png")
    if name.endswith(".npy"):
        np.save(tmp_path / "images" / name, MASK)
    else:
        write.picture(tmp_path / "images" / name, MASK, format="GIF")
    (finding,) = open_dataset(tmp_path).findings
    assert (finding.level, finding.where) == ("error", f"images/{name}")
    assert f"is not read: PNG, JPEG, TIFF, BMP, GIF or NIfTI is expected here; {todo}" in finding.what


def test_how_many_cases_the_files_speak_of(tmp_path: Path) -> None:
    """30 images and 30 masks that miss each other are 30 cases; two images of one mask are one."""
    for number in range(38):
        pair(tmp_path, f"case{number}.png", f"{'case' if number < 8 else 'Case'}{number}.png")
    write.picture(tmp_path / "images" / "case0.tif", MASK)
    dataset = open_dataset(tmp_path)
    assert (len(dataset.cases), dataset.listed) == (7, 38)
    assert incomplete(dataset.findings) == 31
