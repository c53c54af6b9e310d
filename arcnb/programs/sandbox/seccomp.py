"""A system-call filter as data: an allow list for a program's child, in classic BPF, loaded by plain ctypes.

Everything not listed fails with EPERM: fork, exec, sockets, signals, ptrace, limits, namespaces,
descriptors of other kinds. `openat` passes for reading only, `futex` for locks within a process only. It
knows the numbers of x86-64 and arm64; elsewhere there is no filter.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

# name: (x86-64, arm64); None where the architecture lacks the call.
_ALLOWED = {
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "lseek": (8, 62),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "brk": (12, 214),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "pread64": (17, 67),
    "sched_yield": (24, 124),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "nanosleep": (35, 101),
    "getpid": (39, 172),
    "exit": (60, 93),
    "uname": (63, 160),
    "getcwd": (79, 17),
    "readlink": (89, None),
    "gettimeofday": (96, 169),
    "getrusage": (98, 165),
    "times": (100, 153),
    "getuid": (102, 174),
    "getgid": (104, 176),
    "geteuid": (107, 175),
    "getegid": (108, 177),
    "sigaltstack": (131, 132),
    "gettid": (186, 178),
    "time": (201, None),
    "sched_getaffinity": (204, 123),
    "getdents64": (217, 61),
    "restart_syscall": (219, 128),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "exit_group": (231, 94),
    "newfstatat": (262, 79),
    "readlinkat": (267, 78),
    "set_robust_list": (273, 99),
    "getrandom": (318, 278),
    "membarrier": (324, 283),
    "statx": (332, 291),
    "rseq": (334, 293),
}
_OPENAT = (257, 56)
_FUTEX = (202, 98)
_FUTEX_PRIVATE = 128  # without it two programs that map the same library file could wake each other
_AUDIT_ARCH = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | getattr(os, "O_PATH", 0)

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _DENY, _KILL = 0x7FFF0000, 0x00050001, 0x80000000  # _DENY: errno 1, EPERM
_MISSING = 0x00050026  # errno 38, ENOSYS
_NUMBER, _ARCH = 0, 4  # offsets in struct seccomp_data, as these
_FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT = 16, 24, 32
_X32 = 1 << 30  # calls of another table begin there
_CLONE, _CLONE3, _CLONE_THREAD = (56, 220), 435, 0x10000

# Name: its number on x86-64 and on arm64. For `refusing_program`.
_SOCKETS = ("socket", "socketpair")
_REFUSED = {
    "fork": (57, None),
    "vfork": (58, None),
    "setpgid": (109, 154),
    "setsid": (112, 157),
    "ptrace": (101, 117),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
    "memfd_create": (319, 279),
    "io_uring_setup": (425, 425),
    "socket": (41, 198),
    "socketpair": (53, 199),
}
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2

_prctl = getattr(ctypes.CDLL(None), "prctl", None)  # looked up here, not anew in every child


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def filter_program(files: bool, machine: str | None = None) -> bytes | None:
    """The filter as an array of BPF instructions; None on an architecture whose numbers are unknown.

    ``files``: whether files may be opened for reading and looked up (Landlock then says which); without it
    nothing can be opened. The calls are found by bisection, which loads faster than a chain: the kernel tries
    the filter on every number when it is loaded.
    """
    machine = machine or platform.machine()
    if machine not in _AUDIT_ARCH:
        return None
    arch, column = _AUDIT_ARCH[machine]
    lookups = {"stat", "lstat", "newfstatat", "readlink", "readlinkat", "statx", "getdents64", "getcwd"}
    allowed = sorted(
        pair[column]
        for name, pair in _ALLOWED.items()
        if pair[column] is not None and (files or name not in lookups)
    )
    looked_at = {_FUTEX[column]: "lock"} | ({_OPENAT[column]: "open"} if files else {})
    return _packed(arch, _bisect(allowed, looked_at))


def _packed(arch: int, body: list[tuple[int, int, int, int]]) -> bytes:
    """The filter that kills on another architecture, loads the call's number and goes on with ``body``."""
    head = [(_LOAD, 0, 0, _ARCH), (_EQUAL, 1, 0, arch), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, _NUMBER)]
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in head + body)


def _bisect(allowed: list[int], looked_at: dict[int, str]) -> list[tuple[int, int, int, int]]:
    """Instructions that allow the numbers (sorted), those of ``looked_at`` by an argument, and no others."""
    # Boundaries where the answer changes; a leaf is a plain return, so every branch ends by itself.
    points: dict[int, str] = {}
    for number in allowed:
        points[number] = "allow"
        points[number + 1] = "deny"
    for number, leaf in looked_at.items():
        points[number] = leaf
        points.setdefault(number + 1, "deny")
    answers = [(0, "deny"), *sorted(points.items())] if 0 not in points else sorted(points.items())
    answers = [pair for n, pair in enumerate(answers) if n == 0 or pair[1] != answers[n - 1][1]]

    leaves = {
        "allow": [(_RETURN, 0, 0, _ALLOW)],
        "deny": [(_RETURN, 0, 0, _DENY)],
        "lock": [
            (_LOAD, 0, 0, _SECOND_ARGUMENT),
            (_ANY_BIT, 0, 1, _FUTEX_PRIVATE),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _DENY),
        ],
        "open": [
            (_LOAD, 0, 0, _THIRD_ARGUMENT),
            (_ANY_BIT, 1, 0, _WRITING),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _DENY),
        ],
    }

    def tree(low: int, high: int) -> list[tuple[int, int, int, int]]:
        if high - low == 1:
            return leaves[answers[low][1]]
        middle = (low + high) // 2
        less, more = tree(low, middle), tree(middle, high)
        return [(_AT_LEAST, len(less), 0, answers[middle][0]), *less, *more]

    return tree(0, len(answers))


def refusing_program(sockets: bool) -> bytes | None:
    """The filter for an interpreter whose calls nobody has listed: all but processes of its own, leaving its
    group, and modes, owners and times of files. sockets: whether it may have some. Threads are let through.

    None on an architecture whose numbers are unknown.
    """
    if platform.machine() not in _AUDIT_ARCH:
        return None
    arch, column = _AUDIT_ARCH[platform.machine()]
    names = [name for name in _REFUSED if not (sockets and name in _SOCKETS)]
    numbers = [pair[column] for pair in map(_REFUSED.get, names) if pair[column] is not None]
    program = [
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _DENY),
        (_EQUAL, 0, 1, _CLONE3),  # its flags are in memory; who hears that it is missing takes clone
        (_RETURN, 0, 0, _MISSING),
        (_EQUAL, 0, 4, _CLONE[column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 0, 1, _CLONE_THREAD),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _DENY),
    ]
    for number in numbers:
        program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _DENY)]
    program.append((_RETURN, 0, 0, _ALLOW))
    return _packed(arch, program)


class Filter:
    """A filter made ready in the server, so that a child needs one system call to load it."""

    def __init__(self, instructions: bytes) -> None:
        self._buffer = ctypes.create_string_buffer(instructions, len(instructions))
        self._program = _Program(len(instructions) // 8, ctypes.cast(self._buffer, ctypes.c_void_p))
        self._arguments = _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(self._program), 0, 0

    def load(self) -> bool:
        """Put this process under the filter for good; needs NO_NEW_PRIVS. False if the kernel refuses."""
        return _prctl(*self._arguments) == 0
