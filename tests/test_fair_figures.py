"""results/fair/figures.py and hypotheses.py: the page says what check.py finds in the records, and the plan's rules."""

import gzip
import json
import runpy
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest
from matplotlib.image import imread

from polydice.studies.answer import Response, Tried
from polydice.studies.comparison import Comparison, Paired, Row
from polydice.studies.pack import pack
from polydice.studies.verdicts import Kind, Verdict
from tests.studies.made_up import study_in
from tests.test_results import trained

FAIR = Path(__file__).parents[1] / "results" / "fair"
CHECK, RULES = (runpy.run_path(str(FAIR / name)) for name in ("check.py", "hypotheses.py"))
PAGE = """Before.
<!-- tables -->
old
<!-- end tables -->
Between.
<!-- hypotheses -->
<!-- end hypotheses -->
After.
"""
INSIDE = "".join(  # in the order in which runs have ended; the last fold is not whole
    json.dumps(
        {"trainer": f"nnUNetTrainer{rest}", "fold": fold, "epochs": 2, "iterations": 3}
        | {"voxels": {f"case{fold}": [[hits, 10, 10], [0, 0, 0]], f"other{fold}": [[4, 5, 5], [2, 3, 3]]}}
    )
    + "\n"
    for rest, fold, hits in [("TvMFCE", 0, 9), ("", 1, 8), ("", 0, 8), ("TvMFCE", 1, 5), ("", 2, 3)]
)
RECIPE = (
    (FAIR / "acdc.toml").read_text(encoding="utf-8")
    .replace('path = "acdc"', 'path = "mine"').replace('"last"', '"best"').replace("replicates = 3", "replicates = 2")
)  # fmt: skip


