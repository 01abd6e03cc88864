import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polydice.data.files import UnreadableFile, read_archive, read_image, read_mask, tally
from tests.data import write

NUMBERS = np.random.default_rng(0)
GREY = NUMBERS.integers(0, 256, (5, 8), dtype=np.uint8)
COLOUR = NUMBERS.integers(0, 256, (5, 8, 3), dtype=np.uint8)


@pytest.mark.parametrize("ending", ["png", "tif", "tiff", "bmp"])
def test_pictures_have_their_channels_first(ending: str, tmp_path: Path) -> None:
    image, spacing = read_image(write.picture(tmp_path / f"colour.{ending}", COLOUR))
    np.testing.assert_array_equal(image, COLOUR.transpose(2, 0, 1))
    assert spacing is None
    np.testing.assert_array_equal(read_image(write.picture(tmp_path / f"grey.{ending}", GREY))[0], GREY[None])


def test_sixteen_bits_stay_sixteen_bits(tmp_path: Path) -> None:
    deep = GREY.astype(np.uint16) * 257
    for ending in ("png", "tif"):
        image, _ = read_image(write.picture(tmp_path / f"deep.{ending}", deep))
        np.testing.assert_array_equal(image[0], deep)


def test_the_pages_of_a_tiff_are_slices(tmp_path: Path) -> None:
    pages = [Image.fromarray(page) for page in NUMBERS.integers(0, 256, (3, 5, 7), dtype=np.uint8)]
    pages[0].save(tmp_path / "pages.tif", save_all=True, append_images=pages[1:])
    np.testing.assert_array_equal(read_image(tmp_path / "pages.tif")[0], np.stack([*map(np.asarray, pages)])[None])


def test_transparency_and_palettes(tmp_path: Path) -> None:
    """An image is what one sees; a mask with a palette holds the indices, which are the labels."""
    Image.fromarray(COLOUR).convert("RGBA").save(tmp_path / "seen.png")
    np.testing.assert_array_equal(read_image(tmp_path / "seen.png")[0], COLOUR.transpose(2, 0, 1))
    labels = GREY % 3
    indexed = Image.fromarray(labels, mode=None).convert("P")
    indexed.putdata(labels.ravel().tolist())
    indexed.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
    indexed.save(tmp_path / "indexed.png")
    np.testing.assert_array_equal(read_mask(tmp_path / "indexed.png"), labels)
    np.testing.assert_array_equal(read_image(tmp_path / "indexed.png")[0][0], np.where(labels == 1, 255, 0))


def test_a_mask_may_be_rgb_but_not_coloured(tmp_path: Path) -> None:
    grey = np.repeat(GREY[..., None], 3, axis=2)
    np.testing.assert_array_equal(read_mask(write.picture(tmp_path / "grey.png", grey)), GREY)
    with pytest.raises(UnreadableFile, match=r"red\.png: is coloured"):
        read_mask(write.picture(tmp_path / "red.png", COLOUR))


@pytest.mark.parametrize("ending", ["nii", "nii.gz"])
def test_volumes_have_their_slices_first(ending: str, tmp_path: Path) -> None:
    slices = NUMBERS.integers(-1000, 1000, (3, 5, 7), dtype=np.int16)
    image, spacing = read_image(write.volume(tmp_path / f"v.{ending}", slices, spacing=(5, 1.5, 0.5)))
    np.testing.assert_array_equal(image, slices[None])
    assert spacing == (5, 1.5, 0.5)


def test_channels_come_last_in_a_nifti_and_first_here(tmp_path: Path) -> None:
    modalities = NUMBERS.normal(size=(4, 3, 5, 7)).astype(np.float32)
    image, spacing = read_image(write.volume(tmp_path / "v.nii.gz", modalities, spacing=(3, 2, 1)))
    np.testing.assert_array_equal(image, modalities)
    assert spacing == (3, 2, 1)
    with pytest.raises(UnreadableFile, match="4 channels"):
        read_mask(tmp_path / "v.nii.gz")


