"""Stopping a notebook that runs: signals that reach the runner are passed to the kernel's cell.

Why KeyboardInterrupt (SIGINT) and not SIGTERM to the kernel: it works from the first cell on, in any code,
without a handler; a trainer that wants to finish its step first handles SIGINT itself. Only the kernel
process gets it, not its children: a stage stops its own workers.
"""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from arcnb.lab.runs.manifest import now

# Python notes a signal and acts on it a little later. One that arrives just before a system call that sleeps
# is acted on when the sleep is over, in a minute or a night; on a loaded machine one stop in ten was lost so.
# Hence the kernel is woken now and then after an interrupt, by a signal that does nothing.
NUDGE = signal.SIGWINCH
NUDGE_SECONDS = 0.5

# A scheduler signals every process of a job: the runner hears it from there and from the sweep that passes it
# on. Until so long after the first signal, a second signal is the same wish.
SAME_WISH_SECONDS = 2.0

GRACE_SECONDS = 60.0  # what a cell may take to save its work before it is killed


class Stopped(Exception):
    """Execution ended before the notebook did: status preempted, killed or failed."""

    def __init__(self, status: str, kind: str, cause: str):
        super().__init__(cause)
        self.status, self.kind, self.cause = status, kind, cause


class StopSignals:
    """While active, SIGTERM, SIGINT and SIGHUP of this process interrupt the kernel's running cell; a second
    one (not within SAME_WISH_SECONDS of the first), or the end of the grace time, kills the kernel's process
    group. After the last cell they are only noted. Handlers only note and kill: they may run at any
    instruction."""

    SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def __init__(self, grace_seconds: float, write: Callable[[dict[str, str]], None]):
        """`write` gets {"signal", "time"} once, soon after the first signal and outside the handler."""
        self.write = write
        self.grace_seconds = grace_seconds
        self.request: dict[str, str] | None = None
        self.received: int | None = None
        self.deadline = float("inf")
        self.second_counts_from = float("inf")
        self.pid: int | None = None
        self.cell_is_running = False
        self.nudge_at = float("inf")
        self.told = False  # whether the running cell has been interrupted
        self.too_late = False  # whether it was killed at the end of the grace time
        self.written = False
        self.previous: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():
            for number in self.SIGNALS:
                # A job started with `&` or nohup was told to ignore these: keep it so.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self.previous[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)
        self.write_request()  # a cell that stops at once is quicker than the next tick

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = number
            self.deadline = time.monotonic() + self.grace_seconds
            self.second_counts_from = time.monotonic() + SAME_WISH_SECONDS
            self.request = {"signal": signal.Signals(number).name, "time": now()}
            self.tell_cell()
        elif time.monotonic() >= self.second_counts_from:
            self.deadline = 0.0
            self.kill()

    def tell_cell(self) -> None:
        """Interrupt the running cell, once; between cells the kernel would ignore it."""
        pid = self.pid  # which the end of the kernel takes away
        if self.received is not None and self.cell_is_running and not self.told and pid:
            self.told = True
            self.nudge_at = time.monotonic() + NUDGE_SECONDS
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)

    def tick(self) -> None:
        """Called a few times a second from the heartbeat's thread."""
        if self.received is None:
            return
        self.write_request()  # so that the reason is known even if this process is killed next
        if time.monotonic() > self.deadline:
            self.too_late = self.deadline > 0
            self.kill()
        elif time.monotonic() > self.nudge_at and (pid := self.pid):
            self.nudge_at = time.monotonic() + NUDGE_SECONDS
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, NUDGE)

    def write_request(self) -> None:
        """Write the request down, once, if there was one."""
        if self.request is not None and not self.written:
            self.written = True
            self.write(self.request)

    def kill(self) -> None:
        """Kill the kernel and what it left in its process group."""
        if pid := self.pid:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def stopped(self) -> Stopped:
        name = signal.Signals(self.received).name if self.received else "a signal"
        cause = f"stopped by {name}" + (" (Ctrl-C)" if name == "SIGINT" else "")
        if self.too_late:
            cause += f" and killed, since it had not saved within {self.grace_seconds:g} s (--grace)"
        return Stopped("preempted", name, cause)
