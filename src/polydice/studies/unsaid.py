"""What a recipe means where it says nothing."""

from dataclasses import dataclass, field

from polydice.recommended import START
from polydice.training.config import CountingScore, CountingWeights


@dataclass(frozen=True)
class Unsaid:
    """A study keeps it, so that it goes on to mean the same."""

    score: CountingScore = "dice_foreground"
    weights: CountingWeights = "last"
    seeds: tuple[int, ...] | None = None  # None: three replicates
    nested: bool = False  # whether values are chosen in every fold and replicate by itself
    optimizer: str = START.optimizer
    rates: dict[str, float] = field(default_factory=START.rate.copy)  # by optimiser


NEW = Unsaid()
# What these were before a study kept them.
OPTIMIZER, RATES = "sgd", {"sgd": 0.01, "adamw": 0.0003}
# What a study meant before a recipe could say the others.
BEGUN_BEFORE = Unsaid("dice_global", "best", (0,), True, OPTIMIZER, RATES)
