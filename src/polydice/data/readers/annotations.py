"""Which classes were annotated in which cases, where these are not all: by a table, or a key of dataset.json.

A class that is not annotated in a case is background in its labels, wherever it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from polydice.data.cases import DataError, Dataset, Finding
from polydice.data.readers.layout import error
from polydice.data.readers.tables import read_table, strangers, table_in, where
from polydice.suggest import meant

TABLE, COLUMN, SEPARATOR = "annotated.csv", "classes", ";"
KEY = "annotated"  # of dataset.json


def annotated(dataset: Dataset) -> Dataset:
    """The set with the annotations of annotated.csv in its folder, if that is there."""
    table, findings = table_in(dataset.folder, TABLE), list(dataset.findings)
    if table is None:
        return dataset
    if dataset.partly:
        description = dataset.folder / "dataset.json"
        findings.append(error(dataset.folder, description, f"has {KEY!r}, and there is {TABLE}: keep one of them"))
    rows = read_table(table, COLUMN, findings, SEPARATOR)
    lists = {case: [each.strip() for each in row.split(SEPARATOR) if each.strip()] for case, row in rows.items()}
    return stated(replace(dataset, findings=tuple(findings)), lists, table)


def stated(dataset: Dataset, lists: Mapping[str, Sequence[str | int]], source: Path) -> Dataset:
    """The set in which these classes, by name or number, are annotated. A case without a list has all of them."""
    if not isinstance(lists, dict) or not all(isinstance(each, list) for each in lists.values()):
        raise DataError(f"{source}: {KEY!r} must have a list of classes for each case, such as "
                        f'{{"{KEY}": {{"case_1": ["{dataset.classes[0]}", "{dataset.classes[1]}"]}}}}')  # fmt: skip
    if lists and dataset.regions:
        raise DataError(f"{source}: regions share labels, so that all must be annotated: no case can have a list")
    unknown = strangers(lists, dataset)
    findings = [error(dataset.folder, source, f"has classes of {name}, which is no case") for name in unknown]
    cases = []
    for case in dataset.cases:
        try:
            found = _numbers(lists[case.id], dataset.classes) if case.id in lists else None
            cases.append(replace(case, annotated=found))
        except DataError as problem:
            cases.append(case)
            findings.append(Finding("error", where(dataset, case), f"{problem} ({source.name}, {case.id})"))
    return replace(dataset, cases=tuple(cases), findings=(*dataset.findings, *findings))


def _numbers(given: Sequence[str | int], classes: Sequence[str]) -> tuple[int, ...] | None:
    """The classes of a list; None for all of them.

    >>> _numbers(["background", 2, "3"], ("background", "RV", "MYO", "LV"))
    (0, 2, 3)
    """
    numbers = {_number(each, classes) for each in given}
    if not numbers:
        raise DataError("has no annotated class: name them, the background too, or take the case out of the set")
    if 0 not in numbers:
        raise DataError(
            f"has a list of annotated classes without {classes[0]}: it must be one of them, since the labels have it "
            "wherever no other class is"
        )
    if numbers == {0}:
        raise DataError(f"has no annotated class but {classes[0]}: nothing can be learnt from it")
    return tuple(sorted(numbers)) if len(numbers) < len(classes) else None


def _number(given: str | int, classes: Sequence[str]) -> int:
    if given in classes:
        return classes.index(str(given))
    if not isinstance(given, bool) and str(given).isdecimal() and int(given) < len(classes):
        return int(given)
    near = meant(str(given), classes)
    asked = f"did you mean {near}?" if near else f"the classes are {', '.join(classes)}, or 0 to {len(classes) - 1}"
    raise DataError(f"has an annotated class {given!r}, which is none of the set: {asked}")
