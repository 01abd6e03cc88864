"""Tables that people write beside their data: what they say of each case."""

import csv
from collections.abc import Iterable
from pathlib import Path

from polydice.data.cases import Case, DataError, Dataset, Finding
from polydice.data.files import below
from polydice.data.readers.layout import error


def table_in(folder: Path, name: str) -> Path | None:
    """The table of that name, in capitals or not. A link that leads nowhere is one that cannot be read."""
    found = {path.name.casefold(): path for path in sorted(folder.iterdir())}  # a name in small letters comes last
    return found.get(name)


def read_table(table: Path, column: str, findings: list[Finding], several: str = "") -> dict[str, str]:
    """What `column` of a CSV file says of each case. Of two rows for one case the first counts, which is an error, as
    cells are that belong to no column. `several`: what separates values in a cell."""
    found: dict[str, str] = {}
    try:
        with table.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            columns = {name.strip(): name for name in rows.fieldnames or ()}
            if not {"case", column} <= columns.keys():
                has = ", ".join(columns) or "nothing"
                raise DataError(f"{table} must have the columns case and {column}, separated by commas, but has {has}")
            for row in rows:
                name, value = ((row[columns[each]] or "").strip() for each in ("case", column))
                if name in found:
                    what = "remove one" if found[name] == value else f"{found[name]} and {value}"
                    findings.append(error(table.parent, table, f"has two rows for {name}: {what}"))
                found.setdefault(name, value)
                if more := [cell for cell in row.get(None, ()) if cell.strip()]:
                    apart = f": values in a cell are separated by {several}" if several else ""
                    what = f"has more cells than columns in the row of {name}: {', '.join(more)}{apart}"
                    findings.append(error(table.parent, table, what))
    except OSError as problem:
        raise DataError(f"{table} cannot be read: {problem.strerror}") from problem
    except (UnicodeError, csv.Error) as problem:
        raise DataError(f"{table} is no table in UTF-8: {problem}") from problem
    return found


def strangers(named: Iterable[str], dataset: Dataset) -> list[str]:
    """Those that are no case of the set."""
    return [each or "a case without a name" for each in sorted({*named} - {case.id for case in dataset.cases})]


def where(dataset: Dataset, case: Case) -> str:
    """Where a finding is that concerns a case."""
    return below(dataset.folder, case.images[0]) if len(case.images) == 1 else case.id
