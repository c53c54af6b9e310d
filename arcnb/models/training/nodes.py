"""A training over several nodes of a cluster, which share a disk.

The first node runs the notebook. Each other one runs `python -m arcnb.models.training.nodes FOLDER RANK`: it
carries out its part of whatever the first launches, and ends when FOLDER/done is there. In the environment of
all of them:

    ARCNB_NODES=2                       how many they are
    ARCNB_NODES_FOLDER=RUN/nodes/JOB    where they meet: a folder of this job alone

Every node counts in RANK.alive. One whose count stands still is lost: the launch fails with its name. A stop
needs no way of its own: the processes agree on one that any of them was told.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from arcnb.machine.files import write_whole
from arcnb.machine.processes import end_session, ending_with_parent
from arcnb.machine.starts import free_port

COUNT, FOLDER = "ARCNB_NODES", "ARCNB_NODES_FOLDER"
BEAT_SECONDS = 1.0
LOST_SECONDS = 60.0  # without a beat; shared disks show what another node wrote after up to half a minute
ARRIVAL_SECONDS = 600.0
GRACE = 60.0


@dataclass(frozen=True)
class Meeting:
    """Where the nodes of one launch meet: how many, which one this is, and the first one's address."""

    n_nodes: int
    rank: int
    host: str
    port: int

    @property
    def flags(self) -> list[str]:
        """For `accelerate launch`; a port of 0 is chosen by the process that binds it."""
        if self.n_nodes == 1:
            return ["--num_machines", "1", "--main_process_port", "0"]
        place = ["--main_process_ip", self.host, "--main_process_port", str(self.port)]
        number = ["--num_machines", str(self.n_nodes), "--machine_rank", str(self.rank)]
        return [*number, *place, "--rdzv_backend", "static"]


def n_nodes() -> int:
    """Nodes of this job, 1 outside one of several."""
    return max(1, int(os.environ.get(COUNT, "1")))


ALONE = Meeting(1, 0, "", 0)


@contextmanager
def together(
    words: Sequence[str], environment: dict[str, str], lose: Callable[[str], None]
) -> Iterator[Meeting]:
    """Have the other nodes run the same launch while the block lasts.

    words: the command from the launcher's flags on, which each node completes with its own Meeting. lose:
    called with a sentence when a node is lost, or did not come.
    """
    folder = Path(os.environ[FOLDER])
    folder.mkdir(parents=True, exist_ok=True)
    meeting = Meeting(n_nodes(), 0, socket.gethostname(), free_port())
    number = len(list(folder.glob("launch-*.json")))
    order = {"words": list(words), "environment": environment, "host": meeting.host, "port": meeting.port}
    write_whole(folder / f"launch-{number}.json", json.dumps(order))
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(folder, meeting.n_nodes, ended, lose), daemon=True)
    watch.start()
    try:
        yield meeting
    finally:
        ended.set()
        watch.join()
        write_whole(folder / f"launch-{number}.ended", "")


def _watch(folder: Path, n: int, ended: threading.Event, lose: Callable[[str], None]) -> None:
    """Counts are compared by this process's clock: those of other machines may jump."""
    seen: dict[int, tuple[str, float]] = {rank: ("", time.monotonic()) for rank in range(1, n)}
    while not ended.wait(BEAT_SECONDS):
        for rank, (last, since) in list(seen.items()):
            text = _read(folder / f"{rank}.alive")
            if text != last:
                seen[rank] = (text, time.monotonic())
                continue
            silent = time.monotonic() - since
            if silent > (LOST_SECONDS if last else ARRIVAL_SECONDS):
                name = f"node {rank + 1} of {n}" + (f" ({last.split()[0]})" if last else "")
                lose(f"{name} " + (f"is lost: no sign of it for {silent:.0f} s" if last else "did not come"))
                return


def follow(folder: Path, rank: int) -> int:
    """Carry out this node's part of each launch until the first node is done; 0, or how a part ended."""
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: None)  # the first node is told as well, and all agree to save
    ended = threading.Event()
    beat = threading.Thread(target=_beat, args=(folder / f"{rank}.alive", ended), daemon=True)
    beat.start()
    number = code = 0
    while code == 0 and not (folder / "done").exists():
        path = folder / f"launch-{number}.json"
        if path.exists():
            code = _part(json.loads(path.read_text()), rank, path.with_suffix(".ended"))
            number += 1
        time.sleep(BEAT_SECONDS / 4)
    ended.set()
    beat.join()
    return code


def _beat(path: Path, ended: threading.Event) -> None:
    number = 0
    while not ended.wait(BEAT_SECONDS):
        number += 1
        write_whole(path, f"{socket.gethostname()} {number}")


def _part(order: dict, rank: int, over: Path) -> int:
    meeting = Meeting(n_nodes(), rank, order["host"], order["port"])
    process = subprocess.Popen(
        launcher(meeting, order["words"]),
        stdin=subprocess.DEVNULL,
        preexec_fn=ending_with_parent(),
        start_new_session=True,
        env=os.environ | order["environment"],
    )
    try:
        while process.poll() is None and not over.exists():
            time.sleep(BEAT_SECONDS / 4)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    finally:
        end_session(process, GRACE)
    return 0 if over.exists() else process.returncode


def launcher(meeting: Meeting, words: Sequence[str]) -> list[str]:
    """`accelerate launch` as the module of this command alone: all of them together import transformers."""
    command = [sys.executable, "-P", "-m", "accelerate.commands.launch"]
    # Without a folder for logs every launch leaves an empty one in /tmp.
    return [*command, "--log_dir", os.devnull, *meeting.flags, *words]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # not there yet, or just being replaced on a shared disk
        return ""


if __name__ == "__main__":
    sys.exit(follow(Path(sys.argv[1]), int(sys.argv[2])))
