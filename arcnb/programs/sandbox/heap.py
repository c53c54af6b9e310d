"""Where a server's memory lies, so that its children are cheap: less to copy in a fork and at a write.

No promise needs this. ``reserve`` runs before anything is loaded, ``settle`` when all is: Python's small
objects and the C library's blocks then lie in few stretches of large pages, which fork and end faster, and
free space is in one piece, not in crumbs of which each costs a child a page. Where the kernel or the
allocators do otherwise, children are slower, no more.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator

RESERVED_MB = {"numpy": 10, "ndimage": 20, "scipy": 36}  # small objects by kind of server, rounded up
_HUGE = 2 << 20
_MADV_COLLAPSE = 25
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_SMALL, _POOL, _POOL_HEADER = 512, 1 << 14, 48  # of CPython's allocator: its pieces, of which it cuts objects
_BLOCK = 100_000  # bytes, larger than what a small program asks for at once

_libc = ctypes.CDLL(None)
_pins: list[bytes] = []


def reserve(kind: str) -> None:
    """Make Python take its memory in few stretches, and the C library its own from one heap."""
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)
        _libc.mallopt(_M_TRIM_THRESHOLD, 64 << 20)
        _libc.mallopt(_M_TOP_PAD, 2 * _HUGE)
    to_a_megabyte = (1 << 20) // _SMALL - 32
    objects = [bytes(_SMALL - 48) for _ in range(RESERVED_MB[kind] * to_a_megabyte)]
    _pins[:] = objects[::to_a_megabyte]  # one in each arena, which therefore stays


def use_up_crumbs() -> None:
    """Take what free space lies between used blocks, so that what comes next lies together."""
    gc.collect()
    if not hasattr(_libc, "mallopt"):
        return
    blocks = _allocator(_libc.malloc)
    _libc.free.argtypes = [ctypes.c_void_p]
    end = blocks(_BLOCK)
    for size in [*range(_BLOCK, 1024, -512), *range(1024, 0, -16)]:
        for _ in range(1 << 12):
            block = blocks(size)
            if block > end:
                _libc.free(block)
                break
    objects = _allocator(ctypes.pythonapi.PyObject_Malloc)
    for size in range(16, _SMALL + 1, 16):
        for _ in range(1 << 12):
            if objects(size) % _POOL == _POOL_HEADER:
                break


def settle() -> None:
    """When all is loaded: have the stretches mapped in large pages."""
    use_up_crumbs()
    if not hasattr(_libc, "mallopt"):
        return
    _libc.mallopt(_M_TOP_PAD, 128 << 10)
    _libc.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for start, stop in _stretches():
        start, stop = -(-start // _HUGE) * _HUGE, stop // _HUGE * _HUGE
        if start < stop:
            _libc.madvise(start, stop - start, _MADV_COLLAPSE)


def _stretches() -> Iterator[tuple[int, int]]:
    """Where the C library's heap and the reserved arenas begin and end."""
    with open("/proc/self/maps") as maps:
        for line in maps:
            start, stop = (int(number, 16) for number in line.split()[0].split("-"))
            if "[heap]" in line or any(start <= id(pin) < stop for pin in _pins):
                yield start, stop


def _allocator(function):
    function.restype, function.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    return function
