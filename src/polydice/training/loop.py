"""One training run, from a folder of files to a result: the whole of it is `train`."""

import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from polydice import __version__
from polydice.data.augment import Augment2D, Augment3D
from polydice.data.batches import Batches
from polydice.data.cases import Dataset
from polydice.data.folds import save_folds, split
from polydice.data.prepare import Prepared
from polydice.data.readers import open_dataset
from polydice.data.usable import usable, used
from polydice.models import build
from polydice.training.checkpoint import load, remove, save, save_weights, write_text
from polydice.training.config import Settings
from polydice.training.inference import Network, patch_for
from polydice.training.interrupt import Interrupt
from polydice.training.later import Later
from polydice.training.metrics import dice_per_class, per_case, summary
from polydice.training.objective import Objective, adapt_kappa, has_kappa, objective, supervised
from polydice.training.processes import Process, joined
from polydice.training.rehearsal import try_loss, try_network
from polydice.training.scoring import completed, score
from polydice.training.watch import HISTORY, Row, Watch, write_history
from polydice.values import check

LOOK = 200  # steps after which the losses are looked at in a long epoch: such a look waits for the device
SETTINGS, RESULT = "settings.json", "result.json"

Weights = dict[str, Tensor]


class TrainingError(RuntimeError):
    """A run that cannot begin or go on; the message is for the person who started it."""


def train(
    settings: Settings, tell: Callable[[Dataset], object] | None = None, *, lines: bool = False
) -> dict[str, Any]:
    """Trains, keeps the weights of the best validation and tests them; the result is what `result.json` holds.

    A run that was stopped goes on from its last checkpoint, if `settings.resume` says so, and ends as if it had not
    been: batches and all that is random depend on the seed and the epoch alone, and what changes is in the checkpoint.
    Of several processes that train together, the first returns the result, and the others nothing. `tell` is shown
    what is trained on, before the first step. With `lines`, an epoch is told in a line where there is no terminal for a
    progress bar.
    """
    with joined(settings.device) as process:
        objective(settings.loss, process)  # what is wrong with it is said before anything is read
        finished = process.of_first(_begin(settings) if process.first else None)
        if finished is not None:
            return finished if process.first else {}
        dataset, prepared = opened(settings)
        try_network(settings, prepared)
        try_loss(settings, prepared)
        run = Run(settings, process, dataset, prepared, objective(settings.loss, process, prepared.ignore))
        if settings.resume:
            run.resume()
        if tell and process.first:
            tell(dataset)
        with (
            run.together(),
            Watch(settings, run.history, run.steps, process.first, lines) as watch,
            Interrupt(process.first) as interrupt,
        ):
            while run.epoch < settings.epochs:
                last = run.epoch + 1 == settings.epochs
                run.train_epoch(watch.bar.update)
                watch.show(run.look(before=run.epoch))
                if last or run.epoch % settings.validate_every == 0:
                    run.validate()
                stop, due = process.of_first((interrupt.asked, run.due()))
                if stop or due or last or (run.adaptive and run.unread[-1].validation):
                    watch.show(run.look())
                if stop or due:
                    run.save()
                if stop:
                    raise KeyboardInterrupt
    return run.finish() if process.first else {}


def opened(settings: Settings) -> tuple[Dataset, Prepared]:
    """The data set as it is trained on."""
    given = {name: getattr(settings, name) for name in ("layout", "masks", "group", "ignore")}
    options = [part for name, value in given.items() if value is not None for part in (f"--{name}", str(value))]
    dataset = open_dataset(settings.data, **given)
    return usable(dataset, settings.preparation, settings.cache, settings.skip_errors, options)


@dataclass
class Unread:
    """An epoch that is over for the host; what came of it may still be on its way from the device."""

    epoch: int
    rate: float  # of the last step
    items: list[Tensor]  # of every step
    losses: Later  # of every step
    norms: Later  # of the last step's gradient, and of the weights after it
    validation: tuple[Later, Weights] | None = None  # confusion matrices, and the weights that were validated


