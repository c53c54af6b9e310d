"""What processes that train together print: passed on line by line, and why they failed."""

import re
import signal
import subprocess
from collections.abc import Callable

from arcnb.machine.processes import signal_name

# A line of a traceback's end. The launcher's own says only that a process failed.
_EXCEPTION = re.compile(
    r"^(?:\[rank\d+\]: ?)?(?:\w+\.)*(?!ChildFailedError)(\w*(?:Error|Exception|Interrupt): .*)$", re.MULTILINE
)
_ENDED = re.compile(r"^ *rank +: (\d+) \(.*\n *exitcode +: -(\d+)", re.MULTILINE)  # of the launcher's report
_CAUSE = "Root Cause"  # behind this it names the first; others are its own work, by SIGKILL where they hang
_OF_OTHERS = re.compile(r"\bpeer\b|remote (?:process|worker)", re.I)  # gloo's and NCCL's words
_OF_LAUNCHER = signal.SIGTERM  # what it ends the others with


def copy_lines(process: subprocess.Popen, write: Callable[[str], object]) -> None:
    """Give each line that the process prints to `write` and to our own output, until there are no more."""
    for line in process.stdout or ():
        write(line)
        print(line, end="", flush=True)


def failure(text: str) -> str:
    """Why processes failed, from what they printed: the one that a signal killed, else the first
    exception, which another process's death may have caused. A process whose threads outlive its exception
    aborts: the exception is why."""
    found = _EXCEPTION.search(text)
    for rank, number in _ENDED.findall(text.rpartition(_CAUSE)[2]):
        if int(number) != _OF_LAUNCHER and not (found and int(number) == signal.SIGABRT):
            name = signal_name(int(number))
            return f"process {rank} was killed by {name}" + (
                " (by hand, or for want of memory)" if name == "SIGKILL" else ""
            )
    return found[1] if found else "no exception was printed"


def is_consequence(sentence: str) -> bool:
    """Whether a failure is that of a process which lost the connection to another one."""
    return _OF_OTHERS.search(sentence) is not None
