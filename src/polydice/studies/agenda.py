"""What is left to train in a study, and in which order: first the runs for the choice of values, and then those that
wait for a choice, once it is made."""

from polydice.studies.engine import Say, to_stderr
from polydice.studies.recipe import Planned
from polydice.studies.selection import choose, has_diverged
from polydice.studies.study import Study

Tuned = tuple[str, str, str]  # data set, network and loss


class Agenda:
    """Keeps `study` up to date: a choice is written down when the last run that it needs has ended."""

    def __init__(self, study: Study, say: Say = to_stderr) -> None:
        self.study, self.say = study, say
        for tuned in dict.fromkeys(map(_tuned, study.tuning)):  # it may have been stopped just before
            if study.choice(*tuned) is None:
                self._decide(tuned)

    def ready(self) -> list[Planned]:
        """The runs that can be trained now."""
        return [run for run in (*self.study.tuning, *self.study.runs) if not run.open and self.is_left(run)]

    def counts(self) -> tuple[int, int]:
        """How many runs are left: for the choice of values, and to compare."""
        return len([*filter(self.is_left, self.study.tuning)]), len([*filter(self.is_left, self.study.runs)])

    def then(self, ended: Planned) -> list[Planned]:
        """The runs that can be trained now that this one has ended."""
        # Two runs that end at the same moment are told of one after the other, and the first already has the result of
        # both: then the choice is made.
        return self._decide(_tuned(ended)) if ended.tuning and self.study.choice(*_tuned(ended)) is None else []

    def failed(self) -> list[Planned]:
        """The failed runs that are still needed. If a choice could be made, failed runs for it are not."""
        open_ones = {_tuned(run) for run in self.study.runs if run.open}
        tuning = [run for run in self.study.tuning if _tuned(run) in open_ones]
        return [run for run in (*tuning, *self.study.runs) if self.study.state(run) == "failed"]

    def undecided(self) -> list[str]:
        """The losses whose value could not be chosen, since runs for it have failed, in words."""
        lines = []
        for dataset, model, loss in dict.fromkeys(_tuned(run) for run in self.failed() if run.tuning):
            waiting = sum(run.open and _tuned(run) == (dataset, model, loss) for run in self.study.runs)
            lines.append(
                f"{loss} on {dataset} with {model}: no value could be chosen, since runs for the choice have failed; "
                f"{waiting} runs wait for it"
            )
        return lines

    def is_left(self, run: Planned) -> bool:
        """Whether it is to be trained, now or later. A choice that is made needs no more runs, and a run for a choice
        that has diverged would diverge again. What a record has of a run stands, a divergence too."""
        if self.study.state(run) not in ("waiting", "failed") or self.study.recorded(run) is not None:
            return False
        return not run.tuning or (self.study.choice(*_tuned(run)) is None and not has_diverged(self.study, run))

    def _decide(self, tuned: Tuned) -> list[Planned]:
        choice = choose(self.study, *tuned)
        if choice is None:
            return []
        waiting = [run for run in self.study.runs if run.open and _tuned(run) == tuned]
        self.study = self.study.with_choice(choice)
        dataset, model, loss = tuned
        scores = (
            f"{value} {'diverged' if score is None else f'{100 * score:.2f}'}"
            for value, score in choice["validation"].items()
        )
        self.say(f"{loss} on {dataset} with {model}: {choice['value']} is chosen (validation: {'; '.join(scores)})")
        return [run for run in map(self.study.settled, waiting) if self.is_left(run)]


def _tuned(run: Planned) -> Tuned:
    return run.dataset, run.model, run.loss
