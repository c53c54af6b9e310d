"""Running queued runs on this machine: several at once, each with GPUs of its own.

Every run is an `arcnb run --resume FOLDER` in a process and session of its own, so one that fails or dies
takes nobody along. SIGTERM, SIGINT and SIGHUP are passed on, once each: the runs save what they have, and the
rest is not started. When this process is killed, the kernel tells the runs by SIGTERM.
"""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.lab.runs import provenance
from arcnb.lab.runs.run import Run
from arcnb.machine.processes import ending_with_parent

LOG = "log.txt"  # in the run folder: what the run's process printed
VISIBLE = "CUDA_VISIBLE_DEVICES"

ENDED = ("done", "failed", "preempted", "killed")

Slot = dict[str, str]  # environment variables of whoever runs in it


@dataclass
class Outcome:
    """How many runs ended how, by exit code; the signal that stopped it all, if one did."""

    codes: dict[Path, int]
    stopped_by: int | None = None

    @property
    def code(self) -> int:
        if self.stopped_by is not None:
            return 128 + self.stopped_by
        return 1 if any(self.codes.values()) else 0


def visible_gpus() -> list[str]:
    """Names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES has them. CUDA itself stops
    reading at the first negative number, so -1 alone hides all of them."""
    if VISIBLE in os.environ:
        names = [name.strip() for name in os.environ[VISIBLE].split(",") if name.strip()]
        return list(itertools.takewhile(lambda name: not name.startswith("-"), names))
    return [str(number) for number in range(len(provenance.gpus()))]


def slots(jobs: int | None, gpus_each: int) -> list[Slot]:
    """One slot for each run that may go on at the same time. `jobs` None: as many as there are GPUs for, or
    one. With `gpus_each` 0 no GPU is handed out, and all runs see all of them."""
    gpus = visible_gpus()
    if jobs is not None and jobs < 1:
        raise ArcnbError(f"--jobs must be at least 1, got {jobs}")
    if gpus_each < 0:
        raise ArcnbError(f"--gpus must not be negative, got {gpus_each}")
    if not gpus or gpus_each == 0:
        return [{} for _ in range(jobs or 1)]
    groups = [gpus[start : start + gpus_each] for start in range(0, len(gpus) - gpus_each + 1, gpus_each)]
    if not groups:
        raise ArcnbError(f"a run is to have {gpus_each} GPUs, and there are {len(gpus)}")
    if jobs is not None and jobs > len(groups):
        raise ArcnbError(
            f"{jobs} runs at once need {jobs * gpus_each} GPUs, and there are {len(gpus)}; lower --jobs, "
            "or share them by --gpus 0"
        )
    return [{VISIBLE: ",".join(group)} for group in groups[: jobs or len(groups)]]


def run_queued(
    runs: Sequence[Run], places: Sequence[Slot], tell: Callable[[Run, int | None], None]
) -> Outcome:
    """Run them in their order, one in each place at a time; `tell` hears of each start (None) and end (exit
    code). With a single place the run's progress goes to this terminal, else to log.txt in its folder.

    A run that came to an end while it waited here (cancelled, or run by somebody else) is left as it is, and
    one that cannot be started fails alone."""
    waiting = [(run, _attempt(run)) for run in runs]
    free = list(reversed(places))
    working: list[tuple[Run, Slot, subprocess.Popen[bytes]]] = []
    outcome = Outcome({})
    with _stop_signals() as received:
        passed_on = 0
        try:
            while working or (waiting and not received):
                while waiting and free and not received:
                    run, planned = waiting.pop(0)
                    begun = _begin(run, planned, free[-1], quiet=len(places) > 1)
                    if isinstance(begun, int):
                        outcome.codes[run.path] = begun
                        tell(run, begun)
                    else:
                        working.append((run, free.pop(), begun))
                        tell(run, None)
                for number in received[passed_on:]:
                    passed_on += 1
                    for _, _, process in working:
                        with contextlib.suppress(ProcessLookupError):
                            process.send_signal(number)
                for entry in list(working):
                    run, slot, process = entry
                    if process.poll() is not None:
                        working.remove(entry)
                        free.append(slot)
                        outcome.codes[run.path] = process.returncode
                        tell(run, process.returncode)
                time.sleep(0.05)
        finally:
            for _, _, process in working:  # only after an error of ours
                process.terminate()
            for _, _, process in working:  # they save; whoever comes next finds them ended
                process.wait()
    outcome.stopped_by = received[0] if received else None
    return outcome


def _attempt(run: Run) -> tuple[object, ...] | None:
    """What changes when somebody runs or cancels it; None if its manifest cannot be read."""
    try:
        manifest = run.manifest
    except ArcnbError:
        return None
    return manifest["status"], manifest["end"], len(manifest["attempts"])


def _begin(
    run: Run, planned: tuple[object, ...] | None, slot: Slot, quiet: bool
) -> "subprocess.Popen[bytes] | int":
    """The run's process, or the exit code of one that cannot start or has ended since it was `planned`."""
    attempt = _attempt(run)
    if attempt is None:
        return 1
    if attempt != planned and attempt[0] in ENDED:
        return 0 if attempt[0] == "done" else 1
    try:
        return _start(run, slot, quiet)
    except ArcnbError as error:
        print(f"arcnb: {error}", file=sys.stderr)
        return 1


def _start(run: Run, slot: Slot, quiet: bool) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "arcnb.lab.cli", "run", "--resume", str(run.path)]
    try:
        with open(run.path / LOG, "ab") as log:
            return subprocess.Popen(
                command,
                env=os.environ | slot,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log if quiet else None,
                start_new_session=True,
                preexec_fn=ending_with_parent(),
            )
    except OSError as error:
        raise ArcnbError(f"cannot start {run.path.name}: {error.strerror or error}") from None


@contextlib.contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """The stop signals that this process got, as they come."""
    received: list[int] = []
    previous = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                previous[number] = signal.signal(number, lambda number, frame: received.append(number))
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
