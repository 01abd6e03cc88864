"""Classes that are not annotated in some cases, from the files to the scores."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from polydice.data.folds import split
from polydice.data.prepare import Prepared, prepare
from polydice.data.readers import open_dataset
from polydice.models import build
from polydice.training.config import Settings
from polydice.training.inference import Network
from polydice.training.loop import train
from polydice.training.rehearsal import try_loss
from polydice.training.run import TrainingError
from polydice.training.scoring import score
from tests.training.runs import ended, history, small, train_until, training_batches

LOSS = "DiceLoss(batch=True) + CrossEntropyLoss()"


def prepared(settings: Settings) -> Prepared:
    return prepare(open_dataset(settings.data), settings.preparation, settings.cache)


def merged(logits: Tensor, annotated: Tensor) -> Tensor:
    """Of one image `[C, *spatial]`: the background is all that is not annotated."""
    return torch.stack([logits[[0, *(~annotated).nonzero()[:, 0].tolist()]].logsumexp(0), *logits[annotated][1:]])


def test_the_loss_of_a_run_is_that_of_merged_logits(partly: Path, tmp_path: Path) -> None:
    """Torch's cross-entropy, image by image, where a class that is not annotated is one with the background."""
    settings = small(partly, tmp_path / "run", epochs=1, batch=15, loss="CrossEntropyLoss()")
    train(settings)
    torch.manual_seed(settings.seed)
    network = build("unet", 1, 3, width=4, depth=2).train()
    (batch,) = training_batches(settings).epoch(0)
    assert batch.annotated is not None
    assert len({tuple(row) for row in batch.annotated.tolist()}) == 3
    losses = []
    for logits, labels, known in zip(network(batch.images).detach(), batch.labels, batch.annotated, strict=True):
        places = known.cumsum(0) - 1  # of the classes, among those that are left
        losses.append(F.cross_entropy(merged(logits, known)[None], places[labels.long()][None]))
    assert history(tmp_path / "run")[0]["loss"] == pytest.approx(float(torch.stack(losses).mean()), rel=1e-6)


def test_a_class_has_the_scores_of_whole_labels_where_it_is_annotated_and_none_elsewhere(
    partly: Path, three_classes: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    network = Network(build("unet", 1, 3, width=4, depth=2).eval())
    sets = [prepared(small(folder, tmp_path / "run")) for folder in (partly, three_classes)]
    part, whole = (score(network, each, range(25), 8, surfaces=True) for each in sets)
    for place, (one, other) in enumerate(zip(part["cases"], whole["cases"], strict=True)):
        assert sum(map(sum, one["confusion"])) == 32 * 32
        for label in (1, 2):
            for name in ("dice", "hd95", "nsd"):
                assert one[name][label] == (None if label == place % 3 else other[name][label])
    known = [[row["dice"][label] for place, row in enumerate(whole["cases"]) if place % 3 != label] for label in (1, 2)]
    means = [torch.tensor([value for value in each if value is not None]).double().mean() for each in known]
    assert part["test"]["dice_case_per_class"][1:] == pytest.approx([float(mean) for mean in means])
    assert part["test"]["dice_case_per_class"] != whole["test"]["dice_case_per_class"]


def test_killed_and_resumed_a_run_ends_the_same_but_not_with_other_annotations(partly: Path, tmp_path: Path) -> None:
    data = tmp_path / "set"
    shutil.copytree(partly, data)
    options = {"epochs": 2, "loss": LOSS, "save_every": 0.0}
    result = train(small(data, tmp_path / "whole", **options))
    assert result["used"]["annotated"]["00001"] == ["background", "lesion 2"]
    train_until(1, small(data, tmp_path / "resumed", **options))
    shutil.copytree(tmp_path / "resumed", tmp_path / "other")
    train(small(data, tmp_path / "resumed", **options, resume=True))
    assert ended(tmp_path / "resumed") == ended(tmp_path / "whole")
    rows = (data / "annotated.csv").read_text().replace("00001,0;2", "00001,0;1;2")
    (data / "annotated.csv").write_text(rows)
    with pytest.raises(TrainingError, match="holds a run on other data"):
        train(small(data, tmp_path / "other", **options, resume=True))


def test_what_no_training_case_shows_is_refused(three_classes: Path, tmp_path: Path) -> None:
    data = tmp_path / "set"
    shutil.copytree(three_classes, data)
    cases = open_dataset(data).cases
    tested = split(cases, "grouped", 5)[0].test
    rows = ["case,classes"]
    for case in (case for place, case in enumerate(cases) if place not in tested):
        Image.fromarray(np.array(Image.open(case.masks[0])) % 2).save(case.masks[0])
        rows.append(f"{case.id},0;1")
    (data / "annotated.csv").write_text("\n".join(rows) + "\n")
    with pytest.raises(TrainingError, match=r"lesion 2: annotated in no training case of fold 0 of"):
        train(small(data, tmp_path / "run", epochs=1))


class Merging(nn.Module):
    """Somebody's cross-entropy that knows of annotations."""

    def forward(self, logits: Tensor, labels: Tensor, annotated: Tensor | None = None) -> Tensor:
        assert annotated is not None
        return F.cross_entropy(logits.masked_fill(~annotated[:, :, None, None], -1e4), labels)


def test_a_loss_of_another_package_must_take_what_is_annotated(partly: Path, tmp_path: Path) -> None:
    settings = small(partly, tmp_path / "run", epochs=1, loss=f"DiceLoss() + {__name__}:Merging()")
    assert train(settings)["test"]["cases"] == 5
    settings = small(partly, tmp_path / "refused", loss="torch.nn:CrossEntropyLoss()")
    with pytest.raises(
        ValueError, match=r"CrossEntropyLoss\(\): not all classes are annotated in all cases here, and its"
    ):
        try_loss(settings, prepared(settings))
