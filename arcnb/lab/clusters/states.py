"""What a scheduler says of a task."""

from dataclasses import dataclass

WAITING, HELD, RUNNING, ENDED = "waiting", "held", "running", "ended"


@dataclass(frozen=True)
class TaskState:
    """`phase` in one of four words, `text` in the scheduler's: "PENDING (Resources)", "NODE_FAIL"."""

    phase: str
    text: str
    node: str = ""
    task: str = ""  # the scheduler's name of it, where it is known only now
