"""Look before training: every case opened once, in parallel, and everything that is wrong or odd said in one go."""

import hashlib
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from polydice.data.alike import Pictured, Thumbnail, compared, thumbnail
from polydice.data.cases import VOID, WHOLE, Case, Dataset, Finding, Sample
from polydice.data.files import (
    ARCHIVES,
    PICTURES,
    UnreadableFile,
    below,
    ending,
    picture_remarks,
    read_archive,
    read_image,
    tally,
)
from polydice.data.parallel import cores
from polydice.data.readers.groups import suggested

ALIKE = 20  # so many rows of the same kind and more become one
VOIDS = (255, -1, 65535)  # what people write where there is no label
EMPTY, FULL = "is empty: background only", "has no background: foreground only"
VOID_ONLY = "is void only: no pixel has a label"
OUTSIDE = "outside the classes"
DARK = 6  # times the 99th percentile: all volumes of ACDC and Hippocampus have less than 5, but for one patient's


class Facts(NamedTuple):
    """What a case is like whose image and labels could be read and fit each other."""

    case: Case
    shape: tuple[int, ...]  # of the image: [channels, *spatial]
    spacing: tuple[float, ...] | None
    pixels: tuple[int, ...]  # of each label
    digest: bytes  # of the image
    thumbnail: Thumbnail


class Checked(NamedTuple):
    findings: list[Finding]  # errors first
    facts: list[Facts]  # in the order of the cases


Look = tuple[list[Finding], list[Facts]]  # at one case, which has facts or not


def check(dataset: Dataset, workers: int | None = None) -> Checked:
    """Opens every case, in `workers` processes: by default one for each core."""
    looks = tqdm(_looks(dataset, workers or cores()), "opening", len(dataset.cases), unit=" cases", disable=None)
    return conclude(dataset, looks)


def conclude(dataset: Dataset, looks: Iterable[Look]) -> Checked:
    """What the files, the looks at all cases and the cases together have to say."""
    findings, facts = list(dataset.findings), []
    for found, about in looks:
        findings += found
        facts += about
    facts.sort(key=lambda about: about.case.id)
    if _full(dataset, facts):  # said once, of the whole set
        findings = [finding for finding in findings if finding.what != FULL]
    findings += [*_unlike_the_others(dataset, facts), *_duplicates(dataset, facts), *_alike(dataset, facts)]
    findings += _together(dataset, facts, any(OUTSIDE in finding.what for finding in findings))
    return Checked(sorted(set(findings)), facts)


def table(findings: Sequence[Finding]) -> str:
    """Aligned rows of text. Many of the same kind, differing at most in what stands in parentheses, are one row."""
    alike: dict[Finding, list[Finding]] = {}
    for finding in findings:
        kind = finding._replace(where="", what=finding.what.partition(" (")[0])
        alike.setdefault(kind, []).append(finding)
    rows: list[Finding] = []
    for kind, same in alike.items():
        if len(same) < ALIKE:
            rows += same
        else:
            rows.append(kind._replace(where=f"{same[0].where}, {same[1].where} and {len(same) - 2} more"))
    width = max((len(row.where) for row in rows), default=0)
    return "\n".join(f"{row.level:<7}  {row.where:<{width}}  {row.what}" for row in sorted(rows))


def size(shape: Sequence[float]) -> str:
    """Spatial axes, of pixels or millimetres, in the order people say them.

    >>> size((288, 384))
    '384×288'
    """
    return "×".join(f"{length:.6g}" for length in reversed(shape))


def _looks(dataset: Dataset, workers: int) -> Iterator[Look]:
    """Looks at each case, in any order. If a process dies, of too little memory or in a decoder, all cases that still
    wait are lost with it. They are looked at again one by one, so that the one to blame can be named."""
    light = replace(dataset, cases=(), findings=())  # all that the other processes need
    left = set(dataset.cases)
    pool = _pool(min(workers, max(1, len(left))))
    try:
        futures = {}
        with suppress(BrokenProcessPool):
            for case in dataset.cases:
                futures[pool.submit(read_and_look, light, case)] = case
        for future in as_completed(futures):
            with suppress(BrokenProcessPool):
                look = future.result()
                left.remove(futures[future])
                yield look
    finally:
        pool.shutdown(cancel_futures=True)
    for case in sorted(left, key=lambda case: case.id):
        with _pool(1) as pool:
            try:
                yield pool.submit(read_and_look, light, case).result()
            except BrokenProcessPool:
                what = "killed the process that read it: too large for the memory, or damaged"
                yield [Finding("error", _name(dataset, case.images, case), what)], []


def _pool(workers: int) -> ProcessPoolExecutor:
    # Control-C is for the process that asked, which then ends the others.
    return ProcessPoolExecutor(workers, initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN))


