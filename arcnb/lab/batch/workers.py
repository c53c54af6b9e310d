"""Running queued runs on this machine: several at once, on GPUs of their own or shared ones.

Every run is an `arcnb run --resume FOLDER` in a process and session of its own, so one that fails or dies
takes nobody along. SIGTERM, SIGINT and SIGHUP are passed on, once each: the runs save what they have, and the
rest is not started. The end of the time does the same by SIGTERM. When this process is killed, the kernel
tells the runs by SIGTERM.
"""

import contextlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from arcnb.errors import ArcnbError, reason
from arcnb.lab.runs.run import Run
from arcnb.machine.gpus import VARIABLE, usable_names
from arcnb.machine.processes import start_session, threads_each

LOG = "log.txt"  # in the run folder: what the run's process printed
ENDED = ("done", "failed", "preempted", "killed")

Slot = dict[str, str]  # environment variables of whoever runs in it


@dataclass(frozen=True)
class Ending:
    """What ended it all before its end: a signal, or the time."""

    stopped_by: int | None = None
    time_is_up: bool = False


def slots(jobs: int | None = None, gpus_each: int = 1, per_gpu: int = 1) -> list[Slot]:
    """One slot for each run that may go on at the same time, slots of different GPUs first. `jobs` None: as
    many as there are GPUs for, `per_gpu` runs on each (on each group, with several GPUs a run); one without
    GPUs. With `gpus_each` 0 no GPU is handed out, and all runs see all of them."""
    gpus = usable_names()
    for name, least, value in (("jobs", 1, jobs), ("gpus", 0, gpus_each), ("per-gpu", 1, per_gpu)):
        if value is not None and value < least:
            raise ArcnbError(f"--{name} must be at least {least}, got {value}")
    if not gpus or gpus_each == 0:
        return [_cores(jobs or 1) for _ in range(jobs or 1)]
    groups = [gpus[start : start + gpus_each] for start in range(0, len(gpus) - gpus_each + 1, gpus_each)]
    if not groups:
        raise ArcnbError(f"a run is to have {gpus_each} GPUs, and there are {len(gpus)}")
    places = [{VARIABLE: ",".join(group)} for group in groups] * per_gpu
    if jobs is not None and jobs > len(places):
        raise ArcnbError(
            f"there is room for {len(places)} runs at once on {len(gpus)} GPUs, not for {jobs}; lower "
            "--jobs, or share GPUs by --per-gpu, or all of them by --gpus 0"
        )
    chosen = places[:jobs]
    return [slot | _cores(len(chosen) * gpus_each) for slot in chosen]


def _cores(n_processes: int) -> Slot:
    """What one of so many processes gets of the cores. What the environment says goes first; one alone has
    them all, and its own processes share them among themselves."""
    return {} if n_processes == 1 or "OMP_NUM_THREADS" in os.environ else threads_each(n_processes)


def run_queued(
    runs: Sequence[Run],
    places: Sequence[Slot],
    tell: Callable[[Run, int | None], None],
    seconds: float = 0,
    apart: float = 0,
) -> Ending:
    """Run them in their order, one in each place at a time; `tell` hears of each start (None) and end (exit
    code). With a single place the run's progress goes to this terminal, else to log.txt in its folder.

    `seconds`: after that time (0: never) no run is started, and those at work are told to save and stop.
    `apart`: seconds between two starts on the same GPU.

    A run that came to an end while it waited here (cancelled, or run by somebody else) is left as it is, and
    one that cannot be started fails alone."""
    waiting = [(run, planned_attempt(run)) for run in runs]
    free = list(places)
    deadline = time.monotonic() + seconds if seconds else math.inf
    ready_at: dict[str, float] = {}  # by GPU
    time_is_up = False
    with at_work() as group:
        while group.working or (waiting and not group.received):
            now = time.monotonic()
            if now >= deadline and not group.received:
                time_is_up = True
                group.received.append(signal.SIGTERM)
            ready = [slot for slot in free if ready_at.get(slot.get(VARIABLE, ""), 0) <= now]
            if waiting and ready and not group.received:
                slot = ready[0]
                run, planned = waiting.pop(0)
                code = group.begin(run, planned, slot, quiet=len(places) > 1)
                if code is None:
                    free.remove(slot)
                    ready_at[slot.get(VARIABLE, "")] = now + apart
                tell(run, code)
                continue
            for run, slot, code in group.ended():
                free.append(slot)
                tell(run, code)
    return Ending(group.received[0] if group.received and not time_is_up else None, time_is_up)


@dataclass
class AtWork:
    """Processes of runs. received: stop signals that this process got, as they come."""

    received: list[int]
    working: list[tuple[Run, Slot, subprocess.Popen[bytes]]] = field(default_factory=list)
    _passed_on: int = 0

    def begin(self, run: Run, planned: tuple[object, ...] | None, slot: Slot, quiet: bool) -> int | None:
        """Starts the run's process; the exit code of one that cannot start, or has ended since `planned`."""
        begun = _begin(run, planned, slot, quiet)
        if isinstance(begun, int):
            return begun
        self.working.append((run, slot, begun))
        return None

    def ended(self) -> list[tuple[Run, Slot, int]]:
        """Passes signals on, waits a moment, and gives those that have ended, with their exit codes."""
        for number in self.received[self._passed_on :]:
            self._passed_on += 1
            for _, _, process in self.working:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)
        time.sleep(0.05)
        over = [(run, slot, process.poll()) for run, slot, process in self.working]
        self.working = [one for one, (_, _, code) in zip(self.working, over, strict=True) if code is None]
        return [(run, slot, code) for run, slot, code in over if code is not None]


@contextlib.contextmanager
def at_work() -> Iterator[AtWork]:
    """Runs that this process has at work; after an error they are told to save, and waited for."""
    with _stop_signals() as received:
        group = AtWork(received)
        try:
            yield group
        finally:
            for _, _, process in group.working:  # only after an error of ours
                process.terminate()
            for _, _, process in group.working:  # they save; whoever comes next finds them ended
                process.wait()


def planned_attempt(run: Run) -> tuple[object, ...] | None:
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
    attempt = planned_attempt(run)
    if attempt is None:
        return 1
    if attempt != planned and attempt[0] in ENDED:
        return 0 if attempt[0] == "done" else 1
    try:
        with open(run.path / LOG, "ab") as log:
            command = [sys.executable, "-P", "-m", "arcnb.lab.cli", "run", "--resume", str(run.path)]
            errors = log if quiet else None
            return start_session(command, env=os.environ | slot, stdout=log, stderr=errors)
    except OSError as error:
        print(f"arcnb: cannot start {run.path.name}: {reason(error)}", file=sys.stderr)
        return 1


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
