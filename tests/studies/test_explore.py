"""The interactive page, in a real browser."""

import html
import itertools
import json
import re
from pathlib import Path

import pytest
import torch

import polydice.studies
from polydice.base import AveragedLoss
from polydice.losses import DiceLoss, DropDiceLoss, PolyDice1Loss, TvMFDiceLoss
from polydice.studies.plane import OPTIONS, at, slopes
from polydice.studies.style import COLOURS
from tests.studies.browser import ask, needs_chromium

PAGE = Path(polydice.studies.__file__).with_name("explore.html").read_text(encoding="utf-8")
KEYS = {"dice": "DiceLoss", "dropdice": "DropDiceLoss", "polydice1": "PolyDice1Loss", "tvmf": "TvMFDiceLoss"}


def loss_of(key: str, order: int, epsilon: float, kappa: float, delta: float) -> AveragedLoss:
    options = {**OPTIONS, "smooth": delta}
    return {
        "dice": DiceLoss(**options),
        "dropdice": DropDiceLoss(order, **options),
        "polydice1": PolyDice1Loss(epsilon, **options),
        "tvmf": TvMFDiceLoss(kappa),
    }[key]


@needs_chromium
def test_its_losses_and_slopes_are_those_of_the_library(tmp_path: Path) -> None:
    scales = torch.tensor([0.02, 0.1, 0.5, 0.9, 1.0], dtype=torch.float64)
    angles = torch.tensor([0, 1e-3, 0.3, 1.0, torch.pi / 2, 2.5, 3.1], dtype=torch.float64)
    parameters = list(itertools.product([1, 2, 3, 10], [-0.3, 0.0, 0.5], [0.0, 2.0, 32.0], [0.0, 0.05, 1.0]))
    question = f"""{json.dumps(parameters)}.map(([order, epsilon, kappa, delta]) => Object.values(LOSSES).map(loss =>
        {scales.tolist()}.map(s => {angles.tolist()}.map(theta => {{
            const p = {{s, theta, order, epsilon, kappa, delta}};
            return loss.at(p, geometry(p, theta));
        }}))))"""
    answer = torch.tensor(ask(PAGE, question, tmp_path), dtype=torch.float64)
    assert answer.shape == (len(parameters), len(KEYS), len(scales), len(angles), 2)
    for given, values in zip(parameters, answer, strict=True):
        for key, value in zip(KEYS, values, strict=True):
            loss = loss_of(key, *given)
            expected = torch.stack([at(loss, scales[:, None], angles), slopes(loss, scales[:, None], angles)[1]], -1)
            torch.testing.assert_close(value, expected, rtol=0, atol=1e-9, msg=lambda m, of=(key, given): f"{of}: {m}")


@needs_chromium
@pytest.mark.filterwarnings("ignore:epsilon=-0.6 is below")
def test_the_fold_is_where_the_slope_in_the_scale_turns(tmp_path: Path) -> None:
    """Reached or not: with δ = 0 it is at 1/√(½ + ε)."""
    cases = [(s, epsilon, delta) for s in (0.1, 0.9) for epsilon in (-0.6, -0.1, 0.0, 0.5, 1.0) for delta in (0.0, 0.3)]
    question = f"{json.dumps(cases)}.map(([s, epsilon, delta]) => foldAngle({{s, epsilon, delta}}))"
    for (s, epsilon, delta), fold in zip(cases, ask(PAGE, question, tmp_path), strict=True):
        loss = PolyDice1Loss(epsilon, **{**OPTIONS, "smooth": delta})
        if fold is None:
            fold = torch.pi / 2
            assert at(loss, s, torch.tensor([fold], dtype=torch.float64)) <= 1
        else:  # q = 1 there, so L = 1 whatever the scale
            assert at(loss, s, torch.tensor([fold], dtype=torch.float64)).item() == pytest.approx(1, abs=1e-12)
            assert fold < torch.pi / 2
        if delta == 0 and epsilon >= 0:
            assert fold == pytest.approx((0.5 + epsilon) ** -0.5, abs=1e-12)


MOVE = """(() => {
    const paths = () => Object.fromEntries(["loss", "slope"].flatMap(plot =>
        [...element(plot).querySelectorAll("path")].map(p => [plot + " " + p.classList, p.getAttribute("d")])));
    const start = paths(), moved = {};
    for (const {key} of SLIDERS) {
        const slider = element(key);
        slider.stepUp();
        slider.dispatchEvent(new Event("input", {bubbles: true}));
        const now = paths();
        moved[key] = {
            value: slider.value, told: document.querySelector(`output[for=${key}]`).value,
            curves: Object.keys(now).filter(name => now[name] !== start[name]),
            table: [...table.rows].map(row => row.innerText.split("\\t").map(cell => cell.trim())),
            reachable: slider.labels.length === 1 && slider.tabIndex === 0,
        };
        slider.stepDown();
        draw();
    }
    table.querySelector("[data-loss=tvmf] input").click();
    return {start, moved, hidden: Object.keys(paths())};
})()"""


@needs_chromium
def test_moving_a_slider_moves_its_curves(tmp_path: Path) -> None:
    answer = ask(PAGE, MOVE, tmp_path)
    assert set(answer["start"]) == {f"{plot} {key}" for plot in ("loss", "slope") for key in KEYS}
    assert all(path.startswith("M") and "NaN" not in path for path in answer["start"].values())
    owner = {"s": "dice", "order": "dropdice", "epsilon": "polydice1", "kappa": "tvmf", "delta": "dice"}
    for key, moved in answer["moved"].items():
        assert moved["told"].replace("−", "-") == moved["value"], "the value is shown"
        assert moved["reachable"], "has a label, and the keyboard gets there"
        if key == "theta":
            assert not moved["curves"], "only the place where values are read off has moved"
        else:
            assert f"loss {owner[key]}" in moved["curves"]
            assert any(name.startswith("slope") for name in moved["curves"]), "the axis may have moved instead of one"
    value = at(loss_of("dice", 2, 0.5, 2, 0), 0.5, torch.tensor([1.01], dtype=torch.float64)).item()
    assert answer["moved"]["theta"]["table"][0][:2] == ["Dice", f"{value:.4f}"]
    assert set(answer["hidden"]) == {f"{plot} {key}" for plot in ("loss", "slope") for key in KEYS if key != "tvmf"}


@needs_chromium
def test_it_fits_every_screen(tmp_path: Path) -> None:
    frame = f'<iframe srcdoc="{html.escape(PAGE)}" style="height: 900px; width: '
    page = "<body>" + "".join(f'{frame}{width}px"></iframe>' for width in (320, 390, 1280)) + "</body>"
    question = """[...document.querySelectorAll("iframe")].map(({contentDocument: {documentElement: page}}) =>
        [page.scrollWidth - page.clientWidth, page.querySelectorAll(".plots path").length])"""
    assert ask(page, question, tmp_path) == [[0, 8]] * 3


def test_it_needs_no_network_and_speaks_the_figures_colours() -> None:
    assert not re.search(r"\b(src|href|url|import|fetch|https?:)\b\s*[=(:/]", PAGE)
    assert "default-src 'none'" in PAGE
    light = PAGE.partition("@media (prefers-color-scheme: dark)")[0]
    for key, name in KEYS.items():
        assert f"--{key}: {COLOURS[name]};" in light
