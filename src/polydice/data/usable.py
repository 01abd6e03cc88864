"""A data set as it is trained on: without errors, or without the cases that have them."""

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

from polydice.data.cache import CacheError, publish
from polydice.data.cases import WHOLE, Case, DataError, Dataset, Finding, Sample
from polydice.data.check import Look, conclude, look, read_and_look, table
from polydice.data.files import below
from polydice.data.parallel import in_parallel
from polydice.data.prepare import Preparation, Prepared, contents_of, named, prepare

VERSION = 4  # of the check, to be raised whenever it would judge the same files otherwise
FINDINGS = "findings.json"
SHOWN = 10  # rows of errors in a message


def usable(
    dataset: Dataset, settings: Preparation, cache: Path, skip_errors: bool = False, options: Sequence[str] = ()
) -> tuple[Dataset, Prepared]:
    """The data set that can be trained on, and prepared. Errors are refused or, with `skip_errors`, the cases that have
    them are left out.

    The cases are looked at when they are read to be prepared; what was found is kept in the cache, by the content of
    the files, as the prepared arrays are. `options` are those of `polydice data` that open the same set.
    """
    findings = list(dataset.findings)
    if skip_errors or not _errors(findings):  # else no file needs to be opened
        findings = _findings(dataset, settings, Path(cache).absolute())
    faulty = {finding.where for finding in _errors(findings)}
    cases = tuple(case for case in dataset.cases if not faulty & set(_names(dataset, case)))
    if faulty and (not skip_errors or WHOLE in faulty or not cases):
        raise DataError(_refusal(dataset, _errors(findings), len(cases) if WHOLE not in faulty else 0, options))
    told = tuple(finding for finding in findings if finding.where == WHOLE)
    dataset = replace(dataset, cases=cases, findings=told)
    return dataset, prepare(dataset, settings, cache)


def used(dataset: Dataset) -> dict[str, Any]:
    """What a run was trained, validated and tested on, for `result.json`."""
    every = max(dataset.listed, len(dataset.cases))
    found: dict[str, Any] = {"cases": len(dataset.cases), "of": every, "groups": dataset.groups}
    found |= {"classes": list(dataset.classes), "ignore": dataset.ignore}
    return found | ({"annotated": dataset.partly} if dataset.partly else {})


def in_words(used: dict[str, Any]) -> str:
    """
    >>> in_words({"cases": 8, "of": 38, "groups": 1, "classes": ["background", "polyp"], "ignore": None})
    '8 of 38 cases, 1 group, 2 classes: background, polyp'
    >>> used = {"cases": 3, "of": 3, "groups": 3, "classes": ["background", "RV", "LV"], "ignore": None}
    >>> in_words(used | {"annotated": {"anna": ["background", "LV"]}})
    '3 of 3 cases, 3 groups, 3 classes: background, RV, LV; annotated: RV in 2'
    """
    parts = [f"{used['cases']} of {used['of']} cases", f"{used['groups']} group{'s' * (used['groups'] != 1)}"]
    ignored = "" if used["ignore"] is None else f" (label {used['ignore']} is ignored)"
    told = f"{', '.join(parts)}, {len(used['classes'])} classes: {', '.join(used['classes'])}{ignored}"
    return told + _partly(used)


def _partly(used: dict[str, Any]) -> str:
    """In how many cases a class is annotated, where that is not all of them."""
    lists = used.get("annotated", {}).values()
    missing = {name: sum(name not in each for each in lists) for name in used["classes"]}
    shown = [f"{name} in {used['cases'] - count}" for name, count in missing.items() if count]
    return f"; annotated: {', '.join(shown)}" if shown else ""


def described(dataset: Dataset) -> str:
    """What is trained on, and what is odd about it as a whole."""
    odd = [f"warning: {dataset.name} {finding.what}" for finding in dataset.findings]
    return "\n".join([f"{dataset.name}: {in_words(used(dataset))}", *odd])


def _errors(findings: Sequence[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.level == "error"]


def _names(dataset: Dataset, case: Case) -> Iterator[str]:
    """Where a finding is that concerns this case."""
    yield case.id
    yield from (below(dataset.folder, file) for file in case.files)


def _findings(dataset: Dataset, settings: Preparation, cache: Path) -> list[Finding]:
    """What the check of the whole set says, from the cache if the same files were checked before."""
    final = cache / "checks" / named(dataset, VERSION, contents_of(dataset, cache))

    def fill(folder: Path) -> None:
        (folder / FINDINGS).write_text(json.dumps(_check(dataset, settings, cache)))

    try:
        if not final.exists():
            publish(final, fill)
        found = json.loads((final / FINDINGS).read_text())
    except (CacheError, OSError, ValueError):  # it only saves time: a cache that cannot be written may still be read
        found = _check(dataset, settings, cache)
    known = (Finding(*each) for each in found)
    return sorted({*dataset.findings, *known})  # the cache does not have what the list of files shows


def _check(dataset: Dataset, settings: Preparation, cache: Path) -> list[Finding]:
    """Looks at what is read to be prepared or, where that is done or cannot be done, reads every case for it."""
    looks: dict[str, Look] = {}

    @wraps(dataset.read)  # whose name is part of the prepared set's
    def read(case: Case) -> Sample:
        sample = dataset.read(case)
        if case.id not in looks:  # to measure spacings, all are read once more
            looks[case.id] = look(dataset, case, sample)
        return sample

    try:
        prepare(replace(dataset, read=read), settings, cache)
    except DataError:
        looks.clear()  # it has stopped at the first that it cannot use
    if len(looks) < len(dataset.cases):
        every = in_parallel(partial(read_and_look, dataset), dataset.cases, "checking")
        looks = {str(place): each for place, each in enumerate(every)}
    return conclude(replace(dataset, findings=()), looks.values()).findings


def _refusal(dataset: Dataset, errors: Sequence[Finding], left: int, options: Sequence[str]) -> str:
    rows = table(errors).splitlines()
    more = [f"... and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
    count = f"{len(errors)} error{'s' * (len(errors) != 1)}"
    command = shlex.join(["polydice", "data", str(dataset.folder), *options])
    advice = f"`{command}` says everything about it"
    if left:
        advice += f"; --skip-errors goes on with the other {left} of {max(dataset.listed, len(dataset.cases))} cases"
    return "\n".join([f"{dataset.folder} has {count} and is not trained on:", *rows[:SHOWN], *more, advice])
