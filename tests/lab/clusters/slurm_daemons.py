"""A whole Slurm on this machine, in a folder of its own: nodes with four cores and two pretended GPUs each,
and a partition whose jobs push those of the other one aside. Needs the packages slurmctld, slurmd and
slurm-client."""

import contextlib
import getpass
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from arcnb.machine.starts import free_port

CONFIGURATION = """
ClusterName=arcnb
MaxArraySize=40
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
SlurmUser={user}
SlurmdUser={user}
ReturnToService=2
MinJobAge=3600
KillWait=30
EnforcePartLimits=ALL
MessageTimeout=60
SlurmdTimeout=300
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
GresTypes=gpu
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=60 PriorityTier=1 State=UP
PartitionName=urgent Nodes=ALL MaxTime=60 PriorityTier=10 PreemptMode=OFF State=UP
"""
NODE = (
    "NodeName={name} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=16000 "
    "Gres=gpu:2 Feature=h200"
)

PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin"  # where ordinary users do not look


def missing() -> str:
    """Why no Slurm can be started here, or nothing."""
    absent = [
        name for name in ("slurmctld", "slurmd", "sbatch", "squeue") if shutil.which(name, path=PATH) is None
    ]
    return f"no {', '.join(absent)}: install slurmctld, slurmd and slurm-client" if absent else ""


class SlurmDaemons:
    """Started by `start`, ended by `stop` whatever happened."""

    def __init__(self, folder: Path, nodes: Sequence[str] = ("localhost",)):
        self.folder, self.nodes = folder, nodes
        self.environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH}
        for name in ("state", *(f"spool-{node}" for node in nodes)):
            (folder / name).mkdir()
        lines = "\n".join(NODE.format(name=name, port=free_port()) for name in nodes)
        text = CONFIGURATION.format(
            folder=folder, user=getpass.getuser(), controller_port=free_port(), nodes=lines
        )
        (folder / "slurm.conf").write_text(text)
        (folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")

    def start(self) -> None:
        self.start_controller()
        for name in self.nodes:
            self.start_node(name)
        end = time.monotonic() + 20
        while set(self.call("sinfo", "-h", "-o", "%T").split()) != {"idle"}:
            if time.monotonic() > end:
                raise RuntimeError((self.folder / "slurmctld.log").read_text()[-2000:])
            time.sleep(0.1)

    def start_controller(self) -> None:
        self.call("slurmctld", "-i")

    def wait_until_saved(self, task: str) -> None:
        """Return when the controller's state on disk holds the task as it is now: it is written some seconds
        after a change, and a controller killed earlier forgets the task, whose processes its successor then
        ends."""
        state = self.folder / "state" / "job_state"
        before = time.time()
        self.call("scontrol", "update", f"jobid={task}", "comment=saved")
        end = time.monotonic() + 30
        while not state.is_file() or state.stat().st_mtime <= before:
            if time.monotonic() > end:
                raise RuntimeError((self.folder / "slurmctld.log").read_text()[-2000:])
            time.sleep(0.1)

    def call(self, *command: str) -> str:
        """Standard output of one of Slurm's tools."""
        program = shutil.which(command[0], path=PATH) or command[0]
        result = subprocess.run(
            [program, *command[1:]],
            env=self.environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return result.stdout.strip()

    def kill(self, daemon: str) -> None:
        """End `slurmctld`, all of `slurmd`, or one node's `slurmd-NODE` on the spot."""
        for path in self.folder.glob(f"{daemon}*.pid"):
            with contextlib.suppress(OSError, ValueError):
                os.kill(int(path.read_text()), signal.SIGKILL)

    def kill_node(self, node: str = "") -> None:
        """slurmd, the daemons of its jobs, and the jobs, of one node or of all: as if the power were cut."""
        self.kill(f"slurmd-{node}")
        for process in own_processes(self.folder):
            if not node or self.node_of(process) == node:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    def start_node(self, node: str) -> None:
        self.call("slurmd", "-N", node)

    def node_of(self, process: int) -> str:
        """The node that a process of a job, or the daemon of its jobs, is on, "" for others."""
        with contextlib.suppress(psutil.Error):
            one = psutil.Process(process)
            for own in [one, *(one.children() if one.name() == "slurmstepd" else ())]:
                if node := own.environ().get("SLURMD_NODENAME"):
                    return node
        return ""

    def stop(self) -> None:
        """End everything; what is printed here pytest shows of a test that failed."""
        try:
            log = "".join(path.read_text()[-3000:] for path in self.folder.glob("slurmctld.log"))
            print(self.call("squeue", "-t", "all"), log, sep="\n")
            self.call("scancel", "-u", getpass.getuser())
            end = time.monotonic() + 8
            while self.call("squeue", "-h") and time.monotonic() < end:
                time.sleep(0.1)
        finally:  # also where the controller is dead, which its tools wait for
            self.kill("slurmctld")
            self.kill_node()


def own_processes(folder: Path) -> list[int]:
    """Processes that were started with this Slurm's configuration: its step daemons and what they run."""
    mark = f"SLURM_CONF={folder}/slurm.conf".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                environment = (entry / "environ").read_bytes().split(b"\0")
                name = (entry / "comm").read_text().strip()
                job = name == "slurmstepd" or any(item.startswith(b"SLURM_JOB") for item in environment)
                if mark in environment and job:
                    found.append(int(entry.name))
    return found
