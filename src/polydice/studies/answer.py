"""What a study answers in words: which loss, at which rate, is it sure, and how forgiving is it?"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from polydice.studies.study import Finished
from polydice.studies.verdicts import Verdict, enough
from polydice.training.scoring import validation

KEEP = "No loss is clearly better: keep what you have."
RATE = "rate"


class Tried(NamedTuple):
    """A value of a setting, and the validation scores of the runs that had it, in points."""

    value: float
    mean: float
    lowest: float
    highest: float


class Response(NamedTuple):
    """How a loss answers to a setting: its score against the values that were tried, other settings as chosen."""

    loss: str
    setting: str
    tried: tuple[Tried, ...]  # in ascending order of the values
    chosen: float
    margin: float

    @property
    def plateau(self) -> tuple[float, float]:
        """The span of values about the chosen one that are within the margin of it."""
        means = {each.value: each.mean for each in self.tried}
        values, place = list(means), list(means).index(self.chosen)
        least = means[self.chosen] - self.margin
        low = high = place
        while low > 0 and means[values[low - 1]] >= least:
            low -= 1
        while high < len(values) - 1 and means[values[high + 1]] >= least:
            high += 1
        return values[low], values[high]

    @property
    def at_end(self) -> str:
        """Whether the chosen value is the smallest or the largest of those tried; empty if it is neither."""
        if self.chosen == self.tried[-1].value:
            return "largest"
        return "smallest" if self.chosen == self.tried[0].value else ""


def responses(tuning: Iterable[Finished], margin: float) -> Iterator[Response]:
    """For each loss and each setting of numbers that has several values among these runs."""
    losses: defaultdict[str, defaultdict[str, list[Finished]]] = defaultdict(lambda: defaultdict(list))
    for each in tuning:
        losses[each.run.loss][each.run.value].append(each)
    for loss, by_value in losses.items():
        scores = {value: [100 * (validation(each.result) or 0) for each in runs] for value, runs in by_value.items()}
        best = max(scores, key=lambda value: fmean(scores[value]))
        chosen = _settings(best)
        for setting, value in chosen.items():
            alike = {other: _settings(other) for other in scores if _settings(other).keys() == chosen.keys()}
            line = {
                other[setting]: scores[text]
                for text, other in alike.items()
                if all(other[name] == chosen[name] for name in chosen if name != setting)
            }
            numbers = {number: each for text, each in line.items() if (number := _number(text)) is not None}
            if len(numbers) < len(line) or len(numbers) < 2:
                continue
            tried = [Tried(number, fmean(each), min(each), max(each)) for number, each in numbers.items()]
            yield Response(loss, setting, tuple(sorted(tried)), float(value), margin)


def answered(
    verdicts: Mapping[str, Mapping[str, Verdict]], baseline: str, means: Mapping[str, float],
    shown: Sequence[Response],
) -> str:  # fmt: skip
    """Which loss to take, and is it sure? Of each loss its verdicts, by baseline."""
    every = [each for own in verdicts.values() for each in own.values()]
    if not every:
        return "There is nothing to compare yet."
    if all(each.kind == "too few runs" for each in every):
        return f"Too few runs for an answer: it takes at least {_more(every)}."
    ahead = [loss for loss, own in verdicts.items() if own and all("better" in each.kind for each in own.values())]
    parts = []
    if ahead:
        best = max(ahead, key=lambda loss: means.get(loss, 0))
        beaten = [
            f"{other} by {each.mean:.2f} points{' (less than the margin)' if 'slightly' in each.kind else ''}"
            for other, each in verdicts[best].items()
        ]
        parts.append(f"Take {best}{_at(best, shown)}: it is better than {' and '.join(beaten)}, and that is sure.")
        rest = [f"{loss}{_at(loss, shown)}" for loss in ahead if loss != best]
        if rest:
            parts.append(f"So {'is' if len(rest) == 1 else 'are'} {', '.join(rest)}.")
    else:
        parts.append(KEEP + (f" {baseline} did best{_at(baseline, shown)}." if _at(baseline, shown) else ""))
    open_ones = [loss for loss, own in verdicts.items() if any(not each.sure for each in own.values())]
    if open_ones:
        needed = [each for each in every if not each.sure]
        parts.append(f"Undecided: {', '.join(open_ones)}; {_more(needed)} should decide.")
    return " ".join(parts)


def _at(loss: str, shown: Sequence[Response]) -> str:
    """
    >>> _at("Dice", [Response("Dice", "rate", (), 0.04, 1.0)])
    ' at rate 0.04'
    """
    chosen = [f"{each.setting} {each.chosen:g}" for each in shown if each.loss == loss]
    return f" at {', '.join(chosen)}" if chosen else ""


def _more(undecided: Sequence[Verdict]) -> str:
    """What decides all of them."""
    if any(each.more is None for each in undecided):
        return "more cases or a larger margin, not more replicates,"
    return enough(max(undecided, key=lambda each: each.more or 0))


def forgiving(shown: Sequence[Response]) -> str:
    """How far the rate can be off before a loss is worse by more than the margin."""
    rates = sorted((each for each in shown if each.setting == RATE), key=_factor, reverse=True)
    if not rates:
        return ""
    spans = (f"{each.loss} {' to '.join(f'{end:g}' for end in each.plateau)}" for each in rates)
    return f"How forgiving: the rates within {rates[0].margin:g} of the best are, of {'; of '.join(spans)}."


def _factor(response: Response) -> float:
    low, high = response.plateau
    return high / low


def warnings(shown: Sequence[Response], histories: Iterable[Sequence[Mapping[str, Any]]], score: str) -> Iterator[str]:
    """What would make another comparison of this one."""
    ends: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for each in shown:
        if each.at_end:
            ends[each.setting, each.at_end].append(f"{each.loss} ({each.chosen:g})")
    for (setting, end), losses in ends.items():
        speed = ": this compares speed" if (setting, end) == (RATE, "largest") else ""
        beyond = "larger" if end == "largest" else "smaller"
        yield f"The best {setting} of {', '.join(losses)} is the {end} tried; a {beyond} one may be better{speed}."
    courses = [[row[score] for row in rows if row.get(score) is not None] for rows in histories]
    courses = [course for course in courses if len(course) > 1]
    late = sum(max(course) == course[-1] for course in courses)
    if 2 * late > len(courses):
        yield (
            f"In {late} of {len(courses)} runs validation is best at the end: longer trainings would score higher, and "
            "may have another order. This compares speed."
        )


def _settings(value: str) -> dict[str, str]:
    """
    >>> _settings("epsilon=0.5, rate=0.04")
    {'epsilon': '0.5', 'rate': '0.04'}
    """
    parts = (part.partition("=") for part in value.split(", "))
    return {name: text for name, _, text in parts}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
