"""A terminal that is gone, a pipe that nobody reads, a stream that was closed: no run ends for it."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any


class Steady:
    """A stream of texts that goes nowhere from the moment on that it cannot be written, and that writes as
    escapes what its encoding does not have."""

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except OSError:
            self._give_up()
        except UnicodeEncodeError:
            encoding = getattr(self._stream, "encoding", None) or "utf-8"
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._give_up()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _give_up(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def steady_streams() -> Iterator[None]:
    """Within the block, standard output and error are `Steady`. Of a process that was started without some of
    the three streams they are opened first: a kernel would take their numbers for its sockets."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number is this one
    with open(os.devnull, "w") as nowhere:
        out, error = Steady(sys.stdout or nowhere), Steady(sys.stderr or nowhere)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            yield
