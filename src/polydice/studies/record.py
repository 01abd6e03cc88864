"""The record of a study, `runs.jsonl.gz`: its runs in one file, each a line of JSON, in the order of their places.

    {"run": "acdc/unet/dice/fold-0/replicate-0", "result": {…}, "history": [{…}, …]}
    {"run": "acdc/unet/dice-rate-0.16/fold-1/tuning", "error": "TrainingError: the loss became inf …"}

`result` and `history` are what `result.json` and `history.jsonl` of the run say, without paths of the machine that
trained it and without each case's `dice`, which follows from its confusion matrix. A run that has diverged has its
error instead. The same runs give the same bytes.
"""

import gzip
import io
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

from polydice.data.cases import DataError
from polydice.durable import replace_file
from polydice.studies.files import history_of, read_json, result_of, settings_of
from polydice.training.config import CountingWeights

RECORD = "runs.jsonl.gz"
PLACES = ("data", "out", "cache")  # settings that say where a run lay
ADVICE = "bring the file along again, or remove it: polydice pack makes it anew from the folders of the runs"


class Line(TypedDict):
    run: str  # its folder, below the study's `runs`
    result: NotRequired[dict[str, Any]]
    history: NotRequired[list[Any]]
    error: NotRequired[str]


class Kept(NamedTuple):
    """A run of a record."""

    place: Path  # the record's, and the run's in it
    line: bytes
    error: str  # why it has diverged; empty if it is finished

    def settings(self) -> dict[str, Any]:
        return settings_of(self.place / "settings", json.loads(self.line)["result"], ADVICE)

    def result(self, weights: CountingWeights) -> dict[str, Any]:
        return result_of(self.place / "result", json.loads(self.line)["result"], weights, ADVICE)

    def history(self) -> list[dict[str, Any]]:
        return history_of(self.place / "history", json.loads(self.line).get("history", []), ADVICE)


def read_record(path: Path) -> dict[str, Kept]:
    """The runs of a record, by their places; none where there is no record."""
    if not path.exists():
        return {}
    try:
        data = gzip.decompress(path.read_bytes())
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is damaged: {error}; {ADVICE}") from error
    found: dict[str, Kept] = {}
    for number, text in enumerate(data.splitlines(), 1):
        line: Line = read_json(path, text, Line, ADVICE)
        run = line["run"]
        if run in found or ("result" in line) == ("error" in line):
            problem = f"has {run} a second time" if run in found else f"needs a result of {run}, or else an error"
            raise DataError(f"{path} is damaged: line {number} {problem}; {ADVICE}")
        found[run] = Kept(path / run, text, line.get("error", ""))
    return found


def write_record(path: Path, lines: Mapping[str, bytes]) -> None:
    """Makes or replaces a record. Raises `OSError`; after a crash, the record is the old or the new."""
    packed = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, packed, mtime=0) as file:  # no name and no time: the bytes follow from the runs
        file.writelines(lines[run] + b"\n" for run in sorted(lines))
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, packed.getvalue())


def finished_line(run: str, result: Mapping[str, Any], history: list[dict[str, Any]]) -> bytes:
    """The line of a run from what its folder has."""
    result = _with_short_cases(result)
    if "cases" in result.get("last", {}):
        result |= {"last": _with_short_cases(result["last"])}
    if "settings" in result:
        settings = {name: value for name, value in result["settings"].items() if name not in PLACES}
        if settings.get("pretrained"):
            settings["pretrained"] = Path(settings["pretrained"]).name
        result |= {"settings": settings}
    return _encoded({"run": run, "result": result, "history": history})


def failed_line(run: str, error: str) -> bytes:
    return _encoded({"run": run, "error": error})


def _with_short_cases(scores: Mapping[str, Any]) -> dict[str, Any]:
    cases = [{name: value for name, value in case.items() if name != "dice"} for case in scores["cases"]]
    return {**scores, "cases": cases}


def _encoded(line: Line) -> bytes:
    return json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode()
