import gzip
import pickle
import tracemalloc
from pathlib import Path

import h5py
import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from polydice.data.files import UnreadableFile, _unzipped, picture_remarks, read_archive, read_image, read_mask, tally
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


def test_a_gif_is_one_picture(tmp_path: Path) -> None:
    """Grey stays grey, a palette is colours in an image and labels in a mask, and a film is refused."""
    grey = write.picture(tmp_path / "grey.gif", GREY)
    np.testing.assert_array_equal(read_image(grey)[0], GREY[None])
    np.testing.assert_array_equal(read_mask(grey), GREY)
    labels = GREY % 3
    indexed = Image.frombytes("P", labels.shape[::-1], labels.tobytes())
    indexed.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
    indexed.save(tmp_path / "indexed.gif")
    np.testing.assert_array_equal(read_mask(tmp_path / "indexed.gif"), labels)
    red, green, blue = read_image(tmp_path / "indexed.gif")[0]
    np.testing.assert_array_equal(red, np.where(labels == 1, 255, 0))
    np.testing.assert_array_equal(green, np.where(labels == 2, 255, 0))
    assert not blue.any()
    indexed.save(tmp_path / "film.gif", save_all=True, append_images=[indexed.rotate(180), indexed])
    with pytest.raises(UnreadableFile, match=r"film\.gif: is a film of 3 frames"):
        read_image(tmp_path / "film.gif")


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


def test_an_archive_that_points_to_another_file_is_refused(tmp_path: Path) -> None:
    """Else a system file would become an image."""
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(40)))
    write.archive(tmp_path / "other.h5", image=GREY, label=GREY)
    layout = h5py.VirtualLayout((5, 8), np.uint8)
    layout[:] = h5py.VirtualSource(tmp_path / "other.h5", "image", (5, 8))

    def stored_elsewhere(file: h5py.File) -> None:
        file.create_dataset("image", (5, 8), np.uint8, external=[(str(secret), 0, h5py.h5f.UNLIMITED)])

    def linked(file: h5py.File) -> None:
        file["image"] = h5py.ExternalLink("other.h5", "image")

    def linked_by_a_folder(file: h5py.File) -> None:
        file["there"] = h5py.ExternalLink("other.h5", "/")
        file["image"] = h5py.SoftLink("/there/image")

    def put_together(file: h5py.File) -> None:
        file.create_virtual_dataset("image", layout)

    for number, how in enumerate((stored_elsewhere, linked, linked_by_a_folder, put_together)):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["label"] = GREY
            how(file)
        with pytest.raises(UnreadableFile, match=rf"{number}\.h5: has 'image' in another file, which is not read"):
            read_archive(tmp_path / f"{number}.h5")
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file["label"] = file["inner/image"] = GREY
        file["image"] = h5py.SoftLink("/inner/image")
    np.testing.assert_array_equal(read_archive(tmp_path / "own.h5")[0], GREY[None])


def test_a_file_that_grows_without_bound_is_refused(tmp_path: Path) -> None:
    """Ten times what its header says, or a header that says more than any machine has."""
    small = nib.Nifti1Image(np.zeros((5, 4, 3), np.uint8), np.eye(4))
    (tmp_path / "grows.nii.gz").write_bytes(gzip.compress(small.to_bytes() + bytes(10 << 20), 1))
    with pytest.raises(UnreadableFile, match="goes on after the 412 bytes that its header claims"):
        read_image(tmp_path / "grows.nii.gz")
    (tmp_path / "padded.nii.gz").write_bytes(gzip.compress(small.to_bytes() + bytes(1000)))
    assert read_image(tmp_path / "padded.nii.gz")[0].shape == (1, 3, 4, 5)
    small.header.set_data_shape((20_000, 20_000, 20_000))
    (tmp_path / "claims.nii.gz").write_bytes(gzip.compress(small.header.binaryblock + bytes(1000)))
    with pytest.raises(UnreadableFile, match="claims to hold 8000000000000 bytes"):
        read_image(tmp_path / "claims.nii.gz")
    with h5py.File(tmp_path / "claims.h5", "w") as file:
        file["label"] = GREY
        file.create_dataset("image", (20_000, 20_000, 20_000), np.uint8, chunks=True, compression="gzip")
    with pytest.raises(UnreadableFile, match="claims to hold 8000000000000 bytes"):
        read_archive(tmp_path / "claims.h5")


def test_a_file_that_would_fill_the_memory_is_refused_unread(tmp_path: Path) -> None:
    """3.6 GB of one value in 3.6 MB, and a header that tells the truth: no check of its content would refuse it."""
    claims = nib.Nifti1Image(np.zeros((1, 1, 1), np.float32), np.eye(4)).header
    claims.set_data_shape((30_000, 30_000, 1))
    zeros = gzip.compress(bytes(36 << 20))
    (tmp_path / "bomb.nii.gz").write_bytes(gzip.compress(claims.binaryblock + bytes(4)) + zeros * 96)
    tracemalloc.start()
    with pytest.raises(UnreadableFile, match=r"claims to hold 3600000000 bytes, more than 500 times its own"):
        read_image(tmp_path / "bomb.nii.gz")
    assert tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()


def test_unzipping_takes_one_copy(tmp_path: Path) -> None:
    path = write.volume(tmp_path / "a.nii.gz", np.zeros((32, 1024, 1024), np.uint8))
    tracemalloc.start()
    content = _unzipped(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1.3 * len(content)


def test_complex_numbers_are_no_image(tmp_path: Path) -> None:
    spectrum = np.full((3, 5, 7), 1 + 2j, np.complex64)
    for path in (
        write.volume(tmp_path / "k.nii.gz", spectrum),
        write.archive(tmp_path / "k.h5", image=spectrum, label=GREY),
    ):
        with pytest.raises(UnreadableFile, match="complex numbers: save their magnitude"):
            (read_archive if path.suffix == ".h5" else read_image)(path)
    with pytest.raises(UnreadableFile, match="complex"):
        read_mask(tmp_path / "k.nii.gz")


def test_what_a_viewer_would_show_otherwise_is_remarked(tmp_path: Path) -> None:
    exif = Image.Exif()
    for orientation, expected in ((1, 0), (6, 1), (0, 0)):
        exif[0x0112] = orientation
        Image.fromarray(COLOUR).save(tmp_path / f"{orientation}.jpg", exif=exif)
        found = picture_remarks(tmp_path / f"{orientation}.jpg")
        assert len(found) == expected
        assert all("EXIF" in remark for remark in found)
    for alpha, expected in ((0, 1), (9, 0)):
        layers = np.concatenate([COLOUR, np.full_like(COLOUR[..., :1], alpha)], axis=2)
        found = picture_remarks(write.picture(tmp_path / "alpha.png", layers))
        assert len(found) == expected
        assert all("transparent" in remark for remark in found)


def _files(folder: Path) -> list[Path]:
    return [
        write.picture(folder / "a.png", COLOUR),
        write.picture(folder / "a.jpg", COLOUR),
        write.picture(folder / "a.tif", COLOUR),
        write.picture(folder / "b.tif", COLOUR, compression="tiff_lzw"),
        write.picture(folder / "a.bmp", COLOUR),
        write.picture(folder / "a.gif", GREY),
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
