"""Makes the three sets of recipe.toml from ACDC, and the table and the figure from the runs; README.md says how.

python results/partial/make.py sets ACDC SETS
python results/partial/make.py table STUDY
"""

import csv
import json
import sys
from pathlib import Path

import nibabel as nib
import numpy as np
from matplotlib.figure import Figure

from polydice.data.folds import split
from polydice.data.readers import open_dataset
from polydice.data.readers.annotations import COLUMN, SEPARATOR, TABLE

HERE = Path(__file__).parent
SETS = {"full": "all labels", "annotated": "a third missing, annotated.csv", "removed": "a third missing, not told"}
CLASSES = ("right ventricle", "myocardium", "left ventricle")


def make_sets(acdc: Path, out: Path) -> None:
    """full, removed (labels without one class) and annotated (the same, which says so), of every second patient."""
    patients = sorted(acdc.glob("patient???"))[1::2]
    for name in SETS:
        for patient in patients:
            (out / name / patient.name).mkdir(parents=True)
            for file in patient.glob("*.nii.gz"):
                (out / name / patient.name / file.name).symlink_to(file.resolve())
    dataset = open_dataset(out / "full")
    tested = {dataset.cases[place].group for place in split(dataset.cases, "grouped", 5)[0].test}
    rows = [("case", COLUMN)]
    for place, group in enumerate(sorted({case.group for case in dataset.cases} - tested)):
        missing = 1 + place % 3
        kept = SEPARATOR.join(name for label, name in enumerate(dataset.classes) if label != missing)
        for case in (case for case in dataset.cases if case.group == group):
            rows.append((case.id, kept))
            for name in ("removed", "annotated"):
                without(missing, out / name / case.masks[0].relative_to(dataset.folder))
    with (out / "annotated" / TABLE).open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def without(label: int, path: Path) -> None:
    """Replaces the file of labels by one without this label."""
    image = nib.load(path)
    labels = np.asarray(image.dataobj)
    path.unlink()
    nib.save(nib.Nifti1Image(np.where(labels == label, 0, labels), image.affine, image.header), path)


def make_table(study: Path) -> None:
    """runs.csv, dice.png, and the rows of README.md on the screen: Dice of the last weights over all test pixels."""
    found: dict[str, list[list[float]]] = {name: [] for name in SETS}
    rows: list[tuple[object, ...]] = [("set", "seed", *CLASSES)]
    for file in sorted(study.glob("runs/**/result.json")):
        result = json.loads(file.read_text())
        name, dice = Path(result["settings"]["data"]).name, result["last"]["test"]["dice_global_per_class"][1:]
        found[name].append(dice)
        rows.append((name, result["settings"]["seed"], *(f"{100 * each:.2f}" for each in dice)))
    with (HERE / "runs.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    axes, places = figure.subplots(), np.arange(len(CLASSES))
    for offset, (name, words) in zip((-0.27, 0, 0.27), SETS.items(), strict=True):
        dice = 100 * np.array(found[name])  # [seeds, classes]
        print(f"| {words} | {' | '.join(f'{each:.1f}' for each in [*dice.mean(0), dice.mean()])} |")
        axes.bar(places + offset, dice.mean(0), 0.25, label=words)
        axes.plot(places + offset, dice.T, "k.", markersize=4)
    axes.set(ylabel="Dice on whole labels, %", ylim=(0, 100), xticks=places, xticklabels=CLASSES)
    figure.legend(loc="outside lower center", ncols=3)
    figure.savefig(HERE / "dice.png", dpi=110)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["sets", acdc, out]:
            make_sets(Path(acdc), Path(out))
        case ["table", study]:
            make_table(Path(study))
        case _:
            sys.exit(__doc__)