def test_an_identity_matrix_without_a_unit_is_no_spacing(tmp_path: Path) -> None:
    one = np.zeros((3, 5, 7), np.uint8)
    assert read_image(write.volume(tmp_path / "lost.nii", one))[1] is None
    assert read_image(write.volume(tmp_path / "known.nii", one, spacing=(1, 1, 1)))[1] == (1, 1, 1)


def test_masks_are_integers(tmp_path: Path) -> None:
    whole = write.volume(tmp_path / "whole.nii", np.array([[[0, 1], [2, 7]]], np.float32))
    assert np.issubdtype(read_mask(whole).dtype, np.integer)
    assert read_mask(whole).tolist() == [[[0, 1], [2, 7]]]
    for value in (0.5, np.nan, np.inf):
        with pytest.raises(UnreadableFile, match="whole numbers"):
            read_mask(write.volume(tmp_path / "half.nii", np.full((1, 2, 2), value, np.float32)))


@pytest.mark.parametrize("ending", ["npz", "h5"])
def test_archives(ending: str, tmp_path: Path) -> None:
    path = write.archive(tmp_path / f"both.{ending}", image=GREY / 255, label=GREY % 4)
    image, labels = read_archive(path)
    np.testing.assert_array_equal(image, GREY[None] / 255)
    np.testing.assert_array_equal(labels, GREY % 4)
    with pytest.raises(UnreadableFile, match="must hold 'image' and 'label', but holds image, scribble"):
        read_archive(write.archive(tmp_path / f"one.{ending}", image=GREY, scribble=GREY))
    with pytest.raises(UnreadableFile, match="no pixel"):
        read_archive(write.archive(tmp_path / f"none.{ending}", image=GREY[:0], label=GREY[:0]))


def _files(folder: Path) -> list[Path]:
    return [
        write.picture(folder / "a.png", COLOUR),
        write.picture(folder / "a.jpg", COLOUR),
        write.picture(folder / "a.tif", COLOUR),
        write.picture(folder / "b.tif", COLOUR, compression="tiff_lzw"),
        write.picture(folder / "a.bmp", COLOUR),
        write.volume(folder / "a.nii", np.zeros((3, 5, 7), np.uint8)),
        write.volume(folder / "a.nii.gz", np.zeros((3, 5, 7), np.uint8)),
        write.archive(folder / "a.npz", image=GREY, label=GREY),
        write.archive(folder / "a.h5", image=GREY, label=GREY),
    ]


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")  # of a TIFF that ends too early
def test_a_truncated_file_is_named_wherever_it_ends(tmp_path: Path) -> None:
    for path in _files(tmp_path):
        whole = path.read_bytes()
        for kept in (0, 3, len(whole) // 2, len(whole) - 8, len(whole) - 1):
            path.write_bytes(whole[:kept])
            with pytest.raises(UnreadableFile, match=path.name) as problem:
                (read_archive if path.suffix in (".npz", ".h5") else read_image)(path)
            assert "\n" not in str(problem.value), "one line in a table"


def test_other_content_and_no_file(tmp_path: Path) -> None:
    for path in _files(tmp_path):
        read = read_archive if path.suffix in (".npz", ".h5") else read_image
        path.write_text("this is a text\n" * 100)
        with pytest.raises(UnreadableFile, match=path.name):
            read(path)
        path.unlink()
        with pytest.raises(UnreadableFile, match="is not there"):
            read(path)


def test_the_exception_travels_between_processes() -> None:
    problem = pickle.loads(pickle.dumps(UnreadableFile(Path("a.png"), "is empty")))
    assert (problem.path, problem.reason, str(problem)) == (Path("a.png"), "is empty", "a.png: is empty")


def test_tally_is_numpys_unique() -> None:
    for labels in (
        GREY,
        GREY.astype(np.int64) - 100,
        GREY.astype(np.int64) * 2**40,
        NUMBERS.integers(0, 5, (3, 1500, 1500)),
    ):
        values, counts = np.unique(labels, return_counts=True)
        assert tally(labels) == dict(zip(values.tolist(), counts.tolist(), strict=True))
    assert tally(np.zeros((0, 3), np.uint8)) == {}
