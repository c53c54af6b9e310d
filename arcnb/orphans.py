"""Child processes that do not outlive their parent, whatever ends it."""

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # looked up here, not anew in every child


def ending_with_parent(sign: int = signal.SIGTERM) -> Callable[[], None]:
    """For `preexec_fn` of subprocess.Popen: the child gets `sign` when the thread that started it ends, even
    one that was killed. Linux only; elsewhere it does nothing."""
    parent = os.getpid()

    def arrange() -> None:
        if _prctl is not None:
            _prctl(_PR_SET_PDEATHSIG, int(sign), 0, 0, 0)
            if os.getppid() != parent:  # it was quicker
                os.kill(os.getpid(), sign)

    return arrange
