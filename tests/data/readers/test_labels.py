from typing import Any

import pytest

from polydice.data.cases import DataError, Regions
from polydice.data.readers.labels import Described, described

BRAIN = {"background": 0, "whole": [1, 2, 3], "core": [2, 3], "enhancing": 3}


def test_regions_are_in_the_order_of_the_file() -> None:
    """As nnU-Net has it: the order of regions is that of their channels and of regions_class_order."""
    kidney = {"background": 0, "kidney": [1, 2, 3], "masses": [2, 3], "tumour": 2, "ignore": 4}
    found = described(kidney, [1, 3, 2])
    assert found == Described(
        ("background", "kidney", "masses", "tumour"), 4, Regions(((0,), (1, 2, 3), (2, 3), (2,)), (1, 3, 2))
    )
    assert found.regions is not None
    assert found.regions.label_names(found.classes) == (
        "background", "kidney", "kidney + masses + tumour", "kidney + masses"
    )  # fmt: skip


@pytest.mark.parametrize(
    "labels",
    [{"0": "background", "1": "a", "2": "b"}, {"background": 0, "b": 2, "a": 1}, {"background": 0, "a": [1], "b": [2]}],
)
def test_without_a_list_of_several_labels_there_are_no_regions(labels: dict[str, Any]) -> None:
    assert described(labels, [2, 1]) == Described(("background", "a", "b"), None, None)


@pytest.mark.parametrize(
    ("labels", "order", "told"),
    [
        (BRAIN, None, r"need regions_class_order, a label to write for each of 'whole' \[1, 2, 3\], .*: None"),
        (BRAIN, [1, 2], r"need regions_class_order.*: \[1, 2\]"),
        (BRAIN, 1, "need regions_class_order.*: 1"),
        (BRAIN, [1, 1, 3], r"has 1 for 'core', which is \[2, 3\]"),
        (BRAIN, [1, 2, 7], r"has 7 for 'enhancing'"),
        ({"background": 0, "core": 2, "whole": [1, 2]}, [2, 1], "'core' is a part of 'whole'.* name 'whole' first"),
        ({"background": 0, "whole": [1, 2, 4]}, [1], r"numbered 0, 1, 2 .*\[0, 1, 2, 4\]"),
        ({"background": 0, "all": [0, 1, 2], "core": 2}, [1, 2], "0 must be a class by itself"),
        ({"all": [0, 1, 2], "core": 2}, [1, 2], "0 must be a class by itself"),
        (BRAIN | {"ignore": 3}, [1, 2, 3], r"ignore must be one label, and the highest: 4, and not \[3\]"),
        (BRAIN | {"ignore": [4, 5]}, [1, 2, 3], r"ignore must be one label, and the highest: 4, and not \[4, 5\]"),
        ({"background": 0, "liver": 1, "tumour": 1}, None, "one label has two names: .*'liver': 1, 'tumour': 1"),
        ({"background": 0, "ignore": 1, "organ": 2}, None, r"numbered 0, 1, 2 .*\[0, 2\]"),
        ({"background": 0, "organ": 1, "ignore": 0}, None, r"the highest: 2, and not \[0\]"),
    ],
)
def test_what_nnunet_refuses_or_would_do_wrong(labels: dict[str, Any], order: Any, told: str) -> None:
    with pytest.raises(DataError, match=told):
        described(labels, order)
