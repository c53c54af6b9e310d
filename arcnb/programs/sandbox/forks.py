"""A server's children: forked for one program or for a batch, watched, killed, joined.

Every deadline is kept here, by the parent. A child tells how far it is through a page of shared memory and
answers through a pipe; what it writes is checked for length here and for content by the executor.
"""

from __future__ import annotations

import contextlib
import gc
import math
import mmap
import os
import resource
import select
import signal
import struct
import time
from collections.abc import Callable

from arcnb.programs import wire
from arcnb.programs.sandbox import child
from arcnb.programs.sandbox.batch import Batch
from arcnb.programs.sandbox.preload import seed_generators
from arcnb.programs.sandbox.walls import Sandbox
from arcnb.programs.wire import Orders

# Which job, which input it is working on (0 = loading), and when that began in wall and processor time.
PROGRESS = struct.Struct("<IIdd")
EMPTY_PAGE = bytes(mmap.PAGESIZE)
TICK_SECONDS = 0.02
RESULT = 3  # the only descriptor a child keeps besides /dev/null

# What a child needs has names of its own: each object touched on the way may cost it a page (see `heap`).
_dup2, _closerange, _enable_gc = os.dup2, os.closerange, gc.enable
_pack_progress, _monotonic, _process_time = PROGRESS.pack_into, time.monotonic, time.process_time

Verdict = tuple[str, str | None, str | None]  # status, error type, message
SLOW: Verdict = ("slow", None, None)  # an order to the executor, see `wire`


