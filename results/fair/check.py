"""Recomputes the numbers of this page's tables from the records, with none of polydice's code: numpy and Python alone.

python results/fair/check.py [DIR ...]    # folders with a recipe.toml and a runs.jsonl.gz, or nnU-Net's records.jsonl;
                                          # else all beside this file

For each study: the mean score of each loss; its rate, chosen on validation by the tuning runs, and the rates within the
margin of the best (the plateau); its paired difference to each baseline with interval and verdict (docs/statistics.md);
validation at every rate, and what 0.01 loses; runs that collapsed, and those whose validation is best at the end. Of
nnU-Net's trainers: the mean score over the folds that all have, and the differences to its own, fold by fold.
The exit status is 1 if a record contradicts itself: runs at another rate than the chosen one, or unlike test cases.
"""

import gzip
import json
import re
import sys
import tomllib
from collections import Counter, defaultdict
from math import exp, lgamma, log, sqrt
from pathlib import Path

import numpy as np

TINY = 1e-300
PAPER = "rate=0.01"


class ContradictionError(Exception):
    """A record that says two things."""


def main(folders):
    status, trained, inside = 0, 0, 0
    files = ("*/runs.jsonl.gz", "*/records.jsonl")
    for folder in folders or sorted(path.parent for name in files for path in Path(__file__).parent.glob(name)):
        try:
            print(f"\n## {folder.name}\n")
            if (folder / "records.jsonl").is_file():
                inside += len((folder / "records.jsonl").read_text(encoding="utf-8").splitlines())
                for trainer, row in nnunet(folder / "records.jsonl").items():
                    apart = ", ".join(f"{each:+.2f}" for each in row["apart"])
                    print(f"{trainer}: {row['mean']:.2f}; {np.mean(row['apart']):+.2f} ({apart})")
                continue
            for title, rows in study(folder).items():
                show(title, rows)
            trained += gzip.decompress((folder / "runs.jsonl.gz").read_bytes()).count(b"\n")
        except ContradictionError as problem:
            print(f"{folder}: {problem}", file=sys.stderr)
            status = 1
    print(f"\n{trained} runs, and {inside} of nnU-Net")
    return status


def show(title, rows):
    baselines = list(dict.fromkeys(name for row in rows.values() for name in row["to"]))
    print(f"{title}\n\n| loss | value | plateau | mean | runs |" + "".join(f" to {name} |" for name in baselines))
    print("|---|---|---|---|---|" + "---|" * len(baselines))
    for loss, row in rows.items():
        cells = [loss, row["chosen"] or "–", ", ".join(row["plateau"]) or "–"]
        cells += ["–", "0"] if row["mean"] is None else [f"{row['mean']:.2f}", str(row["runs"])]
        for name in baselines:
            to = row["to"].get(name)
            interval = (
                f" [{to['low']:.2f}, {to['high']:.2f}] {to['verdict']}" if to and "low" in to else " too few runs"
            )
            cells.append(f"{to['mean']:+.2f}{interval} ({to['pairs']})" if to else "")
        print("| " + " | ".join(cells) + " |")
    print()
    for loss, row in rows.items():
        if row["validation"]:
            each = ", ".join(f"{value}: {mean:.2f}" for value, mean in row["validation"].items())
            low = below(row, PAPER)
            print(f"{loss}, validation: {each}" + (f"; {PAPER} is {low:.2f} below the best" if low is not None else ""))
    for row, when in (("collapsed", "runs"), ("collapsed_tuning", "tuning runs")):
        lost = {loss: each[row] for loss, each in rows.items() if each[row]}
        print(f"collapsed {when}: {lost or 'none'}")
    late, of = (sum(row[name] for row in rows.values()) for name in ("late", "runs"))
    print(f"validation is best at the end in {late} of {of} runs\n")


def below(row, value):
    """How far the validation with a value is below the best; None where it was not tried."""
    means = row["validation"]
    return max(means.values()) - means[value] if value in means else None


