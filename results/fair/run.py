"""Trains studies of PLAN.md by its rules, some beside each other, and keeps their records here. From the root:

    python results/fair/run.py hippocampus-sgd hippocampus-adamw acdc --data data --out runs/fair --per-gpu 5

Each study goes on from its record in this folder. If the best rate of a loss is at an end of the list when all rates
are chosen, the list gets one more, four times beyond that end, and what was compared before is trained again; once on
either side. If a difference to Dice is undecided when all is trained, Hippocampus and Kvasir-SEG get the replicates of
their second look, unless --first-look leaves that for later. After --minutes, or a signal, all stop; records are
packed, and recipes whose lists or replicates have grown are written here. The same command goes on.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from types import FrameType

import check

HERE = Path(__file__).parent
SECOND_LOOK = {"hippocampus-sgd": 4, "hippocampus-adamw": 4, "kvasir": 5}  # replicates
PLANNED = {  # the ends of the lists as they were planned: each may be passed once
    "hippocampus-sgd": (0.0025, 0.64),
    "hippocampus-adamw": (0.00002, 0.00512),
    "acdc": (0.01, 0.64),
    "kvasir": (0.0025, 0.16),
}
BASELINES = ("Dice", "Dice + cross-entropy")
RATES = re.compile(r"^rate = \[(.*)\]$", re.MULTILINE)


def rates_in(recipe: str) -> list[str]:
    """Those that are chosen from; none where nothing is chosen."""
    listed = RATES.search(recipe)
    return listed[1].split(", ") if listed else []


def ends(rates: list[str], chosen: list[dict]) -> set[str]:
    """At which ends of the list a loss has its best rate."""
    best = {float(choice["value"].removeprefix("rate=")) for choice in chosen}
    return {side for side, rate in (("low", rates[0]), ("high", rates[-1])) if float(rate) in best}


def grown(rates: list[str], planned: tuple[float, float]) -> set[str]:
    """At which ends the list is longer than it was planned."""
    low, high = float(rates[0]) < planned[0], float(rates[-1]) > planned[1]
    return {side for side, longer in (("low", low), ("high", high)) if longer}


def longer(recipe: str, sides: set[str]) -> str:
    rates = rates_in(recipe)
    lower = [f"{float(rates[0]) / 4:.10g}"] if "low" in sides else []
    higher = [f"{float(rates[-1]) * 4:.10g}"] if "high" in sides else []
    return RATES.sub(f"rate = [{', '.join([*lower, *rates, *higher])}]", recipe)


class Training:
    """A study that is trained, and how far it is."""

    def __init__(self, name: str, place: Path, options: list[str], first_look: bool) -> None:
        self.name, self.folder, self.options = name, place / name, options
        self.recipe = place / f"{name}.toml"
        place.mkdir(parents=True, exist_ok=True)
        begun = self.folder / "recipe.toml"  # which may have grown
        shutil.copy(begun if begun.exists() else HERE / f"{name}.toml", self.recipe)
        shutil.copy(HERE / "grafted.py", place)  # a recipe names it, and finds it beside itself
        if (HERE / name).is_dir() and not self.folder.exists():
            shutil.copytree(HERE / name, self.folder)
        self.tuned = not rates_in(self._text())
        self.looked = first_look or name not in SECOND_LOOK
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "polydice", "study", self.recipe, "--out", self.folder, *self.options]
        with self.folder.with_suffix(".log").open("a") as log:  # a session of its own, so that all of it can be ended
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def stop(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait()
        end = monotonic() + 10
        with suppress(ProcessLookupError):  # its workers put away what they hold, and follow
            while monotonic() < end:
                os.killpg(self.process.pid, 0)
                sleep(0.1)
            os.killpg(self.process.pid, signal.SIGKILL)

    def step(self) -> bool:
        """Looks at it, and does what the plan says; whether it goes on."""
        if not self.tuned:
            self._extend()
        if self.process.poll() is None:
            return True
        if self.process.returncode or not self.tuned or self.looked:
            return False
        self.looked = True
        if not self._undecided():
            return False
        self._write(re.sub(r"^replicates = .*$", f"replicates = {SECOND_LOOK[self.name]}", self._text(), flags=re.M))
        return True

    def keep(self) -> None:
        """Records what is finished. What was compared before all rates are chosen does not count."""
        self.stop()
        if not self.tuned:
            self._forget_compared()
        self._pack(HERE / self.name)
        shutil.copy(self.folder / "recipe.toml", HERE / f"{self.name}.toml")

    def _text(self) -> str:
        return self.recipe.read_text(encoding="utf-8")

    def _write(self, recipe: str) -> None:
        """Goes on with another recipe."""
        self.stop()
        self.recipe.write_text(recipe, encoding="utf-8")
        self.start()

    def _extend(self) -> None:
        path, recipe = self.folder / "chosen.json", self._text()
        chosen = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        rates = rates_in(recipe)
        losses = len(re.findall(r'^"', recipe.partition("[losses]")[2], re.MULTILINE))
        if sum(len(choice["validation"]) == len(rates) for choice in chosen) < losses:
            return
        sides = ends(rates, chosen) - grown(rates, PLANNED[self.name])
        if sides:
            self.stop()
            self._forget_compared()
            self._write(longer(recipe, sides))
        self.tuned = not sides

    def _forget_compared(self) -> None:
        for run in self.folder.glob("runs/**/replicate-*"):
            shutil.rmtree(run)

    def _pack(self, out: Path) -> None:
        subprocess.run([sys.executable, "-m", "polydice", "pack", self.folder, "--out", out], check=True)

    def _undecided(self) -> bool:
        looked_at = self.folder.with_suffix(".look")
        self._pack(looked_at)
        rows = [pair for found in check.study(looked_at).values() for pair in found.items()]
        asked = [row["to"].get("Dice", {}) for loss, row in rows if loss not in BASELINES]  # by the hypotheses
        return any(to.get("verdict", "undecided") == "undecided" for to in asked if to)  # none: too few runs


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains studies of PLAN.md.")
    parser.add_argument("studies", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/fair"))
    parser.add_argument("--per-gpu", default="5")
    parser.add_argument("--beside", type=int, default=2, help="studies at a time")
    parser.add_argument("--first-look", action="store_true", help="no replicates are added")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    given = parser.parse_args()
    options = ["--data", str(given.data), "--cache", str(given.out / "cache"), "--per-gpu", given.per_gpu]
    waiting, running, begun, end = [*given.studies], [], [], monotonic() + 60 * given.minutes

    def interrupted(number: int, frame: FrameType | None) -> None:
        nonlocal end
        end = 0.0

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, interrupted)
    try:
        while (waiting or running) and monotonic() < end:
            while waiting and len(running) < given.beside:
                running.append(Training(waiting.pop(0), given.out, options, given.first_look))
                begun.append(running[-1])
            sleep(0.5)
            running = [study for study in running if study.step()]
    finally:  # no study trains on alone, whatever has happened
        for study in begun:
            study.stop()
        for study in begun:
            study.keep()


if __name__ == "__main__":
    main()