def drawn(folder: Path) -> str:
    """What the script says when it has done its work in a folder."""
    command = [sys.executable, str(FAIR / "figures.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with marks, a study with all of its runs and nnU-Net's records."""
    folder = tmp_path_factory.mktemp("fair")
    pack(trained(study_in(folder / "work", lambda run: False, RECIPE)), folder / "acdc")
    (folder / "nnunet").mkdir()
    (folder / "nnunet/records.jsonl").write_text(INSIDE)
    (folder / "README.md").write_text(PAGE)
    drawn(folder)
    return folder


def test_the_table_has_what_the_script_without_polydice_finds(folder: Path) -> None:
    page = (folder / "README.md").read_text()
    (rows,) = CHECK["study"](folder / "acdc").values()
    lines = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ") for line in page.splitlines()}
    assert len(rows) == 5
    for loss, row in rows.items():
        _, rate, score, *differences, plateau = (cell.replace("−", "-").strip() for cell in lines[loss])
        assert (rate.split()[0], score.strip("*")) == (row["chosen"].removeprefix("rate="), f"{row['mean']:.2f}")
        ends = [row["plateau"][place].removeprefix("rate=") for place in (0, -1)]
        assert plateau.split(" (")[0].replace("+", "").split(" … ") == list(dict.fromkeys(ends))
        told = {
            name: f"{to['mean']:+.2f} [{to['low']:.2f}, {to['high']:.2f}] {to['verdict']}"
            for name, to in row["to"].items()
        }
        assert differences == [told.get(name, "") for name in ("Dice", "Dice + cross-entropy")]
    assert "Over 2 replicates of 5 folds." in page
    assert "Over 2 folds, one training of each: there is no verdict." in page
    inside = CHECK["nnunet"](folder / "nnunet/records.jsonl")
    assert list(inside) == ["nnUNetTrainer", "nnUNetTrainerTvMFCE"]
    own, other = inside.values()
    # Classes 24/30 and 4/6; then 26/30 or 18/30, and 4/6.
    assert [own["mean"], *other["apart"]] == pytest.approx([73.3333, 3.3333, -10.0], abs=1e-4)
    assert f"| its own: Dice + cross-entropy | {own['mean']:.2f} |" in page
    assert f"| TvMFCE | {other['mean']:.2f} | −3.33 | +3.33, −10.00 |" in page


def test_records_of_nnunet_that_contradict_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, problem in (
        (INSIDE.replace("[9, 10, 10]", "[9, 10, 11]"), "was tested on other cases in fold 0"),
        (INSIDE.replace('"epochs": 2', '"epochs": 4', 1), "other lengths"),
        (INSIDE.replace("case2", "case0"), "tested in two folds"),
    ):
        (tmp_path / "records.jsonl").write_text(text)
        assert CHECK["main"]([tmp_path]) == 1
        assert problem in capsys.readouterr().err
    (tmp_path / "records.jsonl").write_text(INSIDE)
    assert CHECK["main"]([tmp_path]) == 0
    assert "nnUNetTrainerTvMFCE: 70.00; -3.33 (+3.33, -10.00)" in capsys.readouterr().out


def test_a_page_is_filled_between_its_marks_and_the_same_every_time(folder: Path) -> None:
    page = (folder / "README.md").read_text()
    assert [line for line in page.splitlines() if line in PAGE.splitlines()] == [
        line for line in PAGE.splitlines() if line != "old"
    ]
    before = {name: (folder / name).read_bytes() for name in ("README.md", "forest.png", "score-rate.png")}
    drawn(folder)
    assert before == {name: (folder / name).read_bytes() for name in before}
    assert imread(folder / "forest.png").shape[1] == 1920


def test_a_study_whose_rates_are_not_chosen_is_left_out(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "acdc", tmp_path / "acdc")
    choices = json.loads((tmp_path / "acdc/chosen.json").read_text())
    (tmp_path / "acdc/chosen.json").write_text(json.dumps(choices[1:]))
    assert "acdc is left out: not all of its rates are chosen" in drawn(tmp_path)
    assert not (tmp_path / "forest.png").exists()


@pytest.mark.skipif(not (FAIR / "README.md").exists(), reason="the page is not written")
def test_the_page_is_what_the_records_say(tmp_path: Path) -> None:
    shutil.copytree(FAIR, tmp_path / "fair")
    drawn(tmp_path / "fair")
    for page in ("README.md", "DETAILS.md"):
        assert (tmp_path / "fair" / page).read_text() == (FAIR / page).read_text()


def test_the_first_paragraphs_numbers_are_those_of_the_script_without_polydice() -> None:
    page = " ".join((FAIR / "README.md").read_text(encoding="utf-8").replace("−", "-").split())
    names = "hippocampus-sgd", "kvasir", "acdc", "hippocampus-adamw"
    found = [next(iter(CHECK["study"](FAIR / name).values())) for name in names]
    losses = "Dice", "Dice + cross-entropy", "Adaptive PolyDice-1"
    lost = {loss: [f"{CHECK['below'](rows[loss], 'rate=0.01'):.0f}" for rows in found[:3]] for loss in losses}
    untuned = {loss: [f"{rows[loss]['validation']['rate=0.04']:.1f}" for rows in found[:3]] for loss in losses}
    for said, means in (
        ("Dice is {}, {} and {} points below its own best on Hippocampus, Kvasir-SEG and ACDC", lost["Dice"]),
        ("Dice + cross-entropy {}, {} and {}, Adaptive", lost["Dice + cross-entropy"]),
        ("Adaptive PolyDice-1 {}, {} and {}.", lost["Adaptive PolyDice-1"]),
        ("at 0.04, it has {}, {} and {},", untuned["Adaptive PolyDice-1"]),
        ("Dice + cross-entropy {}, {} and {}, Dice", untuned["Dice + cross-entropy"]),
        ("Dice {}, {} and {}.", untuned["Dice"]),
    ):
        assert said.format(*means) in page
    sgd, kvasir, acdc, adamw = found
    apart = [[rows["Adaptive PolyDice-1"]["to"][name] for name in losses[:2]] for rows in (sgd, adamw, acdc, kvasir)]
    above = ", ".join(f"{dice['mean']:+.2f}" for dice, _ in apart)
    assert f"({above})" in page
    assert all(f"({both['mean']:+.2f})" in page for _, both in apart)
    assert not any(told["verdict"].startswith("worse") for each in apart for told in each)
    scores = [f"{rows['Adaptive PolyDice-1']['mean']:.2f}" for rows in (sgd, adamw)]
    assert f"({', '.join(scores)})" in page
    late = [(sum(row["late"] for row in rows.values()), sum(row["runs"] for row in rows.values())) for rows in found]
    assert f"{late[0][0]} and {late[3][0]} of {late[0][1]} runs on Hippocampus, {late[2][0]} of {late[2][1]} on" in page
    assert f"{late[1][0]} of {late[1][1]} on Kvasir-SEG" in page
    collapsed = {loss: row["collapsed"] for loss, row in sgd.items() if row["collapsed"]}
    told = ", ".join(f"{loss}: {times}" for loss, times in collapsed.items())
    assert f"{sum(collapsed.values())} of 140 runs collapsed ({told})" in page
    assert not any(row["collapsed"] for rows in found[1:] for row in rows.values())
    inside = CHECK["nnunet"](FAIR / "nnunet/records.jsonl")["nnUNetTrainerPolyDice_epsilon0_follow4_detached"]["apart"]
    assert min(inside) > 0
    assert f"all five folds ({sum(inside) / 5:+.1f}," in page
    runs = sum(gzip.decompress(each.read_bytes()).count(b"\n") for each in FAIR.glob("*/runs.jsonl.gz"))
    assert f"{runs} runs, and 15 of nnU-Net" in page


def test_the_page_is_short() -> None:
    assert len((FAIR / "README.md").read_text(encoding="utf-8").split()) <= 1500


CLAUSE = ", but by less than the margin"


def compared(kinds: Mapping[str, Kind], rates: Mapping[str, int] = {}, to_tvmf: Kind = "equivalent") -> Comparison:
    """Losses with these verdicts against Dice, so many rates in their plateaus, and ε that follows against t-vMF."""
    rows = []
    for loss in ("Dice", *kinds):
        told = {"Dice": Paired(verdict=Verdict(kinds[loss], 0.1, 0.0, 0.2, 1.0))} if loss in kinds else {}
        rows.append(Row(loss, Counter(), {}, 0, {}, None, told, None, None))
    responses = [
        Response(loss, "rate", tuple(Tried(4.0**place, 90 if place < count else 80) for place in range(5)), 1.0, 1.0)
        for loss, count in rates.items()
    ]
    pairs = {(RULES["FOLLOWING"], RULES["TVMF"]): Verdict(to_tvmf, 0.0, -0.1, 0.1, 1.0)}
    return Comparison(
        "set", "net", ("Dice",), "dice_foreground", 1.0, True, "last", tuple(rows), pairs, tuple(responses)
    )


@pytest.mark.parametrize(
    ("coupled", "detached", "said"),
    [
        ("equivalent", f"better{CLAUSE}", "confirmed"),
        ("equivalent", "better", "refuted"),
        ("worse", "undecided", "refuted"),
        ("undecided", f"worse{CLAUSE}", "open"),
        ("too few runs", "equivalent", "open"),
        (None, "equivalent", "open"),
        (None, "worse", "refuted"),
    ],
)
def test_h1(coupled: Kind | None, detached: Kind, said: str) -> None:
    kinds = {RULES["DETACHED"]: detached} | ({RULES["COUPLED"]: coupled} if coupled else {})
    assert RULES["equivalent"](compared(kinds)) == said


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("better", "confirmed"),
        (f"better{CLAUSE}", "confirmed"),
        ("equivalent", "refuted"),
        (f"worse{CLAUSE}", "refuted"),
        ("worse", "refuted"),
        ("undecided", "open"),
        ("too few runs", "open"),
    ],
)
def test_h2(kind: Kind, said: str) -> None:
    assert RULES["above"](compared({RULES["TVMF"]: kind}), RULES["TVMF"]) == said


