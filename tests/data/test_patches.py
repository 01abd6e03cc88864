import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from polydice.data.patches import FOREGROUND, KEPT, Patches

SIGNIFICANT = 1e-3
SIZE = (4, 6, 8)


def _corners(labels: NDArray[np.uint8], count: int) -> NDArray[np.int64]:
    return Patches([labels], SIZE).draw(torch.zeros(count, dtype=torch.int64), torch.Generator().manual_seed(0)).numpy()


def test_without_foreground_patches_lie_anywhere_inside_alike() -> None:
    corners = _corners(np.zeros((8, 9, 10), np.uint8), 3000)
    places, seen = np.unique(corners, axis=0, return_counts=True)
    assert len(places) == 5 * 4 * 3
    assert (places.min(0) == 0).all()
    assert (places.max(0) == np.array((8, 9, 10)) - SIZE).all()
    assert stats.chisquare(seen).pvalue > SIGNIFICANT


def test_a_third_is_centred_on_foreground_and_every_class_has_the_same_chance() -> None:
    """Class 1 is one voxel, class 3 a thousand: each is in the middle of a sixth of the patches."""
    labels = np.zeros((60, 60, 60), np.uint8)
    labels[20, 30, 40] = 1
    labels[30:40, 30:40, 10:20] = 3
    corners, count = _corners(labels, 6000), 6000
    middles = corners + np.array(SIZE) // 2
    found = labels[tuple(middles.T)]
    by_chance = (1 - FOREGROUND) * 1000 / (57 * 55 * 53)  # a patch that lies anywhere is also there at times
    assert stats.binomtest(int((found == 1).sum()), count, FOREGROUND / 2).pvalue > SIGNIFICANT
    assert stats.binomtest(int((found == 3).sum()), count, FOREGROUND / 2 + by_chance).pvalue > SIGNIFICANT
    along = middles[found == 3][:, 0] - 30
    assert stats.chisquare(np.bincount(along, minlength=10)).pvalue > SIGNIFICANT


def test_a_patch_around_foreground_at_the_border_stays_inside() -> None:
    labels = np.zeros((8, 9, 10), np.uint8)
    labels[7, 0, 9] = 1
    corners = _corners(labels, 500)
    assert (corners >= 0).all()
    assert (corners + SIZE <= labels.shape).all()
    at_the_corner = (corners == [4, 0, 2]).all(1).mean()
    assert at_the_corner > FOREGROUND


def test_a_volume_smaller_than_the_patch_lies_in_its_middle() -> None:
    labels = np.ones((2, 3, 20), np.uint8)
    corners = _corners(labels, 200)
    assert (corners[:, :2] == [-1, -2]).all()
    assert set(corners[:, 2]) == set(range(13))


def test_of_a_large_class_voxels_from_all_over_are_remembered() -> None:
    labels = np.ones((40, 40, 40), np.uint8)
    (voxels,) = Patches([labels], SIZE)._foreground[0]
    assert len(voxels) == KEPT == len(np.unique(voxels))
    assert (voxels[0], voxels[-1]) == (0, labels.size - 1)


def test_what_has_no_label_is_no_foreground() -> None:
    """A patch in three would lie around it, and nothing in there can be learnt from."""
    labels = np.zeros((20, 20, 20), np.uint8)
    labels[:2] = 255
    np.testing.assert_array_equal(_corners(labels, 100), _corners(np.zeros_like(labels), 100))
