"""A training over several nodes of a cluster, which share a disk.

The first node runs the notebook. Each other one runs `python -m arcnb.models.training.nodes FOLDER RANK`: it
carries out its part of whatever the first launches, and ends when FOLDER/done is there. In the environment of
all of them:

    ARCNB_NODES=2                       how many train
    ARCNB_NODES_FOLDER=RUN/nodes/JOB    where they meet: a folder of this job alone
    ARCNB_SERVER_NODE=2                 the rank of one more, which runs a server for them (`serve`)

Every node counts in RANK.alive, and says in launch-N.failed-RANK why its part of a launch failed; a server,
or the job's script where a node could do nothing at all, says so in RANK.failed. A node that failed, or whose
count stands still, fails the launch with its name. A stop needs no way of its own: the processes agree on one
that any of them was told.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.machine.beats import BEAT_SECONDS, LOST_SECONDS, beating, beside, text_in
from arcnb.machine.files import write_whole
from arcnb.machine.processes import end_session, start_session
from arcnb.machine.starts import free_port
from arcnb.models.training.output import copy_lines, failure

COUNT, FOLDER, SERVER = "ARCNB_NODES", "ARCNB_NODES_FOLDER", "ARCNB_SERVER_NODE"
ARRIVAL_SECONDS = 600.0
REPORT_SECONDS = 10.0  # that a failed part waits for what other nodes say of theirs
GRACE = 60.0  # seconds that processes get to save when they are stopped
LINES = 5000  # of a part's output, in which the cause of its failure is looked for
ADDRESS = "server"  # the file that says it


@dataclass(frozen=True)
class Meeting:
    """Where the nodes of one launch meet: how many, which one this is, the first one's address, and the
    launch's number."""

    n_nodes: int
    rank: int
    host: str
    port: int
    number: int = 0

    @property
    def flags(self) -> list[str]:
        """For `accelerate launch`; a port of 0 is chosen by the process that binds it."""
        if self.n_nodes == 1:
            return ["--num_machines", "1", "--main_process_port", "0"]
        place = ["--main_process_ip", self.host, "--main_process_port", str(self.port)]
        number = ["--num_machines", str(self.n_nodes), "--machine_rank", str(self.rank)]
        return [*number, *place, "--rdzv_backend", "static"]


def n_nodes() -> int:
    """Nodes of this job that train, 1 outside one of several."""
    return max(1, int(os.environ.get(COUNT, "1")))


ONE_NODE = Meeting(1, 0, "", 0)


@contextmanager
def together(words: Sequence[str], environment: dict[str, str], nodes: int) -> Iterator[Meeting]:
    """Have the other nodes run the same launch while the block lasts, however it ends; nobody for one node.

    words: the command from the launcher's flags on, which each node completes with its own Meeting.
    """
    if nodes == 1:
        yield ONE_NODE
        return
    folder = Path(os.environ[FOLDER])
    folder.mkdir(parents=True, exist_ok=True)
    number = len(list(folder.glob("launch-*.json")))
    meeting = Meeting(nodes, 0, socket.gethostname(), free_port(), number)
    order = {"words": list(words), "environment": environment, "host": meeting.host, "port": meeting.port}
    write_whole(folder / f"launch-{number}.json", json.dumps(order))
    try:
        yield meeting
    finally:
        write_whole(folder / f"launch-{number}.ended", "")


class Others:
    """The other nodes during a launch, the one with a server among them, as the first one hears of them; none
    for one node. `lost`: a sentence for each that failed, and for whatever else `needed` finds lost."""

    def __init__(self, meeting: Meeting, needed: Callable[[], str | None] | None = None):
        self.meeting, self._needed = meeting, needed
        self.lost: list[str] = []
        server = [int(os.environ[SERVER])] if SERVER in os.environ else []
        ranks = [*range(1, meeting.n_nodes), *server]
        self._n_nodes = max(ranks, default=0) + 1
        self._seen = {rank: ("", time.monotonic()) for rank in ranks}

    @contextmanager
    def watched(self, end: Callable[[], None]) -> Iterator[None]:
        """Call `end` when one fails or is lost while the block lasts."""

        def watch(over: threading.Event) -> None:
            while (self._seen or self._needed) and not over.wait(BEAT_SECONDS):
                if self.failed():
                    return end()

        with beside(watch):
            yield

    def heard(self) -> list[str]:
        """`lost`, after this node's part has failed: any of the others may be why, and says so soon, or
        nothing any more."""
        end = time.monotonic() + REPORT_SECONDS
        self._look(LOST_SECONDS)
        while self._seen and not self.lost and time.monotonic() < end:
            time.sleep(BEAT_SECONDS / 4)
            self._look(REPORT_SECONDS * 0.8)
        return self.lost

    def failed(self) -> bool:
        """Whether one has failed or is lost by now."""
        self._look(LOST_SECONDS)
        return bool(self.lost)

    def _look(self, lost_seconds: float) -> None:
        """Counts are compared by this process's clock: clocks of other machines may jump."""
        if self._needed and (sentence := self._needed()):
            self.lost.append(sentence)
            self._needed = None  # told once
        folder = Path(os.environ.get(FOLDER, ""))
        for rank, (last, _) in list(self._seen.items()):
            text = text_in(folder / f"{rank}.alive")
            launch = f"launch-{self.meeting.number}"
            failed = text_in(folder / f"{launch}.failed-{rank}") or text_in(folder / f"{rank}.failed")
            if text != last:
                self._seen[rank] = (text, time.monotonic())
            silent = time.monotonic() - self._seen[rank][1]
            name = f"node {rank + 1} of {self._n_nodes}" + (f" ({text.split()[0]})" if text else "")
            if failed:
                self.lost.append(f"{name} failed: {failed.strip()}")
            elif text and silent > lost_seconds:
                self.lost.append(f"{name} is lost: no sign of it for {silent:.0f} s")
            elif not text and silent > ARRIVAL_SECONDS:
                self.lost.append(f"{name} did not come")
            else:
                continue
            del self._seen[rank]  # which is told once


