"""What a search has done so far: a line a finished step, and the adapters on disk.

A step counts as done when its line is in the journal, which is the last thing that it does. A process that is
killed before leaves rows, task files or an adapter that the step, done again, finds or makes anew.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.machine.files import remove_oldest
from arcnb.machine.locks import locked
from arcnb.models.memory.shape import GIB

# Seconds that a line says its step took: start-up is loading the trainer, saving and switching adapters.
TIMES = ("sampling_seconds", "relabelling_seconds", "learning_seconds", "start_seconds")
PATIENCE = 90.0  # seconds to wait for the process that had a shard before


class StepJournal:
    """The steps of one shard, in a file of JSON lines: {"step", "round", "group", ...}."""

    def __init__(self, path: Path):
        self.path = path
        self._look_up()

    @contextmanager
    def alone(self, seconds: float = PATIENCE) -> Iterator[None]:
        """Only one process at a time works on a shard; the journal is read again when it is our turn.

        Waits for another that is ending (a killed run leaves processes that write down what they have);
        ArcnbError when it goes on.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with _alone_on(self.path, seconds) as supported:
            if not supported:
                print(f"{self.path.parent} has no file locks: see to it that no other process works in it")
            self._look_up()
            yield

    def find(self, step: str, round_: int, group: int) -> dict | None:
        """The line of a finished step; None for one still to do."""
        return self._done.get((step, round_, group))

    def add(self, step: str, round_: int, group: int, **facts) -> dict:
        """Write that a step is done; on disk when this returns."""
        line = {"step": step, "round": round_, "group": group, **facts}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab") as file:
            file.write(json.dumps(line).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.lines.append(line)
        self._done[step, round_, group] = line
        return line

    def seconds_by_round(self) -> list[dict]:
        """{"round", and the seconds of TIMES} of every round, all groups together."""
        sums: dict[int, dict[str, float]] = {}
        for line in self.lines:
            row = sums.setdefault(line["round"], dict.fromkeys(TIMES, 0.0))
            for name in TIMES:
                row[name] += line[name]
        return [{"round": round_, **row} for round_, row in sorted(sums.items())]

    def _look_up(self) -> None:
        """Read the lines; one that a kill cut off is taken out of the file, to be written again."""
        content = self.path.read_bytes() if self.path.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            os.truncate(self.path, len(whole))
        try:
            self.lines: list[dict] = [json.loads(line) for line in whole.splitlines()]
            self._done = {(line["step"], line["round"], line["group"]): line for line in self.lines}
        except (ValueError, KeyError, TypeError) as error:
            raise ArcnbError(f"{self.path} is damaged ({error!r}); it says which steps are done") from None


def _alone_on(steps: Path, seconds: float = PATIENCE) -> AbstractContextManager[bool]:
    held = f"another process is at work on {steps}"
    return locked(steps.with_suffix(".lock"), held, seconds)


def drop_other_divisions(folder: Path, n_shards: int) -> None:
    """Remove the steps of a search that was divided into another number of shards, and what was trained in
    them: it is trained again, and its hindsight tasks would be there twice.

    The steps go first, and say so long that the rest is there. ArcnbError while such a shard is at work.
    """

    def others(pattern: str) -> list[Path]:
        return [path for path in folder.glob(pattern) if not path.stem.endswith(f"-of-{n_shards:02d}")]

    for steps in others("steps-*.jsonl"):
        with _alone_on(steps):
            print(f"{steps.name} is of another number of processes: its trainings are done again")
            steps.unlink(missing_ok=True)
    for tasks in others("hindsight/round*.parquet"):
        tasks.unlink(missing_ok=True)
    for adapter in others("adapters/round*"):  # as the other processes of this division do
        shutil.rmtree(adapter, ignore_errors=True)


class AdapterFolder:
    """Adapters of rounds and groups below one folder, the older ones deleted beyond a budget in bytes."""

    def __init__(self, folder: Path, shard: tuple[int, int], max_gb: float):
        self.folder, self.max_bytes = folder, max_gb * GIB
        self._end = f"shard{shard[0]:02d}-of-{shard[1]:02d}"

    def path(self, round_: int, group: int) -> Path:
        return self.folder / f"round{round_:05d}-group{group:05d}-{self._end}"

    def tidy(self, needed: Iterable[Path]) -> list[Path]:
        """Delete the shard's earliest adapters until all fit the budget, never one `needed`; which went."""
        there = sorted(path for path in self.folder.glob(f"round*-{self._end}") if path.is_dir())
        return remove_oldest(there, self.max_bytes, set(needed))
