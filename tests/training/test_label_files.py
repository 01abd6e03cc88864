import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from polydice.data.cases import DataError
from polydice.data.files import UnreadableFile
from polydice.training.label_files import Job, jobs, read, write
from tests.data.write import picture, volume

OUT = Path("out")


def labels(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 9, shape, np.uint8)


def named(inputs: list[Path], by_channel: bool = False, overlay: bool = False) -> list[str]:
    return [job.target.name for job in jobs(inputs, OUT, by_channel, overlay)]


# What is done


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("a.b.png", "a.b.png"),
        ("a.JPG", "a.png"),
        ("a.jpeg", "a.png"),
        ("a.bmp", "a.png"),
        ("a.gif", "a.png"),
        ("a.tif", "a.tif"),
        ("a.TIFF", "a.tiff"),
        ("a.1.nii.gz", "a.1.nii.gz"),
        ("a.nii", "a.nii"),
    ],
)
def test_the_format_is_the_inputs_where_it_can_hold_labels(given: str, made: str) -> None:
    assert named([Path(given)]) == [made]


def test_a_folder_is_its_images(tmp_path: Path) -> None:
    for name in ("b.png", "a.nii.gz", "notes.txt", ".hidden.png", "deeper/c.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert named([tmp_path, tmp_path / "b.png"]) == ["a.nii.gz", "b.png"]  # each once


@pytest.mark.parametrize(
    ("channels", "given", "made"),
    [
        (["T1", "T2"], ["a_0000.nii.gz", "a_0001.nii.gz", "b.nii.gz"], ["a.nii.gz", "b.nii.gz"]),
        (["CT"], ["a_0000.nii.gz", "b_0000.nii.gz"], ["a.nii.gz", "b.nii.gz"]),
        (["CT"], ["a_0000.nii.gz", "a_0001.nii.gz"], ["a_0000.nii.gz", "a_0001.nii.gz"]),
        (["R", "G", "B"], ["a_0000.png", "notes.txt"], ["a.png"]),
    ],
)
def test_of_a_data_set_the_images_of_imagests_are_taken(
    channels: list[str], given: list[str], made: list[str], tmp_path: Path
) -> None:
    """And their label maps are called as nnU-Net calls them; numbers of four digits that are no channels are names."""
    (tmp_path / "dataset.json").write_text(json.dumps({"channel_names": dict(enumerate(channels))}))
    for name in ("imagesTr/other_0000.nii.gz", *(f"imagesTs/{name}" for name in given)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    for by_channel in (False, True):
        assert named([tmp_path], by_channel) == made
    found = jobs([tmp_path], OUT, by_channel=True, overlay=False)
    assert [file.name for job in found for file in job.files] == [name for name in given if name != "notes.txt"]
    (tmp_path / "dataset.json").write_text("{}")
    with pytest.raises(DataError, match=r"dataset\.json is not as the Decathlon or nnU-Net write it"):
        jobs([tmp_path], OUT, by_channel=False, overlay=False)


def test_nothing_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{tmp_path} holds no images"):
        jobs([tmp_path], OUT, by_channel=False, overlay=False)
    (tmp_path / "dataset.json").write_text('{"modality": {"0": "CT"}}')
    with pytest.raises(DataError, match=r"holds no images: .*, and no imagesTs beside its dataset\.json"):
        jobs([tmp_path], OUT, by_channel=False, overlay=False)
    (tmp_path / "imagesTs").mkdir()
    with pytest.raises(DataError, match="imagesTs holds no images"):
        jobs([tmp_path], OUT, by_channel=False, overlay=False)
    with pytest.raises(DataError, match="no image was given"):
        jobs([], OUT, by_channel=False, overlay=False)


def test_of_a_folder_images_that_are_not_read_are_named(tmp_path: Path) -> None:
    for name in ("scan.dcm", "notes.txt"):
        (tmp_path / name).touch()
    with pytest.raises(DataError, match=f"{tmp_path} holds no images"):
        jobs([tmp_path], OUT, by_channel=False, overlay=False)
    (tmp_path / "a.png").touch()
    a, scan = jobs([tmp_path], OUT, by_channel=False, overlay=False)
    assert (a.files, scan.files) == ((tmp_path / "a.png",), (tmp_path / "scan.dcm",))
    with pytest.raises(UnreadableFile, match=r"scan\.dcm: is not PNG, JPEG"):
        read(scan)


def test_two_of_one_name_are_refused() -> None:
    with pytest.raises(DataError, match=r"a/x\.png and b/x\.jpg would both be written to out/x\.png"):
        named([Path("a/x.png"), Path("b/x.jpg")])
    two = [Path("a/x.png"), Path("a/x_overlay.png")]
    assert named(two) == ["x.png", "x_overlay.png"]
    with pytest.raises(DataError, match=r"would both be written to out/x_overlay\.png"):
        named(two, overlay=True)


def test_no_input_is_replaced(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is an input and would be replaced"):
        jobs([tmp_path / "x.png"], tmp_path / "out" / "..", by_channel=False, overlay=False)


def test_channels_in_files_of_their_own_are_one_image() -> None:
    given = ["a_0001.nii", "a_0000.nii", "b_0000.nii", "c_0012.nii", "other/a_0000.nii.gz"]
    found = jobs([Path(name) for name in given], OUT, by_channel=True, overlay=False)
    assert [([str(file) for file in job.files], job.target.name) for job in found] == [
        (["a_0000.nii", "a_0001.nii"], "a.nii"),
        (["b_0000.nii"], "b.nii"),
        (["c_0012.nii"], "c_0012.nii"),  # no first channel: a number, not a channel
        (["other/a_0000.nii.gz"], "a.nii.gz"),
    ]
    assert named([Path("a_0000.nii"), Path("a_0001.nii")], by_channel=False) == ["a_0000.nii", "a_0001.nii"]


# What is read


def test_channels_follow_each_other(tmp_path: Path) -> None:
    arrays = [labels(4, 5, 6), labels(4, 5, 6) + 100]
    files = [volume(tmp_path / f"a_000{i}.nii", array, (3.0, 2.0, 1.0)) for i, array in enumerate(arrays)]
    image, spacing = read(Job(tuple(files), OUT / "a.nii"))
    assert np.array_equal(image, arrays)
    assert spacing == (3, 2, 1)


def test_channels_that_do_not_fit(tmp_path: Path) -> None:
    files = [volume(tmp_path / f"a_000{i}.nii", labels(2 + i, 5, 5)) for i in range(3)]
    with pytest.raises(DataError, match=r"a_0001\.nii: is \(3, 5, 5\) in size, but a_0000\.nii is \(2, 5, 5\)"):
        read(Job((files[0], files[1]), OUT))
    with pytest.raises(DataError, match=r"a_0002\.nii: cannot be used: channel _0001 of its case is missing"):
        read(Job((files[0], files[2]), OUT))


def test_what_is_no_image(tmp_path: Path) -> None:
    (tmp_path / "scan.dcm").write_bytes(b"DICM")
    with pytest.raises(DataError, match=r"scan\.dcm: is not PNG, JPEG, TIFF, BMP, GIF or NIfTI"):
        read(Job((tmp_path / "scan.dcm",), OUT))
    with pytest.raises(DataError, match="nowhere: is not there"):
        read(Job((tmp_path / "nowhere",), OUT))


# What is written


def test_a_picture(tmp_path: Path) -> None:
    given = labels(7, 11)
    write(given, Job((tmp_path / "a.jpg",), tmp_path / "a.png"))
    with Image.open(tmp_path / "a.png") as found:
        assert (found.format, found.mode) == ("PNG", "L")
        assert np.array_equal(np.asarray(found), given)


@pytest.mark.parametrize("pages", [(), (1,), (4,)])
def test_a_tiff(tmp_path: Path, pages: tuple[int, ...]) -> None:
    given = labels(*pages, 7, 11)
    write(given, Job((tmp_path / "a.tif",), tmp_path / "b.tif"))
    with Image.open(tmp_path / "b.tif") as found:
        assert (found.format, found.mode) == ("TIFF", "L")
        assert found.n_frames == (pages or (1,))[0]
        for number, page in enumerate(given.reshape(-1, 7, 11)):
            found.seek(number)
            assert np.array_equal(np.asarray(found), page)


def oblique(array: NDArray[np.generic]) -> nib.Nifti1Image:
    """An image whose two matrices differ, whose numbers are scaled, and which says how to show it."""
    turn, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = turn @ np.diag([0.7, 0.9, 3.1]), [-31.5, 12.25, 7]
    other = affine.copy()
    other[:3, 3] += 1
    image = nib.Nifti1Image(array, affine)
    image.set_sform(affine, code=2)
    image.set_qform(other, code=1)
    image.header.set_xyzt_units("mm", "sec")
    image.header.set_slope_inter(0.5, 3)
    image.header["cal_max"] = 99
    return image


@pytest.mark.parametrize("ending", [".nii.gz", ".nii"])
@pytest.mark.parametrize("kind", [nib.Nifti1Image, nib.Nifti2Image])
@pytest.mark.parametrize("shape", [(13, 9, 5), (13, 9, 5, 2), (13, 9)])
def test_a_nifti_keeps_its_geometry(
    tmp_path: Path, shape: tuple[int, ...], kind: type[nib.Nifti1Image], ending: str
) -> None:
    nib.save(kind.from_image(oblique(np.ones(shape, np.int16))), tmp_path / f"a{ending}")
    wanted = labels(*shape[:3][::-1])
    write(wanted, Job((tmp_path / f"a{ending}",), tmp_path / f"b{ending}"))
    given, found = (nib.load(tmp_path / f"{name}{ending}") for name in "ab")
    assert type(found) is kind
    assert found.get_data_dtype() == np.uint8
    assert np.array_equal(np.asarray(found.dataobj), wanted.T)
    assert np.array_equal(found.affine, given.affine)
    for form in ("get_sform", "get_qform"):
        (matrix, code), (kept, kept_code) = (getattr(each.header, form)(coded=True) for each in (given, found))
        assert np.array_equal(kept, matrix)
        assert kept_code == code
    assert found.header.get_zooms() == given.header.get_zooms()[:3]
    assert found.header.get_xyzt_units() == given.header.get_xyzt_units()
    assert found.header["cal_max"] == 0


def test_the_same_labels_are_the_same_file(tmp_path: Path) -> None:
    image = volume(tmp_path / "a.nii.gz", labels(3, 4, 5))
    for name in ("b", "c"):
        write(labels(3, 4, 5), Job((image,), tmp_path / f"{name}.nii.gz"))
    assert (tmp_path / "b.nii.gz").read_bytes() == (tmp_path / "c.nii.gz").read_bytes()


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    image = picture(tmp_path / "x.png", labels(4, 5))
    (tmp_path / "out" / "x.png").mkdir(parents=True)
    with pytest.raises(DataError, match=r"cannot write .*x\.png: Is a directory"):
        write(labels(4, 5), Job((image,), tmp_path / "out" / "x.png"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["x.png"]
