"""How many tasks of a source were taken, and why the others were not."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class TaskReport:
    """Counts of tasks: accepted, rejected by reason, both by origin (generator or source).

    lines_removed: statements without effect that were taken out of programs. programs_dropped: tasks that
    were taken without their program, because it does not parse or defines no `transform`.
    """

    accepted: int = 0
    lines_removed: int = 0
    programs_dropped: int = 0
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

    def acceptance(self, origin: str) -> float:
        """The fraction taken of an origin's tasks; 1 while there are none."""
        seen = self.accepted_by[origin] + self.rejected_by[origin]
        return self.accepted_by[origin] / seen if seen else 1.0

    def rows(self) -> list[tuple[str, int]]:
        """(outcome, tasks): accepted first, then the reasons by falling count."""
        dropped = [("accepted, program dropped", self.programs_dropped)] if self.programs_dropped else []
        return [("accepted", self.accepted), *dropped, *self.rejected.most_common()]

    def __repr__(self) -> str:
        return f"<TaskReport of {self.seen:,}: " + ", ".join(f"{name} {n:,}" for name, n in self.rows()) + ">"

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><td>{name}</td><td>{count:,}</td></tr>" for name, count in self.rows())
        return f"<table><tr><th>outcome</th><th>of {self.seen:,} tasks</th></tr>{rows}</table>"
