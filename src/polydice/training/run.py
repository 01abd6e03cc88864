"""A training run's state: what it is made of, what changes in it, and the checkpoints that keep this."""

import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module

import torch
from torch import Tensor, nn

from polydice.data.augment import Augment2D, Augment3D
from polydice.data.batches import Batches
from polydice.data.cases import Dataset
from polydice.data.folds import save_folds, split
from polydice.data.prepare import Prepared
from polydice.data.usable import used
from polydice.models import build
from polydice.training.checkpoint import load, save, save_weights
from polydice.training.config import CountingWeights, Settings
from polydice.training.heads import Body, head_losses
from polydice.training.inference import Network, patch_for
from polydice.training.objective import Objective, adaptive
from polydice.training.optimizer import make_optimizer
from polydice.training.processes import Process
from polydice.training.watch import Epoch
from polydice.training.weights import FILES

Weights = dict[str, Tensor]


class TrainingError(RuntimeError):
    """A run that cannot begin or go on; the message is for the person who started it."""


class Run:
    """What a run is made of, and what changes in it."""

    def __init__(
        self, settings: Settings, process: Process, dataset: Dataset, prepared: Prepared, loss: Objective
    ) -> None:
        self.settings, self.process, self.prepared, self.used = settings, process, prepared, used(dataset)
        self.batch = settings.batch_size
        patch = settings.patch or (patch_for(prepared) if settings.dims == 3 else None)
        every_fold = split(prepared.cases, settings.split, settings.folds, settings.split_seed)
        if process.first:
            save_folds(settings.out / "folds.json", every_fold, prepared.cases)
        self.fold = every_fold[settings.fold]
        _refuse_what_nobody_shows(prepared, self.items(self.fold.train), settings.fold)
        compiled = {"auto": process.device.type == "cuda", "on": True, "off": False}[settings.compile]
        self.training = Batches(
            prepared, self.items(self.fold.train), self.batch, process.device, augment=self._augmentation(),
            patch=patch, seed=settings.seed, rank=process.rank, world=process.world, compile=compiled,
        )  # fmt: skip
        self.steps = len(self.training)  # of an epoch
        mine = self.items(self.fold.validation)[process.rank :: process.world]
        self.validation = Batches(prepared, mine, self.batch, process.device) if mine else None

        torch.manual_seed(settings.seed)
        channels, classes = prepared.channels, prepared.outputs
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
        } | ({"regions": prepared.regions._asdict()} if prepared.regions else {})
        order = prepared.regions.order if prepared.regions else None
        self.network = Network(self.model, patch, settings.precision, compiled, order)
        self.loss = loss.to(process.device)
        partly = prepared.annotated is not None
        of_features = head_losses(settings.head, self.loss, self.model, self.network.half, partly)
        self.fused = of_features is not None
        self.minimised = of_features or self.loss
        self.adaptive = adaptive(loss, settings.adapt_kappa)
        self.optimizer = make_optimizer(settings, self.model.parameters(), fused=process.device.type == "cuda")
        self.epoch = 0  # how many are over
        self.history: list[Epoch] = []
        self.best_epoch, self.best_score = 0, -math.inf
        self.best = copied(self.model.state_dict())
        self._seconds = 0.0  # that the parts of the run took before this one
        self._started = self._saved = time.monotonic()

    def items(self, cases: Sequence[int]) -> list[int]:
        """The images, slices or volumes of cases."""
        return [item for case in cases for item in self.prepared.cases[case].items]

    @contextmanager
    def together(self) -> Iterator[None]:
        """While this lasts, the network is trained together with the other processes.

        What joins the processes (DDP) must be freed before their group is destroyed. If it were the last to hold the
        group, to free it would wait for gloo's threads, and these may wait for Python's lock (pytorch/pytorch#56297).
        """
        trained = Body(self.model) if self.fused else self.model
        self.network.trained = self.process.together(trained)
        try:
            yield
        finally:
            self.network.trained = self.model

    def keep_if_best(self, score: float | None) -> None:
        """Keeps the weights as they are now, if this score of a validation is the best so far.

        Where the validation part has no foreground there is no score to choose by: the latest weights are kept.
        """
        if score is None or score > self.best_score:
            self.best_score = self.best_score if score is None else score
            self.best_epoch, self.best = self.epoch, copied(self.model.state_dict())

    def seconds(self) -> float:
        """Spent on training so far, over all parts of a run that was stopped."""
        return self._seconds + time.monotonic() - self._started

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
        if state.get("processes", world) != world:  # with another number, batch norms and dropout would differ
            raise TrainingError(
                f"{self.settings.out} holds a run of {state['processes']} processes, which would end otherwise with "
                f"{world}: resume it with {state['processes']} (torchrun --nproc-per-node), or take another folder"
            )
        self.model.load_state_dict(_with("model.", found.weights))
        self.best = {name: tensor.to(self.process.device) for name, tensor in _with("best.", found.weights).items()}
        self.optimizer.load_state_dict(state["optimizer"])
        self.loss.load_state_dict(state["loss"])
        self.epoch, self.history, self._seconds = state["epoch"], state["history"], state["seconds"]
        self.best_epoch, self.best_score = state["best_epoch"], state["best_score"]
        self.save_counting()  # the run may have been killed before it wrote them

    def due(self) -> bool:
        """Whether it is time for a checkpoint, by the clock of this process."""
        return time.monotonic() - self._saved >= self.settings.save_every

    def save(self) -> None:
        """A checkpoint, and the weights that count in a file of their own."""
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
                "seconds": self.seconds(),
            }
            save(self.settings.out, weights, state, self.described)
            self.save_counting()
        self._saved = time.monotonic()

    def save_counting(self) -> None:
        """The weights that would count if the run ended here."""
        kind = self.settings.weights
        self.save_weights(kind, self.best if kind == "best" else self.model.state_dict())

    def save_weights(self, kind: CountingWeights, weights: Weights) -> None:
        """Weights in a file by themselves, from which `polydice predict` rebuilds the network."""
        if self.process.first:
            about = self.described | {"precision": self.settings.precision}
            save_weights(self.settings.out / FILES[kind], weights, about)

    def _augmentation(self) -> Augment2D | Augment3D:
        settings = self.settings
        if settings.dims == 2:
            rotation = 90.0 if settings.rotation is None else settings.rotation
            return Augment2D(rotation, settings.flip, settings.interpolation)
        spacing = self.prepared.settings.spacing or (1.0, 1.0, 1.0)
        rotation = 15.0 if settings.rotation is None else settings.rotation
        return Augment3D(rotation, settings.flip, spacing=spacing)


def copied(weights: Mapping[str, Tensor], device: str | None = None) -> Weights:
    """Weights that further training leaves as they are."""
    return {name: tensor.to(device or tensor.device, copy=True) for name, tensor in weights.items()}


def _refuse_what_nobody_shows(prepared: Prepared, items: Sequence[int], fold: int) -> None:
    """A class that no training case has annotated would be any part of the background."""
    if prepared.annotated is None:
        return
    shown = prepared.annotated[list(items)]
    missing = [name for label, name in enumerate(prepared.classes) if not shown[:, label].any()]
    if missing:
        raise TrainingError(
            f"{', '.join(missing)}: annotated in no training case of fold {fold} of {prepared.name}; take another "
            "split_seed, or more folds"
        )


def _pretrain(model: nn.Module, settings: Settings, process: Process) -> None:
    if not settings.network.weights:
        return
    weights = import_module(settings.network.weights)
    if settings.pretrained is not None:
        weights.load_weights(model, settings.pretrained)
    elif process.first:
        print(weights.WANTED, file=sys.stderr)


def _with(prefix: str, weights: Weights) -> Weights:
    """The weights whose names begin with it, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}
