"""The settings of a training run. Reading them takes no torch, so that `polydice train --help` answers at once."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from polydice.models import MODELS, Model, find
from polydice.recommended import START, Optimizer
from polydice.values import Count, NotNegative, Positive, Range, Seed, check

if TYPE_CHECKING:
    from polydice.data.prepare import Preparation

    ModelName = str
else:
    ModelName = Literal[tuple(MODELS)] | str  # so that the help names them

# Where a run lies and how it is watched: these may differ when it is resumed.
CIRCUMSTANCES = ("data", "out", "cache", "device", "compile", "head", "resume", "save_every", "track", "skip_errors")
# Settings that only some of the networks take. All take a size.
OF_SOME = sorted({name for model in MODELS.values() for name in model.takes} - {"size"})

Precision = Literal["auto", "float32", "bfloat16"]
Head = Literal["auto", "plain", "fused"]
CACHE = Path.home() / ".cache" / "polydice"

SETTINGS = "settings.json"  # in the folder of a run
CountingScore = Literal["dice_foreground", "dice_global"]
CountingWeights = Literal["last", "best"]
# What these settings were before they existed: a run that was saved then does not say it.
BEFORE: dict[str, Any] = {"score": "dice_global", "weights": "best", "optimizer": "sgd", "nesterov": False}

# The numbers that each optimiser takes, and their defaults. SGD's momentum and decay are the paper's, AdamW's decay is
# that of torch.
OPTIMIZERS: dict[str, dict[str, float]] = {
    "sgd": {"rate": START.rate["sgd"], "momentum": 0.9, "decay": 1e-4},
    "adamw": {"rate": START.rate["adamw"], "decay": 0.01},
}


@dataclass(frozen=True)
class Settings:
    """One training run. The defaults are the paper's (200 epochs, batches of 24 images of 224 x 224), except for the
    score and the weights that count, and for loss, optimiser and rate: these are where to start (recommended.py)."""

    data: Path
    """Folder of the data set."""
    out: Path
    """Folder of the run: history, checkpoints, weights, result."""
    layout: str | None = None
    """The data set's layout, if it is not to be recognised."""
    masks: str | None = None
    """The folder of masks of a plain folder, if not masks, mask, labels, label or gt."""
    group: str | None = None
    """A regular expression that finds the patient or sequence in the name of a case: its first part in brackets, or all
    it matches. If not given, groups.csv in the folder, or what the layout knows."""
    ignore: int | None = None
    """The label of pixels that have none: neither trained on nor scored."""
    skip_errors: bool = False
    """Leave out cases in which `polydice data` finds errors, instead of refusing to train."""
    cache: Path = CACHE
    """Where prepared data sets are kept."""

    size: Annotated[int, Range(1, 16384)] = 224
    """2D: pixels along both edges."""
    spacing: tuple[Positive, Positive, Positive] | None = None
    """3D: millimetres between voxels (z, y, x). If not given, the median of the set."""
    patch: tuple[Count, Count, Count] | None = None
    """3D: voxels of a patch (z, y, x). If not given, what holds most of the volumes, up to 96 along an edge."""

    cut: Annotated[float, Range(0, 100, open=True, unit=" percent")] | None = None
    """MR: percent of the voxels above the volume's minimum, the brightest, that all become 1 when it is scaled."""

    split: Literal["grouped", "contiguous", "random"] = "grouped"
    """How the cases are cut into parts: grouped never splits a patient or video sequence."""
    folds: Annotated[int, Range(3)] = 5
    """Number of parts."""
    fold: int = 0
    """The part to test on; the next one validates, the others train."""
    split_seed: Seed = 0
    """Seed of a grouped or random split: each is another cut. 0 is the cut of a grouped split that goes by size."""

    model: ModelName = "unet"
    """The network: one of polydice's, or anybody's as module:Class. Options may follow, as in "unet(width=8)"."""
    width: Annotated[int, Range(1, 4096)] | None = None
    """Features of the network's first level, if not its own default."""
    depth: Annotated[int, Range(1, 10)] | None = None
    """How often the network halves the resolution, if not its own default."""
    norm: Literal["batch", "instance"] | None = None
    """The U-Net's normalisation, if not by batch."""
    deep_supervision: bool = False
    """The U-Net's coarser levels are trained too, each with half the weight of the one before."""
    pretrained: Path | None = None
    """transunet: the official R50+ViT-B_16.npz, or a timm vit_base_r50_s16 state."""

    loss: str = START.loss
    """As in Python: "PolyDice1Loss(0.2, batch=True) + CrossEntropyLoss()"."""
    adapt_kappa: bool = True
    """The κ of a t-vMF loss follows the validation: 32 times each class's Dice. (An ε follows it where the loss says
    so: "PolyDice1Loss(0.0, follow=0.5)".)"""

    epochs: Count = 200
    """How often every training image is seen."""
    batch: Count | None = None
    """Images in a batch, over all processes. If not given 24, or 2 patches of volumes."""
    optimizer: Optimizer = START.optimizer
    """SGD with momentum, or AdamW."""
    rate: Positive | None = None
    """Learning rate of the first step; it falls to 0 by the last. If not given 0.04 for sgd, 0.00128 for adamw."""
    power: NotNegative = 0.9
    """The rate falls as (1 - step/steps)^power."""
    momentum: Annotated[float, Range(0, 1)] | None = None
    """sgd: how much of the last step goes into the next. If not given 0.9."""
    nesterov: bool = False
    """sgd: momentum in Nesterov's form."""
    decay: NotNegative | None = None
    """Weight decay: sgd adds it to the gradient, adamw takes rate times decay from the weights. If not given 0.0001 for
    sgd, 0.01 for adamw."""
    clip: Positive | None = None
    """Largest norm of a step's gradient."""
    rotation: Annotated[float, Range(0, 360)] | None = None
    """Degrees: turned uniformly in ± that. If not given 90 in 2D, 15 in 3D."""
    flip: Annotated[float, Range(0, 1)] = 0.5
    """Probability of a flip."""
    interpolation: Literal["nearest", "bilinear"] = "nearest"
    """How 2D images are turned; labels always take the nearest pixel."""
    seed: Seed = 0
    """Of weights, order and augmentation."""

    score: CountingScore = "dice_foreground"
    """The score that counts: on validation it chooses the best weights. dice_foreground is the mean over the foreground
    classes; dice_global, the paper's, has the background in it, and so pays for finding nothing."""
    weights: CountingWeights = "last"
    """The weights that count: those of the last epoch, or those that were best on validation. Both are kept and tested;
    `polydice predict` takes those that count."""
    validate_every: Count = 1
    """Epochs between validations; the last epoch always has one."""
    surfaces: bool = True
    """Test with HD95 and surface Dice too."""
    device: str | None = None
    """cpu, cuda or cuda:N. If not given, a GPU where there is one."""
    precision: Precision = "auto"
    """auto is bfloat16 on a GPU (weights stay float32) and float32 on a CPU."""
    compile: Literal["auto", "on", "off"] = "auto"
    """torch.compile. auto compiles for a GPU and not for a CPU."""
    head: Head = "auto"
    """Networks that end in a 1×1 convolution: fused computes the loss without the logits, which saves memory with many
    classes, and time on a GPU; plain makes them. auto is fused where there are many: from 16 on in bfloat16 on a
    GPU, from 64 on with a CPU. The weights are the same but for rounding."""
    save_every: NotNegative = 60.0
    """Seconds between checkpoints, which are saved after an epoch."""
    resume: bool = False
    """Go on with the run that the folder holds."""
    track: Literal["none", "tensorboard"] = "none"
    """Where to draw the history beside history.jsonl: tensorboard takes `tensorboard --logdir OUT`."""

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self), include_extras=True).items():
            value = getattr(self, name)
            check(name, value, hint)
            if hint in (Path, Path | None) and isinstance(value, str):  # from a recipe
                object.__setattr__(self, name, Path(value))
        if not 0 <= self.fold < self.folds:
            raise ValueError(f"fold must lie between 0 and {self.folds - 1}: {self.fold}")
        takes = self.network.takes
        for name in OF_SOME:
            if name not in takes and getattr(self, name):
                raise ValueError(f"{self.model} has no {name.replace('_', ' ')}: {getattr(self, name)}")
        if self.head == "fused" and not self.network.head:
            raise ValueError(f"{self.model} does not end in a 1×1 convolution: head fused; take head auto or plain")
        for name, value in (("momentum", self.momentum), ("nesterov", self.nesterov or None)):
            if self.optimizer == "adamw" and value is not None:
                raise ValueError(f"adamw has no {name}: {value}; leave it out, or take optimizer sgd")
        if self.nesterov and self.momentum == 0:
            raise ValueError(f"nesterov needs a momentum above 0: {self.momentum}")
        for name, own in OPTIMIZERS[self.optimizer].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, own)

    @property
    def network(self) -> Model:
        """What the registry says of the network, or its class if it is somebody else's."""
        return find(self.model)[0]

    @property
    def dims(self) -> Literal[2, 3]:
        return self.network.dims

    @property
    def batch_size(self) -> int:
        """Images, slices or patches in a batch, over all processes."""
        return self.batch or (24 if self.dims == 2 else 2)

    @property
    def preparation(self) -> "Preparation":
        """How the data set is made ready for it."""
        from polydice.data.prepare import Preparation

        return Preparation(self.dims, self.size, self.spacing, cut=self.cut)

    @property
    def model_options(self) -> dict[str, Any]:
        """What `polydice.models.build` is given beside the name, channels and classes."""
        options = {name: getattr(self, name) for name in self.network.settings}
        return {name: value for name, value in options.items() if value not in (None, False)}

    @property
    def optimization(self) -> dict[str, float]:
        """The numbers that the optimiser takes."""
        return {name: getattr(self, name) for name in OPTIMIZERS[self.optimizer]}

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(asdict(self), default=str))
        return found

    def differences(self, saved: dict[str, Any]) -> list[str]:
        """What these settings say otherwise than saved ones, apart from circumstances."""
        mine, saved = self.to_json(), BEFORE | saved
        names = [field.name for field in fields(self) if field.name not in CIRCUMSTANCES]
        return [f"{name} {saved.get(name)!r} -> {mine[name]!r}" for name in names if saved.get(name) != mine[name]]
