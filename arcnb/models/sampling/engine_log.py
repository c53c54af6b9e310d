"""What an engine prints: kept in a file, out of the notebook, and searched for the cause when it fails.

Engine processes write to the descriptors 1 and 2 that they inherit: the log's (`engine_spawn`), which the
engine keeps for its life. While the first engine of a process starts, this process writes there, too.
"""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from arcnb.machine.files import make_folder

# "(EngineCore pid=1) ERROR 11-21 07:30:48 [core.py:1] ValueError: To serve ..." -> "ValueError: To serve ..."
_ERROR = re.compile(r"(?:^|[\s\]])((?:\w+\.)*\w*(?:Error|Exception|Killed)\b: .+)$", re.MULTILINE)
# Lines that may quote an error which did no harm.
_CALM = re.compile(r"^(?:\(.*?\) )?(?:DEBUG|INFO|WARNING) .*$", re.MULTILINE)
# What the outer processes say about a failure that an inner one has already explained.
_EMPTY_WORDS = (
    "Engine core initialization failed",
    "WorkerProc initialization failed",
    "See stack trace",
    "EngineDeadError",
)


class EngineLog:
    """Takes the output of engine processes, in a file that it adds to; None: in a temporary one."""

    def __init__(self, path: Path | None = None):
        if path:
            make_folder(path.parent)
        # It lives as long as the engine.
        self._file = open(path, "ab+") if path else tempfile.TemporaryFile(prefix="arcnb-")  # noqa: SIM115
        self._began = os.fstat(self.descriptor).st_size

    @contextlib.contextmanager
    def capture(self) -> Iterator[None]:
        """Within the block, everything written to the descriptors 1 and 2 goes to the log."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        saved = os.dup(1), os.dup(2)
        os.dup2(self._file.fileno(), 1)
        os.dup2(self._file.fileno(), 2)
        try:
            yield
        finally:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
            for descriptor, target in zip(saved, (1, 2), strict=True):
                os.dup2(descriptor, target)
                os.close(descriptor)

    @property
    def descriptor(self) -> int:
        """Of the file."""
        return self._file.fileno()

    def text(self) -> str:
        """All that was written so far, of this engine."""
        if self._file.closed:
            return ""
        size = os.fstat(self.descriptor).st_size - self._began
        return os.pread(self.descriptor, size, self._began).decode(errors="replace")

    def last_error(self) -> str:
        """The last line that names an error and its cause; empty if there is none."""
        alarming = _CALM.sub("", self.text())
        errors = [e for e in _ERROR.findall(alarming) if not any(word in e for word in _EMPTY_WORDS)]
        return errors[-1].strip() if errors else ""

    def close(self) -> None:
        self._file.close()
