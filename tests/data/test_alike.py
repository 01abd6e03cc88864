import numpy as np
import pytest
from scipy import ndimage

from polydice.data.alike import FEW, Pictured, compared, thumbnail

NUMBERS = np.random.default_rng(0)


def scene(*shape: int) -> np.ndarray:
    """Something to see: dark and bright places of a sixth of the image."""
    return ndimage.gaussian_filter(NUMBERS.normal(size=shape), [length / 6 for length in shape])


def pictured(*images: np.ndarray, group: str = "") -> list[Pictured]:
    return [Pictured(f"{n}", group or f"{n}", thumbnail(image[None])) for n, image in enumerate(images)]


@pytest.mark.parametrize("shape", [(96, 128), (24, 48, 40)])
def test_a_thumbnail_is_a_point_on_the_sphere_whatever_the_scale_of_the_image(shape: tuple[int, ...]) -> None:
    image = scene(*shape)[None]
    small = thumbnail(image)
    assert small.shape == ((256,) if len(shape) == 2 else (2048,))
    assert abs(float(small.sum())) < 1e-4
    assert np.linalg.norm(small) == pytest.approx(1, abs=1e-5)
    np.testing.assert_allclose(thumbnail(300 + 40 * image), small, atol=1e-4)


def test_likeness_is_the_correlation_of_block_means_of_a_smooth_image() -> None:
    """Against all pixels, where the thumbnail looks at two along each axis."""
    one, other = scene(160, 160), scene(160, 160)
    blocks = [image.reshape(16, 10, 16, 10).mean((1, 3)).ravel() for image in (one, other)]
    found = float(thumbnail(one[None]) @ thumbnail(other[None]))
    assert found == pytest.approx(np.corrcoef(*blocks)[0, 1], abs=0.01)


@pytest.mark.parametrize(
    "nothing",
    [
        np.ones((3, 40, 40)),
        np.full((1, 9, 40, 40), np.nan),
        np.full((1, 40, 40), 1e300),
        np.full((1, 40, 40), 0.1),
        np.zeros((1, 40, 40), np.uint8),
    ],
)
def test_where_nothing_is_to_be_seen_nothing_is_alike(nothing: np.ndarray) -> None:
    small = thumbnail(nothing)
    assert not small.any()
    assert compared([Pictured("a", "a", small), Pictured("b", "b", small)]) == ([], (0, []))


def test_images_smaller_than_a_thumbnail_are_not_compared() -> None:
    assert thumbnail(NUMBERS.normal(size=(1, 15, 100))).size == 0
    assert thumbnail(NUMBERS.normal(size=(1, 100))).size == 0, "nor is what is no image"
    assert compared(pictured(*[scene(15, 15)] * 4)) == ([], (0, []))


@pytest.mark.parametrize("shape", [(96, 128), (12, 96, 64)])
def test_another_copy_of_an_image_is_found(shape: tuple[int, ...]) -> None:
    """Noisy, brighter, cropped by a little, and of another size; but no other image, and none of the same group."""
    images = [scene(*shape) for _ in range(30)]
    noisy = images[3] * 2 + 7 + 0.05 * images[3].std() * NUMBERS.normal(size=shape)
    smaller = ndimage.zoom(images[5][..., 1:-1, 1:-1], (1,) * (len(shape) - 2) + (0.5, 0.5), order=1)
    cases = pictured(*images, noisy, smaller)
    same, neighbours = compared(cases)
    assert [(pair.one, pair.other) for pair in same] == [(30, 3), (31, 5)]
    assert all(pair.likeness >= 0.98 for pair in same)
    assert neighbours.alike == []
    assert compared([case._replace(group="all") for case in cases]) == ([], (0, []))


def test_what_all_images_of_a_set_share_makes_none_of_them_the_same() -> None:
    """Heads and chests in one position are alike; what stands out from their mean is not."""
    usual = scene(64, 64)
    heads = [
        usual + 0.05 * usual.std() * ndimage.gaussian_filter(NUMBERS.normal(size=(64, 64)), 3) / 0.1 for _ in range(40)
    ]
    cases = pictured(*heads, heads[7] + 0.001 * usual.std() * NUMBERS.normal(size=(64, 64)))
    likeness = np.stack([case.thumbnail for case in cases])
    assert np.median(likeness @ likeness.T) > 0.98
    assert [(pair.one, pair.other) for pair in compared(cases)[0]] == [(40, 7)]


def video(frames: int) -> list[np.ndarray]:
    """A camera that moves: what is near in time is alike, but not the same."""
    whole = scene(64, 64 + 12 * frames)
    return [whole[:, 12 * frame : 12 * frame + 64] for frame in range(frames)]


def test_frames_of_a_video_are_suspicious_neighbours() -> None:
    frames = [frame for _ in range(12) for frame in video(10)]
    _, neighbours = compared(pictured(*frames))
    assert neighbours.of == 119
    assert len(neighbours.alike) > 40
    wrong = sum((pair.one - 1) // 10 != pair.one // 10 for pair in neighbours.alike)
    assert wrong <= 2, "where one video ends and the next begins"


def test_neighbours_are_those_that_people_mean() -> None:
    """Frame 9 comes before frame 10, whatever the order of the list."""
    frames = [frame for _ in range(12) for frame in video(10)]
    cases = pictured(*frames)
    mixed = [cases[place] for place in NUMBERS.permutation(len(cases))]
    expected = {frozenset((cases[a].id, cases[b].id)) for a, b, _ in compared(cases)[1].alike}
    assert {frozenset((mixed[a].id, mixed[b].id)) for a, b, _ in compared(mixed)[1].alike} == expected


def test_chance_is_no_suspicion() -> None:
    """Sets of images that have nothing to do with each other: neighbours are alike as often as any two."""
    for _ in range(20):
        same, neighbours = compared(pictured(*(scene(32, 32) for _ in range(100))))
        assert (same, neighbours) == ([], (99, []))
    assert FEW >= 5
