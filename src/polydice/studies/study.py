"""A study on disk: a recipe and the folders of its runs.

DIR/recipe.toml            what is trained
DIR/study.json             where the data sets are, which score counts if the recipe does not say it, whether cases
                           with errors are left out, and where the modules are that the recipe names
DIR/runs/…/fold-0/seed-0/  one run: result.json once it is finished, error.txt if it failed
DIR/report/                what `polydice report` writes; DIR/report-last/ if it is about the last weights,
                           DIR/report-to-LOSS/, DIR/report-last-to-LOSS/ if it compares with another loss
"""

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from polydice import foreign
from polydice.data.cases import DataError
from polydice.data.generate import generated_folder
from polydice.studies.files import Where, read_history, read_result, read_score, read_where
from polydice.studies.recipe import Planned, Recipe, RecipeError, packaged, read, slug
from polydice.training.checkpoint import write_text
from polydice.training.config import CountingScore, Settings

State = Literal["done", "failed", "waiting", "no data"]


class Finished(NamedTuple):
    """A run with its result."""

    run: Planned
    result: dict[str, Any]


@dataclass(frozen=True)
class Study:
    folder: Path
    recipe: Recipe
    data: Path  # below it lie the data sets
    cache: Path
    last: bool = False  # what counts of a run is the last epoch's weights, not those that validation chose
    against: str | None = None  # the baseline, where it is not the one of recipe.toml
    skip_errors: bool = False  # cases with errors are left out of all data sets

    @cached_property
    def runs(self) -> tuple[Planned, ...]:
        return tuple(self.recipe.runs())

    @property
    def report_folder(self) -> Path:
        to = "" if self.against is None else f"-to-{slug(self.against)}"
        return self.folder / f"report{'-last' if self.last else ''}{to}"

    def run_folder(self, run: Planned) -> Path:
        return self.folder / "runs" / run.place

    def state(self, run: Planned) -> State:
        folder = self.run_folder(run)
        if (folder / "result.json").exists():
            return "done"
        if (folder / "error.txt").exists():
            return "failed"
        return "waiting" if self.dataset_folder(run.dataset).is_dir() else "no data"

    def error(self, run: Planned) -> str:
        path = self.run_folder(run) / "error.txt"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def note_error(self, run: Planned, problem: str) -> None:
        folder = self.run_folder(run)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "error.txt").write_text(problem + "\n", encoding="utf-8")

    def dataset_folder(self, name: str) -> Path:
        """Where a data set is; one that is generated is made at the first call."""
        dataset = self.recipe.datasets[name]
        if "path" in dataset:
            return self.data / str(dataset["path"])
        options = dict(dataset["generate"])
        return generated_folder(self.folder / "generated", options.pop("count"), **options)

    def settings(self, run: Planned, device: str | None = None) -> Settings:
        folder = self.dataset_folder(run.dataset)
        settings = self.recipe.settings(run, folder, self.run_folder(run), cache=self.cache, device=device)
        return replace(settings, skip_errors=True) if self.skip_errors else settings

    def finished(self) -> Iterator[Finished]:
        for run in self.runs:
            path = self.run_folder(run) / "result.json"
            if path.exists():
                yield Finished(run, read_result(path, self.last))

    def history(self, run: Planned) -> list[dict[str, Any]]:
        """The epochs of a run; empty where they were not brought along with the result."""
        path = self.run_folder(run) / "history.jsonl"
        return read_history(path) if path.exists() else []


def create(recipe: str | Path, folder: Path, data: Path, cache: Path, skip_errors: bool = False) -> Study:
    """The study in `folder`, made of a recipe, or the one that is there already: it goes on, and it grows if the recipe
    has more losses, seeds, folds or data sets than before. One that has not begun to train is made anew."""
    kept, place = folder / "recipe.toml", folder / "study.json"
    known: Where | dict[str, Any] = {}
    with suppress(OSError, DataError):  # it is not there, or damaged, and is written below
        known = read_where(place)
    score = _score(folder, known)
    _look_in(known)
    wanted = read(recipe, score)
    before = read(kept, score) if kept.exists() and any(folder.glob("runs/*")) else None
    if before is not None and not wanted.extends(before):
        raise RecipeError(
            f"{folder} holds a study with another recipe: take another folder, or go on with {kept}; a study can only "
            "grow, by losses, seeds, folds or data sets"
        )
    if before not in (None, wanted):
        count = len({*wanted.runs()} - {*before.runs()})
        print(f"{folder} holds a study with another recipe, which this one extends by {count} runs", file=sys.stderr)
    text = _text(recipe)  # which may be the very file that is written
    where = {"data": str(data.resolve()), "cache": str(cache.resolve()), "score": score}
    more = {"skip_errors": skip_errors, "code": foreign.folders(text)}
    write_text(place, json.dumps(where | {name: value for name, value in more.items() if value}) + "\n")
    if before != wanted:
        write_text(kept, text)
    return open_study(folder)


def open_study(folder: Path, last: bool = False, baseline: str | None = None) -> Study:
    """The study that a folder holds, with the recipe's baseline or another of its losses."""
    try:
        where = read_where(folder / "study.json")
    except OSError as error:
        raise DataError(f"{folder} holds no study: {error}") from error
    _look_in(where)
    recipe = read(folder / "recipe.toml", _score(folder, where))
    if baseline is not None and baseline not in recipe.losses:
        raise RecipeError(f"no loss of the study is called {baseline!r}; its losses: {' | '.join(recipe.losses)}")
    against = None if baseline == recipe.baseline else baseline
    recipe = replace(recipe, baseline=against or recipe.baseline)
    skip_errors = where.get("skip_errors", False)
    return Study(folder, recipe, Path(where["data"]), Path(where["cache"]), last, against, skip_errors)


def _look_in(where: Where | dict[str, Any]) -> None:
    """Modules that the recipe names are found where they were when the study began."""
    for folder in where.get("code", ()):
        foreign.look_in(folder)


def _score(folder: Path, where: Where | dict[str, Any]) -> CountingScore:
    """What counts in a study whose recipe does not say it: what its study.json says, or else what its runs were trained
    by, which was the paper's score when there was no other. So it means what it meant, and what is added to it is
    trained as the rest was."""
    if "score" in where:
        return where["score"]
    begun = next(folder.glob("runs/**/settings.json"), None) or next(folder.glob("runs/**/result.json"), None)
    return "dice_foreground" if begun is None else read_score(begun)


def _text(recipe: str | Path) -> str:
    return packaged().get(str(recipe), Path(recipe)).read_text(encoding="utf-8")
