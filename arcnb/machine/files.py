"""Files that are either whole or absent: written under a temporary name, synced, then given their name.

A name that exists is never overwritten. Whoever reads a folder skips the names that `is_temporary`.
"""

import errno
import filecmp
import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from arcnb.errors import ArcnbError
from arcnb.machine.places import pid_place

_REASONS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file size limit is reached",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.EEXIST: "a file stands where its folder should be",
    errno.ENOTDIR: "a part of its path is a file, not a folder",
}

# File systems without hard links (some network and memory-stick ones) say so with one of these.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)

_TEMPORARY = re.compile(r"\..+\.(?:(\w*)-)?(\d+)-[0-9a-f]{8}\.tmp")  # place and number of the writer
_DAY = 24 * 3600.0


def is_temporary(path: Path) -> bool:
    """Whether the name is that of an unfinished file (or hidden, as editors' copies are)."""
    return path.name.startswith(".")


@contextmanager
def new_file(path: str | Path, same_is_fine: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`; when the block ends well it becomes `path`, complete and on disk.

    Raises FileExistsError when `path` exists by then; with `same_is_fine` only if its bytes differ, so that a
    notebook may run twice. Raises `ArcnbError`, one sentence, when the disk is full or the folder cannot
    be written. Whatever goes wrong, the temporary file is removed and nothing else has changed.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{_place()}-{os.getpid()}-{secrets.token_hex(4)}.tmp")
        handle = temporary.open("xb")
    except OSError as error:
        raise _explained(path, error) from error
    try:
        with handle as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _give_name(temporary, path, same_is_fine)
    except FileExistsError:
        raise
    except OSError as error:
        raise _explained(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file, in place of one that is there: readers see the old content or the new, never a part.

    Raises `ArcnbError`, one sentence; then the old content stays.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink()
        raise ArcnbError(f"cannot write {path}: {error.strerror or error}") from error


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files that killed writers left in the folder, and none of a living one.

    Where the number of its writer's process has a meaning, that is asked for: what a killed one left goes at
    once. Writers on other machines and in other containers cannot be asked (nor by locks, which some network
    file systems keep to the machine), so their files go a day after the last byte: a part takes seconds, a
    packed one minutes. A writer that was stopped for so long ends with a sentence; complete parts stay.
    """
    for path in folder.glob(".*.tmp"):
        if name := _TEMPORARY.fullmatch(path.name):
            with suppress(OSError):  # another process was quicker, or it is not ours to remove
                if _is_abandoned(path, *name.groups()):
                    path.unlink()


def _is_abandoned(path: Path, place: str | None, pid: str) -> bool:
    if not place or place != _place():
        return time.time() - path.stat().st_mtime > _DAY
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    return False


def _place() -> str:
    """`pid_place` in a few characters; nothing if it is unknown."""
    place = pid_place()
    return place and hashlib.sha256(place.encode()).hexdigest()[:12]


def _give_name(temporary: Path, path: Path, same_is_fine: bool) -> None:
    try:
        _rename_to_new(temporary, path)
    except FileExistsError:
        if same_is_fine and filecmp.cmp(temporary, path, shallow=False):
            return
        raise FileExistsError(f"{path}: exists already and is never overwritten") from None
    folder = os.open(path.parent, os.O_RDONLY)  # the new name has to reach the disk as well
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _rename_to_new(temporary: Path, path: Path) -> None:
    try:
        os.link(temporary, path)  # a plain rename would replace what another process has just written
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.exists():
            raise FileExistsError(path) from None
        temporary.rename(path)


def _explained(path: Path, error: OSError) -> ArcnbError:
    reason = _REASONS.get(error.errno, error.strerror or str(error))
    return ArcnbError(f"{path}: cannot be written, {reason}; files already there are untouched")
