"""Landlock by plain ctypes: from then on a process and its children read some folders and touch nothing else.

Needs Linux 5.13 or later with Landlock enabled, and NO_NEW_PRIVS; no privileges. See landlock(7).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_RULE_PATH_BENEATH = 1
_EXECUTE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 2, 1 << 3
# What an ABI version can forbid: file rights by bit (13 in ABI 1, then REFER, TRUNCATE, IOCTL_DEV).
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_BIND, _CONNECT = 0b01, 0b10  # of TCP, from ABI 4
_SCOPES = 0b11  # abstract sockets and signals, from ABI 6

_libc = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def abi_version() -> int:
    """The kernel's Landlock version, 0 where there is none."""
    return max(0, _libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1))


def restrict_to_reading(
    paths: Iterable[Path], runnable: Iterable[Path] = (), may_connect: bool = False
) -> bool:
    """Allow reading files and folders beneath ``paths``; forbid every other access to files, TCP and signals.

    ``runnable``: files that may be executed and read as well. ``may_connect``: leave outgoing TCP alone.
    False if the kernel cannot. Paths that do not exist are left out.
    """
    version = abi_version()
    if version == 0:
        return False
    ruleset = _Ruleset(
        (1 << _FILE_RIGHTS.get(version, 16)) - 1,
        (_BIND if may_connect else _BIND | _CONNECT) if version >= 4 else 0,
        _SCOPES if version >= 6 else 0,
    )
    size = 8 if version < 4 else 16 if version < 6 else 24
    descriptor = _libc.syscall(_CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(size), 0)
    if descriptor < 0:
        return False
    try:
        for path in paths:
            _allow_reading(descriptor, path)
        for path in runnable:
            _allow_reading(descriptor, path, _EXECUTE)
        return _libc.syscall(_RESTRICT_SELF, descriptor, 0) == 0
    finally:
        os.close(descriptor)


def _allow_reading(ruleset: int, path: Path, more: int = 0) -> None:
    try:
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        rights = _READ_FILE | (_READ_DIR if path.is_dir() else 0) | more
        rule = _PathBeneath(rights, folder)
        _libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(folder)
