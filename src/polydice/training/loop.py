"""One training run, from a folder of files to a result: `train` is all of it, in the order in which it happens."""

import json
import math
import platform
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from polydice import __version__
from polydice.data.cases import Dataset
from polydice.data.prepare import Prepared
from polydice.data.readers import open_dataset
from polydice.data.usable import usable
from polydice.training.checkpoint import load, remove, write_text
from polydice.training.config import SETTINGS, Settings
from polydice.training.heads import check_loss
from polydice.training.interrupt import Interrupt
from polydice.training.metrics import dice_per_class, per_case, summary
from polydice.training.objective import adapt, objective, supervised
from polydice.training.optimizer import set_rate
from polydice.training.processes import joined
from polydice.training.rehearsal import try_loss, try_network
from polydice.training.run import Run, TrainingError, copied
from polydice.training.scoring import completed, score
from polydice.training.watch import HISTORY, Epoch, Watch, write_history
from polydice.values import check

LOOK = 200  # steps after which the losses of a long epoch are looked at: to do so at every step would slow a GPU down
RESULT = "result.json"


def train(
    settings: Settings, tell: Callable[[Dataset], object] | None = None, *, lines: bool = False
) -> dict[str, Any]:
    """Trains, and tests the last weights and those of the best validation; the result is what `result.json` holds.

    A run that was stopped goes on from its last checkpoint, if `settings.resume` says so, and ends as if it had never
    been stopped: batches and all that is random depend on the seed and the epoch alone, and what changes is in the
    checkpoint. Of several processes that train together, the first returns the result, and the others an empty one.
    `tell` is called with the data set before the first step. With `lines`, every epoch is a line of text where there is
    no terminal for a progress bar.
    """
    with joined(settings.device) as process:
        check_loss(settings.head, objective(settings.loss, process))  # said before anything is read
        finished = process.of_first(_begin(settings) if process.first else None)
        if finished is not None:
            return finished if process.first else {}
        dataset, prepared = opened(settings)
        try_network(settings, prepared)
        try_loss(settings, prepared)
        loss = objective(settings.loss, process, prepared.ignore, prepared.regions)
        run = Run(settings, process, dataset, prepared, loss)
        if settings.resume:
            run.resume()
            if lines and process.first and run.epoch == 0:
                print(f"there is nothing to resume in {settings.out}: the training begins", file=sys.stderr, flush=True)
        if tell and process.first:
            tell(dataset)
        with (
            run.together(),
            Watch(settings, run.history, run.steps, process.first, lines) as watch,
            Interrupt(process.first) as interrupt,
        ):
            while run.epoch < settings.epochs:
                epoch = train_epoch(run, watch.bar.update)
                if run.epoch % settings.validate_every == 0 or run.epoch == settings.epochs:
                    epoch |= validate(run)
                run.history.append(epoch)
                watch.show(epoch)
                stop, due = process.of_first((interrupt.asked, run.due()))
                if stop or due:
                    run.save()
                if stop:
                    raise KeyboardInterrupt
    return finish(run) if process.first else {}


def opened(settings: Settings) -> tuple[Dataset, Prepared]:
    """The data set as it is trained on."""
    given = {name: getattr(settings, name) for name in ("layout", "masks", "group", "ignore")}
    options = [part for name, value in given.items() if value is not None for part in (f"--{name}", str(value))]
    dataset = open_dataset(settings.data, **given)
    return usable(dataset, settings.preparation, settings.cache, settings.skip_errors, options)


def train_epoch(run: Run, after_step: Callable[[], object]) -> Epoch:
    """Trains for an epoch, and says how it went. A loss or a weight that is NaN or infinite ends the run."""
    settings = run.settings
    # Dropout, like the batches, depends on the seed and the epoch alone; and it differs between processes.
    numbers = np.random.SeedSequence([settings.seed, run.epoch, 1 + run.process.rank])
    torch.manual_seed(int(numbers.generate_state(1)[0]))
    run.network.train()
    losses, items = [], []
    for step, batch in enumerate(run.training.epoch(run.epoch), start=run.epoch * run.steps):
        set_rate(run.optimizer, settings, step, settings.epochs * run.steps)
        run.optimizer.zero_grad()
        outputs, known = run.network(batch.images), batch.annotated
        loss = supervised(run.minimised, outputs, batch.labels, run.prepared.ignore, run.prepared.regions, known)
        loss.backward()
        if settings.clip is not None:
            nn.utils.clip_grad_norm_(run.model.parameters(), settings.clip)
        run.optimizer.step()
        losses.append(loss.detach())
        items.append(batch.items)
        if len(losses) % LOOK == 0:
            _read_losses(run, losses, items)
        after_step()
    mean = fmean(_read_losses(run, losses, items))
    gradient_norm, weight_norm = _norms(run.model)
    if not math.isfinite(gradient_norm + weight_norm):  # a step can spoil the weights after a loss that was a number
        _stop(run, "the gradient or the weights became infinite or NaN", items)
    run.process.share_buffers(run.model)
    run.epoch += 1
    return {
        "epoch": run.epoch,
        "step": run.epoch * run.steps,
        "loss": mean,
        "rate": run.optimizer.param_groups[0]["lr"],  # of the last step
        "gradient_norm": gradient_norm,
        "weight_norm": weight_norm,
    }


