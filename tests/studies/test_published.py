from decimal import Decimal

import pytest

from polydice.studies.published import PUBLISHED, SOURCE, published

SETS = ("cvc-clinicdb", "kvasir-seg", "acdc", "synapse")
LOSSES = ("Dice", "Cross-entropy", "PolyCE-1", "Tversky", "Focal Tversky", "DropDice", "PolyDice-1")

# What the paper prints in bold: the best loss of each data set.
BOLD = {
    "unet": ("Focal Tversky", "PolyDice-1", "PolyDice-1", "PolyDice-1"),
    "transunet": ("Tversky", "DropDice", "PolyDice-1", "DropDice"),
}


def test_both_tables_are_whole() -> None:
    assert len(PUBLISHED) == 2 * 4 * 7
    for model in BOLD:
        for dataset in SETS:
            assert all(published(dataset, model, loss) for loss in LOSSES)


@pytest.mark.parametrize("model", BOLD)
def test_the_best_of_each_data_set_is_the_one_in_bold(model: str) -> None:
    for dataset, best in zip(SETS, BOLD[model], strict=True):
        figures = {loss: published(dataset, model, loss) for loss in LOSSES}
        assert max(figures, key=lambda loss: figures[loss].mean) == best


def test_the_digits_are_the_papers() -> None:
    found = published("synapse", "transunet", "Focal Tversky")
    assert found is not None
    assert (found.mean, found.sd, str(found)) == (Decimal("56.55"), Decimal("6.76"), "56.55 ± 6.76")
    assert str(published("kvasir-seg", "transunet", "Dice")) == "93.90 ± 0.50", "a last 0 is a digit"
    assert (found.table, published("acdc", "unet", "Dice").table) == ("Table 2", "Table 1")
    assert "arXiv:2606.23373" in SOURCE


def test_names_are_found_as_people_write_them() -> None:
    wanted = published("cvc-clinicdb", "unet", "Cross-entropy")
    assert published("CVC-ClinicDB", "U-Net", "Cross Entropy Loss") == wanted
    assert published("cvc_clinicdb", "UNet", "cross-entropy") == wanted


@pytest.mark.parametrize(
    ("dataset", "model", "loss"),
    [("mine", "unet", "Dice"), ("acdc", "unet3d", "Dice"), ("acdc", "unet", "PolyDice-1 detached"), ("", "", "")],
)
def test_what_the_paper_does_not_have_is_not_found(dataset: str, model: str, loss: str) -> None:
    assert published(dataset, model, loss) is None
