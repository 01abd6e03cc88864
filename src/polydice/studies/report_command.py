"""`polydice report`: the tables, figures and page of a study."""

import json
import sys
from pathlib import Path
from textwrap import fill
from typing import Annotated

import tyro

from polydice.training.config import CountingWeights


def report(
    folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")],
    more: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[DIR ...]")] = (),
    weights: CountingWeights | None = None,
    baseline: Annotated[str | None, tyro.conf.arg(metavar="LOSS")] = None,
    json_output: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Writes the report of a study from the runs that are finished, into DIR/report.

    report.html is the whole report on one page that needs no network; tables.md, tables.tex and tables.csv are its
    tables, figures/ has its figures as SVG and PNG. A study that still runs can be reported on at any time. The exit
    status is 2 if the folder holds no study, no such loss, or no last weights, and else 0.

    Several studies are pooled: those of the same data, trained in the same way, with other replicates, seeds, folds or
    losses. Of a run that two of them have, the first counts.

    Example: polydice report runs/demo

    Example: polydice report runs/demo --baseline Cross-entropy

    Example: polydice report runs/first runs/more

    Args:
        folder: the folder of the study.
        more: folders of studies to pool with it. The report goes into DIR/report-with- and their names.
        weights: report on the weights of the last epoch, or on those that were best on validation. If not given, those
            that count in the recipe; the others go into DIR/report-last or DIR/report-best.
        baseline: compare with this loss, by its name in the recipe, into DIR/report-to- and the name as its folder has
            it. If not given, the recipe's baseline.
        json_output: print the table as JSON instead of the path of the page.
    """
    from polydice.studies.comparison import compare
    from polydice.studies.pool import pooled
    from polydice.studies.report import write_report
    from polydice.studies.study import open_study
    from polydice.studies.tables import record

    try:
        study = pooled([open_study(each, weights, baseline) for each in (folder, *more)])
        comparisons = compare(study)
        path = write_report(study, comparisons)
    except (OSError, ValueError) as problem:
        print(f"polydice report: {problem}", file=sys.stderr)
        return 2
    if json_output:
        rows = [record(each, row) for each in comparisons for row in each.rows]
        told = {"report": str(path), "weights": study.weights, "baseline": study.recipe.baseline}
        print(json.dumps(told | {"rows": rows}, indent=1))
    else:
        for each in comparisons:
            for said in (f"{each.title}: {each.answer}", *each.warnings):
                print(fill(said, 120), file=sys.stderr)
        print(path)
    return 0
