"""One training run, from a folder of files to a result: the whole of it is `train`."""

import json
import math
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

from polydice import __version__
from polydice.base import Loss, LossSum
from polydice.data.augment import Augment2D, Augment3D
from polydice.data.batches import Batches
from polydice.data.cases import Dataset
from polydice.data.folds import save_folds, split
from polydice.data.prepare import Preparation, Prepared, prepare
from polydice.data.readers import open_dataset
from polydice.losses import TvMFDiceLoss
from polydice.models import build
from polydice.training.checkpoint import load, remove, save, save_weights, write_text
from polydice.training.config import Settings
from polydice.training.expression import parse_loss
from polydice.training.inference import Network, patch_for
from polydice.training.metrics import dice_global, dice_per_class, evaluate
from polydice.training.processes import Process, joined
from polydice.training.scoring import score

LOOK = 200  # steps after which the losses are looked at, if no validation comes before: a look waits for the device


class TrainingError(RuntimeError):
    """A run that cannot begin or go on; the message is for the person who started it."""


def train(settings: Settings) -> dict[str, Any]:
    """Trains, keeps the weights of the best validation and tests them; the result is what `result.json` holds.

    A run that was stopped goes on from its last checkpoint, if `settings.resume` says so, and ends as if it had not
    been: batches depend on the seed and the epoch alone, and all else that changes is in the checkpoint.
    """
    with joined(settings.device) as process:
        finished = _begin(settings, process)
        if finished is not None:
            return finished
        dataset = open_dataset(settings.data, settings.layout)
        prepared = prepare(dataset, Preparation(settings.dims, settings.size, settings.spacing), settings.cache)
        run = Run(settings, process, dataset, prepared)
        run.resume()
        with Watch(settings, run) as watch:
            while run.epoch < settings.epochs:
                row = run.train_epoch()
                if run.epoch % settings.validate_every == 0 or run.epoch == settings.epochs:
                    row |= run.validate()
                if "dice_global" in row or run.unseen >= LOOK:
                    watch.show(run.look())
                    run.save()
        return run.finish()


