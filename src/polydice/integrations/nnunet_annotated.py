"""Classes that are not annotated in every case of an nnU-Net training, as its dataset.json says.

    "annotated": {"case_017": ["background", "liver"], "case_018": [0, 2]}

Of a case that is not named everything is annotated. Our own training reads the same key, but not together with regions.
"""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

KEY = "annotated"


def channels(labels: Any) -> dict[str, int]:
    """The channel of the network that a class or region has, by its name and by its number, where it has one."""
    classes = {name: value for name, value in labels.label_dict.items() if name != "ignore"}
    if labels.has_regions:
        del classes["background"]
    found = {}
    for channel, (name, value) in enumerate(classes.items()):
        label = value[0] if isinstance(value, list | tuple) and len(value) == 1 else value
        found[name] = channel if labels.has_regions else int(label)
        if isinstance(label, int):
            found[str(label)] = found[name]
    return found


def read_annotated(dataset_json: dict[str, Any], labels: Any) -> dict[str, Tensor]:
    """The classes annotated in each case that dataset.json names, `[C]` booleans."""
    given, known = dataset_json.get(KEY, {}), channels(labels)
    if not isinstance(given, dict) or not all(isinstance(classes, list) for classes in given.values()):
        raise ValueError(f'"{KEY}" in dataset.json must be {{case: [classes]}}: {given!r:.200}')
    found = {}
    for case, classes in given.items():
        where = f'"{KEY}" in dataset.json, {case}'
        if labels.has_regions:  # which have no channel for the background: it may be named as with labels
            classes = [name for name in classes if str(name) not in ("background", "0")]
        if strange := [name for name in classes if isinstance(name, bool) or str(name) not in known]:
            raise ValueError(f"{where}: {strange} is none of {', '.join(known)}")
        row = torch.zeros(labels.num_segmentation_heads, dtype=torch.bool)
        row[[known[str(name)] for name in classes]] = True
        if not labels.has_regions and not row[0]:
            raise ValueError(f"{where}: without the background, which its labels have wherever no other class is")
        if int(row.sum()) <= (not labels.has_regions):
            raise ValueError(f"{where}: nothing can be learnt from it, take it out of the set")
        found[case] = row
    return found


def check_cases(annotated: dict[str, Tensor], cases: Iterable[str], data: Any, labels: Any) -> None:
    """The cases are there, and their labels have no class that is said not to be annotated."""
    if strange := sorted(annotated.keys() - set(cases)):
        raise ValueError(f'"{KEY}" in dataset.json names cases that are not there: {", ".join(strange[:5])}')
    if labels.has_regions:
        return  # a region that is not annotated may have a part that is
    for case, row in annotated.items():
        for label, places in data.load_case(case)[3]["class_locations"].items():
            if isinstance(label, int) and len(places) and not row[label]:
                raise ValueError(f'{case} has the label {label}, which "{KEY}" in dataset.json does not name')


def rows(annotated: dict[str, Tensor], cases: Iterable[str]) -> Tensor:
    """`[B, C]`, of the cases of a batch."""
    everything = torch.ones_like(next(iter(annotated.values())))
    return torch.stack([annotated.get(str(case), everything) for case in cases])


def counts(logits: Tensor, target: Tensor, annotated: Tensor, labels: Any) -> dict[str, Any]:
    """What nnU-Net counts for its pseudo Dice of an epoch, each class only in images where it is annotated."""
    if labels.has_regions:
        ignored = target[:, -1:].bool() if labels.has_ignore_label else None
        found, truth = logits > 0, target[:, : logits.shape[1]].bool()
    else:
        ignored = target == labels.ignore_label if labels.has_ignore_label else None
        classes = torch.arange(logits.shape[1], device=logits.device).view(-1, *[1] * (logits.ndim - 2))
        found, truth = logits.argmax(1, keepdim=True) == classes, target == classes
    known = annotated.view(*annotated.shape, *[1] * (logits.ndim - 2))
    if ignored is not None:
        known = known & ~ignored
    counted = {"tp_hard": found & truth, "fp_hard": found & ~truth, "fn_hard": ~found & truth}
    axes, first = (0, *range(2, logits.ndim)), 0 if labels.has_regions else 1
    return {name: (where & known).sum(axes)[first:].cpu().numpy() for name, where in counted.items()}


def correct_summary(file: Path, annotated: dict[str, Tensor], labels: Any, ending: str) -> float:
    """Of nnU-Net's summary.json, classes that are not annotated in a case are taken out, and the means are made anew.
    The mean Dice."""
    summary = json.loads(file.read_text())
    heads = labels.foreground_regions if labels.has_regions else labels.foreground_labels
    channel = {str(head): place + (not labels.has_regions) for place, head in enumerate(heads)}
    for case in summary["metric_per_case"]:
        row = annotated.get(Path(case["prediction_file"]).name.removesuffix(ending))
        for head, scores in case["metrics"].items():
            if row is not None and not row[channel[head]]:
                scores.update(dict.fromkeys(scores, math.nan))
    for head, means in summary["mean"].items():
        for score in means:
            means[score] = _mean(case["metrics"][head][score] for case in summary["metric_per_case"])
    for score in summary["foreground_mean"]:
        summary["foreground_mean"][score] = _mean(means[score] for means in summary["mean"].values())
    file.write_text(json.dumps(summary, indent=4, sort_keys=True))
    return float(summary["foreground_mean"]["Dice"])


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