class Forks:
    """One child at a time."""

    def __init__(self, control, sandbox: Sandbox, entry: str, names: dict[str, object], batch: Batch) -> None:
        self.control = control
        self.sandbox = sandbox
        self.entry = entry
        # Made once and never used here: every child finds a fresh copy, made by the fork.
        self.namespace = child.new_namespace(names)
        self.batch = batch
        self.idle_mb = 0.0
        self._progress = mmap.mmap(-1, mmap.PAGESIZE)
        self._poller = select.poll()
        self._poller.register(control.descriptor, 0)  # hang-up only
        # Where there are no pidfds, the control socket and `getppid` tell as well, a little later.
        with contextlib.suppress(AttributeError, OSError):
            self._poller.register(os.pidfd_open(control.caller), select.POLLIN)

    def measure_idle_child(self) -> None:
        """Note the peak resident memory of a child that does nothing, to be taken off that of others."""
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        self.idle_mb = os.wait4(pid, 0)[2].ru_maxrss / 1024

    # ---------------------------------------------------------------- one child a program

    def run_isolated(self, orders: Orders, program: bytes, grids: list) -> bytes:
        """Fork, watch, kill, join: the record of one program."""
        start = time.monotonic()
        pid, pipe = self._fork(0, orders.seconds, orders.memory_mb)
        if pid == 0:
            try:
                seed_generators(orders.seed)
                verdict = child.run_alone(
                    program, grids, self.entry, self.namespace, lambda number: self._note(0, number)
                )
                child.write_all(RESULT, wire.encode_record(0, *verdict))
            finally:
                os._exit(0)
        data, verdict = self._collect(pid, pipe, start, orders, len(grids))
        os.close(pipe)
        status, usage = self._end(pid)
        wall, cpu = time.monotonic() - start, usage.ru_utime + usage.ru_stime
        peak = max(0.0, usage.ru_maxrss / 1024 - self.idle_mb)
        if verdict is None:
            if wire.is_framed(data) and wire.is_verdict(data):
                return wire.restamp(data, 0, wall, cpu, peak)
            verdict = death(status, len(data), cpu, orders.seconds)
        kind, error_type, message = verdict
        return wire.encode_record(0, kind, (), error_type, message, None, wall, cpu, peak)

    def _collect(
        self, pid: int, pipe: int, start: float, orders: Orders, n_inputs: int
    ) -> tuple[bytearray, Verdict | None]:
        """What the child writes until its record is whole or it dies; a verdict if it went too far before."""
        data = bytearray()
        self._poller.register(pipe, select.POLLIN)
        try:
            while True:
                _, number, began, _ = PROGRESS.unpack_from(self._progress)
                now = time.monotonic()
                # A program that forges these numbers wins no more than the limit for the whole.
                in_input = number and start <= began <= now
                by_input = began + orders.seconds_per_input if in_input else math.inf
                left = min(start + orders.seconds, by_input) - now
                if left <= 0:
                    if by_input < start + orders.seconds:
                        late = f"input {number} of {n_inputs} took longer than {orders.seconds_per_input:g} s"
                    else:
                        late = f"the program took longer than {orders.seconds:g} s"
                    return data, ("timeout", "Timeout", late)
                if orders.patience:
                    used = max(processor_time(pid), (now - start) / 10)
                    if used >= orders.patience:
                        return data, SLOW
                    left = min(left, orders.patience - used)
                # The next input may begin meanwhile, so never sleep for longer than one input may take.
                if not self._wait(pipe, math.ceil(min(left, orders.seconds_per_input) * 1000)):
                    continue
                chunk = os.read(pipe, 1 << 16)
                data += chunk
                if len(data) > orders.output_bytes + wire.RECORD.size:
                    much = f"wrote more than {orders.output_bytes / 2**20:g} MiB"
                    return data, ("output_limit", "OutputLimit", much)
                if wire.is_framed(data):
                    return data, None
                if not chunk:
                    went_on = ("crashed", "ClosedPipe", "the process closed its pipe and went on")
                    return data, None if exits(pid) else went_on
        finally:
            self._poller.unregister(pipe)

    def run_fresh(self, orders: Orders, program: bytes, grids: list) -> bytes:
        """As ``run_isolated``, with a child for each input; the seconds are for all of them together."""
        outputs: list[bytes] = []
        deadline = time.monotonic() + orders.seconds
        wall = cpu = peak = 0.0
        for number, grid in enumerate(grids, 1):
            left = orders._replace(seconds=max(0.001, deadline - time.monotonic()))
            try:
                record = wire.parse_record(self.run_isolated(left, program, [grid]))
            except wire.WireError as error:
                return wire.encode_record(0, "crashed", (), "BadMessage", str(error))
            if record.status == "slow":
                return wire.encode_record(0, "slow")
            wall, cpu, peak = wall + record.seconds, cpu + record.cpu_seconds, max(peak, record.memory_mb)
            if record.status == "ok" and len(record.outputs) != 1:
                return wire.encode_record(0, "crashed", (), "BadMessage", "not one output for one input")
            if record.status != "ok":
                error = (record.error_type, f"input {number} of {len(grids)}: {record.error_message}")
                return wire.encode_record(0, record.status, (), *error, record.error_line, wall, cpu, peak)
            outputs.append(wire.encode_grid(record.outputs[0]))
        return wire.encode_record(0, "ok", outputs, None, None, None, wall, cpu, peak)

    # ---------------------------------------------------------------- many programs a child

    def run_batch(self, orders: Orders, jobs: list, reply: Callable[[bytes], None]) -> None:
        """Run plain programs in as few children as it takes; ``reply`` with records as they come.

        A program that uses up our patience is handed back as slow, one whose child dies as one to isolate;
        the programs after it continue in a new child.
        """
        left = list(range(len(jobs)))
        while left:
            left = self._run_batch_child(orders, jobs, left, reply)

    def _run_batch_child(self, orders: Orders, jobs: list, indices: list[int], reply: Callable) -> list[int]:
        """One child for as many of the programs as it gets through; the indices that are left."""
        budget = orders.patience
        start, longest = time.monotonic(), budget * len(indices) * 10 + 10
        pid, pipe = self._fork(indices[0], longest, orders.memory_mb)
        if pid == 0:
            try:
                allowed = min(orders.seconds, orders.seconds_per_input)
                self.batch.run(jobs, indices, lambda index: self._note(index, 0), RESULT, allowed)
            finally:
                os._exit(0)
        enlarge_pipe(pipe)
        os.set_blocking(pipe, False)
        data = bytearray()
        done, alive, slow = 0, True, False
        self._poller.register(pipe, 0)  # hang-up only: records are read every tick
        while alive:
            index, _, began, began_cpu = PROGRESS.unpack_from(self._progress)
            now, total = time.monotonic(), processor_time(pid)
            # Numbers that cannot be true count as zero; true ones that are forged still end with `longest`.
            used = total - began_cpu if 0 <= began_cpu <= total else total
            waited = now - began if start <= began <= now else now - start
            slow = used >= budget or waited >= 10 * budget or now - start >= longest
            if slow:
                break
            alive = not self._wait(pipe, min(TICK_SECONDS, budget - used) * 1000 + 1)
            done += pass_on(pipe, data, indices[done:], reply)
        self._poller.unregister(pipe)
        status, _ = self._end(pid)
        done += pass_on(pipe, data, indices[done:], reply)
        os.close(pipe)
        left = indices[done:]
        if not left or (done and not slow and status == 0):
            return left
        index = PROGRESS.unpack_from(self._progress)[0]
        culprit = index if index in left else left[0]
        reply(wire.encode_record(culprit, "slow" if slow else "isolate"))
        return [index for index in left if index != culprit]

    # ---------------------------------------------------------------- any child

    def _fork(self, index: int, cpu_seconds: float, memory_mb: int) -> tuple[int, int]:
        """Fork: pid and our end of the result pipe; in the child, with all walls up, pid 0."""
        pipe, result = os.pipe()
        # The whole page: a child before may have left a message for this one behind the numbers.
        self._progress[:] = EMPTY_PAGE
        PROGRESS.pack_into(self._progress, 0, index, 0, time.monotonic(), 0.0)
        pid = os.fork()
        if pid == 0:
            _dup2(result, RESULT)
            _dup2(1, 2)
            _closerange(RESULT + 1, 256)
            _enable_gc()
            self.sandbox.restrict_child(cpu_seconds, memory_mb)
        else:
            os.close(result)
        return pid, pipe

    def _note(self, index: int, number: int) -> None:
        """Tell the parent, by shared memory, which program and input come next."""
        _pack_progress(self._progress, 0, index, number, _monotonic(), _process_time())

    def _wait(self, pipe: int, milliseconds: float) -> bool:
        """Whether there is news from the child in time; ends this server when the executor is gone."""
        news = [descriptor for descriptor, _ in self._poller.poll(min(milliseconds, 1000))]
        if any(descriptor != pipe for descriptor in news):
            os._exit(0)
        if not news:
            self.control.leave_if_orphaned()
        return bool(news)

    def _end(self, pid: int) -> tuple[int, resource.struct_rusage]:
        """Kill and join a child, with its group where it has one; how it ended and what it used."""
        if not self.sandbox.filtered:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        return status, usage


