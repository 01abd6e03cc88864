"""`polydice data`: what is in a folder, and whether it can be trained on."""

import csv
import json
import sys
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Annotated

import tyro

from polydice.data.cases import Case, DataError, Dataset, Finding
from polydice.data.check import Facts, check, size, table
from polydice.data.overview import overview
from polydice.data.readers import LAYOUTS, open_dataset
from polydice.data.readers.annotations import SEPARATOR

COLUMNS = ("label", "class", "pixels", "share", "cases")
LAYOUT_HELP = f"One of {', '.join(layout.name for layout in LAYOUTS)}. If not given, it is recognised."
ClassCount = tuple[int | str, str, int, float, int]  # as COLUMNS; of a region all its labels, "1 2"
SHOWN = 3  # cases of those with the same annotations


def data(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")],
    layout: Annotated[str | None, tyro.conf.arg(metavar="NAME", help=LAYOUT_HELP)] = None,
    masks: Annotated[str | None, tyro.conf.arg(metavar="NAME")] = None,
    group: Annotated[str | None, tyro.conf.arg(metavar="REGEX")] = None,
    ignore: int | None = None,
    out: Annotated[Path | None, tyro.conf.arg(metavar="DIR")] = None,
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Looks at a data set before training: what it is, what is wrong with it, and a picture of a few cases.

    Every case is opened once. The exit status is 1 if there are errors, 2 if the folder holds no data set, and else 0.

    Example: polydice data cvc-clinicdb

    Example: polydice data scans --layout folder --out runs/data/scans

    Example: polydice data vessels --masks 1st_manual --group "[^_]+" --ignore 255

    Args:
        folder: where the data set is.
        masks: of a plain folder, the folder of its masks, if not masks, mask, labels, label or gt.
        group: a regular expression that finds the patient or sequence in the name of a case: its first part in
            brackets, or all it matches. If not given, groups.csv in the folder, or what the layout knows.
        ignore: the label of pixels that have none: neither trained on nor scored.
        out: for overview.png, classes.csv, cases.csv, findings.csv. If not given, runs/data/ and the set's own name.
        json_output: print what was found as JSON.
    """
    try:
        dataset = open_dataset(folder, layout, masks=masks, group=group, ignore=ignore)
        out = out or Path("runs", "data", folder.resolve().name)
        out.mkdir(parents=True, exist_ok=True)
    except (DataError, OSError) as problem:
        print(f"polydice data: {problem}", file=sys.stderr)
        return 2
    findings, facts = check(dataset)
    classes = _classes(dataset, facts)
    if not json_output:
        _tell(dataset, facts, classes, findings)
    _write(out / "classes.csv", COLUMNS, classes)
    annotated = ("annotated",) * bool(dataset.partly)
    columns = "case", "group", "channels", "size", "spacing", *dataset.classes, *annotated
    rows = (_row(dataset, about) + (_known(dataset, about.case),) * len(annotated) for about in facts)
    _write(out / "cases.csv", columns, rows)
    _write(out / "findings.csv", ("level", "where", "what"), findings)
    overview(dataset, facts, out / "overview.png")
    if json_output:
        print(json.dumps(_record(dataset, classes, findings, out), indent=1))
    else:
        print(f"\n{out}: overview.png, classes.csv, cases.csv, findings.csv")
    return 1 if any(finding.level == "error" for finding in findings) else 0


def _tell(dataset: Dataset, facts: Sequence[Facts], classes: Sequence[ClassCount], findings: Sequence[Finding]) -> None:
    errors = sum(finding.level == "error" for finding in findings)
    print(f"{dataset.name}, {dataset.folder}\n{_described(dataset, facts)}\n")
    partly = dataset.partly
    print(f"{'class':<20}{'pixels':>16}{'share':>10}{'cases':>8}{'  annotated in' if partly else ''}")
    for _, name, pixels, share, cases in classes:
        annotated = len(dataset.cases) - sum(name not in each for each in partly.values())
        print(f"{name:<20}{pixels:>16,}{share:>10.3%}{cases:>8}{f'{annotated:>14}' if partly else ''}")
    if partly:
        print(_who_has_what(dataset))
    print(f"\n{_plural(errors, 'error')}, {_plural(len(findings) - errors, 'warning')}")
    if findings:
        print(table(findings))


def _record(
    dataset: Dataset, classes: Sequence[ClassCount], findings: Sequence[Finding], out: Path
) -> dict[str, object]:
    return {
        "dataset": dataset.name,
        "cases": len(dataset.cases),
        "groups": dataset.groups,
        "classes": [dict(zip(COLUMNS, row, strict=True)) for row in classes],
        **({"annotated": dataset.partly} if dataset.partly else {}),
        "findings": [finding._asdict() for finding in findings],
        "out": str(out),
    }


def _classes(dataset: Dataset, facts: Sequence[Facts]) -> list[ClassCount]:
    """Label, name, pixels, share of all pixels, and the number of cases, for each class."""
    counts = [_pixels(dataset, about) for about in facts]
    pixels = [sum(row[place] for row in counts) for place in range(len(dataset.classes))]
    cases = [sum(row[place] > 0 for row in counts) for place in range(len(dataset.classes))]
    total = max(1, sum(sum(about.pixels) for about in facts))
    shares = [round(count / total, 8) for count in pixels]
    labels = [" ".join(map(str, each)) for each in dataset.regions.members] if dataset.regions else range(len(pixels))
    return list(zip(labels, dataset.classes, pixels, shares, cases, strict=True))


def _pixels(dataset: Dataset, about: Facts) -> tuple[int, ...]:
    """Of each class; where these are regions, a pixel can be in several."""
    if dataset.regions is None:
        return about.pixels
    return tuple(sum(about.pixels[label] for label in labels) for labels in dataset.regions.members)


def _who_has_what(dataset: Dataset) -> str:
    """The cases with the same annotated classes, a line for each such list."""
    cases: dict[str, list[str]] = {}
    for case in dataset.cases:
        cases.setdefault(_known(dataset, case) if case.annotated else "all classes", []).append(case.id)
    lines = ["\nannotated"]
    for known, names in sorted(cases.items(), key=lambda each: -len(each[1])):
        shown = ", ".join([*names[:SHOWN], *["..."][: len(names) - SHOWN]])
        lines.append(f"{known}: {_plural(len(names), 'case')} ({shown})")
    return "\n".join(lines)


def _known(dataset: Dataset, case: Case) -> str:
    """The annotated classes, as annotated.csv has them."""
    return SEPARATOR.join(dataset.classes[label] for label in case.annotated or range(len(dataset.classes)))


def _described(dataset: Dataset, facts: Sequence[Facts]) -> str:
    told = [f"{_plural(len(dataset.cases), 'case')} in {_plural(dataset.groups, 'group')}"]
    if len(facts) < len(dataset.cases):
        told.append(f"{len(dataset.cases) - len(facts)} of them of no use")
    if any(len(about.shape) == 4 for about in facts):
        told.append(_plural(sum(about.shape[1] for about in facts if len(about.shape) == 4), "slice"))
        known = [about.spacing for about in facts if about.spacing]
        told.append(f"voxels of {_from_to(known)} mm" if known else "voxel sizes unknown")
    if dataset.ignore is not None:
        told.append(f"label {dataset.ignore} ignored")
    if facts:
        told.append(_from_to([about.shape[1:] for about in facts]))
        told.append(
            " or ".join(_plural(channels, "channel") for channels in sorted({about.shape[0] for about in facts}))
        )
    return ", ".join(told)


def _from_to(shapes: Sequence[tuple[float, ...]]) -> str:
    smallest, largest = min(shapes, key=prod), max(shapes, key=prod)
    return size(smallest) if len(set(shapes)) == 1 else f"{size(smallest)} to {size(largest)}"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _row(dataset: Dataset, about: Facts) -> tuple[object, ...]:
    channels, *spatial = about.shape
    told = about.case.id, about.case.group, channels, size(spatial), size(about.spacing or ())
    return *told, *_pixels(dataset, about)


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])
