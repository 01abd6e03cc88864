"""How a table is written: Markdown, LaTeX, plain text in columns. And how a number is."""

import re
from dataclasses import dataclass
from typing import NamedTuple

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


def markdown(table: Table) -> str:
    rows = [[f"**{plain(cell.text)}**" if cell.bold else plain(cell.text) for cell in row] for row in table.rows]
    lines = [list(map(plain, table.header)), ["---"] * len(table.header), *rows]
    return f"### {plain(table.title)}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


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


def signed(points: float | None) -> str:
    """Percentage points with their sign; nothing if there are none."""
    return "" if points is None else f"{round(points, 2) + 0.0:+.2f}".replace("-", "−")  # no −0.00


def count(number: float, thing: str) -> str:
    """
    >>> count(1, "run"), count(1.5, "point")
    ('1 run', '1.5 points')
    """
    shown = number if isinstance(number, int) else f"{number:g}"
    return f"{shown} {thing}{'' if number == 1 else 's'}"


def duration(minutes: float) -> str:
    """
    >>> duration(0.4), duration(31.2), duration(300)
    ('1 minute', '31 minutes', '300 minutes, or 5 hours')
    """
    whole = max(1, round(minutes))
    hours = f", or {round(whole / 60)} hours" if whole >= 120 else ""
    return count(whole, "minute") + hours


def plain(text: str) -> str:
    """Text in which Markdown finds nothing to act on."""
    return re.sub(r"([\\`*_<>|#~]|\](?=\())", r"\\\1", " ".join(text.split()))


def _tex(text: str) -> str:
    return "".join(SPECIAL.get(character, character) for character in text)
