"""The report as one page of HTML that needs nothing else: no network, no other file.

Jinja escapes whatever it is given; the numbers of a plot stand in a script of their own, as JSON without a `<`.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

from polydice.studies.comparison import Comparison
from polydice.studies.formats import Table
from polydice.studies.plots import Plot
from polydice.studies.tables import choices, courses, details, pairs, results


@dataclass(frozen=True)
class Shown:
    """A plot as the page has it: a picture and, where scripts run, what is drawn in its place."""

    plot: Plot
    picture: Path  # SVG

    @property
    def image(self) -> str:
        return _embedded(self.picture)

    @property
    def data(self) -> Any:
        return _rounded(asdict(self.plot))


@dataclass(frozen=True)
class Section:
    """A data set and a network."""

    comparison: Comparison
    plots: Sequence[Shown]
    pictures: Path | str  # the PNG of test cases, or why there is none

    @property
    def title(self) -> str:
        return self.comparison.title

    @property
    def results(self) -> Table:
        return results(self.comparison)

    @property
    def courses(self) -> Table | None:
        return courses(self.comparison)

    @property
    def choices(self) -> Table | None:
        return choices(self.comparison)

    @property
    def tables(self) -> list[Table]:
        every = (self.results, self.pairs, self.courses, self.choices, self.details)
        return [table for table in every if table]

    @property
    def pairs(self) -> Table | None:
        return pairs(self.comparison)

    @property
    def details(self) -> Table | None:
        return details(self.comparison)

    @property
    def verdicts(self) -> list[tuple[str, str]]:
        """The kind of each verdict, and the sentence that says it; open where there is none yet."""
        return [
            (each.verdict.kind if each.verdict else "open", each.sentence(row.loss, baseline))
            for row in self.comparison.rows
            for baseline, each in row.compared.items()
        ]

    @property
    def image(self) -> str:
        return _embedded(self.pictures) if isinstance(self.pictures, Path) else ""


def page(**content: Any) -> str:
    """The page; report.html.jinja says what it is made of."""
    folder = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.get_template("report.html.jinja").render(content) + "\n"


def _embedded(picture: Path) -> str:
    """A drawing as it is; photographs, of which there are many, as JPEG."""
    if picture.suffix == ".svg":
        return _address("svg+xml", picture.read_bytes())
    small = io.BytesIO()
    Image.open(picture).convert("RGB").save(small, "JPEG", quality=85, subsampling=0)
    return _address("jpeg", small.getvalue())


def _address(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _rounded(value: Any) -> Any:
    """The digits that can be seen, without the others."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value
