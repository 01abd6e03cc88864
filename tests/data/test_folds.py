import json
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from polydice.data.cases import DataError
from polydice.data.folds import Fold, save_folds, split
from polydice.data.readers import open_dataset
from tests.data.conftest import RealSet


class Member(NamedTuple):
    id: str
    group: str


def members(*sizes: int) -> list[Member]:
    """Groups of these sizes."""
    return [Member(f"{group:02d}_{n:03d}", f"{group:02d}") for group, size in enumerate(sizes) for n in range(size)]


VIDEO = members(21, 3, 25, 8, 1, 30, 12, 2, 25, 7, 11, 19)
PLACES = {case.id: place for place, case in enumerate(VIDEO)}


@pytest.mark.parametrize("how", ["grouped", "contiguous", "random"])
@pytest.mark.parametrize("folds", [3, 5, 10])
def test_every_case_is_tested_on_once_and_validated_on_once(how: Any, folds: int) -> None:
    found = split(VIDEO, how, folds)
    everything = list(range(len(VIDEO)))
    assert len(found) == folds
    assert sorted(chain.from_iterable(fold.test for fold in found)) == everything
    assert sorted(chain.from_iterable(fold.validation for fold in found)) == everything
    for k, fold in enumerate(found):
        assert sorted(fold.train + fold.validation + fold.test) == everything
        assert fold.validation == found[(k + 1) % folds].test
        assert all(fold)


def test_grouped_never_splits_a_group() -> None:
    for fold in split(VIDEO):
        groups = [{VIDEO[place].group for place in part} for part in fold]
        assert sum(map(len, groups)) == len(set.union(*groups))


def test_grouped_parts_are_nearly_equal() -> None:
    sizes = [len(fold.test) for fold in split(VIDEO)]  # 164 cases, the largest group has 30
    assert max(sizes) - min(sizes) <= 1
    assert [len(fold.test) for fold in split(members(*[1] * 1000))] == [200] * 5
    assert [len(fold.test) for fold in split(members(*[2] * 40))] == [16] * 5


@pytest.mark.parametrize("how", ["contiguous", "random"])
def test_the_other_parts_differ_by_one_case_at_most(how: Any) -> None:
    sizes = [len(fold.test) for fold in split(members(*[1] * 612), how)]
    assert sorted(sizes) == [122, 122, 122, 123, 123]


def test_contiguous_cuts_the_ids_as_text() -> None:
    frames = [Member(str(n), "video") for n in range(1, 13)]
    tests = [[frames[place].id for place in fold.test] for fold in split(frames, "contiguous", 3)]
    assert tests == [["1", "10", "11", "12"], ["2", "3", "4", "5"], ["6", "7", "8", "9"]]


def test_the_folds_do_not_depend_on_the_order_of_the_cases() -> None:
    turned = VIDEO[::-1]
    for how in ("grouped", "contiguous", "random"):
        ids = [[{VIDEO[place].id for place in part} for part in fold] for fold in split(VIDEO, how)]  # type: ignore[arg-type]
        assert ids == [[{turned[place].id for place in part} for part in fold] for fold in split(turned, how)]  # type: ignore[arg-type]


def test_the_seed_moves_all_but_contiguous() -> None:
    assert split(VIDEO, "random", seed=0) == split(VIDEO, "random", seed=0)
    assert split(VIDEO, "random", seed=0) != split(VIDEO, "random", seed=1)
    assert split(VIDEO, "contiguous", seed=0) == split(VIDEO, "contiguous", seed=1)
    assert split(VIDEO, "grouped", seed=3) == split(VIDEO, "grouped", seed=3)
    assert split(VIDEO, "grouped", seed=0) != split(VIDEO, "grouped", seed=1)
    assert split(members(1, 1, 1, 1), "random", 4) == [
        Fold((1, 3), (0,), (2,)),
        Fold((2, 3), (1,), (0,)),
        Fold((0, 2), (3,), (1,)),
        Fold((0, 1), (2,), (3,)),
    ]


def test_seed_0_of_grouped_is_the_cut_that_was_before_there_were_others() -> None:
    """The parts of kept studies: the largest group first, each into the smallest part, ties by order."""
    tests = [sorted({VIDEO[place].group for place in fold.test}) for fold in split(VIDEO, seed=0)]
    assert tests == [["01", "05"], ["02", "03"], ["04", "08", "09"], ["00", "10"], ["06", "07", "11"]]