def read_and_look(dataset: Dataset, case: Case) -> Look:
    try:
        return look(dataset, case, dataset.read(case))
    except UnreadableFile as problem:
        reasons = {problem.path: problem.reason} | _unreadable(case.files)
        return [Finding("error", _name(dataset, (path,), case), reason) for path, reason in reasons.items()], []


def look(dataset: Dataset, case: Case, sample: Sample) -> Look:
    """What is wrong or odd with a case that could be read."""
    image, labels, spacing, remark = sample
    image_name, mask_name = _name(dataset, case.images, case), _name(dataset, case.masks, case)
    findings = [Finding("error", image_name, what) for what in _wrong_numbers(dataset, image)]
    if image.shape[1:] != labels.shape:
        what = f"is {size(labels.shape)}, but its image {size(image.shape[1:])}"
        return [*findings, *_remarks(dataset, case), Finding("error", mask_name, what)], []
    labels_known, pixels = len(dataset.label_names), Counter[int]()
    for path, part in zip(case.masks, labels if len(case.masks) > 1 else [labels], strict=True):
        counts = tally(part)
        pixels.update(counts)
        outside = {label: count for label, count in counts.items() if not 0 <= label < labels_known}
        outside.pop(dataset.ignore, None)  # type: ignore[arg-type]
        if outside:
            findings.append(Finding("error", _name(dataset, (path,), case), _outside(outside, labels_known)))
    known = tuple(pixels[label] for label in range(labels_known))
    if not any(known[1:]) and len(pixels.keys() - {0, dataset.ignore}) == 0:
        findings.append(Finding("warning", mask_name, EMPTY if known[0] else VOID_ONLY))
    elif any(known[1:]) and not known[0]:
        findings.append(Finding("warning", mask_name, FULL))
    for label, count in enumerate(known if case.annotated else ()):
        if count and label not in (case.annotated or ()):
            what = f"has labels of {dataset.classes[label]}, which is said not to be annotated there"
            findings.append(Finding("error", mask_name, f"{what} (case {case.id}, {count} pixels)"))
    if remark:
        findings.append(Finding("warning", mask_name, remark))
    if all(channel.min() == channel.max() for channel in image):
        findings.append(Finding("warning", image_name, "has one value only: there is nothing to see in it"))
    findings += _remarks(dataset, case)
    if dataset.intensity == "mr":
        findings += [Finding("warning", image_name, what) for what in _dark(image)]
    digest = hashlib.blake2b(repr((image.shape, image.dtype)).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(image).data)
    return findings, [Facts(case, image.shape, spacing, known, digest.digest(), thumbnail(image))]


def _remarks(dataset: Dataset, case: Case) -> list[Finding]:
    findings = []
    for path in case.files:
        with suppress(UnreadableFile):  # a reader that has read it has its own ways
            remarks = picture_remarks(path) if ending(path) in PICTURES else []
            findings += [Finding("warning", _name(dataset, (path,), case), what) for what in remarks]
    return findings


def _outside(pixels: dict[int, int], labels_known: int) -> str:
    """Of labels that are none of the classes, the most frequent first."""
    labels = sorted(pixels, key=pixels.__getitem__, reverse=True)
    void = next((label for label in labels if label in VOIDS), None)
    offer = (
        ""
        if void is None
        else f": if {void} marks pixels without a label, give --ignore {void}, or ignore = {void} in a recipe"
    )
    return f"has {_labels(labels)}, {OUTSIDE} 0 to {labels_known - 1}{offer} ({sum(pixels.values())} pixels)"


def _unreadable(paths: Sequence[Path]) -> dict[Path, str]:
    """The reasons of those that cannot be opened: a reader gives up at the first."""
    reasons = {}
    for path in paths:
        try:
            read_archive(path) if ending(path) in ARCHIVES else read_image(path)
        except UnreadableFile as problem:
            reasons[path] = problem.reason
    return reasons


def _wrong_numbers(dataset: Dataset, image: NDArray[Any]) -> Iterator[str]:
    if image.dtype.kind == "f" and not np.isfinite(image).all():
        yield f"holds NaN or infinity ({np.count_nonzero(~np.isfinite(image))} numbers)"
    elif dataset.intensity == "colour" and image.dtype != np.uint8:
        yield f"holds {image.dtype} numbers, but the set is one of pictures with 8 bits"
    elif dataset.intensity == "unit" and (image.min() < 0 or image.max() > 1):
        yield f"holds numbers from {image.min():g} to {image.max():g}, but the set's are scaled to 0 ... 1"


def _dark(image: NDArray[Any]) -> Iterator[str]:
    """An image that is scaled by its minimum and maximum is nearly black if a few values are far above the rest."""
    for channel in image:
        above = channel.astype(np.float32) - np.float32(channel.min())
        above = above[above > 0]
        if above.size and above.max() > DARK * (usual := np.percentile(above, 99)):
            times = f"{above.max() / usual:.0f} times its 99th percentile"
            yield f"is dark but for a few voxels (up to {times}; polydice train has --cut)"