class Run:
    """What a run is made of, and what changes in it."""

    def __init__(
        self, settings: Settings, process: Process, dataset: Dataset, prepared: Prepared, loss: Objective
    ) -> None:
        self.settings, self.process, self.prepared, self.used = settings, process, prepared, used(dataset)
        self.batch = settings.batch or (24 if settings.dims == 2 else 2)
        patch = settings.patch or (patch_for(prepared) if settings.dims == 3 else None)
        folds = split(prepared.cases, settings.split, settings.folds, settings.split_seed)
        if process.first:
            save_folds(settings.out / "folds.json", folds, prepared.cases)
        self.fold = folds[settings.fold]
        compiled = {"auto": process.device.type == "cuda", "on": True, "off": False}[settings.compile]
        self.training = Batches(
            prepared, self._items(self.fold.train), self.batch, process.device, augment=self._augmentation(),
            patch=patch, seed=settings.seed, rank=process.rank, world=process.world, compile=compiled,
        )  # fmt: skip
        self.steps = len(self.training)
        mine = self._items(self.fold.validation)[process.rank :: process.world]
        self.validation = Batches(prepared, mine, self.batch, process.device) if mine else None

        torch.manual_seed(settings.seed)
        channels, classes = prepared.channels, len(prepared.classes)
        self.model = build(settings.model, channels, classes, **settings.model_options)
        _pretrain(self.model, settings, process)
        self.model.to(process.device)
        self.described = {
            "model": {
                "name": settings.model,
                "channels": channels,
                "classes": classes,
                "options": settings.model_options,
            },
            "preparation": prepared.settings.described(),
            "prepared": prepared.folder.name,  # which stands for the content of the files
            "classes": prepared.classes,
            "intensity": dataset.intensity,
            "patch": patch,
            "dataset": prepared.name,
        }
        self.network = Network(self.model, patch, settings.precision, compiled)
        self.loss = loss.to(process.device)
        self.adaptive = settings.adapt_kappa and has_kappa(loss)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), settings.rate, settings.momentum, weight_decay=settings.decay,
            fused=process.device.type == "cuda",
        )  # fmt: skip
        self.epoch = 0
        self.history: list[Row] = []
        self.unread: list[Unread] = []  # the epochs since
        self.best_epoch, self.best_score = 0, -math.inf
        self.best = _copied(self.model.state_dict())
        self.seconds = 0.0  # spent on training, over all parts of a run that was stopped
        self._started = self._saved = time.monotonic()

    @contextmanager
    def together(self) -> Iterator[None]:
        """While this lasts, the network is trained together with the other processes.

        What joins them must go before their group does: if it is the last to know the group, it ends gloo's threads
        while these wait for Python, which waits for them (pytorch/pytorch#56297).
        """
        self.network.trained = self.process.together(self.model)
        try:
            yield
        finally:
            self.network.trained = self.model

    def train_epoch(self, after_step: Callable[[], object]) -> None:
        """One epoch, whose losses `look` reads."""
        # What is random in the network, dropout, follows from the epoch as the batches do, and differs by process.
        numbers = np.random.SeedSequence([self.settings.seed, self.epoch, 1 + self.process.rank])
        torch.manual_seed(int(numbers.generate_state(1)[0]))
        self.network.train()
        total = self.settings.epochs * self.steps
        losses, items = [], []
        for step, batch in enumerate(self.training.epoch(self.epoch), start=self.epoch * self.steps):
            for group in self.optimizer.param_groups:
                group["lr"] = self.settings.rate * (1 - step / total) ** self.settings.power
            self.optimizer.zero_grad()
            loss = supervised(self.loss, self.network(batch.images), batch.labels)
            loss.backward()
            if self.settings.clip is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
            self.optimizer.step()
            losses.append(loss.detach())
            items.append(batch.items)
            if len(losses) % LOOK == 0:
                for earlier in self.unread:  # its last steps are to blame before these
                    self._losses(earlier)
                self._numbers(self._means(losses), self.epoch + 1, items)
            after_step()
        self.process.share_buffers(self.model)
        self.epoch += 1
        rate = self.optimizer.param_groups[0]["lr"]
        self.unread.append(Unread(self.epoch, rate, items, Later(self._means(losses)), Later(_norms(self.model))))

    def look(self, before: float = math.inf) -> list[Row]:
        """The rows that the history has from now on: mean losses and, where there was a validation, its scores. What
        is no number ends the run. With `before`, earlier epochs alone: to read these does not wait for the device."""
        rows: list[Row] = []
        while self.unread and self.unread[0].epoch < before:
            found = self.unread.pop(0)
            mean = fmean(self._losses(found))
            rows.append({"epoch": found.epoch, "step": found.epoch * self.steps, "loss": mean, "rate": found.rate})
            rows[-1] |= zip(("gradient_norm", "weight_norm"), found.norms.read().tolist(), strict=True)
            if found.validation:
                rows[-1] |= self._judge(found.epoch, *found.validation)
        self.history += rows
        return rows

    def validate(self) -> None:
        """Validates the network as it is; what comes of it, `look` reads."""
        items = self._items(self.fold.validation)
        classes = len(self.prepared.classes)
        matrices = torch.zeros(len(items), classes, classes, dtype=torch.int64, device=self.process.device)
        if self.validation is not None:
            matrices[self.process.rank :: self.process.world] = self.network.confusion(self.validation, classes)
        self.unread[-1].validation = Later(self.process.total(matrices)), _copied(self.model.state_dict())

    def _judge(self, epoch: int, matrices: Later, weights: Weights) -> dict[str, Any]:
        """The scores of a validation, which choose the best weights and move a t-vMF loss's κ.

        Where the validation part has no foreground there is nothing to choose by: the latest weights count.
        """
        items = self._items(self.fold.validation)
        _, cases = per_case(matrices.read(), [self.prepared.case_of[item] for item in items])
        scores = summary(cases)
        reached = scores[self.settings.score]
        if reached is None:
            self.best_epoch, self.best = epoch, weights
        elif reached > self.best_score:
            self.best_score, self.best_epoch, self.best = reached, epoch, weights
        if self.adaptive:
            adapt_kappa(self.loss, dice_per_class(cases.sum(0)))
        return scores

    def resume(self) -> None:
        """Takes up the last checkpoint, if there is one."""
        found = load(self.settings.out)
        if found is None:
            return
        if found.metadata != json.loads(json.dumps(self.described)):
            raise TrainingError(
                f"{self.settings.out} holds a run on other data: {found.metadata.get('prepared')}, and not "
                f"{self.described['prepared']}, which is in {self.settings.data}"
            )
        state, world = found.state, self.process.world
        if state.get("processes", world) != world:  # batches, batch norms and dropout would be others
            raise TrainingError(
                f"{self.settings.out} holds a run of {state['processes']} processes, which would end otherwise with "
                f"{world}: resume it with {state['processes']} (torchrun --nproc-per-node), or take another folder"
            )
        self.model.load_state_dict(_with("model.", found.weights))
        self.best = {name: tensor.to(self.process.device) for name, tensor in _with("best.", found.weights).items()}
        self.optimizer.load_state_dict(state["optimizer"])
        self.loss.load_state_dict(state["loss"])
        self.epoch, self.history, self.seconds = state["epoch"], state["history"], state["seconds"]
        self.best_epoch, self.best_score = state["best_epoch"], state["best_score"]
        self._save_weights("best", self.best)  # which may have been stopped in between

    def due(self) -> bool:
        """Whether it is time for a checkpoint, by the clock of this process."""
        return time.monotonic() - self._saved >= self.settings.save_every

    def save(self) -> None:
        """A checkpoint, and the best weights in a file of their own."""
        if self.process.first:
            weights = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
            weights |= {f"best.{name}": tensor for name, tensor in self.best.items()}
            state = {
                "processes": self.process.world,
                "optimizer": self.optimizer.state_dict(),
                "loss": self.loss.state_dict(),
                "epoch": self.epoch,
                "history": self.history,
                "best_epoch": self.best_epoch,
                "best_score": self.best_score,
                "seconds": self.seconds + time.monotonic() - self._started,
            }
            save(self.settings.out, weights, state, self.described)
            self._save_weights("best", self.best)
        self._saved = time.monotonic()

    def finish(self) -> dict[str, Any]:
        """Tests the best weights, and the last for comparison, and writes the result; the checkpoints have done their
        work."""
        out = self.settings.out
        seconds = self.seconds + time.monotonic() - self._started
        write_history(out / HISTORY, self.history)
        with ThreadPoolExecutor(1) as writer:  # the disk takes as long as the tests
            # From the host: another thread could disturb a GPU that records a CUDA graph.
            saved = [
                writer.submit(self._save_weights, name, _copied(weights, "cpu"))
                for name, weights in (("best", self.best), ("last", self.model.state_dict()))
            ]
            last = self._test(surfaces=False)
            self.model.load_state_dict(self.best)
            best = self._test(self.settings.surfaces)
            for each in saved:
                each.result()
        result = {
            "settings": self.settings.to_json(),
            **self.described,
            "used": self.used,
            **self._validated(self.best_epoch),
            **best,
            "last": {  # what the result would be with these weights
                **self._validated(self.epoch),
                **last,
            },
            "seconds": round(seconds, 1),
            "versions": {"polydice": __version__, "torch": torch.__version__, "python": platform.python_version()},
            "device": _device_name(self.process.device),
        }
        write_text(out / RESULT, json.dumps(result, indent=1, allow_nan=False) + "\n")
        remove(out)
        return result

    def _validated(self, epoch: int) -> dict[str, Any]:
        """An epoch whose weights are tested, and what they reached on validation."""
        row = next(row for row in self.history if row["epoch"] == epoch)
        scores = {f"validation_{name}": row[name] for name in ("dice_foreground", "dice_global") if name in row}
        return {"best_epoch": epoch, **scores}

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

    def _test(self, surfaces: bool) -> dict[str, Any]:
        return score(self.network, self.prepared, self.fold.test, self.batch, surfaces)

    def _save_weights(self, name: str, weights: Weights) -> None:
        if self.process.first:
            about = self.described | {"precision": self.settings.precision}
            save_weights(self.settings.out / f"{name}.safetensors", weights, about)

    def _means(self, losses: list[Tensor]) -> Tensor:
        """The losses of steps, as means over the processes."""
        return self.process.total(torch.stack(losses)) / self.process.world

    def _losses(self, found: Unread) -> list[float]:
        """The losses of an epoch's steps, if they and the weights after them are numbers."""
        losses = self._numbers(found.losses.read(), found.epoch, found.items)
        if not found.norms.read().isfinite().all():  # a step can spoil the weights after a loss that was a number
            self._stop("the gradient or the weights became infinite or NaN", found.epoch, found.items)
        return losses

    def _numbers(self, losses: Tensor, epoch: int, items: list[Tensor]) -> list[float]:
        values: list[float] = losses.tolist()
        for place, loss in enumerate(values):
            if not math.isfinite(loss):
                self._stop(f"the loss became {loss}", epoch, items[: place + 1])
        return values

    def _stop(self, what: str, epoch: int, items: list[Tensor]) -> NoReturn:
        """Ends the run after the epoch's step that had the last of these items."""
        chosen = torch.cat(self.process.of_all(items[-1])).tolist()
        cases = sorted({self.prepared.cases[self.prepared.case_of[item]].id for item in chosen})
        kept = load(self.settings.out)
        good = f"{kept.folder}, after epoch {kept.state['epoch']}" if kept else "none: nothing was saved yet"
        raise TrainingError(
            f"{what} at step {(epoch - 1) * self.steps + len(items)} (epoch {epoch}), on a batch of "
            f"{', '.join(cases)}; the last good checkpoint is {good}"
        )


