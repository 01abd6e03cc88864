"""What results/ holds: small, the same on every machine, and recomputed by a script that does not use polydice."""

import gzip
import json
import re
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from polydice.studies.agenda import Agenda
from polydice.studies.comparison import Comparison, compare
from polydice.studies.pack import pack
from polydice.studies.study import Study, open_study
from tests.studies.made_up import ONE_SET, finish, study_in

RESULTS = Path(__file__).parents[1] / "results"
SCRIPT = RESULTS / "fair" / "check.py"
PATH = re.compile(r'"(?:/|[A-Z]:\\|~|\.\.?/)[^"]*"')
TUNED = (
    ONE_SET.replace("seeds = [0, 1]", "replicates = 3")
    .replace("nested = true", "rate = [0.01, 0.04, 0.16]")
    .replace('baseline = "Dice"', 'baseline = ["Dice", "Focal Tversky"]')
    .replace("{epsilon}", "0.5").replace("epsilon = [-0.3, 0.5]", "rate = [0.04, 0.16]")
)  # fmt: skip


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = spec_from_file_location("check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trained(study: Study) -> Study:
    """Writes a result of every run, those for the choice of a rate first, with the settings that they would have."""
    for kind in ("tuning", "runs"):
        for run in getattr(study, kind):
            finish(study, run)
            path = study.run_folder(run) / "result.json"
            result = json.loads(path.read_text())
            result["settings"] |= {"loss": run.expression, **dict(run.settings)}
            path.write_text(json.dumps(result))
        study = Agenda(study, lambda line: None).study
    return study


def agree(rows: dict[str, dict[str, dict[str, dict[str, float]]]], comparison: Comparison) -> int:
    """How many differences the script and the report have in common; they are the same."""
    count = 0
    tried = {each.loss: each for each in comparison.responses}
    for row in comparison.rows:
        own = rows[row.loss]
        assert own["mean"] == pytest.approx(100 * row.scores[comparison.score].mean, abs=1e-9)
        if row.loss in tried:
            assert own["chosen"] == f"rate={tried[row.loss].chosen}"
            ends = [float(own["plateau"][place].removeprefix("rate=")) for place in (0, -1)]
            assert tuple(ends) == tried[row.loss].span
        for baseline, verdict in row.verdicts.items():
            found = own["to"][baseline]
            assert found["mean"] == pytest.approx(verdict.mean, abs=1e-9)
            if comparison.nested and verdict.low is not None:
                assert (found["low"], found["high"]) == pytest.approx((verdict.low, verdict.high), abs=1e-6)
                assert found["verdict"] == verdict.kind
            count += 1
    return count


def test_the_script_finds_what_the_report_says(check: ModuleType, tmp_path: Path) -> None:
    study = trained(study_in(tmp_path, lambda run: False, TUNED))
    pack(study, tmp_path / "kept")
    (comparison,) = compare(open_study(tmp_path / "kept"))
    assert agree(check.study(tmp_path / "kept")["cvc-clinicdb, unet"], comparison) == 3
    assert {verdict.kind for row in comparison.rows for verdict in row.verdicts.values()} == {"better", "worse"}


@pytest.mark.parametrize("name", ["question-acdc", "gradient-hippocampus"])
def test_the_script_finds_the_means_of_kept_studies(check: ModuleType, name: str) -> None:
    (rows,), (comparison,) = (
        check.study(RESULTS / "paper" / name).values(),
        compare(open_study(RESULTS / "paper" / name)),
    )
    assert agree(rows, comparison) == len(comparison.rows) - 1


def test_the_script_uses_nothing_of_polydice_and_tells_a_contradiction(tmp_path: Path) -> None:
    study = trained(study_in(tmp_path, lambda run: False, TUNED))
    path = study.run_folder(study.runs[0]) / "result.json"
    path.write_text(path.read_text().replace('"rate": 0.01', '"rate": 0.02').replace('"rate": 0.04', '"rate": 0.02'))
    pack(study, tmp_path / "kept")
    alone = (
        "import sys, runpy; from pathlib import Path; sys.modules['polydice'] = None; "
        "sys.exit(runpy.run_path(sys.argv[1])['main']([Path(sys.argv[2])]))"
    )
    command = [sys.executable, "-c", alone, str(SCRIPT), str(tmp_path / "kept")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "is best on validation, and runs have rate=0.0" in done.stderr


def test_results_are_small_and_say_nothing_of_a_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z", "."], cwd=RESULTS, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("this is no clone")
    files = [RESULTS / name for name in listed.stdout.split("\0") if name and (RESULTS / name).is_file()]
    assert len(files) <= 150
    assert sum(file.stat().st_size for file in files) <= 12e6
    records = [file for file in files if file.name == "runs.jsonl.gz"]
    assert len(records) >= 15
    for file in (*records, *(file for file in files if file.name == "study.json")):
        data = file.read_bytes()
        text = (gzip.decompress(data) if file.suffix == ".gz" else data).decode()
        assert PATH.findall(text) == [], file
