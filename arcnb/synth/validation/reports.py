"""How many tasks of a source were taken, and why the others were not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class TaskReport:
    """Counts of tasks: accepted, rejected by reason, both by origin (generator or source).

    programs_dropped: tasks that were taken without their program, because it does not parse or defines no
    `transform`. core_seconds: wall time it took, times the processes that worked.
    """

    accepted: int = 0
    programs_dropped: int = 0
    core_seconds: float = 0.0
    rejected: Counter = field(default_factory=Counter)
    accepted_by: Counter = field(default_factory=Counter)
    rejected_by: Counter = field(default_factory=Counter)

    @property
    def seen(self) -> int:
        """Tasks that were judged."""
        return self.accepted + self.rejected.total()

    def accept(self, origin: str) -> None:
        """Count one task taken."""
        self.accepted += 1
        self.accepted_by[origin] += 1

    def reject(self, reason: str, origin: str) -> None:
        """Count one task not taken."""
        self.rejected[reason] += 1
        self.rejected_by[origin] += 1

    def add(self, made: TaskReport, left_out: Counter, why: str) -> None:
        """Count what another report has, but so many of its accepted tasks, by origin, as rejected: `why`."""
        self.accepted += made.accepted - left_out.total()
        self.programs_dropped += made.programs_dropped
        self.core_seconds += made.core_seconds
        self.rejected += made.rejected + Counter({why: left_out.total()})
        self.accepted_by += made.accepted_by - left_out
        self.rejected_by += made.rejected_by + left_out

    def acceptance(self, origin: str) -> float:
        """The fraction taken of an origin's tasks; 1 while there are none."""
        seen = self.accepted_by[origin] + self.rejected_by[origin]
        return self.accepted_by[origin] / seen if seen else 1.0

    @property
    def tasks_per_second_per_core(self) -> float:
        """Accepted tasks; 0 where no time was taken."""
        return self.accepted / self.core_seconds if self.core_seconds else 0.0

    def origins(self) -> pd.DataFrame:
        """Tasks taken and rejected of every generator or source, most taken first."""
        import pandas as pd

        names = [name for name, _ in (self.accepted_by + self.rejected_by).most_common()]
        columns = {
            "taken": [self.accepted_by[name] for name in names],
            "rejected": [self.rejected_by[name] for name in names],
            "share taken": [round(self.acceptance(name), 3) for name in names],
        }
        return pd.DataFrame(columns, index=pd.Index(names, name="origin")).sort_values(
            ["taken", "rejected"], ascending=False, kind="stable"
        )

    def rows(self) -> list[tuple[str, int]]:
        """(outcome, tasks): accepted first, then the reasons by falling count."""
        dropped = [("accepted, program dropped", self.programs_dropped)] if self.programs_dropped else []
        return [("accepted", self.accepted), *dropped, *self.rejected.most_common()]

    def __repr__(self) -> str:
        return f"<TaskReport of {self.seen:,}: " + ", ".join(f"{name} {n:,}" for name, n in self.rows()) + ">"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{name}</td><td>{count:,}</td></tr>" for name, count in self.rows())
        rate = self.tasks_per_second_per_core
        speed = f"<p>{rate:.1f} tasks a second and core</p>" if rate else ""
        return f"<table><tr><th>outcome</th><th>of {self.seen:,} tasks</th></tr>{rows}</table>{speed}"
