"""What the hypotheses of PLAN.md came to, by its rules: confirmed, refuted or open, for each set and optimiser."""

from collections.abc import Mapping, Sequence

from polydice.studies.answer import plateau
from polydice.studies.comparison import Comparison
from polydice.studies.formats import Cell, Table

DICE, BOTH, DETACHED, TVMF = "Dice", "Dice + cross-entropy", "PolyDice-1 detached", "Adaptive t-vMF Dice"
COUPLED, ANGLE, FOLLOWING = "PolyDice-1", "PolyDice-1 of the angle", "Adaptive PolyDice-1"
CLAUSE = ", but by less than the margin"
WITHIN = {"equivalent", f"better{CLAUSE}", f"worse{CLAUSE}"}
BETTER, WORSE = {"better", f"better{CLAUSE}"}, {"worse", f"worse{CLAUSE}"}


def kind(found: Comparison, loss: str) -> str:
    """The verdict on a loss against Dice; nothing where there is none."""
    verdicts = next((row.verdicts for row in found.rows if row.loss == loss), {})
    return verdicts[DICE].kind if DICE in verdicts else ""


def outcome(confirmed: bool, refuted: bool) -> str:
    return "confirmed" if confirmed else "refuted" if refuted else "open"


def equivalent(found: Comparison) -> str:
    """H1: PolyDice-1, coupled and detached, is within the margin of Dice. One that is not trained leaves it open."""
    kinds = {kind(found, COUPLED), kind(found, DETACHED)}
    return outcome(kinds <= WITHIN, bool(kinds & {"better", "worse"}))


def above(found: Comparison, loss: str) -> str:
    """H2: a loss of the angle alone is better than Dice."""
    own = kind(found, loss)
    return outcome(own in BETTER, own in WORSE | {"equivalent"})


def forgives(found: Comparison) -> str:
    """H3: t-vMF has more rates within the margin of its best than the three others."""
    rates = {each.loss: len(plateau(each.tried, each.margin)) for each in found.responses if each.setting == "rate"}
    if not {TVMF, DICE, BOTH, DETACHED} <= rates.keys():
        return outcome(False, False)
    most = max(rates[other] for other in (DICE, BOTH, DETACHED))
    return f"{outcome(rates[TVMF] > most, rates[TVMF] < most)} ({rates[TVMF]} against {most} rates)"


def follows(sgd: Comparison, adamw: Comparison) -> str:
    """H4: an ε that grows with Dice gains like t-vMF with AdamW, and not with SGD."""
    slow, fast = kind(sgd, FOLLOWING), kind(adamw, FOLLOWING)
    pair = adamw.pairs.get((FOLLOWING, TVMF))
    gains = fast in BETTER and pair is not None and pair.kind not in WORSE
    refuted = fast in WORSE | {"equivalent"} or slow == "better"
    return outcome(gains and slow in WITHIN - BETTER, refuted)


def table(studies: Mapping[str, Comparison], titles: Mapping[str, str]) -> Table:
    """A row for each hypothesis, a column for each study, by the name of its folder; – where it was not asked."""
    asked = {
        "H1: PolyDice-1, coupled and detached, as Dice": (equivalent, (DETACHED,)),
        "H2: t-vMF above Dice": (lambda found: above(found, TVMF), (TVMF,)),
        "H2: PolyDice-1 of the angle above Dice": (lambda found: above(found, ANGLE), (ANGLE,)),
        "H3: t-vMF has a longer plateau than Dice, Dice + cross-entropy and detached": (forgives, (TVMF,)),
    }
    rows = []
    for says, (judge, losses) in asked.items():
        cells = (judge(each) if _has(each, losses) else "–" for each in studies.values())
        rows.append((Cell(says), *map(Cell, cells)))
    pair = "hippocampus-sgd", "hippocampus-adamw"
    if set(pair) <= studies.keys():
        last = follows(*(studies[name] for name in pair))
        rows.append(
            (
                Cell("H4: ε that follows gains with AdamW alone"),
                *(Cell(last if name in pair else "–") for name in studies),
            )
        )
    return Table("", ("", *(titles[name] for name in studies)), tuple(rows))


def _has(found: Comparison, losses: Sequence[str]) -> bool:
    return set(losses) <= {row.loss for row in found.rows}
