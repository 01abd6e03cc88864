"""A study's tables, built once for the page, for Markdown, for LaTeX and for CSV."""

import csv
import io
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from polydice.studies.comparison import SCORES, Comparison, Row
from polydice.studies.families import SYMBOLS
from polydice.studies.formats import Cell, Table, markdown, plain, signed
from polydice.studies.outcomes import Score
from polydice.studies.published import SOURCE
from polydice.studies.statistics import Difference, Summary
from polydice.studies.verdicts import Verdict

# What counts, and beside it the other score of the same confusion matrix.
COUNTS: dict[Score, str] = {
    "dice_foreground": "Dice is dice_foreground: one confusion matrix over all test pixels, Dice of each class, mean "
    "over the foreground classes. Dice with background is dice_global, the paper's score: its mean has the background, "
    "too.",
    "dice_global": "Dice is dice_global, the paper's score: one confusion matrix over all test pixels, Dice of each "
    "class, mean over the classes with the background. Dice of foreground is dice_foreground: its mean has the "
    "foreground classes alone.",
}
BESIDE: dict[Score, tuple[Score, str]] = {
    "dice_foreground": ("dice_global", "Dice with background"),
    "dice_global": ("dice_foreground", "Dice of foreground"),
}
NOTES = (
    "Dice per case, dice_case, is the mean over the foreground classes of a case, then over the cases. All are in "
    "percent, mean ± standard deviation over the folds; the highest mean is bold if all are over the same runs, which "
    "proves nothing by itself.",
    "A difference is to the baseline, over the same folds and replicates, with its 95 % interval, in points. All "
    "comparisons with baselines share one level: in 95 of 100 studies all of their intervals hold the truth. Where "
    "there are too few runs, there is no interval. Noise is the standard deviation of the mean from replicate to "
    "replicate. Where runs are missing, a mean is over the replicates with the most folds, and a difference over the "
    "most pairs of runs in which all replicates have the same folds.",
    f"The paper is {SOURCE}. It chooses ε on validation and does not name K, α and β: its figure stands beside every "
    "value of them. Runs of another size, width or length, or on other data, differ from it by that too.",
)
MARK = "†"
CHOICE = (
    "The best epoch is the one whose weights did best on validation, median over the runs; the last weights are "
    "those of the last epoch. Both are tested on the same cases."
)
PAIRS = (
    "In the table of all pairs a number is the loss of its row minus that of its column. There are more comparisons, "
    "which share one level: it is bold where its interval excludes 0."
)
DETAILS = (
    "Wilcoxon's p is over the pairs of runs, from three replicates on, after Holm's correction for all losses. It is "
    "approximate, since the pairs share training data, and decides nothing: the interval does."
)
GRADIENT = (
    "Gradient is its norm as a multiple of the baseline's, median over epochs and runs, each loss at the weights that "
    "it led to. At the same rate a loss with larger gradients takes larger steps."
)
COLLAPSED = (
    f"{MARK} Runs of this loss have collapsed: they predict nothing, or have lost a class. They are in the mean, and "
    "they are named above."
)
UNDEFINED = "– Dice of the foreground is not defined: no test case has any."


def results(comparison: Comparison) -> Table:
    """Each loss's scores, the paper's where it has this data set and network, and the differences to the baselines."""
    table = next((row.published.table for row in comparison.rows if row.published), "")
    paper = [f"Paper, {table}", "Ours − paper"]  # beside the score that it has
    counts, (other, name) = comparison.score, BESIDE[comparison.score]
    header = ["Loss", "Dice", *(paper if counts == "dice_global" else [])]
    header += [*(f"Difference to {baseline}" for baseline in comparison.baselines), "Noise", name]
    header += [*(paper if other == "dice_global" else []), "Dice per case", "Difference, per case", "Runs"]
    rows = []
    for row in comparison.rows:
        score = row.scores.get(counts)
        noise = score.replicate_noise if score else None
        published = [
            Cell(str(row.published or ""), row.published and float(row.published.mean)),
            Cell(signed(row.to_published), row.to_published),
        ]
        apart = (row.compared[each].differences if each in row.compared else {} for each in comparison.baselines)
        cells = [Cell(row.loss), _counting(comparison, row), *(published if counts == "dice_global" else [])]
        cells += [*(_difference(each.get(counts)) for each in apart), Cell(*_text(noise, 100))]
        cells += [_mean(row.scores.get(other)), *(published if other == "dice_global" else [])]
        cells += [_mean(row.scores.get("dice_case")), _difference(row.differences.get("dice_case")), _runs(row)]
        rows.append(cells)
    return _filled(comparison.title, header, rows)  # one replicate has no noise, and the baseline alone no difference


