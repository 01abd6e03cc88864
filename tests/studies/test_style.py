from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from polydice.studies.style import COLOURS, save
from polydice.training.expression import LOSSES


def draw(path: Path) -> list[bytes]:
    figure = Figure()
    figure.subplots().plot([0, 1], label="a line")
    figure.legend()
    return [file.read_bytes() for file in save(figure, path)]


def test_a_figure_is_the_same_bytes_every_time_and_leaves_no_trace(tmp_path: Path) -> None:
    before = dict(mpl.rcParams)
    svg, png = draw(tmp_path / "effect-0.5")
    assert [svg, png] == draw(tmp_path / "again")
    assert svg.startswith(b"<?xml")
    assert b"<dc:date>" not in svg
    assert png.startswith(b"\x89PNG")
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{n}.{e}" for n in ("effect-0.5", "again") for e in ("svg", "png")
    }
    assert dict(mpl.rcParams) == before


def test_every_loss_has_a_colour() -> None:
    assert set(COLOURS) == set(LOSSES)
