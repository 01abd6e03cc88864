import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy import ndimage, stats
from torch import Tensor

from polydice.data.augment import Augment2D, Augment3D, as_float, turn, warp

SIGNIFICANT = 1e-3  # a right generator fails a test of chance once in a thousand seeds, and the seed is fixed


def _pictures(*shape: int, classes: int = 4) -> tuple[Tensor, Tensor]:
    images = torch.randint(256, shape, dtype=torch.uint8)
    return images, torch.randint(classes, (shape[0], *shape[2:]), dtype=torch.uint8)


def _turned(images: Tensor, labels: Tensor, degrees: float, flip: bool, interpolation: str) -> tuple[Tensor, Tensor]:
    count = len(images)
    parameters = turn(torch.full((count,), degrees), torch.full((count,), flip))
    return Augment2D(interpolation=interpolation).apply(images, labels, parameters)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("quarters", [-2, -1, 0, 1, 2, 3])
@pytest.mark.parametrize("size", [31, 32])
def test_quarter_turns_and_flips_are_those_of_torch_bit_for_bit(
    size: int, quarters: int, flip: bool, interpolation: str
) -> None:
    images, labels = _pictures(3, 2, size, size)
    found = _turned(images, labels, 90.0 * quarters, flip, interpolation)
    for given, result in ((as_float(images), found[0]), (labels, found[1])):
        expected = torch.rot90(given.flip(-1) if flip else given, quarters, (-2, -1))
        assert torch.equal(result, expected)
    assert found[0].dtype == torch.float32
    assert found[1].dtype == torch.uint8


def test_images_that_are_not_square_turn_about_their_centre() -> None:
    images, labels = _pictures(2, 1, 20, 30)
    found, _ = _turned(images, labels, 90.0, False, "nearest")
    assert torch.equal(found[:, :, :, 5:25], torch.rot90(as_float(images)[:, :, :, 5:25], 1, (-2, -1)))
    assert found[:, :, :, :5].count_nonzero() == found[:, :, :, 25:].count_nonzero() == 0


@pytest.mark.parametrize("degrees", [7.0, 45.0, -63.3])
def test_nearest_moves_image_and_labels_by_the_same_pixels(degrees: float) -> None:
    _, labels = _pictures(2, 1, 64, 64)
    images, moved = _turned(labels[:, None].clone(), labels, degrees, True, "nearest")
    assert torch.equal(images[:, 0] * 255, moved.float())


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("degrees", [10.0, 30.0, -75.0])
def test_image_and_labels_move_to_where_the_rotation_takes_them(degrees: float, interpolation: str) -> None:
    """A smooth blob and its mask: half a pixel is ten times what is tolerated."""
    size, radius, place = 128, 12.0, torch.tensor([-20.0, 14.0])  # (row, column) from the centre
    image, labels = _disc(size, radius, place)
    image, labels = _turned(image[None, None], labels[None], degrees, False, interpolation)
    angle = math.radians(degrees)
    expected = torch.stack(  # counter-clockwise on a screen, where rows go down
        [
            place[0] * math.cos(angle) - place[1] * math.sin(angle),
            place[0] * math.sin(angle) + place[1] * math.cos(angle),
        ]
    )
    assert (_centroid(image[0, 0]) - expected).abs().max() < 0.05
    assert (_centroid(labels[0]) - expected).abs().max() < 0.05


def _disc(size: int, radius: float, place: Tensor) -> tuple[Tensor, Tensor]:
    axes = [torch.arange(size) - (size - 1) / 2 - at for at in place]
    distance = sum(axis**2 for axis in torch.meshgrid(*axes, indexing="ij")).sqrt()
    return torch.sigmoid(radius - distance), (distance < radius).to(torch.uint8)


def _centroid(weights: Tensor) -> Tensor:
    weights = weights.double()
    axes = torch.meshgrid(*(torch.arange(n) - (n - 1) / 2 for n in weights.shape), indexing="ij")
    return torch.stack([(weights * axis).sum() / weights.sum() for axis in axes])


def test_linear_interpolation_is_exact_for_linear_images_and_fades_to_zero_outside() -> None:
    rows, columns = torch.meshgrid(torch.arange(40.0), torch.arange(40.0), indexing="ij")
    image = (0.3 + 0.01 * rows + 0.005 * columns)[None, None]
    labels = torch.ones(1, 40, 40, dtype=torch.uint8)
    found, moved = _turned(image, labels, 30.0, False, "bilinear")
    matrix = turn(torch.tensor([30.0]), torch.tensor([False])).view(2, 2)
    at = torch.einsum("ij,jhw->ihw", matrix, torch.stack([rows, columns]) - 19.5) + 19.5
    inside = ((at > 0) & (at < 39)).all(0)
    assert torch.allclose(found[0, 0][inside], (0.3 + 0.01 * at[0] + 0.005 * at[1])[inside], rtol=0, atol=1e-6)
    outside = ((at < -1) | (at > 40)).any(0)
    assert outside.sum() > 100
    assert found[0, 0][outside].count_nonzero() == moved[0][outside].count_nonzero() == 0


