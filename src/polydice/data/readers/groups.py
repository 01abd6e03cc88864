"""Which cases belong together: as the user says it, by a table or by a part of the names."""

import re
from collections import Counter
from dataclasses import replace

from polydice.data.cases import DataError, Dataset, Finding
from polydice.data.readers.layout import error, warning
from polydice.data.readers.tables import read_table, strangers, table_in, where

TABLE = "groups.csv"
NUMBERED = re.compile(r"(.+?)(?:[_\-. ]+[A-Za-z]*|(?<=\d)[A-Za-z]+)[_\-. ]*\d+")  # patient00_slice00, anna-1, p7frame12


def regrouped(dataset: Dataset, pattern: str | None) -> Dataset:
    """The set with the groups that `pattern` finds in the names of its cases; without one, those of groups.csv in its
    folder; without either, those that its reader knows. Only one of the three counts, for all cases.

    A case that gets no group is an error: it could be in training and in testing.
    """
    table, findings = table_in(dataset.folder, TABLE), list(dataset.findings)
    if pattern is not None:
        groups, nothing = _by_name(dataset, pattern), f"has no group: --group {pattern!r} finds nothing in its name"
        if table is not None:
            findings.append(warning(dataset.folder, table, "is not read, since --group is given"))
    elif table is not None:
        groups, nothing = read_table(table, "group", findings), f"has no group in {TABLE}: add a row for it"
        unknown = strangers(groups, dataset)
        findings += [error(dataset.folder, table, f"gives a group to {name}, which is no case") for name in unknown]
    else:
        return dataset
    cases = tuple(replace(case, group=groups.get(case.id) or case.id) for case in dataset.cases)
    findings += [Finding("error", where(dataset, case), nothing) for case in cases if not groups.get(case.id)]
    return replace(dataset, cases=cases, findings=tuple(findings))


def _by_name(dataset: Dataset, pattern: str) -> dict[str, str]:
    """The first part in brackets or, without one, all that the pattern matches."""
    try:
        compiled = re.compile(pattern)
    except re.error as problem:
        raise DataError(f"--group {pattern!r} is no regular expression: {problem}") from problem
    found = {case.id: compiled.search(case.id) for case in dataset.cases}
    return {name: match[min(1, compiled.groups)] or "" for name, match in found.items() if match}


def suggested(dataset: Dataset) -> str:
    """What there is to say of names such as patient00_slice00, which speak of patients, where each case is taken for a
    group of its own; else nothing."""
    matches = [NUMBERED.fullmatch(case.id) for case in dataset.cases]
    shared = Counter(match[1] for match in matches if match)
    if len(shared) < 2 or 2 * sum(count for count in shared.values() if count > 1) < len(dataset.cases):
        return ""
    several = sorted(name for name, count in shared.items() if count > 1)
    such_as = ", ".join([*several[:2], *["..."][: len(shared) - 2]])
    groups = [match and match[1] for match in matches]
    found = (pattern for pattern in ("[^_]+", "[^-]+", "(.+)_", "(.+)-") if _finds(pattern, dataset) == groups)
    option = f"--group '{next(found, f'^{NUMBERED.pattern}$')}'"
    return (
        f"has names that speak of {len(shared)} patients or sequences ({such_as}), but "
        f"{dataset.groups} groups: {option}, group in a recipe, or groups.csv keeps each of them in one part"
    )


def _finds(pattern: str, dataset: Dataset) -> list[str | None]:
    found = [re.search(pattern, case.id) for case in dataset.cases]
    return [match and match[match.re.groups] for match in found]
