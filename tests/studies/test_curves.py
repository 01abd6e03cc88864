import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from polydice.cli import main
from polydice.studies import curves
from polydice.training.expression import LOSSES


def lines(figure: Figure, panel: int = 0) -> dict[str, Any]:
    """The curves of a panel by name: what is drawn, as pairs of θ and value."""
    return {str(line.get_label()): line.get_xydata() for line in figure.axes[panel].lines}


def formula(name: str, theta: Any) -> Any:
    """1 − cos θ and what the paper puts in its place."""
    kind, _, number = name.replace("−", "-").partition(" = ")
    if kind == "K":
        return sum((-1) ** (k - 1) * theta ** (2 * k) / math.factorial(2 * k) for k in range(1, int(number) + 1))
    return (0.5 + float(number)) * theta**2 if kind == "ε" else 1 - np.cos(theta)


@pytest.mark.parametrize(
    ("figure", "names"),
    [
        (curves.dropdice, {"Dice", "K = 1", "K = 2", "K = 3", "K = 10"}),
        (curves.polydice1, {"Dice", "ε = −0.3", "ε = −0.1", "ε = 0", "ε = 0.1", "ε = 0.3", "ε = 0.5"}),
    ],
)
def test_the_papers_figures_have_its_curves_and_axes(figure: Any, names: set[str]) -> None:
    drawn = figure()
    assert set(lines(drawn)) == names
    for name, points in lines(drawn).items():
        theta, value = points.T
        np.testing.assert_allclose(value, 0.9 + 0.1 * formula(name, theta), rtol=0, atol=1e-12)
        assert theta[0] == 0
        assert theta[-1] == pytest.approx(math.pi, abs=0.002)
    assert drawn.axes[0].get_xlim() == (0, math.pi)
    assert {"reachable: θ ≤ π/2", "never reached"} <= {text.get_text() for text in drawn.axes[0].texts}


def test_the_gradients_are_the_slopes_of_the_papers_curves() -> None:
    figure = curves.gradients()
    for panel in (0, 1):
        for name, points in lines(figure, panel).items():
            theta, slope = points.T
            step = 1e-5
            centred = (formula(name, theta + step) - formula(name, theta - step)) / (2 * step)
            np.testing.assert_allclose(slope, 0.1 * centred, rtol=0, atol=1e-6)  # step² and rounding over step


def test_the_fold_is_shaded_from_its_edge_on_where_there_is_one() -> None:
    for axes, epsilon in zip(curves.fold().axes, (None, 0.0, 0.5, None), strict=True):
        shaded = np.concatenate([path.vertices for path in axes.collections[0].get_paths()] or [np.empty((0, 2))])
        if epsilon is None:
            assert not len(shaded)
        else:
            assert shaded[:, 1].min() == pytest.approx(1 / math.sqrt(0.5 + epsilon), abs=1e-4)
            assert shaded[:, 1].max() == pytest.approx(math.pi / 2)


def test_labels_that_would_touch_are_moved_apart_and_no_further() -> None:
    assert curves._apart([3.0, 1.0, 1.0, 1.5], 1.0) == pytest.approx([3.125, 0.125, 1.125, 2.125])
    assert curves._apart([1.0, 5.0], 1.0) == [1.0, 5.0]


def test_the_page_of_all_losses_leaves_none_out_and_more_overlap_is_better() -> None:
    shown = {type(loss).__name__ for loss in curves.LOSSES.values()}
    assert shown == set(LOSSES)
    for axes in curves.losses().axes:
        assert len(axes.lines) == 4
        for line in axes.lines:
            overlap, value = line.get_xydata().T
            assert (overlap[0], overlap[-1]) == (0, 1)
            assert (np.diff(value) < 0).all()


def test_the_command_writes_every_figure_twice_and_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["curves", "--out", str(tmp_path / "new" / "folder")]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert {path.name for path in written} == {
        f"{name}.{kind}"
        for name in ("overview", "dropdice", "polydice1", "gradients", "fold", "losses")
        for kind in ("svg", "png")
    } | {"explore.html"}
    for path in written:
        if path.suffix == ".png":
            with Image.open(path) as image:
                image.load()
                assert min(image.size) >= 700
        assert path.stat().st_size > 10_000
    first = {path: path.read_bytes() for path in written}
    assert main(["curves", "--out", str(tmp_path / "new" / "folder")]) == 0
    assert first == {path: path.read_bytes() for path in written}, "the same bytes every time"


def test_a_folder_that_cannot_be_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["curves", "--out", str(tmp_path / "file" / "folder")]) == 2
    told = capsys.readouterr().err
    assert told.startswith("polydice curves: ")
    assert "folder" in told
    assert told.count("\n") == 1
