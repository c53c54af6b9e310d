"""What multi_turn.py has to do, what waits for what, and what is done: files below its folder say, no process has to.

A *training* is a process of its own. A *unit* is a piece of sampling; sampler processes keep one engine and take unit
after unit. DIR/done/NAME.json says that one is done (with "skipped" for what cannot be done, and then neither
can what needs it), DIR/failed/NAME.json how often it failed in this call, DIR/locks/NAME that somebody is at it.
"""

import fcntl
import json
from contextlib import contextmanager
from pathlib import Path

from solved_counts import write_json

ARMS = ("untrained", "sft", "frozen", "onpolicy", "onpolicy-warm")
ATTEMPTS = 2  # in one call


class Plan:
    """needs: name -> names that must be done before, in the order in which things are begun.

    arms: of ARMS. seeds: of sampling; train_seeds: of training, sampling seed s is of the model that was trained with seed
    s % train_seeds.
    """

    def __init__(self, out: Path, arms, seeds: int, train_seeds: int = 1):
        self.out, self.arms, self.seeds, self.train_seeds = (
            out,
            tuple(arms),
            range(seeds),
            min(seeds, train_seeds),
        )
        self.trainings = self._trainings()
        self.units = self._units()
        self.needs = self.trainings | self.units

    def _trainings(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        if {"sft", "frozen", "onpolicy-warm"} & set(self.arms):
            found["data"] = ("sample",)
        for seed in range(self.train_seeds):
            if {"sft", "onpolicy-warm"} & set(self.arms):
                found[f"sft-{seed}"] = ("data",)
        for seed in range(self.train_seeds):
            own = {
                "onpolicy": (),
                "frozen": ("data",),
                "onpolicy-warm": (f"sft-{seed}",),
            }
            found |= {f"{arm}-{seed}": needs for arm, needs in own.items() if arm in self.arms}
        return found

    def _units(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {"sample": ()} if "data" in self.trainings else {}
        for seed in self.seeds:  # what needs no training comes first: it can be compared alone
            found[f"first@{seed}"] = ()
            if "untrained" in self.arms:
                found[f"untrained@{seed}"] = (f"first@{seed}",)
            found[f"rest@{seed}"] = (f"first@{seed}",)
        for seed in self.seeds:
            for arm in ("onpolicy", "frozen", "onpolicy-warm", "sft"):
                if arm in self.arms:
                    found[f"{arm}@{seed}"] = (f"first@{seed}", self.training_of(arm, seed))
        return found

    def training_of(self, arm: str, seed: int) -> str:
        return f"{arm}-{seed % self.train_seeds}"

    # ------------------------------------------------------------ state

    def done_path(self, name: str) -> Path:
        return self.out / "done" / f"{name}.json"

    def is_done(self, name: str) -> bool:
        return self.done_path(name).exists()

    def facts(self, name: str) -> dict:
        return json.loads(self.done_path(name).read_text())

    def finish(self, name: str, facts: dict) -> None:
        write_json(self.done_path(name), facts)

    def fail(self, name: str, why: str) -> None:
        write_json(self.out / "failed" / f"{name}.json", [*self.failures(name), why])

    def failures(self, name: str) -> list[str]:
        path = self.out / "failed" / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else []

    def forget_failures(self) -> None:
        for path in (self.out / "failed").glob("*.json"):
            path.unlink()

    def is_hopeless(self, name: str) -> bool:
        """Whether it will not be done in this call: it failed too often, or what it needs did or was skipped."""
        if self.is_done(name):
            return "skipped" in self.facts(name)
        return len(self.failures(name)) >= ATTEMPTS or any(map(self.is_hopeless, self.needs[name]))

    def is_ready(self, name: str) -> bool:
        if self.is_done(name) or self.is_hopeless(name):
            return False
        return all(map(self.is_done, self.needs[name]))

    def ready(self, kind: dict) -> list[str]:
        """What of the trainings, or the units, can be begun (or is under way)."""
        return [name for name in kind if self.is_ready(name)]

    def is_settled(self, names) -> bool:
        return all(self.is_done(name) or self.is_hopeless(name) for name in names)

    @contextmanager
    def claim(self, names):
        """The first of the names that nobody else is at, held for the block; None where there is none. What holds it is
        the process: one that is killed lets go."""
        path = self.out / "locks"
        path.mkdir(parents=True, exist_ok=True)
        for name in names:
            with open(path / name, "w") as file:
                try:
                    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # of this process, not of its children
                except OSError:
                    continue
                if self.is_ready(name):  # another may just have done it
                    yield name
                    return
        yield None

    @contextmanager
    def held(self, name: str):
        """Waits for another process that is at it."""
        path = self.out / "locks"
        path.mkdir(parents=True, exist_ok=True)
        with open(path / name, "w") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            yield
