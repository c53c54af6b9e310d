"""Run as a script: confine this process, then become the interpreter. Never imported by anyone.

    python -I -S confinement.py <folder of landlock.py and seccomp.py> <JSON: parent, seconds, memory_mb,
                                        readable, runnable, may_connect, confine> command...

What stays in force after the exec: limits of processor time, memory, file size and descriptors, death with
the caller, no new privileges; (Linux 5.13) Landlock: only the listed files can be read, only the interpreter
can be run, nothing can be written, and (Linux 6.7) no port can be opened; and on x86-64 and arm64 a filter of
system calls: no processes of its own, no leaving the group that is killed at the end, no modes, owners or
times of files, and no sockets unless it may connect.
"""

import ctypes
import json
import os
import resource
import signal
import sys
from pathlib import Path


def main() -> None:
    walls, orders, *command = sys.argv[1:]
    orders = json.loads(orders)
    cpu, memory = int(orders["seconds"]) + 2, int(orders["memory_mb"]) << 20
    limits = {"CPU": cpu, "AS": memory, "FSIZE": 0, "CORE": 0, "NOFILE": 64}
    for name, value in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    if sys.platform == "linux":
        prctl = ctypes.CDLL(None).prctl
        prctl(1, int(signal.SIGKILL), 0, 0, 0)  # die with the thread that started us
        prctl(38, 1, 0, 0, 0)  # no new privileges
        if os.getppid() != orders["parent"]:
            os._exit(0)
        if orders["confine"]:
            sys.path.insert(0, walls)
            import landlock
            import seccomp

            landlock.restrict_to_reading(
                map(Path, orders["readable"]), map(Path, orders["runnable"]), orders["may_connect"]
            )
            refused = seccomp.refusing_program(orders["may_connect"])
            if refused is not None and not seccomp.Filter(refused).load():
                sys.exit("this kernel takes no filter of system calls")
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
