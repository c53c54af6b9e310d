"""Calling a scheduler's own command line, and what it says of a task."""

import os
import shutil
import subprocess
from dataclasses import dataclass

from arcnb.errors import ArcnbError, reason

SECONDS = 60.0  # a scheduler that takes longer to answer is taken for unreachable

WHERE = {"slurm": "a login node of the Slurm cluster", "htcondor": "a submit node of the HTCondor pool"}


WAITING, HELD, RUNNING, ENDED = "waiting", "held", "running", "ended"


@dataclass(frozen=True)
class JobState:
    """`phase` in one of four words, `text` in the scheduler's: "PENDING (Resources)", "NODE_FAIL"."""

    phase: str
    text: str
    node: str = ""
    task: str = ""  # the scheduler's name of it, where it is known only now


class SchedulerError(ArcnbError):
    """A scheduler that is not installed, cannot be reached or refuses; one sentence with its own words.

    refused: it was asked, and said no: to this job or task, perhaps not to another.
    """

    def __init__(self, message: str, refused: bool = False):
        super().__init__(message)
        self.refused = refused


def owner(folder: str | os.PathLike[str]) -> int:
    """The number of the user whose run this is; of a folder that is gone, one's own."""
    try:
        return os.stat(folder).st_uid
    except OSError:
        return os.getuid()


def call(scheduler: str, *command: str, refused: str | None = None) -> str:
    """Standard output of one of the scheduler's tools. `refused` opens the sentence when it says no."""
    if shutil.which(command[0]) is None:
        raise SchedulerError(
            f"{scheduler} is not installed here: there is no {command[0]} in the PATH; "
            f"submit on {WHERE[scheduler]}"
        )
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise SchedulerError(f"{scheduler} does not answer: {command[0]} took over {SECONDS:.0f} s") from None
    except OSError as error:
        raise SchedulerError(f"cannot start {command[0]}: {reason(error)}") from None
    if result.returncode != 0:
        words = " ".join((result.stderr.strip() or result.stdout.strip()).split()) or "it gave no reason"
        opening = refused or f"{scheduler} does not answer"
        raise SchedulerError(
            f"{opening}: {words[:600]} ({command[0]}, exit code {result.returncode})", refused=True
        )
    return result.stdout