def nnunet(file):
    """Of each trainer of nnU-Net: mean, and `apart`, the differences to nnU-Net's own in each fold."""
    runs, own = defaultdict(dict), "nnUNetTrainer"
    lengths, parts = set(), {}
    for run in map(json.loads, file.read_text(encoding="utf-8").splitlines()):
        true = {case: [int(of_class[2]) for of_class in counts] for case, counts in run["voxels"].items()}
        if parts.setdefault(run["fold"], true) != true:
            raise ContradictionError(f"{run['trainer']} was tested on other cases in fold {run['fold']}")
        lengths.add((run["epochs"], run["iterations"]))
        both, found, sizes = np.array(list(run["voxels"].values()), float).sum(0).T
        keep = found + sizes > 0
        runs[run["trainer"]][run["fold"]] = 100 * (2 * both[keep] / (found + sizes)[keep]).mean()
    if len(lengths) > 1 or len({case for part in parts.values() for case in part}) < sum(map(len, parts.values())):
        raise ContradictionError("runs have other lengths, or a case is tested in two folds")
    folds = sorted(set.intersection(*map(set, runs.values())))
    rows = {}
    for trainer in sorted(runs, key=lambda trainer: (trainer != own, trainer)):
        scores, base = (np.array([runs[each][fold] for fold in folds]) for each in (trainer, own))
        rows[trainer] = {"mean": scores.mean(), "apart": (scores - base).tolist()}
    return rows


def study(folder):
    """By data set and network, of each loss: chosen, plateau, validation (by value), mean, runs, how many collapsed (of
    the tuning runs by value) and are best at the end (late), and `to`, the difference to each baseline."""
    recipe = tomllib.loads((folder / "recipe.toml").read_text(encoding="utf-8"))
    meant = json.loads((folder / "study.json").read_text(encoding="utf-8")) | recipe.get("train", {})
    baselines = recipe.get("baseline", next(iter(recipe["losses"])))
    baselines = [baselines] if isinstance(baselines, str) else baselines
    margin, score = recipe.get("margin", 1.0), meant["score"]
    tuning, tested = defaultdict(lambda: defaultdict(list)), defaultdict(dict)
    late, lost = Counter(), defaultdict(Counter)
    for line in gzip.decompress((folder / "runs.jsonl.gz").read_bytes()).splitlines():
        run = json.loads(line)
        if "result" not in run:
            continue  # it has diverged
        dataset, model, _, fold, last = run["run"].split("/")
        settings = run["result"]["settings"]
        loss, names = named(settings, recipe)
        value = ", ".join(f"{name}={settings[name]}" for name in names)
        result = run["result"]["last"] if meant["weights"] == "last" else run["result"]
        if last == "tuning":
            tuning[dataset, model, loss][value].append(100 * (result[f"validation_{score}"] or 0))
            lost[dataset, model, loss][value] += collapsed(result["cases"])
        else:
            course = [row[score] for row in run.get("history", []) if row.get(score) is not None]
            late[dataset, model, loss] += len(course) > 1 and max(course) == course[-1]
            place = int(last.rpartition("-")[2]), int(fold.rpartition("-")[2])
            tested[dataset, model, loss][place] = value, result["cases"]
    found = {}
    for dataset, model in dict.fromkeys(key[:2] for key in (*tuning, *tested)):
        runs = {loss: tested[dataset, model, loss] for loss in recipe["losses"]}
        rows = {loss: {"to": {}} | tuned(tuning[dataset, model, loss], margin) for loss in recipe["losses"]}
        for loss, row in rows.items():
            trained = {value for value, _ in runs[loss].values()}
            if row["chosen"] and trained - {row["chosen"]}:
                trained = " and ".join(sorted(trained))
                raise ContradictionError(f"{loss}: {row['chosen']} is best on validation, and runs have {trained}")
            grid = whole(runs[loss], lambda folds, count: (folds, count))
            row |= {"runs": len(grid), "mean": None, "late": late[dataset, model, loss]}
            row["collapsed"] = sum(collapsed(cases) for _, cases in runs[loss].values())
            row["collapsed_tuning"] = dict(+lost[dataset, model, loss])
            if grid:
                row["mean"] = 100 * np.mean([dice(runs[loss][place][1], score)[0] for place in grid])
        compared(rows, runs, baselines, score, margin, nested="seeds" not in recipe and "seeds" not in meant)
        found[f"{dataset}, {model}"] = rows
    return found


