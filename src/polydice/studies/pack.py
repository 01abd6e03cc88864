"""Puts the runs of a study into its record, `runs.jsonl.gz`, or into that of a folder elsewhere. Nothing is removed."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from polydice.data.cases import DataError
from polydice.studies.files import Choice
from polydice.studies.formats import count
from polydice.studies.recipe import RecipeError
from polydice.studies.record import RECORD, failed_line, finished_line, read_record, write_record
from polydice.studies.selection import has_diverged
from polydice.studies.study import CHOSEN, State, Study, open_study, portable
from polydice.training.checkpoint import write_text

WHY: dict[State, str] = {"waiting": "not trained", "no data": "not trained", "failed": "failed, and may be mended"}


class Packed(NamedTuple):
    record: Path
    runs: int  # that it has now
    new: int  # that it did not have before, or not finished
    left_out: list[str]  # of the study, in words


def pack(study: Study, out: Path) -> Packed:
    """Adds the runs of a study that are finished, or have diverged, to the record in `out`: the study's own folder, or
    another one, which then holds the study too, and nothing of this machine."""
    record = out / RECORD
    before, lines = read_record(record), dict(_lines(study))
    for run in sorted(lines.keys() & before.keys()):
        if lines[run] != before[run].line and not before[run].error:
            raise DataError(
                f"{record} has {run} with another result than {study.folder}: it was trained twice; remove one of the "
                "two, or pack into another folder"
            )
    if out.resolve() != study.folder.resolve():
        _write_study(study, out)
    write_record(record, {run: kept.line for run, kept in before.items()} | lines)
    new = [run for run, line in lines.items() if run not in before or before[run].line != line]
    return Packed(record, len(before.keys() | lines.keys()), len(new), list(_left_out(study, lines)))


def _lines(study: Study) -> Iterator[tuple[str, bytes]]:
    for run in (*study.tuning, *study.runs):
        folder, place, kept = study.run_folder(run), run.place.as_posix(), study.recorded(run)
        if (folder / "result.json").exists():
            study.result(run)  # is refused if it is damaged
            yield place, finished_line(place, json.loads((folder / "result.json").read_bytes()), study.history(run))
        elif kept is not None:
            yield place, kept.line
        elif has_diverged(study, run):
            yield place, failed_line(place, study.error(run).partition("\n")[0].partition("; the last good ")[0])


def _left_out(study: Study, lines: Mapping[str, bytes]) -> Iterator[str]:
    runs = {run.place.as_posix(): run for run in (*study.tuning, *study.runs)}
    left = Counter(WHY[study.state(run)] for place, run in runs.items() if place not in lines)
    yield from (f"{count(number, 'run')} {why}" for why, number in left.items())
    folders = [path.parent.relative_to(study.folder / "runs") for path in study.folder.glob("runs/**/result.json")]
    strange = sorted(folder.as_posix() for folder in folders if folder.as_posix() not in runs)
    if strange:
        yield f"{count(len(strange), 'run')} that the recipe does not have: {', '.join(strange)}"


def _write_study(study: Study, out: Path) -> None:
    """Recipe, choices and meaning, beside which the record is then written. A study that is there already is the same,
    or has grown since, or less than this one."""
    longest, choices = study, study.choices
    if (out / "recipe.toml").exists():
        there = open_study(out)
        if not study.recipe.extends(there.recipe):
            longest = there
        choices = _choices(longest, there if longest is study else study)
    text, meant = (longest.folder / "recipe.toml").read_text(encoding="utf-8"), portable(longest.folder, out)
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "study.json", json.dumps(meant) + "\n")
    write_text(out / "recipe.toml", text)
    if choices:
        write_text(out / CHOSEN, json.dumps(choices, indent=1) + "\n")


def _choices(longest: Study, other: Study) -> tuple[Choice, ...]:
    """Those of both, if both are one study; of more values, the choice is made anew as long as nothing was trained."""
    if not longest.recipe.extends(other.recipe):
        raise RecipeError(
            f"{longest.folder} and {other.folder} are not one study: each has runs that the other's recipe has not"
        )
    data: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for study in (longest, other):
        for run, result in (*study.finished(tuning=True), *study.finished()):
            data[run.dataset, run.model].add(result["prepared"])
    for contents in data.values():
        if len(contents) > 1:
            told = " and ".join(sorted(contents))
            raise DataError(f"{longest.folder} and {other.folder} were trained on other data: {told}")
    every = {(each["dataset"], each["model"], each["loss"]): each for each in (*other.choices, *longest.choices)}
    for run in other.runs:
        chosen = every.get((run.dataset, run.model, run.loss))
        if chosen and run.value not in ("", chosen["value"]) and other.state(run) == "done":
            raise DataError(
                f"{run.loss} on {run.dataset} has {run.value} in {other.folder} and {chosen['value']} in "
                f"{longest.folder}: runs of the two are not one study"
            )
    return tuple(every.values())