def courses(comparison: Comparison) -> Table | None:
    """What else one should know of the runs before a difference is put down to the loss."""
    tested = any(row.other is not None for row in comparison.rows)  # or else there was no choice, or it is not told
    if not tested and all(row.gradient is None for row in comparison.rows):
        return None
    counts, other = ("last", "best") if comparison.weights == "last" else ("best", "last")
    header = ["Loss", "Best epoch", f"Dice, {other} weights", f"{other.capitalize()} − {counts}"]
    header += [f"Gradient, × {comparison.baseline}"]
    rows = []
    for row in comparison.rows:
        epochs = [each.result.get("best", each.result)["best_epoch"] for each in row.counting.values()]
        best = median(epochs) if epochs and tested else None
        score = row.scores.get(comparison.score)
        apart = None if row.other is None or score is None else 100 * (row.other - score.mean)
        cells = [Cell(row.loss), Cell("" if best is None else f"{best:g}", best), Cell(*_text(row.other, 100))]
        rows.append([*cells, Cell(signed(apart), apart), Cell(*_text(row.gradient))])
    return _filled("How the runs went", header, rows)


def pairs(comparison: Comparison) -> Table | None:
    """Every loss less every loss before it; of two losses, the results say it all."""
    losses = [row.loss for row in comparison.rows if any(row.loss in pair for pair in comparison.pairs)]
    if len(losses) < 3:
        return None
    rows = []
    for loss in losses[1:]:
        found = [comparison.pairs.get((loss, other)) for other in losses[:-1]]
        cells = [Cell(signed(each.mean), each.mean, _apart(each)) if each else Cell("") for each in found]
        rows.append((Cell(loss), *cells))
    return Table("All pairs", ("Row − column", *losses[:-1]), tuple(rows))


def _apart(found: Verdict) -> bool:
    return found.kind.startswith(("better", "worse"))


def details(comparison: Comparison) -> Table | None:
    """What the verdicts come from."""
    rows = []
    for row in comparison.rows:
        for baseline, each in row.compared.items():
            found = each.differences.get(comparison.score)
            if found is None or each.verdict is None:
                continue
            spread = None if found.noise is None else found.noise.of_mean()
            error = None if spread is None else float(spread.variance) ** 0.5
            freedom = None if spread is None else float(spread.freedom)
            rows.append(
                (
                    Cell(row.loss), Cell(baseline), _difference(found), Cell(each.verdict.kind),
                    Cell(*_text(error, 100)), Cell("" if freedom is None else f"{freedom:.1f}", freedom),
                    Cell(f"{found.replicates} × {found.folds}", found.replicates * found.folds),
                    Cell("" if each.p is None else f"{each.p:.2g}", each.p),
                )
            )  # fmt: skip
    header = ["Loss", "Baseline", "Difference", "Verdict", "Standard error", "Degrees of freedom"]
    header += ["Replicates × folds" if comparison.nested else "Seeds × folds", "Wilcoxon's p"]
    return _filled("How the verdicts were found", header, rows) if rows else None


def notes(comparisons: Sequence[Comparison]) -> list[str]:
    """What the columns mean."""
    rows = [row for each in comparisons for row in each.rows]
    told = {CHOICE: any(row.other is not None for row in rows), PAIRS: any(map(pairs, comparisons))}
    told |= {DETAILS: any(map(details, comparisons)), GRADIENT: any(row.gradient is not None for row in rows)}
    told |= {COLLAPSED: any(row.collapsed for row in rows), UNDEFINED: any(row.undefined for row in rows)}
    return [COUNTS[comparisons[0].score], *NOTES, *(note for note, needed in told.items() if needed)]


