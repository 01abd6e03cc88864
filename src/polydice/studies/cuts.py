"""Whether a study that goes on cuts its data into parts as it did before, and has the same classes annotated.

Groups can change between two days: by a new `groups.csv`, or by a reader that has learnt which cases belong together.
Runs of two cuts cannot be compared: they are not tested on the same cases. Nor can runs before and after a new
`annotated.csv`: they are not trained on the same labels.
"""

from collections.abc import Sequence
from typing import Any

from polydice.data.cases import DataError, Dataset
from polydice.data.folds import HasGroup, split
from polydice.studies.study import Study


def refuse_another_cut(study: Study, dataset: str, cases: Sequence[HasGroup]) -> None:
    """Raises `DataError` if a finished run of this data set was tested on other cases than it would be now, or on cases
    of other groups. `cases` are those that the data set has now."""
    parts: dict[Any, list[dict[str, str]]] = {}  # of each way to cut: the cases that each fold tests, with their groups
    for run, result in (*study.finished(tuning=True), *study.finished()):
        if run.dataset != dataset:
            continue
        settings = study.settings(run)
        way = settings.split, settings.folds, settings.split_seed
        if way not in parts:
            cut = split(cases, *way)
            parts[way] = [{cases[place].id: cases[place].group for place in fold.test} for fold in cut]
        now, before = parts[way][settings.fold], {case["id"]: case["group"] for case in result["cases"]}
        if now != before:
            raise DataError(
                f"{study.folder} was begun with another cut of {settings.data}: {study.run_folder(run)} tested "
                f"{_differently(before, now)}. Runs of two cuts cannot be compared: take another folder, or give the "
                f"groups of before in groups.csv of that data set and go on"
            )


def refuse_other_annotations(study: Study, name: str, dataset: Dataset) -> None:
    """Raises `DataError` if a finished run of the data set of this name had other classes annotated than it has now."""
    now = dataset.partly
    for run, result in (*study.finished(tuning=True), *study.finished()):
        before = result.get("used", {}).get("annotated", {})
        if run.dataset == name and before != now:
            case = min(case for case in before.keys() | now.keys() if before.get(case) != now.get(case))
            had, has = (", ".join(each.get(case, dataset.classes)) for each in (before, now))
            raise DataError(
                f"{study.folder} was begun with other annotations of {dataset.folder}: {case} had {had}, and has {has} "
                "now. Runs before and after cannot be compared: take another folder, or annotate as before and go on"
            )


def _differently(before: dict[str, str], now: dict[str, str]) -> str:
    for case in sorted(before.keys() & now.keys()):
        if before[case] != now[case]:
            return f"{case} as one of the group {before[case]}, and now it is one of {now[case]}"
    case = min(before.keys() ^ now.keys())
    return f"{case}, which it does not test now" if case in before else f"other cases than now, without {case}"