def pass_on(pipe: int, data: bytearray, expected: list[int], reply: Callable[[bytes], None]) -> int:
    """Read what a batch child wrote and send whole records on if they are those expected next; how many."""
    with contextlib.suppress(BlockingIOError):
        while chunk := os.read(pipe, 1 << 18):
            data += chunk
    at = count = 0
    while count < len(expected) and (end := wire.end_of_record(data, at)) <= len(data):
        if wire.index_of_record(data, at) != expected[count]:
            break
        at, count = end, count + 1
    if count:
        reply(bytes(data[:at]))
        del data[:at]
    return count


def processor_time(pid: int) -> float:
    """Processor seconds a child has used so far (0 where the system does not say)."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def exits(pid: int, within: float = 1.0) -> bool:
    """Whether a child that closed its pipe is ending by itself; it stays to be joined."""
    end = time.monotonic() + within
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def enlarge_pipe(descriptor: int) -> None:
    """Make room for a batch's records, so that its child need not wait for a reader."""
    import fcntl

    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):  # over this user's quota: the usual 64 KiB work as well
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, 1 << 20)


def death(status: int, written: int, cpu: float, seconds: float) -> Verdict:
    """The verdict on a child that died without a whole record."""
    if written:
        return "crashed", "BadMessage", f"the process wrote {written} bytes that are no result"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in signal.valid_signals() else f"signal {number}"
        if number == signal.SIGXCPU or (number == signal.SIGKILL and cpu >= seconds):
            return "timeout", "Timeout", f"the program used more than {seconds:g} s of processor time"
        if number == signal.SIGKILL:
            return "lost", "SIGKILL", "the process was killed from outside"
        return "crashed", name, f"the process died of {name}"
    code = os.waitstatus_to_exitcode(status)
    return "crashed", "Exit", f"the process ended with code {code} before it answered"