def named(settings, recipe):
    """The loss that a run's settings are of, and the settings of which it has several values."""
    fits = []
    for loss, entry in recipe["losses"].items():
        own = {"loss": entry} if isinstance(entry, str) else entry
        pattern = re.sub(r"\\\{\w+\\\}", ".+", re.escape(own["loss"]))
        lists = {name for name, values in {**recipe.get("tune", {}), **own}.items() if isinstance(values, list)}
        lists -= {"folds", "seeds"}
        single = {name: value for name, value in own.items() if name in settings and name not in {"loss", *lists}}
        if re.fullmatch(pattern, settings["loss"]) and all(settings[name] == single[name] for name in single):
            if lists - settings.keys():
                raise ContradictionError(
                    f"{loss}: values of {lists} are no settings, which this script does not follow"
                )
            fits.append((own["loss"] == settings["loss"], loss, sorted(lists - single.keys())))
    return max(fits)[1:]


def tuned(scores, margin):
    """The value with the best mean over the tuning folds, and those around it within the margin."""
    most = max(map(len, scores.values()), default=0)  # a value with fewer runs has diverged
    means = {value: np.mean(each) for value, each in scores.items() if len(each) == most}
    if len(means) < 2:
        return {"chosen": next(iter(means), ""), "plateau": [], "validation": means}
    line = sorted(means, key=lambda value: float(value.rpartition("=")[2]))
    best = max(range(len(line)), key=lambda place: means[line[place]])
    first = last = best
    while first and means[line[first - 1]] >= means[line[best]] - margin:
        first -= 1
    while last + 1 < len(line) and means[line[last + 1]] >= means[line[best]] - margin:
        last += 1
    return {
        "chosen": line[best],
        "plateau": line[first : last + 1],
        "validation": {value: means[value] for value in line},
    }


def whole(places, order):
    """Replicates and folds without gaps: all of the folds that some replicate has, in all replicates that have them."""
    folds = defaultdict(set)
    for replicate, fold in places:
        folds[replicate].add(fold)
    grids = [([each for each in folds if folds[each] >= own], own) for own in folds.values()]
    replicates, own = max(grids, key=lambda grid: order(len(grid[1]), len(grid[0])), default=([], ()))
    return sorted((replicate, fold) for replicate in replicates for fold in own)


def compared(rows, runs, baselines, score, margin, nested):
    wanted = [(a, b) for a in rows for place, b in enumerate(baselines) if a not in baselines[: place + 1]]
    grids = {(a, b): whole(runs[a].keys() & runs[b].keys(), lambda f, r: (f * r, f)) for a, b in wanted}
    sharing = sum(len({replicate for replicate, _ in grid}) > 1 for grid in grids.values())
    for (loss, baseline), grid in grids.items():
        if not grid:
            continue
        one, other = (spread(runs[each], grid, score) for each in (loss, baseline))
        values, shares = one[0] - other[0], one[1] - other[1]
        for place in grid:
            if truth(runs[loss][place][1]) != truth(runs[baseline][place][1]):
                raise ContradictionError(
                    f"{loss} and {baseline} were tested on other cases in (replicate, fold) {place}"
                )
        row = rows[loss]["to"][baseline] = {"mean": 100 * values.mean(), "pairs": len(grid)}
        if nested and len(values) > 1:
            wide, narrow = (100 * half_width(values, shares, level, sharing) for level in (0.95, 0.90))
            if abs(row["mean"]) + wide > 100:  # no difference of scores can be there: too few runs
                continue
            row |= {"low": row["mean"] - wide, "high": row["mean"] + wide}
            row["verdict"] = verdict(row["mean"], wide, narrow, margin)


def collapsed(cases):
    """Whether a class, the background too, is in the truth of some case and predicted in none."""
    matrix = np.sum([case["confusion"] for case in cases], 0)
    return bool(((matrix.sum(1) > 0) & (matrix.sum(0) == 0)).any())


def truth(cases):
    """Names of cases, and how many pixels each class has in them."""
    return [(case["id"], np.sum(case["confusion"], 1).tolist()) for case in cases]


