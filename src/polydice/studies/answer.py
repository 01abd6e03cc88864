"""What a study answers in words: which loss, at which rate, is it sure, and how forgiving is it?"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf
from statistics import fmean
from typing import Any, NamedTuple

from polydice.studies.formats import count
from polydice.studies.study import Finished
from polydice.studies.verdicts import Verdict, enough
from polydice.training.scoring import collapse, validation

KEEP = "No loss is clearly better: keep what you have."
UNTUNED = "but at rates that were not tuned: tune them before you take it."
RATE, EXPRESSION = "rate", "loss"
FEW = 3  # losses that are named


Value = float | str  # a rate, the name of an optimiser


class Tried(NamedTuple):
    """A value, and the mean, the lowest and the highest validation score of the runs that had it, in points."""

    value: Value
    mean: float
    low: float | None = None  # None where a single run has no range
    high: float | None = None


class Response(NamedTuple):
    """How a loss answers to a setting: its score against the values that were tried, other settings as chosen."""

    loss: str
    setting: str
    tried: tuple[Tried, ...]  # numbers in ascending order
    chosen: Value
    margin: float

    @property
    def span(self) -> tuple[float, float] | None:
        """The ends of the plateau; None of names."""
        numbers = [value for value in plateau(self.tried, self.margin) if isinstance(value, float)]
        return (numbers[0], numbers[-1]) if numbers else None

    @property
    def at_end(self) -> str:
        """Whether the chosen value is the smallest or the largest of those tried; empty if it is neither, or a name."""
        if isinstance(self.chosen, str) or self.chosen not in (self.tried[0].value, self.tried[-1].value):
            return ""
        return "largest" if self.chosen == self.tried[-1].value else "smallest"


def plateau(tried: Sequence[Tried], margin: float) -> list[Value]:
    """The values within `margin` of the best: of numbers, those around it without a gap; of names, all.

    >>> plateau([Tried(0.01, 90.6), Tried(0.04, 92.3), Tried(0.16, 91.7)], margin=1.0)
    [0.04, 0.16]
    """
    tried = ordered(tried)
    best = max(range(len(tried)), key=lambda place: tried[place].mean)
    near = [place for place, each in enumerate(tried) if each.mean >= tried[best].mean - margin]
    if not are_names(tried):
        near = [place for place in near if set(range(min(place, best), max(place, best))) <= set(near)]
    return [tried[place].value for place in near]


def ordered(tried: Sequence[Tried]) -> list[Tried]:
    """Numbers by size, names as they come."""
    found = [Tried(*each) for each in tried]
    return found if are_names(found) else sorted(found, key=lambda each: each.value)


def are_names(tried: Sequence[Tried]) -> bool:
    return any(isinstance(each.value, str) for each in tried)


def responses(tuning: Iterable[Finished], chosen: Mapping[str, str], margin: float) -> Iterator[Response]:
    """For each loss and each setting of training that has several values among these runs. `chosen` has the value of a
    loss that was chosen once; of another loss it is the one with the best mean."""
    losses: defaultdict[str, defaultdict[str, list[Finished]]] = defaultdict(lambda: defaultdict(list))
    for each in tuning:
        losses[each.run.loss][each.run.value].append(each)
    for loss, runs in losses.items():
        most = max(map(len, runs.values()))  # a value with fewer runs has diverged
        scores = {
            value: [100 * (validation(each.result) or 0) for each in own]
            for value, own in runs.items()
            if len(own) == most
        }
        best = chosen.get(loss, max(scores, key=lambda value: fmean(scores[value])))
        if best in scores:
            variants = {value: _variant(runs[value][0]) for value in scores}
            for setting in variants[best]:
                line = {
                    _value(variant[setting]): scores[value]
                    for value, variant in variants.items()
                    if variant | {setting: None} == variants[best] | {setting: None}
                }
                if setting != EXPRESSION and len(line) > 1:
                    tried = [Tried(value, fmean(each), min(each), max(each)) for value, each in line.items()]
                    yield Response(loss, setting, tuple(ordered(tried)), _value(variants[best][setting]), margin)


def _variant(each: Finished) -> dict[str, Any]:
    """What a loss is trained with, but for what all have in common."""
    return {EXPRESSION: each.run.expression, **dict(each.run.settings)}


def _value(value: Any) -> Value:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def answered(
    verdicts: Mapping[str, Mapping[str, Verdict]], means: Mapping[str, float], shown: Sequence[Response]
) -> str:
    """Which loss to take, and is it sure? Of each loss its verdicts, by baseline."""
    every = [each for own in verdicts.values() for each in own.values()]
    if not every:
        return "There is nothing to compare yet."
    if all(each.kind == "too few runs" for each in every):
        return f"Too few runs for an answer: {_more(every)} give one."
    ahead, parts = [loss for loss, own in verdicts.items() if _ahead([each.kind for each in own.values()])], []
    if ahead:
        best = max(ahead, key=lambda loss: means.get(loss, 0))
        beaten = [
            f"{other} by {each.mean:.2f} points{' (less than the margin)' if 'margin' in each.kind else ''}"
            for other, each in verdicts[best].items()
        ]
        if any(each.setting == RATE for each in shown):
            parts.append(f"Take {best}{_at(best, shown)}: it is better than {' and '.join(beaten)}, and that is sure.")
        else:
            parts.append(f"{best} is better than {' and '.join(beaten)}, and that is sure, {UNTUNED}")
        rest = [f"{loss}{_at(loss, shown)}" for loss in ahead if loss != best]
        if rest:
            parts.append(f"Better than the baselines, too: {', '.join(rest)}.")
    else:
        parts.append(KEEP)
    parts += _worse(verdicts)
    return " ".join([*parts, *_undecided(verdicts)])


def _ahead(kinds: Sequence[str]) -> bool:
    """Better than every baseline, and not by less than the margin everywhere."""
    return "better" in kinds and all(kind.startswith("better") for kind in kinds)


def _worse(verdicts: Mapping[str, Mapping[str, Verdict]]) -> Iterator[str]:
    """What nobody should keep: a sentence for each baseline, which may itself be worse than another one."""
    behind: defaultdict[str, list[str]] = defaultdict(list)
    for loss, own in verdicts.items():
        for baseline, each in own.items():
            if each.kind == "worse":
                behind[baseline].append(f"{loss} by {abs(each.mean):.2f} points")
    for baseline, losses in behind.items():
        yield f"Worse than {baseline}: {', '.join(losses) if len(losses) <= FEW else f'{len(losses)} losses'}."


def _undecided(verdicts: Mapping[str, Mapping[str, Verdict]]) -> Iterator[str]:
    """First those that more replicates should decide; then those of which that is not sure. Apart from them, losses
    with too few runs for any verdict."""
    unsure = {loss: [each for each in own.values() if not each.sure] for loss, own in verdicts.items()}
    for word, few in (("Undecided", False), ("Too few runs", True)):
        for hopeless in (False, True):
            losses = [
                loss
                for loss, own in unsure.items()
                if own
                and all(each.kind == "too few runs" for each in own) == few
                and any(each.more is None for each in own) == hopeless
            ]
            if losses:
                which = ", ".join(losses) if len(losses) <= FEW else f"{len(losses)} losses"
                yield f"{word}: {which}; {_more([each for loss in losses for each in unsure[loss]])} decide."


def _at(loss: str, shown: Sequence[Response]) -> str:
    """
    >>> _at("Dice", [Response("Dice", "rate", (), 0.04, 1.0)])
    ' at rate 0.04'
    """
    chosen = [f"{each.setting} {_shown(each.chosen)}" for each in shown if each.loss == loss]
    return f" at {', '.join(chosen)}" if chosen else ""


def _more(undecided: Sequence[Verdict]) -> str:
    """What decides all of them."""
    most = max(undecided, key=lambda each: inf if each.more is None else each.more)
    return f"{enough(most)} {'are sure to' if most.more is None else 'should'}"


def forgiving(shown: Sequence[Response]) -> str:
    """The best value of each loss, and how far it can be off before the loss is worse by more than the margin."""
    return " ".join(_forgiving(setting, shown) for setting in dict.fromkeys(each.setting for each in shown))


def _forgiving(setting: str, shown: Sequence[Response]) -> str:
    own = sorted((each for each in shown if each.setting == setting), key=_factor, reverse=True)
    margin = count(own[0].margin, "point")
    told = "; ".join(f"{each.loss} {_shown(each.chosen)} ({_others(each)})" for each in own)
    return f"How forgiving: the best {setting} of each loss, and in brackets those within {margin} of it: {told}."


def _others(response: Response) -> str:
    near = plateau(response.tried, response.margin)
    if near == [response.chosen]:
        return "no other"
    return f"{response.span[0]:g} to {response.span[1]:g}" if response.span else " or ".join(map(_shown, near))


def _factor(response: Response) -> float:
    low, high = response.span or (1, 1)
    return high / low if low > 0 else inf


def warnings(
    shown: Sequence[Response], runs: Iterable[Finished], histories: Iterable[Sequence[Mapping[str, Any]]], score: str
) -> Iterator[str]:
    """Why the same comparison, done in another way, could have another result."""
    runs = list(runs)
    if lost := Counter(each.run.loss for each in runs if collapse(each.result["test"])):
        named = ", ".join(f"{loss}: {times}" for loss, times in lost.items())
        yield (
            f"{lost.total()} of {len(runs)} runs collapsed ({named}): the network predicts nothing, or has lost a "
            "class. Try other rates or longer trainings before you believe a verdict on these losses."
        )
    rates = {each.result.get("settings", {}).get(RATE) for each in runs}  # older results may not have it
    if len(rates) == 1 and rates != {None} and not any(each.setting == RATE for each in shown):
        yield f"All losses were trained at one rate, {rates.pop():g}: this compares how well it suits them, too."
    ends: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for each in shown:
        if each.at_end:
            ends[each.setting, each.at_end].append(f"{each.loss} ({_shown(each.chosen)})")
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


def _shown(value: Value) -> str:
    return value if isinstance(value, str) else f"{value:g}"
