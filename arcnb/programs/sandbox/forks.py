"""A server's children: forked with all walls up, listened to, killed, joined.

A program gets a child of its own (``run_isolated``); only programs of our own generators share one
(``shared``). Time is kept by ``time_limits``. What a child writes is checked for length here and for content
by the executor.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import os
import resource
import select
import signal
import time

from arcnb.programs import wire
from arcnb.programs.sandbox import child
from arcnb.programs.sandbox.preload import seed_generators
from arcnb.programs.sandbox.time_limits import ProgressPage, Verdict, Watch
from arcnb.programs.sandbox.walls import Sandbox
from arcnb.programs.wire import Orders

# What a child needs has names of its own: each object touched on the way may cost it a page. The plain `fork`
# runs none of the interpreter's hooks, which are for threads: there are none here.
_fork = ctypes.PyDLL(None).fork
_dup2, _close, _closerange, _enable_gc, _exit = os.dup2, os.close, os.closerange, gc.enable, os._exit

# Signals that come from people, terminals and schedulers; no fault and no limit raises one.
_SENT = {
    signal.SIGKILL,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
}

_OUT_OF_MEMORY = wire.encode_record(0, "memory", (), "MemoryError")  # made while there is room for it


class Forks:
    """One child at a time."""

    RESULT = 3  # the only descriptor a child keeps besides /dev/null (and a number in `fork`)

    def __init__(self, control, sandbox: Sandbox, names: dict[str, object]) -> None:
        self.control = control
        self.sandbox = sandbox
        self.names = names
        # Made once and never used here: every child finds a fresh copy, made by the fork.
        self.namespace = child.new_namespace(names)
        self.page = ProgressPage()
        self.idle_mb = 0.0

    def measure_idle_child(self) -> None:
        """Note the peak resident memory of an idle child, to be taken off the memory of others."""
        pid = _fork()
        if pid == 0:
            _exit(0)
        self.idle_mb = os.wait4(pid, 0)[2].ru_maxrss / 1024

    # ---------------------------------------------------------------- one program

    def run_isolated(self, orders: Orders, program: bytes, grids: list) -> bytes:
        """Fork, watch, kill, join: the record of one program."""
        arrays = [child.input_array(grid) for grid in grids]
        watch = Watch(orders, len(grids), self.page)
        pid, pipe = self.fork(orders.seconds, orders.memory_mb)
        if pid == 0:
            self._answer(program, arrays, orders.seed)
        data, verdict = self._collect(pid, pipe, watch, orders.output_bytes)
        status, usage = self.end(pid, pipe)
        wall, cpu = time.monotonic() - watch.start, usage.ru_utime + usage.ru_stime
        peak = max(0.0, usage.ru_maxrss / 1024 - self.idle_mb)
        if verdict is None:
            whole = wire.is_framed(data)
            if whole and wire.is_verdict(data):
                return wire.restamp(data, wall, cpu, peak)
            ended = None if whole else status  # then it was we who killed it
            verdict = death(ended, len(data), cpu, orders.seconds, self.sandbox.filtered)
        kind, error_type, message = verdict
        return wire.encode_record(0, kind, (), error_type, message, None, wall, cpu, peak)

    def _answer(self, program: bytes, arrays: list, seed: int) -> None:
        """In the child, which ends with it: run the program and write its record."""
        try:
            if seed:
                seed_generators(seed)
            try:
                verdict = child.run_alone(program, arrays, self.namespace, self.page.note)
                record = wire.encode_record(0, *verdict)
            except (MemoryError, SystemError):  # our own lines found no room either, see `child.failure`
                child.SPARE.close()
                record = _OUT_OF_MEMORY
            child.write_all(self.RESULT, record)
        finally:
            _exit(0)

    def _collect(
        self, pid: int, pipe: int, watch: Watch, output_bytes: int
    ) -> tuple[bytearray, Verdict | None]:
        """What the child writes until its record is whole or it dies; a verdict if it went too far before."""
        data, left = bytearray(), watch.first_look
        while True:
            if self.wait(pipe, left):
                chunk = os.read(pipe, 1 << 16)
                data += chunk
                if len(data) > output_bytes + wire.RECORD.size:
                    much = f"wrote more than {output_bytes / 2**20:g} MiB"
                    return data, ("output_limit", "OutputLimit", much)
                if wire.is_framed(data):
                    return data, None
                if not chunk:
                    return data, watch.after_closed_pipe(pid)
            left, late = watch.look(pid)
            if late:
                return data, late

    # ---------------------------------------------------------------- any child

    def fork(self, cpu_seconds: float, memory_mb: int) -> tuple[int, int]:
        """Fork: pid and our end of the result pipe, listened to; in the child, with all walls up, pid 0."""
        pipe, result = os.pipe()
        self.control.poller.register(pipe, select.POLLIN)
        restrict = self.sandbox.restriction(cpu_seconds, memory_mb)
        self.page.wipe()
        pid = _fork()
        if pid == 0:
            _dup2(result, 3)
            _closerange(4, 256)
            _enable_gc()
            restrict()
        elif pid > 0:
            _close(result)
        else:
            raise OSError("no process could be started")
        return pid, pipe

    def wait(self, pipe: int, seconds: float) -> bool:
        """Whether there is news from the child in time; ends this server when the executor is gone."""
        return pipe in self.control.news(math.ceil(seconds * 1000))

    def end(self, pid: int, pipe: int) -> tuple[int, resource.struct_rusage]:
        """Kill and join a child, with its group where it has one; how it ended and what it used."""
        if not self.sandbox.filtered:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        self.control.poller.unregister(pipe)
        os.close(pipe)
        return status, usage


def death(status: int | None, written: int, cpu: float, seconds: float, filtered: bool) -> Verdict:
    """The verdict on a child that died, or was killed by us (``status`` None), without a proper record.

    ``filtered``: it could send itself no signal, so that one of those that people and schedulers send came
    from outside. What faults of the processor and limits raise is the program's doing in any case.
    """
    number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None
    late = number == signal.SIGXCPU or (number == signal.SIGKILL and cpu >= seconds)
    if not late and number in (_SENT if filtered else (signal.SIGKILL,)):
        return "lost", signal.Signals(number).name, "the process was killed from outside"
    if written:
        return "crashed", "BadMessage", f"the process wrote {written} bytes that are no result"
    if late:
        return "timeout", "Timeout", f"the program used more than {seconds:g} s of processor time"
    if number is not None:
        name = signal.Signals(number).name if number in signal.valid_signals() else f"signal {number}"
        return "crashed", name, f"the process died of {name}"
    code = os.waitstatus_to_exitcode(status)
    return "crashed", "Exit", f"the process ended with code {code} before it answered"
