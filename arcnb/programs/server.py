"""The warm server: a fresh interpreter that forks a child for each program and watches over it.

    python server.py <socket> <caller's pid> <kind> <entry> <package folder> <library folders>

The executor starts it and talks to it over one socket. A server never runs a program itself and never holds an
expected output. It reads one task at a time, forks, enforces the deadlines, kills and joins the child, and
sends the records back. It ends when the executor's process ends or closes the socket.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # The package is found for as long as it takes to import what a server needs (see `main`).
    sys.path.insert(0, sys.argv[5])
    sys.path += sys.argv[6].split(os.pathsep)
    # Nothing is to be done after a fork: `random` would draw a new seed from the system in every child.
    os.register_at_fork = lambda **_: None

import contextlib
import gc
import math
import mmap
import resource
import select
import signal
import struct
import time
import warnings

from arcnb.programs import batch, child, preload, sandbox, wire

# Job index, number of the input being worked on (0 = loading), when that began (wall and processor time).
PROGRESS = struct.Struct("<IIdd")
TICK_SECONDS = 0.02
RESULT = 3  # the only descriptor a child keeps besides /dev/null


class Server:
    """One control socket, one child at a time."""

    def __init__(self, control: int, caller: int, kind: str, entry: str) -> None:
        self.control = control
        self.caller = caller
        self.entry = entry
        self.progress = mmap.mmap(-1, mmap.PAGESIZE)
        libraries, readable = preload.load(kind)
        self.names = preload.program_names(libraries)
        self.batch = batch.Batch(entry, self.names, libraries)
        self.poller = select.poll()
        self.poller.register(control, 0)  # hang-up only
        # Where there are no pidfds, the control socket and `getppid` tell as well, a little later.
        with contextlib.suppress(AttributeError, OSError):
            self.poller.register(os.pidfd_open(caller), select.POLLIN)
        self.sandbox = sandbox.Sandbox(readable)
        self.resident_mb = 0.0  # of a child that does nothing

    def serve(self) -> None:
        """Answer tasks until the executor goes away."""
        self.resident_mb = idle_child_mb()
        self.reply(wire.HELLO, "\n".join(self.sandbox.lost).encode())
        while True:
            task = self.receive()
            header = wire.TASK.unpack_from(task)
            lane, fresh, n_jobs, seconds, per_input, memory_mb, most, seed = header
            jobs = wire.decode_jobs(task, n_jobs)
            del task
            if lane == wire.BATCH:
                self.run_batch(jobs, seconds, memory_mb)
            else:
                for index, (program, grids) in enumerate(jobs):
                    run = self.run_fresh if fresh else self.run_isolated
                    record = run(index, program, grids, seconds, per_input, memory_mb, most, seed)
                    self.reply(wire.DONE if index == n_jobs - 1 else wire.RECORDS, record)
            del jobs

    # ---------------------------------------------------------------- the executor's side

    def receive(self) -> bytearray:
        """The next task, without its length."""
        waiting = select.poll()
        waiting.register(self.control, select.POLLIN)
        while not waiting.poll(1000):
            self.leave_if_orphaned()
        (length,) = wire.LENGTH.unpack(self.read_exactly(wire.LENGTH.size))
        return self.read_exactly(length)

    def read_exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            n = os.readv(self.control, [view])
            if n == 0:
                os._exit(0)
            view = view[n:]
        return data

    def reply(self, what: int, body: bytes) -> None:
        try:
            child.write_all(self.control, wire.LENGTH.pack(len(body) + 1) + bytes((what,)) + body)
        except OSError:
            os._exit(0)

    def leave_if_orphaned(self) -> None:
        if os.getppid() != self.caller:
            os._exit(0)  # a child of ours dies with us

    # ---------------------------------------------------------------- a child

    def fork(self, result: int, cpu_seconds: float, memory_mb: int) -> int:
        """Fork; in the child, put up the walls with ``result`` as the only way out."""
        pid = os.fork()
        if pid == 0:
            os.dup2(result, RESULT)
            os.dup2(1, 2)
            os.closerange(RESULT + 1, 256)
            gc.enable()
            self.sandbox.restrict_child(cpu_seconds, memory_mb)
        return pid

    def note(self, index: int, number: int) -> None:
        """Tell the parent, by shared memory, which program and input come next."""
        PROGRESS.pack_into(self.progress, 0, index, number, time.monotonic(), time.process_time())

    def end(self, pid: int) -> tuple[int, resource.struct_rusage]:
        """Kill and join a child; what it was and what it used."""
        try:
            os.killpg(pid, signal.SIGKILL)
        except OSError:  # it has not made its session yet
            os.kill(pid, signal.SIGKILL)
        _, status, usage = os.wait4(pid, 0)
        return status, usage

    def wait(self, milliseconds: float) -> list[int]:
        """Descriptors with news; ends this server when the executor is gone."""
        news = [descriptor for descriptor, _ in self.poller.poll(min(milliseconds, 1000))]
        if any(descriptor != self.result for descriptor in news):
            os._exit(0)
        if not news:
            self.leave_if_orphaned()
        return news

    # ---------------------------------------------------------------- one child a program

    def run_isolated(
        self,
        index: int,
        program: bytes,
        grids: list,
        seconds: float,
        per_input: float,
        memory_mb: int,
        most: int,
        seed: int,
    ) -> bytes:
        """Fork, watch, kill, join: the record of one program."""
        self.result, result = os.pipe()
        start = time.monotonic()
        PROGRESS.pack_into(self.progress, 0, index, 0, start, 0.0)
        pid = self.fork(result, seconds, memory_mb)
        if pid == 0:
            try:
                preload.seed(seed)
                verdict = child.run_alone(
                    program, grids, self.entry, self.names, lambda number: self.note(index, number)
                )
                child.write_all(RESULT, wire.encode_record(index, *verdict))
            finally:
                os._exit(0)
        os.close(result)
        data, verdict = self.collect(pid, start, seconds, per_input, most, len(grids))
        os.close(self.result)
        status, usage = self.end(pid)
        wall, cpu = time.monotonic() - start, usage.ru_utime + usage.ru_stime
        peak = max(0.0, usage.ru_maxrss / 1024 - self.resident_mb)
        if verdict is None:
            if wire.is_framed(data) and wire.is_verdict(data):
                return wire.restamp(data, index, wall, cpu, peak)
            verdict = death(status, len(data), cpu, seconds)
        kind, error_type, message = verdict
        return wire.encode_record(index, kind, (), error_type, message, None, wall, cpu, peak)

    def collect(
        self, pid: int, start: float, seconds: float, per_input: float, most: int, n_inputs: int
    ) -> tuple[bytearray, tuple[str, str, str] | None]:
        """What the child writes until its record is whole or it dies; a verdict if it went too far before."""
        data = bytearray()
        self.poller.register(self.result, select.POLLIN)
        try:
            while True:
                _, number, began, _ = PROGRESS.unpack_from(self.progress)
                now = time.monotonic()
                # A program that forges these numbers wins no more than the limit for the whole.
                by_input = began + per_input if number and start <= began <= now else math.inf
                left = min(start + seconds, by_input) - now
                if left <= 0:
                    if by_input < start + seconds:
                        message = f"input {number} of {n_inputs} took longer than {per_input:g} s"
                    else:
                        message = f"the program took longer than {seconds:g} s"
                    return data, ("timeout", "Timeout", message)
                # The next input may begin meanwhile, so never sleep for longer than one input may take.
                if not self.wait(math.ceil(min(left, per_input) * 1000)):
                    continue
                chunk = os.read(self.result, 1 << 16)
                data += chunk
                if len(data) > most + wire.RECORD.size:
                    return data, ("output_limit", "OutputLimit", f"wrote more than {most / 2**20:g} MiB")
                if wire.is_framed(data):
                    return data, None
                if not chunk:
                    return data, None if exits(pid) else (
                        "crashed",
                        "ClosedPipe",
                        "the process closed its pipe and went on",
                    )
        finally:
            self.poller.unregister(self.result)

    def run_fresh(self, index: int, program: bytes, grids: list, seconds: float, *limits) -> bytes:
        """As ``run_isolated``, with a child for each input; the limits are for all of them together."""
        outputs: list[bytes] = []
        deadline = time.monotonic() + seconds
        wall = cpu = peak = 0.0
        for number, grid in enumerate(grids, 1):
            left = max(0.001, deadline - time.monotonic())
            try:
                record = wire.parse_record(self.run_isolated(index, program, [grid], left, *limits))
            except wire.WireError as error:
                return wire.encode_record(index, "crashed", (), "BadMessage", str(error))
            wall, cpu, peak = wall + record.seconds, cpu + record.cpu_seconds, max(peak, record.memory_mb)
            if record.status == "ok" and len(record.outputs) != 1:
                return wire.encode_record(index, "crashed", (), "BadMessage", "more than one output")
            if record.status != "ok":
                message = f"input {number} of {len(grids)}: {record.error_message}"
                return wire.encode_record(
                    index, record.status, (), record.error_type, message, record.error_line, wall, cpu, peak
                )
            outputs.append(wire.encode_grid(record.outputs[0]))
        return wire.encode_record(index, "ok", outputs, None, None, None, wall, cpu, peak)

    # ---------------------------------------------------------------- many programs a child

    def run_batch(self, jobs: list, budget: float, memory_mb: int) -> None:
        """Run plain programs in few children; reply as records come.

        A program that uses more than ``budget`` seconds of processor time is handed back as slow, one whose
        child dies as one to isolate; the programs after it continue in a new child.
        """
        waiting = list(range(len(jobs)))
        while waiting:
            waiting = self.run_batch_child(jobs, waiting, budget, memory_mb)
        self.reply(wire.DONE, b"")

    def run_batch_child(self, jobs: list, indices: list[int], budget: float, memory_mb: int) -> list[int]:
        """One child for as many of the programs as it gets through; the indices that are left."""
        self.result, result = os.pipe()
        enlarge_pipe(result)
        os.set_blocking(self.result, False)
        PROGRESS.pack_into(self.progress, 0, indices[0], 0, time.monotonic(), 0.0)
        pid = self.fork(result, budget * len(indices) * 10 + 10, memory_mb)
        if pid == 0:
            try:
                self.batch.run(jobs, indices, lambda index: self.note(index, 0), RESULT)
            finally:
                os._exit(0)
        os.close(result)
        data = bytearray()
        done = 0
        slow = False
        self.poller.register(self.result, 0)  # hang-up only: records are read every tick
        alive = True
        while alive:
            index, _, began, began_cpu = PROGRESS.unpack_from(self.progress)
            used = processor_time(pid) - began_cpu
            slow = used >= budget or time.monotonic() - began >= 10 * budget
            if slow:
                break
            alive = not self.wait(min(TICK_SECONDS, budget - used) * 1000 + 1)
            done += self.pass_on(data, indices[done:])
        self.poller.unregister(self.result)
        status, _ = self.end(pid)
        done += self.pass_on(data, indices[done:])
        os.close(self.result)
        left = indices[done:]
        if not left or (done and not slow and status == 0):
            return left
        index = PROGRESS.unpack_from(self.progress)[0]
        culprit = index if index in left else left[0]
        self.reply(wire.RECORDS, wire.encode_record(culprit, "slow" if slow else "isolate"))
        return [index for index in left if index != culprit]

    def pass_on(self, data: bytearray, expected: list[int]) -> int:
        """Read what the child wrote, send its whole records on if they are those expected next; how many."""
        try:
            while chunk := os.read(self.result, 1 << 18):
                data += chunk
        except BlockingIOError:
            pass
        at = count = 0
        while count < len(expected) and (end := wire.end_of_record(data, at)) <= len(data):
            if wire.index_of_record(data, at) != expected[count]:
                break
            at, count = end, count + 1
        if count:
            self.reply(wire.RECORDS, bytes(data[:at]))
            del data[:at]
        return count


def processor_time(pid: int) -> float:
    """Processor seconds a child has used so far (0 where the system does not say)."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def idle_child_mb() -> float:
    """Peak resident memory of a child that does nothing."""
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    return os.wait4(pid, 0)[2].ru_maxrss / 1024


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


def death(status: int, written: int, cpu: float, seconds: float) -> tuple[str, str, str]:
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


def main() -> None:
    control, caller, kind, entry, package, _ = sys.argv[1:]
    sys.argv = [""]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    server = Server(int(control), int(caller), kind, entry)
    sys.path.remove(package)
    gc.collect()
    gc.freeze()
    gc.disable()
    server.serve()


if __name__ == "__main__":
    main()
