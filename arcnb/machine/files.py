"""Files that are whole or absent: written under a temporary name beside, synced, then given their name.

`new_file` and `new_folder` never overwrite; `replaced_file`, `write_whole` and `replaced_folder` put a new
content in place of the old one. Whoever lists a folder skips the names that `is_temporary`.
"""

import errno
import filecmp
import hashlib
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from arcnb.errors import ArcnbError, reason
from arcnb.machine.processes import pid_place

# File systems without hard links (some network and memory-stick ones) say so with one of these.
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)

# Errors that say of the file they name that it cannot be written. Writes to an open file name none: then the
# full disk is believed alone, since whatever else was read or asked fails with the others, too.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_UNWRITABLE = (*_FULL, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
_NUMBER = re.compile(r"\[Errno (\d+)\]")

_TEMPORARY = re.compile(r"\..+\.(\w*)-(\d+)-[0-9a-f]{8}\.tmp")  # place and number of the writer
_PROBE_BYTES = 2**20  # a quota that has room for less will not last for a run
_DAY = 24 * 3600.0


def is_temporary(path: Path) -> bool:
    """Whether an unfinished file has this name (or hidden, as editors' copies are)."""
    return path.name.startswith(".")


@contextmanager
def new_file(path: str | Path, same_is_fine: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`; when the block ends well it becomes `path`, complete and on disk.

    Missing folders are made. Raises FileExistsError when `path` exists by then; with `same_is_fine` only if
    its bytes differ, so that a notebook may run twice. Raises `ArcnbError`, one sentence, when the disk is
    full or the folder cannot be written; what else the block raises stays as it is. Whatever goes wrong, the
    temporary file is removed and nothing else has changed.
    """
    path = Path(path)
    with _explaining(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with _temporary_beside(path, lambda temporary: _name_new(temporary, path, same_is_fine)) as file:
        yield file


@contextmanager
def replaced_file(path: str | Path, synced: bool = True) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`; when the block ends well it takes the place of `path`.

    Readers see the old content, if there was any, or the new, never a part. Raises `ArcnbError` when the
    folder is missing or cannot be written, or the disk is full: what was there stays. What else the block
    raises stays as it is.
    synced: wait for the disk. A sign of life must not: a busy disk takes minutes, and a crash needs no sign.
    """
    path = Path(path)
    with _temporary_beside(path, lambda temporary: temporary.replace(path), synced) as file:
        yield file


def write_whole(path: str | Path, content: str | bytes, synced: bool = True) -> None:
    """Write a file by `replaced_file`; text in UTF-8."""
    with _explaining(Path(path)), replaced_file(path, synced) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def _temporary_beside(
    path: Path, give_name: Callable[[Path], object], synced: bool = True
) -> Iterator[BinaryIO]:
    temporary = path.with_name(f".{path.name}.{_place()}-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        with _explaining(path):
            file = temporary.open("xb")
        try:
            with _explaining(path, temporary):
                yield file
            with _explaining(path):
                file.flush()
                if synced:
                    os.fsync(file.fileno())
        finally:
            with _explaining(path):
                file.close()  # writes what the block has left
        with _explaining(path):
            give_name(temporary)
    finally:
        with suppress(OSError):
            temporary.unlink()


def make_folder(folder: Path) -> Path:
    """The folder, made with those above it if need be. ArcnbError where it cannot be made."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArcnbError(f"cannot make {folder}: {reason(error)}") from None
    return folder


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder and below."""
    files = [path] if path.is_file() else filter(Path.is_file, path.rglob("*"))
    return sum(file.stat().st_size for file in files)


def remove_oldest(folders: Sequence[Path], max_bytes: float, kept: Container[Path | None]) -> list[Path]:
    """Remove folders, from the first on, until all together fit, and never one of `kept`; those removed."""
    sizes, gone = {folder: size_of(folder) for folder in folders}, []
    total = sum(sizes.values())
    for folder in folders:
        if total > max_bytes and folder not in kept:
            shutil.rmtree(folder)
            total -= sizes[folder]
            gone.append(folder)
    return gone


def write_problem(folder: Path) -> str | None:
    """Why the folder cannot take a file of a megabyte, or None if it can."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".arcnb-probe-") as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return f"{folder}: {reason(error)}"
    return None


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder beside `path` to fill; when the block ends well it becomes `path`, readable by all.

    Where `path` is there by then, another process was quicker: its folder stays, and the temporary one goes,
    as it does after an error. Raises `ArcnbError`, one sentence, when the disk is full or cannot be written;
    what else the block raises stays as it is.
    """
    with _explaining(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    try:
        with _explaining(path, work):
            yield work
        with _explaining(path):
            for file in filter(Path.is_file, work.rglob("*")):
                file.chmod(0o644)  # safetensors and mkdtemp would hide a shared cache from its other users
                with open(file, "rb") as written:
                    os.fsync(written.fileno())
            work.chmod(0o755)
            try:
                work.rename(path)
            except OSError:
                if not path.is_dir():
                    raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def replaced_folder(path: Path) -> Iterator[Path]:
    """An empty folder beside `path` to fill; when the block ends well it takes the place of `path`.

    For a folder that one process writes: what that one left when it was killed goes first.
    """
    work = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    yield work
    shutil.rmtree(path, ignore_errors=True)
    work.rename(path)


def age_of(path: Path) -> float:
    """Seconds since the file was written, by the clock that stamps the files of its folder: the disk's, which
    machines that share it have in common, and not this machine's. That one counts where nothing can be
    written. 0 for a time to come, so that a clock set back calls nothing old."""
    written = path.stat().st_mtime
    try:
        with tempfile.TemporaryFile(dir=path.parent) as probe:
            now = os.fstat(probe.fileno()).st_mtime
    except OSError:
        now = time.time()
    return max(0.0, now - written)


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


def _is_abandoned(path: Path, place: str, pid: str) -> bool:
    if not place or place != _place():
        return age_of(path) > _DAY
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    return False


def _place() -> str:
    """`pid_place` in a few characters; nothing if it is unknown."""
    place = pid_place()
    return place and hashlib.sha256(place.encode()).hexdigest()[:12]


def _name_new(temporary: Path, path: Path, same_is_fine: bool) -> None:
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


@contextmanager
def _explaining(path: Path, work: Path | None = None) -> Iterator[None]:
    """Explains the system's errors in one sentence about `path`; those that Python code words itself, without
    a number, stay. work: within is the caller's block, of whose errors those alone are explained that say
    that this file, or what is in this folder, cannot be written."""
    try:
        yield
    except OSError as error:
        why = error.strerror if work is None else _refused(error, work)
        if why is None:
            raise
        if error.errno in (errno.EEXIST, errno.ENOTDIR):
            why = "a file stands where its folder should be"
        raise ArcnbError(f"cannot write {path}: {why}; files already there are untouched") from error


def _refused(error: OSError, work: Path) -> str | None:
    """Why `work` could not be written, if that is what the error says."""
    causes = [(error.errno, (error.filename, error.filename2), error.strerror)]
    if isinstance(error, shutil.Error) and isinstance(error.args[0], list):
        # copytree collects (from, to, why) of every file, and of the reasons their texts alone
        causes = [
            (int(number[1]), [name for name in map(str, names) if name in why], why)
            for *names, why in error.args[0]
            if (number := _NUMBER.match(why))
        ]
    for number, names, said in causes:
        paths = [Path(os.fsdecode(name)) for name in names if isinstance(name, str | bytes | os.PathLike)]
        ours = any(named.absolute().is_relative_to(work.absolute()) for named in paths)
        if number in (_UNWRITABLE if ours else () if paths else _FULL):
            return said
    return None