def test_rotation_angles_and_flips_found_in_the_pictures_are_uniform() -> None:
    """A spot above the centre tells the angle, for a left-right flip leaves it; one to the right tells the flip."""
    count, size = 2000, 65
    above, right = (_disc(size, 3.0, torch.tensor(place))[1] for place in ([-20.0, 0.0], [0.0, 20.0]))
    labels = (above + 2 * right).expand(count, -1, -1)
    augment = Augment2D(rotation=90.0, flip=0.5)
    _, labels = augment.apply(labels[:, None], labels, augment.draw(count, torch.Generator().manual_seed(0)))
    above_row, above_column = torch.stack([_centroid(picture == 1) for picture in labels]).T
    right_row, right_column = torch.stack([_centroid(picture == 2) for picture in labels]).T
    angle = torch.rad2deg(torch.atan2(-above_column, -above_row)).numpy()
    flipped = (right_row * above_column - right_column * above_row < 0).numpy()
    assert stats.kstest(angle, stats.uniform(-90, 180).cdf).pvalue > SIGNIFICANT
    assert stats.binomtest(int(flipped.sum()), count).pvalue > SIGNIFICANT
    assert stats.ks_2samp(angle[flipped], angle[~flipped]).pvalue > SIGNIFICANT


def test_the_same_generator_draws_the_same() -> None:
    for augment in (Augment2D(), Augment3D()):
        first, second = (augment.draw(5, torch.Generator().manual_seed(3)) for _ in range(2))
        assert torch.equal(first, second)
        assert first.dtype == torch.float32


PLAIN_3D = Augment3D(rotation=0, flip=0, scaling=(1, 1), brightness=0, contrast=(1, 1), gamma=(1, 1))


def test_a_volume_that_nothing_is_done_to_stays_as_it_is() -> None:
    images, labels = torch.rand(2, 3, 9, 10, 11), torch.randint(3, (2, 9, 10, 11), dtype=torch.uint8)
    found, moved = PLAIN_3D.apply(images, labels, PLAIN_3D.draw(2, torch.Generator()))
    assert torch.allclose(found, images, rtol=0, atol=1e-6)  # of the contrast about one half
    assert torch.equal(moved, labels)


def test_flips_of_volumes_are_those_of_torch_and_each_axis_has_its_own() -> None:
    augment = Augment3D(rotation=0, flip=0.5, scaling=(1, 1), brightness=0, contrast=(1, 1), gamma=(1, 1))
    count = 300
    labels = torch.randint(3, (1, 3, 4, 5), dtype=torch.uint8).expand(count, -1, -1, -1)
    _, moved = augment.apply(labels[:, None].float(), labels, augment.draw(count, torch.Generator().manual_seed(0)))
    kinds = [[axis for axis in range(3) if number >> axis & 1] for number in range(8)]
    seen = [sum(torch.equal(one, labels[0].flip(axes)) for one in moved) for axes in kinds]
    assert sum(seen) == count
    assert stats.chisquare(seen).pvalue > SIGNIFICANT


def test_rotation_and_scaling_of_volumes_are_uniform_and_true_in_space() -> None:
    """With voxels of 3 x 1 x 1 the matrix is D⁻¹·R·D/s: its determinant tells the scaling, the trace of R the angle."""
    augment = Augment3D(rotation=15, flip=0, scaling=(0.85, 1.15), spacing=(3.0, 1.0, 1.0))
    matrix = augment.draw(3000, torch.Generator().manual_seed(0))[:, :9].view(-1, 3, 3).double()
    scaling = matrix.det().pow(-1 / 3)
    spacing = torch.tensor([3.0, 1.0, 1.0], dtype=torch.float64)
    rotation = scaling[:, None, None] * spacing[:, None] * matrix / spacing
    assert torch.allclose(rotation @ rotation.mT, torch.eye(3, dtype=torch.float64), atol=1e-6)
    skew = torch.stack(
        [
            rotation[:, 2, 1] - rotation[:, 1, 2],
            rotation[:, 0, 2] - rotation[:, 2, 0],
            rotation[:, 1, 0] - rotation[:, 0, 1],
        ],
        1,
    )
    angle = torch.rad2deg(torch.asin(skew.norm(dim=1) / 2))
    assert stats.kstest(scaling.numpy(), stats.uniform(0.85, 0.3).cdf).pvalue > SIGNIFICANT
    assert stats.kstest(angle.numpy(), stats.uniform(0, 15).cdf).pvalue > SIGNIFICANT
    axis = skew / skew.norm(dim=1, keepdim=True)
    for part in axis.T:  # each coordinate of a uniform direction is uniform
        assert stats.kstest(part.numpy(), stats.uniform(-1, 2).cdf).pvalue > SIGNIFICANT


