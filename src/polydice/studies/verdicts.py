"""The verdict on two losses, one of a few that exclude each other, and its words."""

from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from polydice.studies.formats import count, duration
from polydice.studies.noise import Floats, Noise
from polydice.studies.statistics import LEVEL, NARROW, Difference, half_width

Kind = Literal[
    "better", "worse",  # the 95 % interval excludes 0
    "better, but by less than the margin", "worse, but by less than the margin",  # and the 90 % interval lies within it
    "equivalent",  # 0 is in the one, and the other lies within the margin
    "undecided",
    "too few runs",  # one replicate, or an interval that no difference of scores can have
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
MANY, MOST = 3, 30  # replicates to begin with, and as many as anybody would train


class Verdict(NamedTuple):
    """What the runs say of a loss and a baseline, in points of the score that counts."""

    kind: Kind
    mean: float
    low: float | None  # of the 95 % interval; None with too few runs
    high: float | None
    margin: float
    more: int | None = None  # replicates until there is a verdict, where there is none; None if even MOST would not do
    minutes: float | None = None  # that they would take; None if it was not recorded
    outer: str = "replicate"  # what a study has more of when it grows; with `seeds`, "seed"

    @property
    def sure(self) -> bool:
        return self.kind not in ("undecided", "too few runs")


def verdict(found: Difference, margin: float, minutes_each: float | None = None, outer: str = "replicate") -> Verdict:
    """`margin` in points; `minutes_each` is what the runs of one replicate take, which is called `outer`."""
    mean, interval, kind = 100 * found.mean, found.interval, KINDS[-1]
    more: int | None = MANY - found.replicates  # where nothing is known of the noise
    if found.noise is not None:
        wide, narrow = (100 * half_width(found.noise, level, found.comparisons) for level in (LEVEL, NARROW))
        kind = kind if interval is None else KINDS[int(kinds(np.array(mean), wide, narrow, margin))]
        more = int(missing(found.noise, margin, found.comparisons)) or None
    low, high = (None, None) if interval is None else (100 * end for end in interval)
    told = Verdict(kind, mean, low, high, margin, outer=outer)
    if told.sure or more is None:
        return told
    return told._replace(more=more, minutes=None if minutes_each is None else more * minutes_each)


def kinds(mean: Floats, wide: Floats, narrow: Floats, margin: float) -> NDArray[np.int64]:
    """Places in `KINDS`, from the half widths of the 95 % and the 90 % interval."""
    apart, within = np.abs(mean) > wide, np.abs(mean) + narrow < margin
    found: NDArray[np.int64] = np.select(
        [apart & ~within & (mean > 0), apart & ~within, apart & (mean > 0), apart, within], range(5), 5
    )
    return found


def missing(noise: Noise, margin: float, comparisons: int) -> NDArray[np.int64]:
    """How many more replicates it takes until half of the 95 % interval and half of the 90 % interval are together
    below the margin, when every outcome is a verdict; 0 where not even `MOST` would do: it takes more patients."""
    found = np.zeros(noise.one.variance.shape, np.int64)
    for replicates in range(MOST, noise.replicates, -1):
        widths = sum(half_width(noise, level, comparisons, replicates) for level in (LEVEL, NARROW))
        found = np.where(100 * widths < margin, replicates - noise.replicates, found)
    return found


def in_words(found: Verdict, loss: str, baseline: str) -> str:
    """One sentence or two for a reader.

    >>> in_words(Verdict("undecided", 1.2, -0.3, 2.7, 1.0, more=4), "X", "Dice")
    'X scores 1.20 points above Dice (95 % interval −0.30 to 2.70): undecided. 4 more replicates should decide it.'
    """
    size, margin = _points(abs(found.mean)), count(found.margin, "point")
    where = f"{size} points {'above' if found.mean > 0 else 'below'}" if found.mean else "the same as"
    interval = ""
    if found.low is not None and found.high is not None:
        interval = f" (95 % interval {_points(found.low)} to {_points(found.high)})"
    if found.kind in ("better", "worse"):
        return f"{loss} is {found.kind} than {baseline} by {size} points{interval}."
    if found.kind.endswith("margin"):
        word, less = found.kind.split(", ")
        return f"{loss} is {word} than {baseline}, {less}, {margin}: by {size} points{interval}."
    if found.kind == "equivalent":
        return f"{loss} and {baseline} are equivalent within the margin, {margin}: {loss} scores {where} it{interval}."
    if found.kind == "undecided":
        needed = f"{enough(found)} {'should' if found.more else 'are sure to'} decide it"
        return f"{loss} scores {where} {baseline}{interval}: undecided. {needed[0].upper()}{needed[1:]}."
    return f"{loss} scores {where} {baseline}: too few runs for a verdict."


def enough(found: Verdict) -> str:
    """How many replicates it takes, and how long."""
    if found.more is None:
        return f"not even {MOST} {found.outer}s"
    many = count(found.more, f"more {found.outer}")
    return many if found.minutes is None else f"{many} (about {duration(found.minutes)})"


def _points(points: float) -> str:
    return f"{points:.2f}".replace("-", "−")
