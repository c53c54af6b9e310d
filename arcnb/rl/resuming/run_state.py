"""What a checkpoint keeps of a GRPO run beside weights and optimizer."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from arcnb.machine.files import write_whole
from arcnb.machine.reading import read_object
from arcnb.models.training.checkpoints import checkpoint_problem, step_of
from arcnb.rl.resuming.identity import evaluated_before, saved_state
from arcnb.rl.resuming.run_folder import PAGES, ROLLBACKS, keep_best
from arcnb.rl.rows.history import SignalHistory
from arcnb.rl.watching.guard import CollapseMonitor


@dataclass
class RunState:
    """output: the run folder. best: {"step", "score"} of the best evaluation so far. It is recorded
    before its checkpoint is saved and kept in best/; where that does not come about, `recall_best`.

    rollbacks: how often the run went back to its best checkpoint; it outlives checkpoints in a file of its
    own. rollback_wanted: the guard's wish, for whoever calls `train()`. collapsed: the guard stopped the run.
    notes: what a reader of the curves has to know about resumes so far.
    """

    output: Path
    settings: dict
    history: SignalHistory
    monitor: CollapseMonitor
    best: dict | None = None
    rollback_wanted: bool = False
    collapsed: bool = False
    pages: list[Path] = field(default_factory=list)
    resumed_from: Path | None = None
    notes: list[str] = field(default_factory=list)

    def as_dict(self) -> dict:
        """Plain values for a checkpoint."""
        return {
            "settings": json.loads(json.dumps(self.settings)),
            "groups": self.history.as_dict(),
            "monitor": self.monitor.as_dict(),
            "best": self.best,
            "notes": self.notes,
        }

    def restore(self, state: dict) -> None:
        """The inverse of as_dict, settings apart.

        A run that the guard stopped, run again in its folder, is watched afresh: if the collapse stands, the
        guard stops it again within a window. With what its checkpoint keeps, the standing signals would not
        alarm any more, and it would go on unguarded.
        """
        if state:
            self.history.restore(state["groups"])
            self.monitor.restore(state["monitor"])
            if self.monitor.crossed and self.monitor.options.action != "warn":
                self.monitor.forget()
            self.best = state["best"]
            self.notes = list(state["notes"])

    def forget_held_out(self) -> None:
        """What was best so far was so on other tasks: the next evaluation is the first to compare with."""
        self.best = None
        self.monitor.best.pop("held_out", None)

    def keep_recorded_best(self) -> None:
        """Keep the best's checkpoint if that was not done: a kill may come between saving and keeping it."""
        if self.best:
            saved = self.output / "checkpoints" / f"checkpoint-{self.best['step']}"
            if checkpoint_problem(saved) is None:
                keep_best(saved, self.output / "best")

    def recall_best(self) -> None:
        """Make `best` the checkpoint in best/. Any other is of another run or of undone steps, whose weights
        do not exist any more."""
        kept = self.best_checkpoint
        if kept is None:
            self.best = None
        elif self.best and self.best["step"] != step_of(kept):
            other_tasks, _ = evaluated_before(kept, self.settings.get("eval_task_versions", {}))
            self.best = None if other_tasks else saved_state(kept).get("best")

    def find_pages(self) -> None:
        """Take over the pages of alarms that the run folder has, from before a resume."""
        self.pages = sorted(self.output.glob(PAGES), key=lambda page: page.stem)

    def new_page(self, step: int) -> Path:
        """Where an alarm's page goes: a step may have several, after a rollback or by an evaluation."""
        name = f"collapse-step{step:06d}"
        number = sum(page.name.startswith(name) for page in self.pages)
        return self.output / (f"{name}-{number + 1}.html" if number else f"{name}.html")

    @property
    def best_checkpoint(self) -> Path | None:
        """The complete checkpoint that is kept as the best, if there is one."""
        kept = [p for p in (self.output / "best").glob("checkpoint-*") if checkpoint_problem(p) is None]
        return kept[0] if kept else None

    @property
    def rollbacks(self) -> int:
        """Rollbacks so far, those before a resume included."""
        path = self.output / "checkpoints" / ROLLBACKS
        return read_object(path)["rollbacks"] if path.is_file() else 0

    def count_rollback(self) -> None:
        """One more, written down before the run goes on."""
        path = self.output / "checkpoints" / ROLLBACKS
        write_whole(path, json.dumps({"rollbacks": self.rollbacks + 1}))

    @property
    def learning_rate_factor(self) -> float:
        return self.monitor.options.learning_rate_factor**self.rollbacks
