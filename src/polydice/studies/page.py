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

from polydice.studies.comparison import Comparison, Row
from polydice.studies.plots import Plot
from polydice.studies.statistics import Score
from polydice.studies.tables import Table, choices, courses, results


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
    def verdicts(self) -> list[tuple[str, str]]:
        """Whether a loss is better, worse or neither, and the sentence that says so."""
        return [(_judged(row, self.comparison.score), row.verdict) for row in self.comparison.rows if row.verdict]

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


def _judged(row: Row, score: Score) -> str:
    """As the row's sentence has it: one seed, or what may be chance with so many losses compared, is unclear."""
    found = row.differences.get(score)
    if found is None:
        return "open"
    if found.seeds == 1 or not found.apart or (row.p is not None and row.p >= 1 - found.level):
        return "unclear"
    return "better" if found.mean > 0 else "worse"


def _rounded(value: Any) -> Any:
    """The digits that can be seen, without the others."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list | tuple) else value