@pytest.mark.parametrize(
    ("tvmf", "others", "said"), [(4, (3, 2, 1), "confirmed"), (3, (3, 2, 1), "open"), (2, (1, 1, 3), "refuted")]
)
def test_h3(tvmf: int, others: tuple[int, int, int], said: str) -> None:
    names = ("TVMF", "DICE", "BOTH", "DETACHED")
    found = compared({}, {RULES[name]: count for name, count in zip(names, (tvmf, *others), strict=True)})
    assert RULES["forgives"](found) == f"{said} ({tvmf} against {max(others)} rates)"


@pytest.mark.parametrize(
    ("sgd", "adamw", "to_tvmf", "said"),
    [
        ("equivalent", f"better{CLAUSE}", "undecided", "confirmed"),
        (f"worse{CLAUSE}", "better", "equivalent", "confirmed"),
        ("equivalent", "better", "worse", "open"),
        (f"better{CLAUSE}", "better", "equivalent", "open"),
        ("better", "better", "equivalent", "refuted"),
        ("equivalent", "equivalent", "equivalent", "refuted"),
        ("undecided", "better", "equivalent", "open"),
    ],
)
def test_h4(sgd: Kind, adamw: Kind, to_tvmf: Kind, said: str) -> None:
    slow, fast = (compared({RULES["FOLLOWING"]: kind}, to_tvmf=to_tvmf) for kind in (sgd, adamw))
    assert RULES["follows"](slow, fast) == said
