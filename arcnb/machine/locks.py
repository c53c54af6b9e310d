"""Advisory locks between the processes of a machine, which end with their holder, however it ends.

A lock is ours, held by another process, unsupported by the disk (Lustre without `flock`, some NFS), or it
fails (then ArcnbError): four things, of which only the second is worth waiting for.
"""

import errno
import fcntl
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from arcnb.errors import ArcnbError, reason

# EBADF: NFS locks what is open for writing alone, which a folder never is.
_UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EBADF, errno.EINVAL)
_HELD = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES)


class Lock:
    """The lock on a file, made if it is not there, or on a folder."""

    def __init__(self, path: Path, is_folder: bool = False):
        self.path = path
        self.supported = True
        try:
            try:
                self._descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR | os.O_CREAT, 0o666)
            except PermissionError:  # a file that another user made: reading is enough for a lock
                self._descriptor = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise ArcnbError(f"cannot open {path}: {reason(error)}") from None

    def take(self, seconds: float = math.inf) -> bool:
        """Whether it is ours within so many seconds; also where the disk knows no locks, which `supported`
        then says."""
        end = time.monotonic() + seconds
        while True:
            waiting = 0 if seconds == math.inf else fcntl.LOCK_NB
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | waiting)
                return True
            except OSError as error:
                if error.errno in _UNSUPPORTED:
                    self.supported = False
                    return True
                if error.errno not in _HELD:
                    raise ArcnbError(f"cannot lock {self.path}: {reason(error)}") from None
            if time.monotonic() >= end:
                return False
            time.sleep(min(0.2, seconds))

    def release(self) -> None:
        os.close(self._descriptor)


@contextmanager
def locked(path: Path, held: str = "", seconds: float = math.inf, is_folder: bool = False) -> Iterator[bool]:
    """One process at a time within the block; ArcnbError with the sentence `held` where another process keeps
    the lock for longer than `seconds`. Yields whether the disk knows locks: where not, nobody waits."""
    lock = Lock(path, is_folder)
    try:
        if not lock.take(seconds):
            raise ArcnbError(held)
        yield lock.supported
    finally:
        lock.release()
