import inspect
from dataclasses import fields

from polydice.cli import COMMANDS
from polydice.studies.command import study
from polydice.suggest import MEANT, SYNONYMS, meant
from polydice.training.config import Settings
from polydice.training.predict_command import predict


def test_every_synonym_means_something_that_is_there() -> None:
    options = {field.name for field in fields(Settings)} | {*inspect.signature(study).parameters, *COMMANDS}
    assert SYNONYMS.keys() <= options | {*inspect.signature(predict).parameters}
    assert len(MEANT) == sum(len(words.split()) for words in SYNONYMS.values()), "no word means two things"


def test_a_synonym_counts_only_where_it_leads() -> None:
    assert meant("lr", ["rate", "power"]) == "rate"
    assert meant("lr", ["epochs", "power"]) == ""
    assert meant("Batch_Size", ["batch"]) == "batch"
