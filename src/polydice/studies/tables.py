"""A study's tables: built once, and written as Markdown, LaTeX and CSV."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from polydice.studies.comparison import SCORES, Comparison, Row
from polydice.studies.families import SYMBOLS
from polydice.studies.published import SOURCE
from polydice.studies.statistics import Score, Summary

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
    "A difference is to the baseline, over the same folds and seeds, with its 95 % interval, in percentage points. "
    "Seed noise is the standard deviation of the mean from seed to seed. Where runs are missing, a mean is over the "
    "seeds with the most folds, and a difference over the most pairs of runs in which all seeds have the same folds.",
    f"The paper is {SOURCE}. It chooses ε on validation and does not name K, α and β: its figure stands beside every "
    "value of them.",
)
MARK = "†"
CHOICE = (
    "The chosen epoch is the one whose weights did best on validation and are tested, median over the runs. The last "
    "weights are those of the last epoch, tested on the same cases."
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
# What LaTeX would act on, or does not know.
SPECIAL = {character: f"\\{character}" for character in "&%$#_{}"}
SPECIAL |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$"}
SPECIAL |= {"±": r"$\pm$", "−": "$-$", "α": r"$\alpha$", "β": r"$\beta$", "ε": r"$\varepsilon$", "κ": r"$\kappa$"}
SPECIAL |= {"γ": r"$\gamma$", "|": "$|$", "†": r"$\dagger$", "–": "--"}


class Cell(NamedTuple):
    text: str
    order: float | None = None  # what a column is sorted by, where it is not the text
    bold: bool = False


@dataclass(frozen=True)
class Table:
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def results(comparison: Comparison) -> Table:
    """Each loss's scores, the paper's where it has this data set and network, and the differences to the baseline."""
    table = next((row.published.table for row in comparison.rows if row.published), "")
    paper = [f"Paper, {table}", "Ours − paper"]  # beside the score that it has
    counts, (other, name) = comparison.score, BESIDE[comparison.score]
    header = ["Loss", "Dice", *(paper if counts == "dice_global" else [])]
    header += [f"Difference to {comparison.baseline}", "Seed noise", name, *(paper if other == "dice_global" else [])]
    header += ["Dice per case", "Difference, per case", "Runs"]
    rows = []
    for row in comparison.rows:
        score = row.scores.get(counts)
        noise = score.seed_noise if score else None
        published = [
            Cell(str(row.published or ""), row.published and float(row.published.mean)),
            Cell(signed(row.to_published), row.to_published),
        ]
        cells = [Cell(row.loss), _counting(comparison, row), *(published if counts == "dice_global" else [])]
        cells += [_difference(row, counts), Cell("" if noise is None else f"{100 * noise:.2f}", noise)]
        cells += [_mean(row.scores.get(other)), *(published if other == "dice_global" else [])]
        cells += [_mean(row.scores.get("dice_case")), _difference(row, "dice_case"), _runs(row)]
        rows.append(cells)
    return _filled(comparison.title, header, rows)  # one seed has no seed noise, and the baseline alone no difference


def courses(comparison: Comparison) -> Table | None:
    """What else one should know of the runs before a difference is put down to the loss."""
    tested = any(row.last is not None for row in comparison.rows)  # or else there was no choice, or it is not told
    if not tested and all(row.gradient is None for row in comparison.rows):
        return None
    header = ["Loss", "Chosen epoch", "Dice, last weights", "Last − chosen", f"Gradient, × {comparison.baseline}"]
    rows = []
    for row in comparison.rows:
        epochs = [each.result["best_epoch"] for each in row.counting.values()]
        chosen = median(epochs) if epochs and tested else None
        chosen_score = row.scores.get(comparison.score)
        apart = None if row.last is None or chosen_score is None else 100 * (row.last - chosen_score.mean)
        cells = [Cell(row.loss), Cell("" if chosen is None else f"{chosen:g}", chosen)]
        cells += [Cell("" if row.last is None else f"{100 * row.last:.2f}", row.last), Cell(signed(apart), apart)]
        cells.append(Cell("" if row.gradient is None else f"{row.gradient:.2f}", row.gradient))
        rows.append(cells)
    return _filled("How the runs went", header, rows)


def notes(comparisons: Sequence[Comparison]) -> list[str]:
    """What the columns mean."""
    rows = [row for each in comparisons for row in each.rows]
    told = {CHOICE: any(row.last is not None for row in rows), GRADIENT: any(row.gradient is not None for row in rows)}
    told |= {COLLAPSED: any(row.collapsed for row in rows), UNDEFINED: any(row.undefined for row in rows)}
    return [COUNTS[comparisons[0].score], *NOTES, *(note for note, needed in told.items() if needed)]


def _filled(title: str, header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    """Without the columns in which there is nothing."""
    places = [place for place, column in enumerate(zip(*rows, strict=True)) if any(cell.text for cell in column)]
    kept = tuple(tuple(cells[place] for place in places) for cells in rows)
    return Table(title, tuple(header[place] for place in places), kept)


def overview(comparisons: Sequence[Comparison], model: str) -> Table:
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
    """The values that were chosen on validation, fold by fold, in the order of the seeds."""
    listed = [row for row in comparison.rows if row.values]
    if not listed:
        return None
    folds = sorted({fold for row in listed for fold in row.values})
    rows = tuple((Cell(row.loss), *(Cell(_chosen(row.values.get(fold, []))) for fold in folds)) for row in listed)
    return Table("Chosen on validation, seed by seed", ("Loss", *(f"Fold {fold}" for fold in folds)), rows)


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
            f"{score}_seed_noise": scored and _percent(scored.seed_noise),
            f"{score}_difference": apart and _percent(apart.mean),
            f"{score}_low": apart and _percent(apart.low),
            f"{score}_high": apart and _percent(apart.high),
        }
    return found | {
        "last": _percent(row.last),
        "gradient": row.gradient,
        "runs_counted": row.scores[comparison.score].runs if comparison.score in row.scores else 0,
        "p_holm": row.p,
        "published": row.published and float(row.published.mean),
        "published_sd": row.published and float(row.published.sd),
        "to_published": None if row.to_published is None else round(row.to_published, 4),
        "chosen": "; ".join(f"fold {fold}: {', '.join(values)}" for fold, values in row.values.items()),
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
    said = [
        f"- {_plain(each.title)}: {_plain(row.verdict)}" for each in comparisons for row in each.rows if row.verdict
    ]
    parts = [f"# {_plain(title)}", _plain(about), "\n".join(said), "\n".join(f"- {_plain(line)}" for line in remarks)]
    parts += [markdown(table).strip() for table in tables]
    parts += ["\n".join(f"- {_plain(line)}" for line in missing), *notes(comparisons)]
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown(table: Table) -> str:
    rows = [[f"**{_plain(cell.text)}**" if cell.bold else _plain(cell.text) for cell in row] for row in table.rows]
    lines = [list(map(_plain, table.header)), ["---"] * len(table.header), *rows]
    return f"### {_plain(table.title)}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def terminal(table: Table, width: int | None = None) -> str:
    """Plain text in columns; those that do not fit into `width` are left out, the last one never."""
    header, rows = list(table.header), [[cell.text for cell in row] for row in table.rows]
    while True:
        lines = [header, *rows]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        if width is None or sum(widths) + 2 * len(widths) - 2 <= width or len(header) <= 2:
            break
        for line in lines:
            del line[-2]
    text = ["  ".join(cell.ljust(size) for cell, size in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([table.title, *text]) + "\n"


def latex(table: Table) -> str:
    """Takes \\usepackage{booktabs}."""
    rows = [[rf"\textbf{{{_tex(cell.text)}}}" if cell.bold else _tex(cell.text) for cell in row] for row in table.rows]
    lines = [rf"  {' & '.join(row)} \\" for row in [list(map(_tex, table.header)), *rows]]
    body = "\n".join([r"  \toprule", lines[0], r"  \midrule", *lines[1:], r"  \bottomrule"])
    columns = "l" + "r" * (len(table.header) - 1)
    return (
        f"\\begin{{table}}\n  \\centering\n  \\caption{{{_tex(table.title)}}}\n"
        f"  \\begin{{tabular}}{{{columns}}}\n{body}\n  \\end{{tabular}}\n\\end{{table}}\n"
    )


def _counting(comparison: Comparison, row: Row) -> Cell:
    """The score that counts, marked where runs in it have collapsed."""
    cell = _mean(row.scores.get(comparison.score), state(row), bold=row.loss == comparison.highest)
    return cell._replace(text=f"{cell.text} {MARK}") if row.collapsed and cell.order is not None else cell


def _mean(score: Summary | None, otherwise: str = "", bold: bool = False) -> Cell:
    if score is None:
        return Cell(otherwise)
    spread = "" if score.sd is None else f" ± {100 * score.sd:.2f}"
    return Cell(f"{100 * score.mean:.2f}{spread}", score.mean, bold)


def _difference(row: Row, score: Score) -> Cell:
    found = row.differences.get(score)
    if found is None:
        return Cell("")
    low, high = (f"{100 * end:.2f}".replace("-", "−") for end in (found.low, found.high))
    return Cell(f"{signed(100 * found.mean)} [{low}, {high}]", found.mean)


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


def signed(points: float | None) -> str:
    """Percentage points with their sign; nothing if there are none."""
    return "" if points is None else f"{round(points, 2) + 0.0:+.2f}".replace("-", "−")  # no −0.00


def _percent(score: float | None) -> float | None:
    return None if score is None else round(100 * score, 4)


def _plain(text: str) -> str:
    """Text in which Markdown finds nothing to act on."""
    return re.sub(r"([\\`*_<>|#~]|\](?=\())", r"\\\1", " ".join(text.split()))


def _tex(text: str) -> str:
    return "".join(SPECIAL.get(character, character) for character in text)