def _begin(settings: Settings) -> dict[str, Any] | None:
    """Makes the run's folder, or looks whether the run it holds is this one; the result if that is finished."""
    out = settings.out
    # A run that failed before its first epoch was over has left nothing to lose.
    begun = any(any(out.glob(name)) for name in (HISTORY, "checkpoint-*", RESULT))
    if not begun:
        write_text(out / SETTINGS, json.dumps(settings.to_json(), indent=1) + "\n")
        return None
    if not settings.resume:
        raise TrainingError(f"{out} holds a run: --resume goes on with it, or take another folder")
    different = settings.differences(_read(out / SETTINGS))
    if different:
        raise TrainingError(
            f"{out} holds a run with other settings ({'; '.join(different)}): take another folder, or its settings"
        )
    if not (out / RESULT).exists():
        return None
    remove(out)
    return completed(_read(out / RESULT))


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        check(path.stem, found, dict[str, Any])
    except (OSError, ValueError, RecursionError) as error:
        raise TrainingError(f"{path} cannot be read ({error}): take another folder") from error
    return found


def _pretrain(model: nn.Module, settings: Settings, process: Process) -> None:
    if not settings.network.weights:
        return
    weights = import_module(settings.network.weights)
    if settings.pretrained is not None:
        weights.load_weights(model, settings.pretrained)
    elif process.first:
        print(weights.WANTED, file=sys.stderr)


def _norms(model: nn.Module) -> Tensor:
    """Of the gradient that the parameters still have, and of the parameters: how far a step goes, and from where."""
    parameters = list(model.parameters())
    gradients = [each.grad for each in parameters if each.grad is not None]
    with torch.no_grad():
        return torch.stack([nn.utils.get_total_norm(each) for each in (gradients, parameters)])


def _copied(weights: Mapping[str, Tensor], device: str | None = None) -> Weights:
    return {name: tensor.to(device or tensor.device, copy=True) for name, tensor in weights.items()}


def _with(prefix: str, weights: Weights) -> Weights:
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
