"""Memory laid out so that a fork costs little.

A child shares its server's pages until it writes to one; then the kernel stops it, copies 4 KiB and goes on.
For a small program these interruptions are two thirds of the child's time. So, once, before the first fork:

* ``fill_gaps`` uses up the free space between the server's objects. What a child allocates then lies together
  at the end instead of in the gaps of a hundred shared pages.
* ``keep_freed_memory`` tells the C library not to hand large arrays back to the system after each use, which
  would have to zero them for every new one.

Both only ask the two allocators for memory; where those cannot be asked, nothing is done.
"""

from __future__ import annotations

import ctypes
import os
import sys

_LARGEST_GAP = 1 << 17  # glibc maps larger requests for themselves
_POOLED = 512  # bytes up to which Python's own allocator serves a request
_BYTES_HEADER = sys.getsizeof(b"")
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGE = 1 << 25  # the most that glibc takes for M_MMAP_THRESHOLD

_MALLINFO = (  # struct mallinfo2
    *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks"),
    "keepcost",
)

_libc = ctypes.CDLL(None)
_kept: list[object] = []  # what fills the gaps of pools


class _Mallinfo(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in _MALLINFO)


def keep_freed_memory() -> None:
    """Serve arrays up to 32 MiB from the heap and leave the heap as large as it once was."""
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_MMAP_THRESHOLD, _LARGE)
        _libc.mallopt(_M_TRIM_THRESHOLD, 2 * _LARGE)


def fill_gaps() -> None:
    """Use up free chunks of the C library's allocator and free blocks in half-full pools of Python's."""
    _fill_heap()
    _fill_pools()


def _fill_heap() -> None:
    """Take chunks, large ones first, as long as they come from below the top of the heap."""
    if not hasattr(_libc, "mallinfo2"):  # not glibc, or one before 2.33
        return
    _libc.mallinfo2.restype = _Mallinfo
    _libc.malloc.restype = _libc.sbrk.restype = ctypes.c_void_p
    _libc.malloc.argtypes = (ctypes.c_size_t,)
    _libc.free.argtypes = (ctypes.c_void_p,)
    top = _libc.sbrk(0) - _libc.mallinfo2().keepcost
    size = _LARGEST_GAP
    while size >= 16:
        chunk = _libc.malloc(size)
        if not chunk:
            return
        if chunk >= top:  # no gap is as large as this
            _libc.free(chunk)
            size = size * 7 // 8 if size > 256 else size - 16


def _fill_pools() -> None:
    """Make as many objects of every size as there are free blocks for them."""
    for size, available in _pool_gaps().items():
        if size == 16:
            _kept.extend(object() for _ in range(available))
        elif size == 32:
            _kept.extend(float(n) for n in range(available))
        else:
            _kept.extend(bytes(size - _BYTES_HEADER) for _ in range(available))


def _pool_gaps() -> dict[int, int]:
    """Free blocks in pools in use, by block size, from the table that the interpreter prints on request."""
    if not hasattr(sys, "_debugmallocstats"):
        return {}
    read, write = os.pipe()  # the table has 5 kB, a pipe holds 64
    stderr = os.dup(2)
    os.dup2(write, 2)
    try:
        sys._debugmallocstats()
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(write)
    with open(read, "rb") as pipe:
        rows = [line.split() for line in pipe]
    return {  # class, size, pools, blocks in use, blocks available
        int(row[1]): int(row[4])
        for row in rows
        if len(row) == 5 and all(word.isdigit() for word in row) and int(row[1]) <= _POOLED
    }
