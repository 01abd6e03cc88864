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

from polydice.studies.comparison import Comparison
from polydice.studies.figures import drawings, sign, themed, values
from polydice.studies.formats import Table, signed
from polydice.studies.plots import Plot
from polydice.studies.tables import choices, courses, details, pairs, results
from polydice.studies.verdicts import Verdict


@dataclass(frozen=True)
class Section:
    """A data set and a network."""

    comparison: Comparison
    plots: Sequence[Plot]
    pictures: Path | str  # the PNG of test cases, or why there is none
    tuned: Sequence[Plot] = ()  # beside the verdicts

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
        every = (self.results, pairs(self.comparison), self.courses, self.choices, self.details)
        return [table for table in every if table]

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
    def pairs(self) -> dict[tuple[str, str], Verdict]:
        """The first loss less the second."""
        return dict(self.comparison.pairs)

    @property
    def losses(self) -> list[str]:
        """In the order of the table of pairs: each stands beside those before it."""
        known = {loss for pair in self.pairs for loss in pair}
        return [row.loss for row in self.comparison.rows if row.loss in known]

    @property
    def image(self) -> str:
        return _embedded(self.pictures) if isinstance(self.pictures, Path) else ""


def page(**content: Any) -> str:
    """The page; report.html.jinja says what it is made of."""
    folder = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=folder, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters |= {"drawings": drawings, "sign": sign, "themed": themed, "values": values}
    environment.filters |= {"signed": signed, "kind": _kind}
    return environment.get_template("report.html.jinja").render(content) + "\n"


def _kind(verdict: str) -> str:
    """The classes that report.css has for it.

    >>> _kind("better, but by less than the margin")
    'better slight'
    """
    word, but, _ = verdict.partition(",")
    return word.replace(" ", "-") + (" slight" if but else "")


def _embedded(picture: Path) -> str:
    """Photographs, of which there are many, as JPEG."""
    small = io.BytesIO()
    Image.open(picture).convert("RGB").save(small, "JPEG", quality=85, subsampling=0)
    return f"data:image/jpeg;base64,{base64.b64encode(small.getvalue()).decode()}"