def dice(cases, score):
    """The score of some cases, and how much each moves it: F1 of each class over all pixels, mean over the classes."""
    matrices = np.array([case["confusion"] for case in cases], float)
    hits, sizes = 2 * np.diagonal(matrices, 0, 1, 2), matrices.sum(1) + matrices.sum(2)
    keep = sizes.sum(0) > 0
    keep[0] &= score == "dice_global"
    top, bottom = hits[:, keep].sum(0), sizes[:, keep].sum(0)
    return (top / bottom).mean(), ((hits[:, keep] - top / bottom * sizes[:, keep]) / bottom).mean(1)


def spread(runs, grid, score):
    """The scores by replicate and fold, and how far each group (patient, sequence) moves the mean of its replicate."""
    replicates, folds = (sorted(set(each)) for each in zip(*grid, strict=True))
    groups = sorted({case["group"] for place in grid for case in runs[place][1]})
    values, shares = np.zeros((len(replicates), len(folds))), np.zeros((len(replicates), len(groups)))
    scored = {place: dice(runs[place][1], score) for place in grid}
    for row, replicate in enumerate(replicates):
        values[row] = [scored[replicate, fold][0] for fold in folds]
        for column, fold in enumerate(folds):
            own = [groups.index(case["group"]) for case in runs[replicate, fold][1]]
            np.add.at(shares[row], own, scored[replicate, fold][1])
            shares[row, sorted(set(own))] += (values[row, column] - values[row].mean()) / len(set(own))
    return values, shares / len(folds)


def half_width(values, shares, level, comparisons):
    """Of the interval of replicates that each cut the cases anew; all comparisons share the level."""
    (count, folds), groups = values.shape, shares.shape[1]
    shares = shares * sqrt(groups / (groups - 1))
    each, means = (shares**2).sum() / count, (shares.mean(0) ** 2).sum()
    common = max(0.0, (count * means - each) / (count - 1))
    doubt = means**2 + ((each - common) / count) ** 2 / (count - 1)
    together = common, (groups - 1) * common**2 / doubt if doubt else groups - 1
    apart = added((values.mean(1).var(ddof=1), count - 1), together)
    one = apart
    if folds > 1:
        within, freedom = values.var(1, ddof=1).mean() / folds, count * (folds - 1)
        if apart[0] <= within * quantile(lambda x: f_below(x, count - 1, freedom), 0.75):
            every = count - 1 + freedom
            one = (apart[0] * (count - 1) + within * freedom) / every, every
    variance, freedom = added((one[0] / count, one[1]), (common * (count - 1) / count, together[1]))
    freedom = max(freedom, count - 1)
    return quantile(lambda x: t_below(x, freedom), (1 + level ** (1 / comparisons)) / 2) * sqrt(variance)


def added(one, other):
    """Variances with their degrees of freedom; Satterthwaite's for the sum."""
    doubt = sum(variance**2 / freedom for variance, freedom in (one, other) if freedom)
    total = one[0] + other[0]
    return total, total**2 / doubt if doubt else one[1] + other[1]


def verdict(mean, wide, narrow, margin):
    within, word = abs(mean) + narrow < margin, "better" if mean > 0 else "worse"
    if abs(mean) > wide:
        return f"{word}, but by less than the margin" if within else word
    return "equivalent" if within else "undecided"


def quantile(below, p):
    low, high = 0.0, 1.0
    while below(high) < p:
        high *= 2
    for _ in range(200):
        low, high = ((low + high) / 2, high) if below((low + high) / 2) < p else (low, (low + high) / 2)
    return high


def t_below(x, freedom):
    return 1 - beta_below(freedom / (freedom + x * x), freedom / 2, 0.5) / 2


def f_below(x, one, other):
    return beta_below(one * x / (one * x + other), one / 2, other / 2)


def beta_below(x, a, b):
    """The regularised incomplete beta function, by its continued fraction (Lentz's way)."""
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_below(1 - x, b, a)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1 - x)) / a
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    found = d
    for m in range(1, 500):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            c, d = 1 + step / c or TINY, 1 / (1 + step * d or TINY)
            found *= c * d
    return front * found


if __name__ == "__main__":
    sys.exit(main([Path(each) for each in sys.argv[1:]]))