def _labels(values: list[int]) -> str:
    shown = ", ".join(map(str, values[:5])) + (f" and {len(values) - 5} more" if len(values) > 5 else "")
    return f"label{'s' if len(values) > 1 else ''} {shown}"


def _name(dataset: Dataset, files: Sequence[Path], case: Case) -> str:
    return below(dataset.folder, files[0]) if len(files) == 1 else case.id


def _unlike_the_others(dataset: Dataset, facts: Sequence[Facts]) -> Iterator[Finding]:
    """Images cannot share a batch if they differ in channels or axes; but grey can be made a colour."""
    kinds = Counter((about.shape[0], len(about.shape) - 1) for about in facts)
    usual = max(kinds, key=lambda kind: kinds[kind], default=None)
    for about in facts:
        kind, name = (about.shape[0], len(about.shape) - 1), _name(dataset, about.case.images, about.case)
        if dataset.intensity == "colour" and kind[0] == 1 and usual == (3, kind[1]):
            yield Finding("warning", name, "is grey, where most images are coloured: its grey is red, green and blue")
        elif usual and kind != usual:
            yield Finding("error", name, f"has {_kind(*kind)}, where most images have {_kind(*usual)}")


def _kind(channels: int, axes: int) -> str:
    return f"{channels} channel{'s' if channels > 1 else ''} in {axes}D"


def _duplicates(dataset: Dataset, facts: Sequence[Facts]) -> Iterator[Finding]:
    """The same image in two groups can end up in training and in testing."""
    first: dict[bytes, Facts] = {}
    for about in facts:
        other = first.setdefault(about.digest, about)
        if other.case.group != about.case.group:
            names = [_name(dataset, case.images, case) for case in (about.case, other.case)]
            labelled = "" if about.pixels == other.pixels else ", with other labels"
            yield Finding("warning", names[0], f"is the same image as one of another group{labelled} ({names[1]})")


def _alike(dataset: Dataset, facts: Sequence[Facts]) -> Iterator[Finding]:
    """Images of two groups that are nearly the same, and neighbours by name that may belong together."""
    names = [_name(dataset, about.case.images, about.case) for about in facts]
    same, neighbours = compared([Pictured(about.case.id, about.case.group, about.thumbnail) for about in facts])
    for one, other, likeness in same:
        if facts[one].digest != facts[other].digest:
            what = f"is nearly the same image as one of another group ({names[other]}, likeness {likeness:.3f})"
            yield Finding("warning", names[one], what)
    if neighbours.alike:
        one, other, _ = neighbours.alike[0]
        yield Finding(
            "warning", WHOLE,
            "has neighbours by name that look as if they belong together, but are in different groups: "
            f"{len(neighbours.alike)} of {neighbours.of}, such as {names[other]} and {names[one]}. If these are of "
            "one patient or sequence, groups.csv or --group keeps them in one part",
        )  # fmt: skip


def _together(dataset: Dataset, facts: Sequence[Facts], foreign: bool) -> Iterator[Finding]:
    """What no single case shows. `foreign`: some masks have labels that are none of the classes."""
    if not dataset.cases:
        yield Finding("error", WHOLE, "has no case: no image has a mask that belongs to it")
    elif facts and not any(any(about.pixels[1:]) for about in facts):
        empty = any(about.pixels[0] for about in facts) and not foreign
        why = "every mask is empty" if empty else "no pixel has the label of a class"
        why += " beside the background" if foreign else ""
        yield Finding("error", WHOLE, f"has no foreground: {why}")
    elif _full(dataset, facts):
        yield Finding("error", WHOLE, "has no background: every mask is foreground only, so there is nothing to learn")
    for label, name in enumerate(dataset.classes):
        if dataset.cases and all(case.annotated and label not in case.annotated for case in dataset.cases):
            yield Finding("error", WHOLE, f"has no case in which {name} is annotated: nothing can be learnt of it")
    if (count := len(dataset.label_names)) > VOID:
        what = f"has {count - 1} classes beside the background, where at most {VOID - 1} can be trained"
        yield Finding("error", WHOLE, f"{what}: if they number objects, make every number above 0 a 1")
    if dataset.groups == len(dataset.cases) and (told := suggested(dataset)):
        yield Finding("warning", WHOLE, told)


def _full(dataset: Dataset, facts: Sequence[Facts]) -> bool:
    """Whether all masks have nothing but the one foreground. Of several classes, the background may be unused."""
    return len(dataset.label_names) == 2 and bool(facts) and not any(about.pixels[0] for about in facts)