def _filled(title: str, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    """Without the columns in which there is nothing."""
    places = [place for place, column in enumerate(zip(*rows, strict=True)) if any(cell.text for cell in column)]
    kept = tuple(tuple(cells[place] for place in places) for cells in rows)
    return Table(title, tuple(header[place] for place in places), kept)


def by_dataset(comparisons: Sequence[Comparison], model: str) -> Table:
    """A network's losses by data set, as the paper's tables have them, its own figures in brackets."""
    mine = [each for each in comparisons if each.model == model]
    rows = []
    for place, first in enumerate(mine[0].rows):
        cells = [Cell(first.loss)]
        for each in mine:
            row = each.rows[place]
            cell = _counting(each, row)
            same = row.published if each.score == "dice_global" else None  # else it would stand beside another score
            cells.append(cell._replace(text=f"{cell.text} ({same})" if same else cell.text))
        rows.append(tuple(cells))
    paper = ", in brackets the paper's" if any("(" in cell.text for row in rows for cell in row[1:]) else ""
    return Table(f"{model}: Dice by data set{paper}", ("Loss", *(each.dataset for each in mine)), tuple(rows))


def choices(comparison: Comparison) -> Table | None:
    """The values that were chosen on validation, fold by fold, in the order of the replicates."""
    listed = [row for row in comparison.rows if row.values]
    if not listed:
        return None
    folds = sorted({fold for row in listed for fold in row.values})
    rows = tuple((Cell(row.loss), *(Cell(_chosen(row.values.get(fold, []))) for fold in folds)) for row in listed)
    return Table("Chosen on validation, replicate by replicate", ("Loss", *(f"Fold {fold}" for fold in folds)), rows)


def state(row: Row) -> str:
    """What there is instead of a score."""
    if row.undefined:
        return "–"
    if row.states["done"]:
        return "unfinished"
    return "failed" if row.states["failed"] else "no data" if row.states["no data"] else "not run"


def record(comparison: Comparison, row: Row) -> dict[str, Any]:
    """A row as numbers, in percent: the line of the CSV file, and what `--json` prints."""
    found: dict[str, Any] = {"dataset": comparison.dataset, "model": comparison.model, "loss": row.loss}
    found |= {"runs_planned": row.planned, "runs_done": row.states["done"], "runs_failed": row.states["failed"]}
    found |= {"runs_collapsed": row.collapsed, "score": comparison.score}
    for score in SCORES:
        scored, apart = row.scores.get(score), row.differences.get(score)
        found |= {
            score: scored and _percent(scored.mean),
            f"{score}_sd": scored and _percent(scored.sd),
            f"{score}_noise": scored and _percent(scored.replicate_noise),
            f"{score}_difference": apart and _percent(apart.mean),
            f"{score}_low": apart and apart.interval and _percent(apart.interval[0]),
            f"{score}_high": apart and apart.interval and _percent(apart.interval[1]),
        }
    return found | {
        "weights": comparison.weights,
        "other_weights": _percent(row.other),
        "gradient": row.gradient,
        "runs_counted": row.scores[comparison.score].runs if comparison.score in row.scores else 0,
        "p_holm": next((each.p for each in row.compared.values()), None),
        "published": row.published and float(row.published.mean),
        "published_sd": row.published and float(row.published.sd),
        "to_published": None if row.to_published is None else round(row.to_published, 4),
        "chosen": "; ".join(f"fold {fold}: {', '.join(values)}" for fold, values in row.values.items()),
        "verdicts": "; ".join(f"{each.kind}: {name}" for name, each in row.verdicts.items()),
        "verdict": row.verdict,
    }


def csv_text(comparisons: Iterable[Comparison]) -> str:
    """One line for each loss, data set and network."""
    records = [record(each, row) for each in comparisons for row in each.rows]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def document(
    title: str, about: str, comparisons: Sequence[Comparison], tables: Iterable[Table], missing: Iterable[str],
    remarks: Iterable[str] = (),
) -> str:  # fmt: skip
    """Everything as one Markdown file: the sentences, the runs to look at, the tables, what was not run."""
    parts = [f"# {plain(title)}", plain(about)]
    for each in comparisons:
        parts.append(plain(f"{each.title}: {each.answer}" if len(comparisons) > 1 else each.answer))
        said = [*(row.verdict for row in each.rows if row.verdict), *each.warnings]
        parts.append("\n".join(f"- {plain(line)}" for line in said))
    parts.append("\n".join(f"- {plain(line)}" for line in remarks))
    parts += [markdown(table).strip() for table in tables]
    parts += ["\n".join(f"- {plain(line)}" for line in missing), *notes(comparisons)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _counting(comparison: Comparison, row: Row) -> Cell:
    """The score that counts, marked where runs in it have collapsed."""
    cell = _mean(row.scores.get(comparison.score), state(row), bold=row.loss == comparison.highest)
    return cell._replace(text=f"{cell.text} {MARK}") if row.collapsed and cell.order is not None else cell


def _mean(score: Summary | None, otherwise: str = "", bold: bool = False) -> Cell:
    if score is None:
        return Cell(otherwise)
    spread = "" if score.sd is None else f" ± {100 * score.sd:.2f}"
    return Cell(f"{100 * score.mean:.2f}{spread}", score.mean, bold)


def _difference(found: Difference | None) -> Cell:
    if found is None:
        return Cell("")
    text = signed(100 * found.mean)
    if found.interval is not None:
        text += f" [{', '.join(f'{100 * end:.2f}' for end in found.interval)}]".replace("-", "−")
    return Cell(text, found.mean)


def _text(number: float | None, factor: int = 1) -> tuple[str, float | None]:
    """A number as it is written, and for the order."""
    return ("" if number is None else f"{factor * number:.2f}"), number


def _chosen(values: Sequence[str]) -> str:
    """`ε = 0.5, 0.0` of `epsilon=0.5` and `epsilon=0.0`; of losses with several parameters, all there is."""
    parts = [value.partition("=") for value in values]
    if not parts or any("=" in text for _, _, text in parts):
        return "; ".join(values)
    name = parts[0][0]
    return f"{SYMBOLS.get(name, name)} = {', '.join(text for _, _, text in parts)}".replace("-", "−")


def _runs(row: Row) -> Cell:
    told = {"failed": row.states["failed"], "collapsed": row.collapsed, "not defined": row.undefined}
    more = "".join(f", {count} {what}" for what, count in told.items() if count)
    return Cell(f"{row.states['done']} of {row.planned}{more}", row.states["done"])


def _percent(score: float | None) -> float | None:
    return None if score is None else round(100 * score, 4)
