"""Which cases belong together: as the user says it, by a table or by a part of the names."""

import csv
import re
from dataclasses import replace
from pathlib import Path

from polydice.data.cases import Case, DataError, Dataset, Finding
from polydice.data.files import below
from polydice.data.readers.layout import error, warning

TABLE = "groups.csv"


def regrouped(dataset: Dataset, pattern: str | None) -> Dataset:
    """The set with the groups that `pattern` finds in the names of its cases or, without one, those of groups.csv.

    A case that gets no group is an error: it could be in training and in testing.
    """
    table, findings = dataset.folder / TABLE, list(dataset.findings)
    if pattern is not None:
        groups, nothing = _by_name(dataset, pattern), f"has no group: --group {pattern!r} finds nothing in its name"
        if table.exists():
            findings.append(warning(dataset.folder, table, "is not read, since --group is given"))
    elif table.exists():
        groups, nothing = _by_table(table, findings), f"has no group in {TABLE}: add a row for it"
        unknown = sorted(groups.keys() - {case.id for case in dataset.cases})
        findings += [error(dataset.folder, table, f"gives a group to {name}, which is no case") for name in unknown]
    else:
        return dataset
    cases = tuple(replace(case, group=groups.get(case.id) or case.id) for case in dataset.cases)
    findings += [Finding("error", _name(dataset, case), nothing) for case in cases if not groups.get(case.id)]
    return replace(dataset, cases=cases, findings=tuple(findings))


def _by_name(dataset: Dataset, pattern: str) -> dict[str, str]:
    """The first part in brackets or, without one, all that the pattern matches."""
    try:
        compiled = re.compile(pattern)
    except re.error as problem:
        raise DataError(f"--group {pattern!r} is no regular expression: {problem}") from problem
    found = {case.id: compiled.search(case.id) for case in dataset.cases}
    return {name: match[min(1, compiled.groups)] or "" for name, match in found.items() if match}


def _by_table(table: Path, findings: list[Finding]) -> dict[str, str]:
    groups: dict[str, str] = {}
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            if not {"case", "group"} <= set(rows.fieldnames or ()):
                has = ", ".join(rows.fieldnames or ())
                raise DataError(f"{table} must have the columns case and group, but has {has}")
            for row in rows:
                name, group = row["case"] or "", row["group"] or ""
                if groups.setdefault(name, group) != group:
                    what = f"gives two groups to {name}: {groups[name]} and {group}"
                    findings.append(error(table.parent, table, what))
    except (UnicodeError, csv.Error) as problem:
        raise DataError(f"{table} is no table in UTF-8: {problem}") from problem
    return groups


def _name(dataset: Dataset, case: Case) -> str:
    return below(dataset.folder, case.images[0]) if len(case.images) == 1 else case.id