def test_volumes_are_read_as_scipy_reads_them() -> None:
    """Away from the ties between two voxels, where rounding decides, labels are the same to the last voxel."""
    shape, size = (17, 20, 23), (11, 12, 13)
    images, labels = torch.rand(5, 1, *shape), torch.randint(1, 5, (5, *shape), dtype=torch.uint8)
    matrices = Augment3D(rotation=30).draw(5, torch.Generator().manual_seed(0))[:, :9].view(-1, 3, 3)
    found = warp(images, labels, matrices, size, "bilinear")
    middle, target = (np.array(shape) - 1) / 2, (np.array(size) - 1) / 2
    places = np.stack(np.meshgrid(*map(np.arange, size), indexing="ij"), -1) - target
    for image, label, matrix, *ours in zip(images, labels, matrices.double().numpy(), *found, strict=True):
        read = partial(ndimage.affine_transform, matrix=matrix, offset=middle - matrix @ target, output_shape=size)
        expected = read(image[0].double().numpy(), order=1, mode="grid-constant")
        assert np.abs(ours[0][0].numpy() - expected).max() < 1e-5
        points = places @ matrix.T + middle
        clear = (np.abs(points - np.floor(points) - 0.5) > 1e-4).all(-1)
        assert clear.mean() > 0.99
        assert (ours[1].numpy() == read(label.numpy(), order=0, mode="grid-constant"))[clear].all()


@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (3.0, 1.0, 0.5)])
@pytest.mark.parametrize("rotation", [0.0, 15.0, 40.0])
def test_the_reach_holds_all_that_a_patch_is_read_from_and_little_more(
    rotation: float, spacing: tuple[float, float, float]
) -> None:
    """The farthest point on axis i from the centre is that of a corner, Σ_j |A_ij|·(size_j − 1)/2."""
    augment, size = Augment3D(rotation, scaling=(0.8, 0.8), spacing=spacing), (40, 60, 80)
    matrix = augment.draw(50_000, torch.Generator().manual_seed(0))[:, :9].view(-1, 3, 3)
    farthest = (matrix.abs() @ (torch.tensor(size) - 1.0)).amax(0) / 2
    box = torch.tensor(augment.reach(size))
    assert ((box - torch.tensor(size)) % 2 == 0).all(), "the centres must fall together"
    assert (farthest.ceil() <= (box - 1) / 2).all()
    assert (farthest > 0.95 * (box - 1) / 2 - 2).all()


def test_intensities_follow_their_formula() -> None:
    images, labels = torch.rand(4, 2, 5, 6, 7), torch.zeros(4, 5, 6, 7, dtype=torch.uint8)
    augment = Augment3D(rotation=0, flip=0, scaling=(1, 1), brightness=0.2, contrast=(0.5, 2), gamma=(0.5, 2))
    parameters = augment.draw(4, torch.Generator().manual_seed(0))
    found, _ = augment.apply(images, labels, parameters)
    gamma, contrast, brightness = parameters[:, 9:, None, None, None, None].double().unbind(1)
    expected = contrast * (images.double() ** gamma - 0.5) + 0.5 + brightness
    assert torch.allclose(found.double(), expected, rtol=0, atol=1e-6)
    many = augment.draw(2000, torch.Generator().manual_seed(0))[:, 9:]
    for drawn, (low, high) in zip(many.T, [(0.5, 2), (0.5, 2), (-0.2, 0.2)], strict=True):
        assert stats.kstest(drawn.numpy(), stats.uniform(low, high - low).cdf).pvalue > SIGNIFICANT


def test_it_compiles_whole_and_gives_the_same() -> None:
    images, labels = _pictures(2, 3, 16, 16)
    volumes = torch.rand(2, 1, 12, 12, 12), torch.randint(3, (2, 12, 12, 12), dtype=torch.uint8)
    for augment, given in ((Augment2D(), (images, labels)), (Augment3D(), volumes)):
        parameters = augment.draw(2, torch.Generator().manual_seed(0))
        compiled = torch.compile(augment.apply, fullgraph=True, backend="aot_eager")
        for found, expected in zip(compiled(*given, parameters), augment.apply(*given, parameters), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_it_can_be_recorded_in_a_cuda_graph() -> None:
    images, labels = (tensor.cuda() for tensor in _pictures(4, 3, 64, 64))
    augment = Augment2D(interpolation="bilinear")
    parameters = augment.draw(8, torch.Generator().manual_seed(0)).cuda()
    static = parameters[:4].clone()
    augment.apply(images, labels, static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = augment.apply(images, labels, static)
    static.copy_(parameters[4:])
    graph.replay()
    for one, other in zip(found, augment.apply(images, labels, parameters[4:]), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (lambda: Augment2D(rotation=-1), "rotation=-1"),
        (lambda: Augment2D(flip=1.5), "flip=1.5"),
        (lambda: Augment2D(interpolation="cubic"), "cubic"),
        (lambda: Augment3D(rotation=100), "rotation=100"),
        (lambda: Augment3D(scaling=(1.2, 0.8)), "scaling"),
        (lambda: Augment3D(gamma=(0, 1)), "gamma"),
        (lambda: Augment3D(spacing=(1, 0, 1)), "spacing"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(wrong: object, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        wrong()
