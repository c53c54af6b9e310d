"""A whole HTCondor pool on this machine: a Debian folder with HTCondor in it (htcondor_root.sh makes one) is
the root of a namespace that shares /tmp, the project and its Python with this machine. In there everything
belongs to one ordinary user, who is whoever runs the tests. Two pretended GPUs."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from arcnb.machine.starts import free_port
from tests.paths import ROOT

VARIABLE = "ARCNB_HTCONDOR_ROOT"
TOOLS = ("condor_submit", "condor_submit_dag", "condor_q", "condor_history", "condor_rm", "condor_hold")
TOOLS += ("condor_release", "condor_vacate_job", "condor_status")
SHARED = tuple(dict.fromkeys((Path("/tmp"), ROOT, Path(sys.prefix), Path(sys.base_prefix))))

CONFIGURATION = """
use ROLE: CentralManager
use ROLE: Submit
use ROLE: Execute
CONDOR_HOST = 127.0.0.1
NETWORK_INTERFACE = 127.0.0.1
ENABLE_IPV6 = False
USE_SHARED_PORT = True
COLLECTOR_HOST = 127.0.0.1:{port}
SHARED_PORT_PORT = {port}
UID_DOMAIN = localdomain
FILESYSTEM_DOMAIN = localdomain
SEC_DEFAULT_AUTHENTICATION_METHODS = FS
ALLOW_READ = *
ALLOW_WRITE = *
ALLOW_DAEMON = *
ALLOW_NEGOTIATOR = *
ALLOW_ADMINISTRATOR = *
LOCAL_DIR = {folder}
RELEASE_DIR = /usr
LIB = /usr/lib/condor
LIBEXEC = /usr/libexec/condor
SHARE = /usr/share/condor
ETC = /etc/condor
LOG = {folder}/log
SPOOL = {folder}/spool
EXECUTE = {folder}/execute
LOCK = {folder}/lock
RUN = {folder}/run
NUM_CPUS = 4
MEMORY = 16000
MACHINE_RESOURCE_GPUS = FAKE-GPU0, FAKE-GPU1
NUM_SLOTS = 2
NUM_SLOTS_TYPE_1 = 2
SLOT_TYPE_1 = 50%
SLOT_TYPE_1_PARTITIONABLE = True
PER_JOB_NAMESPACES = False
MOUNT_UNDER_SCRATCH =
SINGULARITY = /usr/bin/apptainer
SINGULARITY_BIND_EXPR = "/usr /etc {shared}"
START = True
SUSPEND = False
PREEMPT = False
KILL = False
NEGOTIATOR_INTERVAL = 1
NEGOTIATOR_MIN_INTERVAL = 1
NEGOTIATOR_CYCLE_DELAY = 1
UPDATE_INTERVAL = 2
SCHEDD_INTERVAL = 2
SCHEDD_MIN_INTERVAL = 1
DAGMAN_USER_LOG_SCAN_INTERVAL = 1
DAGMAN_USE_STRICT = 0
PERIODIC_EXPR_INTERVAL = 2
DedicatedScheduler = "DedicatedScheduler@tester@$(FULL_HOSTNAME)"
STARTD_ATTRS = $(STARTD_ATTRS), DedicatedScheduler
"""


def missing() -> str:
    """Why no pool can be started here, or nothing."""
    root = os.environ.get(VARIABLE)
    if not root:
        return f"{VARIABLE} is not set: tests/lab/clusters/htcondor_root.sh makes such a folder"
    if not all(Path(root, "usr", name).exists() for name in ("sbin/condor_master", "bin/apptainer")):
        return f"{VARIABLE}={root} lacks HTCondor or Apptainer: tests/lab/clusters/htcondor_root.sh makes it"
    if shutil.which("bwrap") is None:
        return "no bwrap: install bubblewrap"
    return ""


class CondorPool:
    """Started by `start`, ended by `stop` whatever happened. `path` has the tools, to be put into PATH."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.path = folder / "bin"
        self.master: subprocess.Popen[bytes] | None = None
        for name in ("bin", "log", "spool", "execute", "lock", "run"):
            (folder / name).mkdir()
        (folder / "passwd").write_text("tester:x:1000:1000::/tmp:/bin/bash\nroot:x:0:0::/root:/bin/bash\n")
        text = CONFIGURATION.format(folder=folder, port=free_port(), shared=" ".join(map(str, SHARED)))
        (folder / "condor_config").write_text(text)
        for name in TOOLS:
            script = self.path / name
            script.write_text(f'#!/bin/sh\nexec {shlex.join(self.inside())} {name} "$@"\n')
            script.chmod(0o755)

    def inside(self, *more: str) -> list[str]:
        """The words that run a command in the namespace."""
        words = [shutil.which("bwrap") or "bwrap", "--die-with-parent"]
        words += ["--unshare-user", "--uid", "1000", "--gid", "1000"]
        words += [*more, "--bind", os.environ[VARIABLE], "/", "--proc", "/proc", "--dev", "/dev"]
        words += ["--dev-bind", "/dev/fuse", "/dev/fuse"]  # a `.sif` is mounted by it
        for path in dict.fromkeys((*SHARED, self.folder)):
            words += ["--bind", str(path), str(path)]
        words += ["--ro-bind", str(self.folder / "passwd"), "/etc/passwd"]
        words += ["--setenv", "PATH", "/usr/bin:/bin:/usr/sbin:/sbin"]  # the tools outside lead in here again
        return [*words, "--setenv", "CONDOR_CONFIG", str(self.folder / "condor_config")]

    def start(self) -> None:
        """With process ids of its own: when the master goes, everything goes."""
        command = [*self.inside("--unshare-pid"), "/usr/sbin/condor_master", "-f"]
        with open(self.folder / "master.txt", "wb") as log:
            self.master = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        end = time.monotonic() + 60
        while "slot1" not in self.call("condor_status", "-af", "Name"):
            if time.monotonic() > end:
                logs = [
                    path.read_text(errors="replace")[-1500:] for path in (self.folder / "log").glob("*Log")
                ]
                raise RuntimeError("\n".join(logs))
            time.sleep(0.3)

    def call(self, tool: str, *arguments: str) -> str:
        """Standard output of one of HTCondor's tools."""
        command = [str(self.path / tool), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout.strip()

    def kill(self, daemon: str) -> None:
        """End a daemon (condor_schedd, condor_startd) on the spot; the master starts it anew."""
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and (entry / "comm").read_text().strip() == daemon:
                    environment = (entry / "environ").read_bytes()
                    if str(self.folder).encode() in environment:
                        os.kill(int(entry.name), signal.SIGKILL)

    def stop(self) -> None:
        if self.master is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.master.pid, signal.SIGKILL)  # bwrap takes its whole namespace along
            self.master.wait(20)
