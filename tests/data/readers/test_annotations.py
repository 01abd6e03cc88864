import json
from pathlib import Path

import numpy as np
import pytest

from polydice.data.cases import DataError
from polydice.data.check import check
from polydice.data.prepare import Preparation, prepare
from polydice.data.readers import open_dataset
from polydice.data.usable import usable
from tests.data import write

CLASSES = ("background", "left kidney", "liver")
LABELS = np.array([[0, 1], [2, 0]], np.uint8)


def folder_of(folder: Path, **labels: np.ndarray) -> Path:
    for name, array in labels.items():
        write.picture(folder / "images" / f"{name}.png", array * 90)
        write.picture(folder / "masks" / f"{name}.png", array)
    (folder / "classes.txt").write_text("\n".join(CLASSES))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """a has all labels, b no liver and c no kidney."""
    return folder_of(tmp_path, a=LABELS, b=LABELS % 2, c=LABELS // 2 * 2)


def annotated(folder: Path) -> list[tuple[int, ...] | None]:
    dataset = open_dataset(folder)
    assert dataset.findings == ()
    return [case.annotated for case in dataset.cases]


def test_classes_are_named_or_numbered_and_a_case_that_is_not_listed_has_all(folder: Path) -> None:
    assert annotated(folder) == [None, None, None]
    (folder / "annotated.csv").write_text("case, classes\nb, background; left kidney\nc,2;0;2\n")
    assert annotated(folder) == [None, (0, 1), (0, 2)]
    (folder / "annotated.csv").write_text("case,classes\na,0;1;2\n")
    assert annotated(folder) == [None, None, None]


def test_dataset_json_says_the_same(folder: Path, tmp_path: Path) -> None:
    (folder / "annotated.csv").write_text("case,classes\nb,0;1\n")
    expected = [case.annotated for case in open_dataset(folder).cases]
    (folder / "images").rename(folder / "imagesTr")
    (folder / "masks").rename(folder / "labelsTr")
    for image in (folder / "imagesTr").iterdir():
        image.rename(image.with_name(f"{image.stem}_0000.png"))
    about = {"channel_names": {"0": "mr"}, "labels": {name: number for number, name in enumerate(CLASSES)}}
    (folder / "dataset.json").write_text(json.dumps(about | {"annotated": {"b": ["background", 1]}}))
    told = (("error", "dataset.json", "has 'annotated', and there is annotated.csv: keep one of them"),)
    assert open_dataset(folder).findings == told
    (folder / "annotated.csv").unlink()
    assert annotated(folder) == expected
    (folder / "dataset.json").write_text(json.dumps(about | {"annotated": {"b": "liver"}}))
    with pytest.raises(DataError, match=r"must have a list of classes for each case, such as \{\"annotated\": \{"):
        open_dataset(folder)


@pytest.mark.parametrize(
    ("row", "where", "what"),
    [
        ("d,0;1", "annotated.csv", "has classes of d, which is no case"),
        ("b,0;1\nb,0;2", "annotated.csv", "has two rows for b: 0;1 and 0;2"),
        ("b,0;lever", "images/b.png", "has an annotated class 'lever', which is none of the set: did you mean liver?"),
        ("b,0;3", "images/b.png", "has an annotated class '3', which is none of the set: the classes are background,"),
        ("b,1", "images/b.png", "has a list of annotated classes without background: it must be one of them"),
        ("b,", "images/b.png", "has no annotated class: name them, the background too, or take the case out"),
        ("b,0", "images/b.png", "has no annotated class but background: nothing can be learnt from it"),
        (
            "b,0;1,2",
            "annotated.csv",
            "has more cells than columns in the row of b: 2: values in a cell are separated by ;",
        ),
    ],
)
def test_what_cannot_be_meant_is_an_error(folder: Path, row: str, where: str, what: str) -> None:
    (folder / "annotated.csv").write_text(f"case,classes\n{row}\n")
    (finding,) = open_dataset(folder).findings
    assert (finding.level, finding.where) == ("error", where)
    assert finding.what.startswith(what)


def test_a_table_is_found_however_it_is_written_and_wherever_it_leads(folder: Path) -> None:
    """What is there and not read would be classes that nobody drew, trained as background."""
    (folder / "Annotated.CSV").write_text("case,classes\nb,0;1,\n")  # of an empty cell nothing is lost
    assert annotated(folder) == [None, (0, 1), None]
    (folder / "annotated.csv").symlink_to("not/here.csv")
    with pytest.raises(DataError, match=r"annotated\.csv cannot be read: No such file or directory"):
        open_dataset(folder)


def test_another_column_is_refused(folder: Path) -> None:
    (folder / "annotated.csv").write_text("case,class\nb,0;1\n")
    with pytest.raises(DataError, match="must have the columns case and classes, separated by commas"):
        open_dataset(folder)


def test_labels_of_a_class_that_is_not_annotated_are_an_error(folder: Path) -> None:
    """They are found where the set is checked, and where somebody prepares it without."""
    (folder / "annotated.csv").write_text("case,classes\na,0;1\nb,0;1\n")
    dataset = open_dataset(folder)
    errors = [finding for finding in check(dataset).findings if finding.level == "error"]
    told = "has labels of liver, which is said not to be annotated there (case a, 1 pixels)"
    assert errors == [("error", "masks/a.png", told)]
    with pytest.raises(DataError, match=r"masks/a.png +has labels of liver, which is said not"):
        usable(dataset, Preparation(size=2), folder / "cache")
    assert [case.id for case in usable(dataset, Preparation(size=2), folder / "cache", True)[0].cases] == ["b", "c"]
    with pytest.raises(DataError, match=r"case a: it has labels of classes that are said not to be annotated"):
        prepare(dataset, Preparation(size=2), folder / "cache")


def test_a_class_that_is_annotated_nowhere_is_an_error(folder: Path) -> None:
    (folder / "annotated.csv").write_text("case,classes\na,0;2\nb,0;2\nc,0;2\n")
    told = "has no case in which left kidney is annotated: nothing can be learnt of it"
    assert told in [finding.what for finding in check(open_dataset(folder)).findings]


def test_what_was_prepared_for_other_annotations_is_not_used(folder: Path) -> None:
    """Nor what was found: the labels of a are in order before, and not after."""
    settings, cache = Preparation(size=2), folder / "cache"
    _, whole = usable(open_dataset(folder), settings, cache)
    assert whole.annotated is None
    (folder / "annotated.csv").write_text("case,classes\nb,0;1\n")
    _, partly = usable(open_dataset(folder), settings, cache)
    assert partly.folder != whole.folder
    assert partly.annotated is not None
    assert partly.annotated.tolist() == [[True, True, True], [True, True, False], [True, True, True]]
    (folder / "annotated.csv").write_text("case,classes\na,0;1\n")
    with pytest.raises(DataError, match=r"masks/a.png"):
        usable(open_dataset(folder), settings, cache)
    (folder / "annotated.csv").unlink()
    assert usable(open_dataset(folder), settings, cache)[1].folder == whole.folder


def test_regions_must_be_annotated_everywhere(tmp_path: Path) -> None:
    write.picture(tmp_path / "imagesTr" / "a_0000.png", LABELS * 90)
    write.picture(tmp_path / "labelsTr" / "a.png", LABELS)
    about = {"channel_names": {"0": "mr"}, "regions_class_order": [1, 2], "annotated": {"a": [0, 1]}}
    (tmp_path / "dataset.json").write_text(
        json.dumps(about | {"labels": {"background": 0, "tumour": [1, 2], "core": [2]}})
    )
    with pytest.raises(DataError, match="regions share labels, so that all must be annotated"):
        open_dataset(tmp_path)