def job_server() -> str:
    """The address of the server on a node of this job, which may not be ready yet; "" without such a node.

    Waits until the node has said it; ArcnbError where the node fails or does not come.
    """
    if SERVER not in os.environ:
        return ""
    others = Others(ONE_NODE)
    while not (address := text_in(Path(os.environ[FOLDER], ADDRESS))):
        if others.failed():
            raise ArcnbError("; ".join(others.lost))
        time.sleep(BEAT_SECONDS / 4)
    return address


def follow(folder: Path, rank: int) -> None:
    """Carry out this node's part of each launch until the first node is done. A part that fails is said to
    the first node, which decides how the job ends."""
    number, done = 0, folder / "done"
    with _present(folder, rank):
        while not done.exists():
            path = folder / f"launch-{number}.json"
            if path.exists():
                order = json.loads(path.read_text())
                command = launcher(Meeting(n_nodes(), rank, order["host"], order["port"]), order["words"])
                code, why = _run(command, order["environment"], path.with_suffix(".ended"), GRACE)
                if code:
                    write_whole(path.with_suffix(f".failed-{rank}"), why)
                number += 1
            time.sleep(BEAT_SECONDS / 4)


def serve(folder: Path, rank: int, command: Sequence[str], environment: dict[str, str], address: str) -> None:
    """Run a server on this node until the first node is done. That it ends before is said there."""
    with _present(folder, rank):
        write_whole(folder / ADDRESS, address)
        code, why = _run(command, environment, folder / "done")
        if code is not None:
            write_whole(folder / f"{rank}.failed", f"the server at {address} ended ({code}): {why}")


@contextmanager
def _present(folder: Path, rank: int) -> Iterator[None]:
    """Count while the block lasts, deaf to SIGTERM: the first node is told as well, and all agree to save."""
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: None)
    name = os.environ.get("SLURMD_NODENAME") or socket.gethostname()
    # before any work: a node is lost only after it was there
    with beating(folder / f"{rank}.alive", name):
        yield


def _run(
    command: Sequence[str], environment: dict[str, str], over: Path, seconds: float = 0.0
) -> tuple[int | None, str]:
    """(exit code of a command that ended before `over` was there, else None; why it failed). Afterwards it
    has so many seconds to end by itself."""
    process = started(command, os.environ | environment)
    lines: deque[str] = deque(maxlen=LINES)
    copy = threading.Thread(target=copy_lines, args=(process, lines.append), daemon=True)
    copy.start()
    try:
        while process.poll() is None and not over.exists():
            time.sleep(BEAT_SECONDS / 4)
        if process.returncode is not None and not over.exists():
            copy.join(GRACE)
            return process.returncode, failure("".join(lines))
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        return None, ""
    finally:
        end_session(process, GRACE)


def started(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """The command's process, whose lines come through its standard output; it ends with this one, which
    passes an interrupt on once."""
    lines = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    return start_session(command, env=environment, **lines)


def launcher(meeting: Meeting, words: Sequence[str]) -> list[str]:
    """The command that runs `accelerate launch` so."""
    command = [sys.executable, "-P", "-m", "arcnb.models.training.launcher"]
    # Without a folder for logs every launch leaves an empty one in /tmp.
    return [*command, "--log_dir", os.devnull, *meeting.flags, *words]


if __name__ == "__main__":
    follow(Path(sys.argv[1]), int(sys.argv[2]))
