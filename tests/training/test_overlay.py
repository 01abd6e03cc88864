import numpy as np
import pytest
from PIL import ImageColor

from polydice.data.overview import COLOURS
from polydice.training.overlay import overlay

BLUE, YELLOW = map(ImageColor.getrgb, COLOURS[:2])
CLASSES = ("background", "one", "two")


def test_a_class_is_outlined_where_it_is_and_nothing_else_changes() -> None:
    image = np.full((3, 600, 700), 200, np.uint8)
    labels = np.zeros((600, 700), np.uint8)
    labels[100:200, 300:400], labels[500:600, 0:50] = 1, 2
    shown = np.asarray(overlay(image, labels, CLASSES, "a title"))
    assert shown.shape[1] == 700
    picture = shown[:600]
    for label, colour in ((1, BLUE), (2, YELLOW)):
        drawn = np.argwhere((picture == colour).all(-1))
        inside = np.argwhere(labels == label)
        assert np.array_equal(drawn.min(0), inside.min(0))
        assert np.array_equal(drawn.max(0), inside.max(0))  # at the edge of the image, too
    for row, column in ((150, 350), (550, 25), (98, 300), (300, 300)):  # inside, and outside
        assert picture[row, column].tolist() == [200, 200, 200]
    assert picture[99, 350].tolist() == [0, 0, 0]  # the dark line around it


@pytest.mark.parametrize("channels", [1, 4])
def test_grey_images_are_enlarged_by_whole_factors(channels: int) -> None:
    image = np.zeros((channels, 60, 35), np.float32)
    image[0, :, 20:] = 0.3
    labels = np.zeros((60, 35), np.uint8)
    labels[10:20, 5:15] = 1
    shown = np.asarray(overlay(image, labels, CLASSES, ""))
    assert shown.shape[1] == 35 * 9
    assert shown[45 * 9, 20 * 9 - 1].tolist() == [0, 0, 0]
    assert shown[45 * 9, 20 * 9].tolist() == [255, 255, 255]
    rows, columns = np.nonzero((shown[: 60 * 9] == BLUE).all(-1))
    assert (rows.min(), rows.max() + 1, columns.min(), columns.max() + 1) == (90, 180, 45, 135)


def test_the_names_of_many_classes_take_several_lines() -> None:
    names = ("background", *(f"the organ number {number}" for number in range(1, 13)))
    image, labels = np.zeros((1, 512, 300), np.float32), np.zeros((512, 300), np.uint8)
    few, many = (overlay(image, labels, classes, "slice 1 of 1").height for classes in (names[:2], names))
    assert many > few + 5 * 14