SETS = {
    "videos": (VIDEO, 6),
    "patients with two frames": (members(*[2] * 100), 0),
    "sides of people": (members(*[2] * 90, *[1] * 80), 0),
    "images": (members(*[1] * 203), 1),
    "one large group": (members(100, *[1] * 12), 97),
}


@pytest.mark.parametrize("name", SETS)
def test_every_seed_of_grouped_is_another_cut_as_good_as_the_first(name: str) -> None:
    """Groups whole, parts nearly equal, every case tested once: for many seeds, and the cuts really differ."""
    cases, spread = SETS[name]
    cuts = set()
    for seed in range(1, 101):
        found = split(cases, seed=seed)
        assert sorted(chain.from_iterable(fold.test for fold in found)) == list(range(len(cases)))
        for fold in found:
            groups = [{cases[place].group for place in part} for part in fold]
            assert sum(map(len, groups)) == len(set.union(*groups))
        sizes = [len(fold.test) for fold in found]
        assert min(sizes) > 0
        assert max(sizes) - min(sizes) <= spread
        cuts.add(tuple(fold.test for fold in found))
    assert len(cuts) > 90


def test_two_cases_are_tested_together_as_often_as_chance_has_it() -> None:
    """So that cuts are independent: with 40 single cases in 5 parts of 8, a pair shares its part in 7 of 39 cuts."""
    cases, seeds = members(*[1] * 40), 400
    together = [any({0, 1} <= set(fold.test) for fold in split(cases, seed=seed)) for seed in range(1, seeds + 1)]
    chance = 7 / 39
    assert abs(sum(together) / seeds - chance) < 4 * (chance * (1 - chance) / seeds) ** 0.5


def test_what_cannot_be_split_is_said() -> None:
    told = r"4 groups \(patients, sequences\) cannot be spread over 5 parts: .* --split contiguous"
    with pytest.raises(DataError, match=told):
        split(members(9, 9, 9, 9))
    with pytest.raises(DataError, match="4 cases cannot be cut into 5 parts"):
        split(members(4), "contiguous")
    with pytest.raises(ValueError, match="folds must be at least 3"):
        split(VIDEO, folds=2)
    with pytest.raises(ValueError, match="how must be 'grouped', 'contiguous' or 'random': 'patient'"):
        split(VIDEO, "patient")  # type: ignore[arg-type]


def test_folds_are_saved_by_the_ids_of_their_cases(tmp_path: Path) -> None:
    folds = split(VIDEO)
    save_folds(tmp_path / "folds.json", folds, VIDEO)
    saved = json.loads((tmp_path / "folds.json").read_text())
    assert [Fold(*(tuple(map(PLACES.__getitem__, fold[part])) for part in Fold._fields)) for fold in saved] == folds


def test_a_fold_keeps_the_groups_of_a_patient_with_several_cases() -> None:
    patients = [Member(f"patient{p:03d}_frame{f}", f"patient{p:03d}") for p in range(40) for f in range(2)]
    for fold in split(patients):
        assert [len(part) for part in fold] == [48, 16, 16]
        assert all(count == 2 for part in fold for count in Counter(patients[place].group for place in part).values())


def test_cvc(real_set: RealSet) -> None:
    """Frames of a sequence are near-duplicates: only `grouped` keeps them out of both training and test."""
    cases = open_dataset(real_set("cvc-clinicdb")).cases

    def in_both(fold: Fold) -> set[str]:
        return {cases[place].group for place in fold.train} & {cases[place].group for place in fold.test}

    sizes = [len(fold.test) for fold in split(cases)]
    assert sum(sizes) == 612
    assert max(sizes) - min(sizes) <= 26  # the frames of the longest sequence
    for seed in range(1, 20):
        sizes = [len(fold.test) for fold in split(cases, seed=seed)]
        assert max(sizes) - min(sizes) <= 5
    assert not any(map(in_both, split(cases)))
    assert all(map(in_both, split(cases, "contiguous")))
    assert all(len(in_both(fold)) > 20 for fold in split(cases, "random"))
