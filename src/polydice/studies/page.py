"""The report as one page of HTML that needs nothing else: no network, no other file.

Jinja escapes whatever it is given but for the drawings, in which matplotlib has done so.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from PIL import Image

from polydice.studies.comparison import Comparison, Row
from polydice.studies.figures import drawings, themed
from polydice.studies.plots import Plot
from polydice.studies.statistics import Score
from polydice.studies.tables import Table, choices, courses, results


@dataclass(frozen=True)
class Section:
    """A data set and a network."""

    comparison: Comparison
    plots: Sequence[Plot]
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
    environment.filters |= {"drawings": drawings, "themed": themed}
    return environment.get_template("report.html.jinja").render(content) + "\n"


def _embedded(picture: Path) -> str:
    """Photographs, of which there are many, as JPEG."""
    small = io.BytesIO()
    Image.open(picture).convert("RGB").save(small, "JPEG", quality=85, subsampling=0)
    return f"data:image/jpeg;base64,{base64.b64encode(small.getvalue()).decode()}"


def _judged(row: Row, score: Score) -> str:
    """As the row's sentence has it: one seed, or what may be chance with so many losses compared, is unclear."""
    found = row.differences.get(score)
    if found is None:
        return "open"
    if found.seeds == 1 or not found.apart or (row.p is not None and row.p >= 1 - found.level):
        return "unclear"
    return "better" if found.mean > 0 else "worse"
