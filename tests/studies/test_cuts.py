from dataclasses import replace
from pathlib import Path

import pytest

from polydice.cli import main
from polydice.data.cases import Case, DataError, Dataset
from polydice.data.generate import generated_folder
from polydice.data.readers import open_dataset
from polydice.data.readers.decathlon import read_channels
from polydice.studies.cuts import refuse_another_cut, refuse_other_annotations
from polydice.studies.study import open_study
from tests.data.test_folds import Member
from tests.studies.tiny import RECIPE


def test_a_study_does_not_go_on_with_other_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would test cases in one run that it trained on in the run of another loss."""
    data = generated_folder(tmp_path, 18, size=32, seed=1).rename(tmp_path / "lesions")
    recipe, out = tmp_path / "mine.toml", tmp_path / "study"
    recipe.write_text(
        RECIPE.replace("generate = { count = 18, size = 32, seed = 1 }", 'path = "lesions"')
        .replace("epochs = 2", "epochs = 1")
        .replace("[-0.2, 0.5]", "[0.5]")
    )
    command = ["study", str(recipe), "--data", str(tmp_path), "--out", str(out), "--cache", str(tmp_path / "cache")]
    assert main([*command, "--jobs", "1"]) == 0
    study = open_study(out)
    refuse_another_cut(study, study.runs[0].dataset, open_dataset(data).cases)  # nothing has changed

    results = sorted(out.rglob("result.json"))
    missing, kept = results[-1], {path: path.read_bytes() for path in results[:-1]}
    missing.unlink()
    names = [case.id for case in open_dataset(data).cases]
    groups = [f"{name},pair{place // 2}" for place, name in enumerate(names)]
    (data / "groups.csv").write_text("\n".join(["case,group", *groups]) + "\n")
    capsys.readouterr()
    assert main([*command, "--jobs", "1"]) == 2
    told = capsys.readouterr().err
    assert f"polydice study: {out} was begun with another cut of {data}" in told
    assert "as one of the group" in told
    assert "take another folder, or give the groups of before in groups.csv" in told
    assert not missing.exists()
    assert {path: path.read_bytes() for path in kept} == kept

    groups = [f"{name},{name}" for name in names]  # those of before
    (data / "groups.csv").write_text("\n".join(["case,group", *groups]) + "\n")
    assert main([*command, "--jobs", "1"]) == 0
    assert missing.exists()


def test_a_study_does_not_go_on_with_other_annotations(tmp_path: Path) -> None:
    study = open_study(Path(__file__).parents[2] / "results" / "paper" / "hippocampus-small")
    run, result = next(study.finished())
    names = [case["id"] for case in result["cases"]]
    cases = tuple(Case(name, name, (), ()) for name in names)
    dataset = Dataset("Hippocampus", tmp_path, ("background", "anterior", "posterior"), "mr", cases, read_channels)
    refuse_other_annotations(study, run.dataset, dataset)
    partly = replace(dataset, cases=(replace(cases[0], annotated=(0, 2)), *cases[1:]))
    refuse_other_annotations(study, "another", partly)
    told = rf"{names[0]} had background, anterior, posterior, and has background, posterior now\. Runs before and"
    with pytest.raises(DataError, match=told):
        refuse_other_annotations(study, run.dataset, partly)


def test_other_cases_are_named(tmp_path: Path) -> None:
    """The kept runs on Hippocampus know each volume as a group: their report is as it was, but they do not go on."""
    study = open_study(Path(__file__).parents[2] / "results" / "paper" / "hippocampus-small")
    run, result = next(study.finished())
    cases = [case for _, each in study.finished() for case in each["cases"]]
    assert all(case["id"] == case["group"] for case in cases)
    members = {case["id"]: Member(case["id"], case["group"]) for case in cases}
    refuse_another_cut(study, run.dataset, list(members.values()))
    people = [Member(name, f"person{(int(name[-3:]) + 1) // 2:03d}") for name in members]
    told = r"tested hippocampus_\d+ as one of the group hippocampus_\d+, and now it is one of person"
    with pytest.raises(DataError, match=told):
        refuse_another_cut(study, run.dataset, people)
    fewer = [member for member in members.values() if member.id != result["cases"][0]["id"]]
    with pytest.raises(DataError, match=f"tested {result['cases'][0]['id']}, which it does not test now"):
        refuse_another_cut(study, run.dataset, fewer)