class Run:
    """What a run is made of, and what changes in it."""

    def __init__(self, settings: Settings, process: Process, dataset: Dataset, prepared: Prepared) -> None:
        self.settings, self.process, self.prepared = settings, process, prepared
        self.batch = settings.batch or (24 if settings.dims == 2 else 2)
        patch = settings.patch or (patch_for(prepared) if settings.dims == 3 else None)
        folds = split(prepared.cases, settings.split, settings.folds, settings.split_seed)
        if process.first:
            save_folds(settings.out / "folds.json", folds, prepared.cases)
        self.fold = folds[settings.fold]
        self.training = Batches(
            prepared, self._items(self.fold.train), self.batch, process.device, augment=self._augmentation(),
            patch=patch, seed=settings.seed, rank=process.rank, world=process.world,
        )  # fmt: skip
        self.steps = len(self.training)
        mine = self._items(self.fold.validation)[process.rank :: process.world]
        self.validation = Batches(prepared, mine, self.batch, process.device) if mine else None

        torch.manual_seed(settings.seed)
        self.described = {
            "model": {
                "name": settings.model,
                "channels": prepared.channels,
                "classes": len(prepared.classes),
                "options": settings.model_options,
            },
            "preparation": asdict(prepared.settings),
            "classes": prepared.classes,
            "intensity": dataset.intensity,
            "patch": patch,
            "dataset": prepared.name,
        }
        model = build(settings.model, prepared.channels, len(prepared.classes), **settings.model_options)
        _pretrain(model, settings)
        self.model = model.to(process.device)
        self.network = Network(_together(self.model, process), patch, settings.precision, settings.compile)
        self.loss = _loss(settings, process).to(process.device)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), settings.rate, settings.momentum, weight_decay=settings.decay,
            fused=process.device.type == "cuda",
        )  # fmt: skip
        self.epoch = 0
        self.history: list[dict[str, Any]] = []  # a row an epoch
        self.best_epoch, self.best_score = 0, -math.inf
        self.best = _copied(self.model)
        self.seconds = 0.0  # spent on training, over all parts of a run that was stopped
        self._started = self._saved = time.monotonic()

    def train_epoch(self) -> dict[str, Any]:
        """One epoch. Its row of the history holds the losses as they lie on the device, until `look` reads them."""
        self.network.train()
        total = self.settings.epochs * self.steps
        row: dict[str, Any] = {
            "epoch": self.epoch + 1,
            "step": (self.epoch + 1) * self.steps,
            "losses": [],
            "items": [],
        }
        self.history.append(row)
        for step, batch in enumerate(self.training.epoch(self.epoch), start=self.epoch * self.steps):
            row["rate"] = self.settings.rate * (1 - step / total) ** self.settings.power
            for group in self.optimizer.param_groups:
                group["lr"] = row["rate"]
            self.optimizer.zero_grad()
            loss = supervised(self.loss, self.network(batch.images), batch.labels)
            loss.backward()
            if self.settings.clip is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
            self.optimizer.step()
            row["losses"].append(loss.detach())
            row["items"].append(batch.items)
            if len(row["losses"]) % LOOK == 0:
                self._refuse_nonsense(row)
        self.epoch += 1
        return row

    @property
    def unseen(self) -> int:
        return sum(len(row.get("losses", ())) for row in self.history)

    def look(self) -> list[dict[str, Any]]:
        """The rows of the history since the last look, with the mean of their losses."""
        rows = [row for row in self.history if "losses" in row]
        for row in rows:
            self._refuse_nonsense(row)
            mean = torch.stack(row.pop("losses")).double().mean()
            del row["items"]
            row["loss"] = float(self.process.total(mean)) / self.process.world
        return rows

    def validate(self) -> dict[str, Any]:
        """The scores of the validation part, which choose the best weights and move a t-vMF loss's κ."""
        items = self._items(self.fold.validation)
        classes = len(self.prepared.classes)
        matrices = torch.zeros(len(items), classes, classes, dtype=torch.int64, device=self.process.device)
        if self.validation is not None:
            matrices[self.process.rank :: self.process.world] = self.network.confusion(self.validation, classes)
        counts = [len(self.prepared.cases[case].items) for case in self.fold.validation]
        cases = torch.stack([part.sum(0) for part in self.process.total(matrices).cpu().split(counts)])
        reached, per_class = dice_global(cases), dice_per_class(cases.sum(0))
        if reached > self.best_score:
            self.best_score, self.best_epoch = reached, self.epoch
            self.best = _copied(self.model)
        if self.settings.adapt_kappa:
            for loss in _terms(self.loss):
                if isinstance(loss, TvMFDiceLoss):
                    loss.update_kappa(per_class.nan_to_num(0.0))
        scores = evaluate(cases)
        return {name: scores[name] for name in ("dice_global", "dice_case", "dice_global_per_class")}

    def resume(self) -> None:
        """Takes up the last checkpoint, if there is one."""
        found = load(self.settings.out)
        if found is None:
            return
        self.model.load_state_dict(_with("model.", found.weights))
        self.best = {name: tensor.to(self.process.device) for name, tensor in _with("best.", found.weights).items()}
        state = found.state
        self.optimizer.load_state_dict(state["optimizer"])
        self.loss.load_state_dict(state["loss"])
        self.epoch, self.history, self.seconds = state["epoch"], state["history"], state["seconds"]
        self.best_epoch, self.best_score = state["best_epoch"], state["best_score"]
        torch.set_rng_state(state["random"])
        if self.process.device.type == "cuda":
            torch.cuda.set_rng_state(state["random_cuda"], self.process.device)

    def save(self) -> None:
        """A checkpoint, if it is time for one or all epochs are over, and the best weights in a file of their own."""
        due = time.monotonic() - self._saved >= self.settings.save_every or self.epoch == self.settings.epochs
        if not (due and self.process.first):
            return
        weights = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        weights |= {f"best.{name}": tensor for name, tensor in self.best.items()}
        state = {
            "optimizer": self.optimizer.state_dict(),
            "loss": self.loss.state_dict(),
            "epoch": self.epoch,
            "history": self.history,
            "best_epoch": self.best_epoch,
            "best_score": self.best_score,
            "seconds": self.seconds + time.monotonic() - self._started,
            "random": torch.get_rng_state(),
        }
        if self.process.device.type == "cuda":
            state["random_cuda"] = torch.cuda.get_rng_state(self.process.device)
        save(self.settings.out, weights, state, self.described)
        save_weights(self.settings.out / "best.safetensors", self.best, self.described)
        self._saved = time.monotonic()

    def finish(self) -> dict[str, Any]:
        """Tests the best weights and writes the result; the checkpoints have done their work."""
        if not self.process.first:
            self.process.wait()
            return {}
        out = self.settings.out
        seconds = self.seconds + time.monotonic() - self._started
        save_weights(out / "last.safetensors", self.model.state_dict(), self.described)
        self.model.load_state_dict(self.best)
        result = {
            "settings": self.settings.to_json(),
            "model": self.described,
            "best_epoch": self.best_epoch,
            "validation_dice_global": self.best_score,
            **score(self.network, self.prepared, self.fold.test, self.batch, self.settings.surfaces),
            "seconds": round(seconds, 1),
            "versions": {"polydice": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "device": _device_name(self.process.device),
        }
        write_text(out / "result.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
        remove(out)
        self.process.wait()
        return result

    def _items(self, cases: Sequence[int]) -> list[int]:
        return [item for case in cases for item in self.prepared.cases[case].items]

    def _augmentation(self) -> Augment2D | Augment3D:
        settings = self.settings
        if settings.dims == 2:
            rotation = 90.0 if settings.rotation is None else settings.rotation
            return Augment2D(rotation, settings.flip, settings.interpolation)
        spacing = self.prepared.settings.spacing or (1.0, 1.0, 1.0)
        rotation = 15.0 if settings.rotation is None else settings.rotation
        return Augment3D(rotation, settings.flip, spacing=spacing)

    def _refuse_nonsense(self, row: dict[str, Any]) -> None:
        losses = torch.stack(row["losses"]).tolist()
        bad = next((place for place, loss in enumerate(losses) if not math.isfinite(loss)), None)
        if bad is None:
            return
        cases = {self.prepared.cases[self.prepared.case_of[item]].id for item in row["items"][bad].tolist()}
        kept = load(self.settings.out)
        good = f"{kept.folder}, after epoch {kept.state['epoch']}" if kept else "none: nothing was saved yet"
        step = row["step"] - self.steps + bad + 1
        raise TrainingError(
            f"the loss became {losses[bad]} at step {step} (epoch {row['epoch']}), on a batch of "
            f"{', '.join(sorted(cases))}; the last good checkpoint is {good}"
        )


class Watch:
    """What one sees of a run: a progress bar, `history.jsonl` with a line an epoch, and TensorBoard if wanted."""

    def __init__(self, settings: Settings, run: Run) -> None:
        self.first, self.path = run.process.first, settings.out / "history.jsonl"
        self.bar = tqdm(
            desc=settings.out.name, total=settings.epochs * run.steps, initial=run.epoch * run.steps, unit="step",
            disable=None if self.first else True,
        )  # fmt: skip
        self.shown: dict[str, str] = {}
        self.board: Any = None
        if self.first:
            write_text(self.path, "".join(json.dumps(row) + "\n" for row in run.history))
        if self.first and settings.track == "tensorboard":
            self.board = _tensorboard(settings.out, run.epoch * run.steps)

    def show(self, rows: Sequence[dict[str, Any]]) -> None:
        for row in rows:
            self.shown |= {"loss": f"{row['loss']:.4f}", "rate": f"{row['rate']:.1e}"}
            if "dice_global" in row:
                self.shown["dice"] = f"{row['dice_global']:.4f}"
            self.bar.set_postfix(self.shown, refresh=False)
            self.bar.update(row["step"] - self.bar.n)
            if self.first:
                with self.path.open("a") as file:
                    file.write(json.dumps(row) + "\n")
            if self.board is not None:
                for name in ("loss", "rate", "dice_global", "dice_case"):
                    if row.get(name) is not None:
                        self.board.add_scalar(name, row[name], row["step"])

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()
        if self.board is not None:
            self.board.close()


def supervised(loss: nn.Module, logits: Tensor | list[Tensor], labels: Tensor) -> Tensor:
    """The loss; of logits at several resolutions the mean, each with half the weight of the one before."""
    if isinstance(logits, Tensor):
        value: Tensor = loss(logits, labels)
        return value
    weights = [0.5**level for level in range(len(logits))]
    values = []
    for weight, each in zip(weights, logits, strict=True):
        smaller = F.interpolate(labels[:, None].float(), each.shape[2:], mode="nearest-exact")[:, 0]
        values.append(weight / sum(weights) * loss(each, smaller.to(labels.dtype)))
    return torch.stack(values).sum()


def _begin(settings: Settings, process: Process) -> dict[str, Any] | None:
    """Makes the run's folder, or looks whether the run it holds is this one; the result if that is finished."""
    out, path = settings.out, settings.out / "settings.json"
    if path.exists():
        if not settings.resume:
            raise TrainingError(f"{out} holds a run: --resume goes on with it, or take another folder")
        different = settings.differences(json.loads(path.read_text()))
        if different:
            raise TrainingError(f"{out} holds a run with other settings ({'; '.join(different)})")
    elif process.first:
        write_text(path, json.dumps(settings.to_json(), indent=1) + "\n")
    process.wait()
    result = out / "result.json"
    return json.loads(result.read_text()) if result.exists() else None


def _loss(settings: Settings, process: Process) -> Loss | LossSum:
    loss = parse_loss(settings.loss)
    if process.world > 1 and any(term.over_batch for term in _terms(loss)):
        for term in _terms(loss):
            term.process_group = dist.group.WORLD
    return loss


def _terms(loss: Loss | LossSum) -> list[Loss]:
    return [term for _, term in loss.terms] if isinstance(loss, LossSum) else [loss]


def _together(model: nn.Module, process: Process) -> nn.Module:
    if process.world == 1:
        return model
    if process.device.type == "cuda":
        return DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(model), [process.device])
    return DistributedDataParallel(model)


def _pretrain(model: nn.Module, settings: Settings) -> None:
    if settings.model != "transunet":
        if settings.pretrained is not None:
            raise TrainingError(f"there are no pretrained weights for {settings.model}: only transunet takes them")
        return
    from polydice.models.transunet import TransUNet
    from polydice.models.transunet_weights import WANTED, load_weights

    if settings.pretrained is None:
        print(WANTED, file=sys.stderr)
    elif isinstance(model, TransUNet):
        load_weights(model, settings.pretrained)


def _copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _with(prefix: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


def _tensorboard(folder: Path, purge_step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise TrainingError("--track tensorboard needs TensorBoard: pip install 'polydice[track]'") from error
    return SummaryWriter(folder / "tensorboard", purge_step=purge_step)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
