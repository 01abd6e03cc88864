"""Networks and losses that are not polydice's own are tried on made-up images before hours are spent.

Each raises a `ValueError` that says what was given, what came of it and what was expected.
"""

import torch
from torch import Tensor, nn

from polydice.data.prepare import Prepared
from polydice.models import MODELS, build
from polydice.training.config import Settings
from polydice.training.heads import Body, heads_of
from polydice.training.inference import patch_for
from polydice.training.mixed import Mixed, takes
from polydice.training.objective import objective, targets
from polydice.training.processes import Process


def try_network(settings: Settings, prepared: Prepared) -> None:
    """Whether the network gives logits for images of this data set."""
    if settings.model in MODELS:
        return
    classes = prepared.outputs
    images = torch.rand(1, prepared.channels, *sides(settings, prepared))
    told, shape = f"model {settings.model!r}", list(images.shape)
    try:
        model = build(settings.model, prepared.channels, classes, **settings.model_options).eval()
        with torch.no_grad():
            logits = model(images)
    except Exception as error:  # it is somebody else's code, and may raise anything
        raise ValueError(f"{told} failed on images {shape}: {type(error).__name__}: {error}") from error
    wanted, found = [1, classes, *shape[2:]], _shown(logits)
    if found != str(wanted):
        raise ValueError(f"{told} gave {found} for images {shape}, but {classes} classes need logits {wanted}")
    try_head(model, images, told)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"{told} has no parameters to train")


def try_head(model: nn.Module, images: Tensor, told: str) -> None:
    """Whether the heads of a network that has some make its logits: tested, and in training, where it may do more."""
    try:
        heads = heads_of(model)
    except (TypeError, ValueError):
        return
    two = torch.cat([images, images])
    for mode in (False, True):
        logits = _levels(model.train(mode), two)
        try:
            made = [head(each) for head, each in zip(heads, _levels(Body(model), two), strict=False)]
            same = len(made) == len(logits) and all(map(_agree, made, logits))
            found = f"other values, {', '.join(map(_shown, made))}"
        except Exception as error:  # as above
            same, found = False, f"{type(error).__name__}: {error}"
        if not same:
            raise ValueError(
                f"{told} has `features` and `heads`, but heads[0](features(images)) are not its logits"
                f"{' in training' if mode else ''}, they give {found}: give `features` or `heads` another name, or let "
                "them be what docs/models.md says"
            )


@torch.no_grad()
def _levels(network: nn.Module, images: Tensor) -> list[Tensor]:
    """What it gives, of one or several resolutions, with the same chance every time."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        found = network(images)
    return list(found) if isinstance(found, list | tuple) else [found]


def _agree(made: Tensor, logits: Tensor) -> bool:
    return made.shape == logits.shape and torch.allclose(made, logits, 1e-3, 1e-4)


def try_loss(settings: Settings, prepared: Prepared) -> None:
    """Whether the loss gives one number, with a gradient, for logits and labels of this data set."""
    alone = Process(0, 1, torch.device("cpu"))
    loss = objective(settings.loss, alone, prepared.ignore, prepared.regions)
    if not isinstance(loss, Mixed):
        return
    shape = sides(settings, prepared)
    labels = torch.randint(len(prepared.label_names), (2, *shape), dtype=torch.uint8)
    if prepared.ignore is not None:
        labels[:, :1] = prepared.ignore
    target, mask = targets(labels, prepared.ignore, prepared.regions)
    annotated = None if prepared.annotated is None else torch.ones(2, prepared.outputs, dtype=torch.bool)
    for _, each in loss.foreign:
        logits = torch.randn(2, prepared.outputs, *shape, requires_grad=True)
        given = f"logits {list(logits.shape)} and {'masks' if prepared.regions else 'labels'} {list(target.shape)}"
        if annotated is not None and not takes(each.module.forward, "annotated"):
            raise ValueError(
                f"loss {each}: not all classes are annotated in all cases here, and its forward takes no annotated, "
                "[B, C] booleans: a class would be trained as background where nobody has looked for it"
            )
        try:
            value = each(logits, target, mask, annotated)
        except Exception as error:  # as above
            raise ValueError(f"loss {each} failed on {given}: {type(error).__name__}: {error}") from error
        if not isinstance(value, Tensor) or value.ndim:
            raise ValueError(f"loss {each} gave {_shown(value)} for {given}, but a network is trained on one number")
        if not value.requires_grad:
            raise ValueError(f"loss {each} has no gradient: its value must be computed from the logits by torch")


def sides(settings: Settings, prepared: Prepared) -> tuple[int, ...]:
    """Of the images or patches that the network is trained on."""
    if settings.dims == 3:
        return settings.patch or patch_for(prepared)
    return settings.size, settings.size


def _shown(value: object) -> str:
    return str(list(value.shape)) if isinstance(value, Tensor) else f"a {type(value).__name__}"
