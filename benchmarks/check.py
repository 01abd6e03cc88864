"""What a loss must reach on a CPU, as ratios within one run."""

from collections.abc import Iterator, Sequence

from benchmarks.report import Row
from benchmarks.sizes import Size

SIZES = (Size((24, 9, 224, 224)), Size((2, 14, 96, 96, 96)))
OURS = "polydice"
PROVIDERS = (OURS, "cross_entropy", "monai", "nnunet")
LIMITS = {
    "over_cross_entropy": 0.7,
    "over_monai": 0.3,
    "over_nnunet": 0.4,
    "extra_over_logits": 0.05,
}


def verdicts(rows: Sequence[Row]) -> Iterator[tuple[bool, str]]:
    """Whether each limit is kept, in words. A figure that is missing, because a peer is, keeps none."""
    figures = {(row.shape, row.metric): row.median for row in rows if row.provider == OURS}
    for size in SIZES:
        for metric, limit in LIMITS.items():
            value = figures.get((size.name, metric))
            kept = value is not None and value <= limit
            shown = "not measured" if value is None else f"{value:.3f}"
            yield kept, f"{'ok  ' if kept else 'FAIL'} {size}: {metric} {shown}, at most {limit:.3f}"
