"""The end of a kernel's process: in an order that works, and bounded in time.

When ipykernel (7.4 here; positron #7142, ipykernel #1518) is asked to shut down, its main thread takes the
output thread and its sockets down while the control thread, which answered, still flushes through them. The
control thread then waits for ever (about one kernel in twenty hung on two loaded cores, and the runner waited
10 to 20 seconds for nothing, longer than some schedulers wait before they kill), or it finds a closed socket,
and a run that went well ends with a traceback. So the control thread is ended first.

Before it ends, ipykernel asks every child of the kernel to go, and asks for 14 seconds those that do not. The
resource tracker of multiprocessing, which whatever spawned a process has left (vLLM, pools), ignores signals
by design and goes when the kernel does. A child that has ended, but that nobody has waited for yet, counts as
one that does not go. Neither is asked.

Nor are the objects of its cells taken apart one by one, once the exit handlers have run: one to two seconds
where torch and trl are loaded, for which every run would wait.

ipykernel warns that its own `do_shutdown` is no coroutine; where warnings are errors, it then does not end.

Nor does a kernel drop what its cells show: ZeroMQ would, without a word, where more than a thousand messages
wait to be read. The cell waits instead.
"""

import atexit
import multiprocessing
import os
import threading
from multiprocessing import resource_tracker

from arcnb.machine.processes import leave

SOCKET_SECONDS = 4.0  # what ending threads and closing sockets may take; it takes milliseconds

# What the engine has a kernel do before its first cell.
STATEMENT = f"__import__({__name__!r}, fromlist=['prepare']).prepare()"


def prepare() -> None:
    """What this process, an ipykernel, does before its first cell."""
    import zmq
    from ipykernel.kernelapp import IPKernelApp

    bound_end()
    outputs = IPKernelApp.instance().iopub_thread
    outputs.schedule(lambda: outputs.socket.setsockopt(zmq.XPUB_NODROP, 1))  # in the thread that has it


def bound_end() -> None:
    """Have this process, an ipykernel, end in order and SOCKET_SECONDS after the exit handlers of its cells.

    Exit handlers run in the reverse order of their registration: handlers of cells come before this one,
    the kernel's own after it.
    """
    from ipykernel.kernelapp import IPKernelApp

    atexit.register(_end_in_order)
    app = IPKernelApp.instance()
    kernel, start = app.kernel, app.start
    children, shutdown = kernel._process_children, kernel.do_shutdown

    async def do_shutdown(restart: bool) -> dict:
        return shutdown(restart)

    def others() -> list:
        tracker = resource_tracker._resource_tracker._pid
        multiprocessing.active_children()  # waits for multiprocessing's children that have ended
        return [child for child in children() if child.pid != tracker and not _has_ended(child)]

    def start_and_leave() -> None:
        start()
        leave()

    kernel.do_shutdown, kernel._process_children, app.start = do_shutdown, others, start_and_leave


def _has_ended(child) -> bool:
    """child: psutil's."""
    import psutil

    try:
        return child.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _end_in_order() -> None:
    timer = threading.Timer(SOCKET_SECONDS, os._exit, (0,))
    timer.daemon = True
    timer.start()

    from ipykernel.kernelapp import IPKernelApp

    control = IPKernelApp.instance().control_thread
    if control is not None and control.is_alive():
        control.stop()
        control.join()