def validate(run: Run) -> dict[str, Any]:
    """The scores of the network as it is, which choose the best weights and move a κ or ε that follows them."""
    items, labels, members = run.items(run.fold.validation), len(run.prepared.label_names), run.prepared.members
    matrices = torch.zeros(len(items), labels, labels, dtype=torch.int64, device=run.process.device)
    if run.validation is not None:
        matrices[run.process.rank :: run.process.world] = run.network.confusion(run.validation, labels)
    _, cases = per_case(run.process.total(matrices).cpu(), [run.prepared.case_of[item] for item in items])
    scores = summary(cases, members)
    run.keep_if_best(scores[run.settings.score])
    adapt(run.adaptive, dice_per_class(cases.sum(0), members)[-run.prepared.outputs :])  # of the classes with a channel
    return scores


def finish(run: Run) -> dict[str, Any]:
    """Tests the last weights and the best, and writes the result; the checkpoints have done their work."""
    settings, out, seconds = run.settings, run.settings.out, run.seconds()

    def tested(epoch: int, surfaces: bool) -> dict[str, Any]:
        """What the network, whose weights are those of this epoch, reaches on the validation and on the test part."""
        row = next(row for row in run.history if row["epoch"] == epoch)
        reached = {f"validation_{name}": row[name] for name in ("dice_foreground", "dice_global") if name in row}
        return {"best_epoch": epoch, **reached, **score(run.network, run.prepared, run.fold.test, run.batch, surfaces)}

    write_history(out / HISTORY, run.history)
    with ThreadPoolExecutor(1) as writer:  # writing takes as long as testing, so both are done at once
        # The thread is given copies on the host: if it used the GPU, it could disturb a CUDA graph that is recorded.
        saved = [
            writer.submit(run.save_weights, "best", copied(run.best, "cpu")),
            writer.submit(run.save_weights, "last", copied(run.model.state_dict(), "cpu")),
        ]
        surfaces = settings.surfaces and settings.weights == "last"
        best = last = tested(run.epoch, surfaces)
        if (run.best_epoch, settings.surfaces) != (run.epoch, surfaces):
            run.model.load_state_dict(run.best)
            best = tested(run.best_epoch, settings.surfaces)
        for each in saved:
            each.result()
    result = {
        "settings": settings.to_json(),
        **run.described,
        "used": run.used,
        **best,
        "last": last,  # what the result would be with these weights
        "head": "fused" if run.fused else "plain",
        "seconds": round(seconds, 1),
        "versions": {"polydice": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "device": _device_name(run.process.device),
    }
    write_text(out / RESULT, json.dumps(result, indent=1, allow_nan=False) + "\n")
    remove(out)
    return result


def _begin(settings: Settings) -> dict[str, Any] | None:
    """Makes the run's folder, or checks that the run in it has these settings; the result, if that run is finished."""
    out = settings.out
    # A run that failed in its first epoch has left nothing of value: its folder is taken.
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


def _read_losses(run: Run, losses: list[Tensor], items: list[Tensor]) -> list[float]:
    """The losses of an epoch's steps so far, as means over the processes. To read them waits for the device."""
    values: list[float] = (run.process.total(torch.stack(losses)) / run.process.world).tolist()
    for place, loss in enumerate(values):
        if not math.isfinite(loss):
            _stop(run, f"the loss became {loss}", items[: place + 1])
    return values


def _norms(model: nn.Module) -> list[float]:
    """Of the last step's gradient, which the parameters still have, and of the parameters."""
    parameters = list(model.parameters())
    gradients = [each.grad for each in parameters if each.grad is not None]
    with torch.no_grad():
        norms: list[float] = torch.stack([nn.utils.get_total_norm(each) for each in (gradients, parameters)]).tolist()
    return norms


def _stop(run: Run, what: str, items: list[Tensor]) -> NoReturn:
    """Ends the run in the epoch's step that had the last of these items."""
    chosen = torch.cat(run.process.of_all(items[-1])).tolist()
    cases = sorted({run.prepared.cases[run.prepared.case_of[item]].id for item in chosen})
    kept = load(run.settings.out)
    good = f"{kept.folder}, after epoch {kept.state['epoch']}" if kept else "none: nothing was saved yet"
    raise TrainingError(
        f"{what} at step {run.epoch * run.steps + len(items)} (epoch {run.epoch + 1}), on a batch of "
        f"{', '.join(cases)}; the last good checkpoint is {good}"
    )


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu"
