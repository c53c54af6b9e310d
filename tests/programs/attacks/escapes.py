"""More hostile programs, by what they go after: system calls, raw memory, the result pipe, the shared clock.

As in ``attack_programs``: promise -> (source, verdicts that keep it); ``BREACH`` is an answer of [[7]].
"""

# ruff: noqa: E501 (the programs' lines are theirs)

import platform

# x86-64 numbers of calls that lead out of the sandbox or keep something alive after the verdict.
_FORBIDDEN_CALLS = {
    "process": "56 57 58 435 434 438 424 101 310 311 312 440",  # clone, fork, vfork, clone3, pidfds, ptrace, process_*
    "exec": "59 322",
    "signal": "62 200 234 129 297 127 128 282 289",
    "namespace": "272 308 165 166 155 161 428 429 430 432 442 135",  # unshare, setns, mounts, chroot, personality
    "network": "41 42 49 50 53 43 44 45 46 47 48 288 299 307",
    "queue": "29 30 31 64 65 66 68 69 70 71 240 241 242",  # System V and POSIX shared memory, semaphores, messages
    "descriptor": "319 447 323 290 291 213 294 253 300 283 284 425 426 427 298 321 32 33 292 22 293 72 16",
    "file": "2 85 437 82 83 84 86 87 88 90 92 133 76 77 74 275 278 326 40 18 304 303",
    "key": "248 249 250",
    "limit": "160 302 141 203 144 142 314 251 149 151 325 157 158 154 172 173",
    "privilege": "105 106 113 114 117 119 126 122 123 317 444 445 446",
    "machine": "169 103 163 246 320 175 313 167 168 170 171 159 227 164",
    "session": "112 109 110",  # setsid, setpgid
    "timer": "222 226 38 37",
}

_RAW = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
"""

_CALLS = {
    f"no {kind} call passes the filter": (
        f"{_RAW}def transform(grid):\n    passed = []\n    for number in ({', '.join(numbers.split())},):\n"
        "        if libc.syscall(number, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 1:\n            passed.append(number)\n"
        "    if passed:\n        raise AssertionError(passed)\n    return [[1]]"
    )
    for kind, numbers in _FORBIDDEN_CALLS.items()
}

_ESCAPES = {
    "death with the server cannot be switched off": (
        f"{_RAW}def transform(grid):\n    return [[7]] if libc.prctl(1, 0, 0, 0, 0) == 0 else [[1]]"
    ),
    "the filter cannot be replaced": (
        f"{_RAW}def transform(grid):\n    return [[7]] if libc.prctl(22, 0, 0, 0, 0) == 0 or libc.syscall(317, 0, 0, 0) == 0 else [[1]]"
    ),
    "no lock is shared with another process": (
        f"{_RAW}def transform(grid):\n    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)\n"
        "    at = libc.mmap(None, 4096, 1, 1, os.open(os.__file__, os.O_RDONLY), 0)\n"
        "    woken = [libc.syscall(202, ctypes.c_void_p(at), wake, 1, None, None, 0) for wake in (1, 10, 1 | 256)]\n"
        "    return [[7]] if any(found != -1 for found in woken) else [[1]]"
    ),
    "a fork that would leave the session is refused": (
        "import os\ndef transform(grid):\n    if os.fork() == 0:\n        os.setsid()\n        while True: pass\n    return [[7]]"
    ),
    "no memory through any name in proc": (
        "import os\ndef transform(grid):\n    won = 0\n    for who in ('self', 'thread-self', os.getpid(), os.getppid()):\n"
        "        for name in ('mem', 'maps', 'stack', 'syscall', 'auxv', 'task/%d/mem' % os.getpid()):\n"
        "            for mode in ('rb', 'r+b'):\n                try:\n                    open(f'/proc/{who}/{name}', mode, buffering=0).close(); won += 1\n"
        "                except OSError: pass\n    return [[7]] if won else [[1]]"
    ),
    "no descriptors or folders of the server through proc": (
        "import os\ndef transform(grid):\n    won = 0\n    for name in (*(f'fd/{d}' for d in range(32)), 'ns/net', 'ns/user', 'cwd', 'root', 'exe'):\n"
        "        for attempt in (lambda p: open(p, 'rb', buffering=0).close(), os.readlink):\n"
        "            try:\n                attempt(f'/proc/{os.getppid()}/{name}'); won += 1\n            except OSError: pass\n"
        "    return [[7]] if won else [[1]]"
    ),
    "no more than 32 descriptors": (
        "def transform(grid):\n    keep = []\n    try:\n        while len(keep) < 40:\n            keep.append(open('/dev/null'))\n"
        "    except OSError:\n        return [[1]]\n    return [[7]]"
    ),
    "a great many mappings do not delay the end": (
        "import mmap, os\ndef transform(grid):\n    keep = []\n    try:\n        for n in range(60000):\n"
        "            keep.append(mmap.mmap(-1, 4096, prot=1 + n % 2))\n    except OSError: pass\n    os._exit(0)"
    ),
    "no devices": (
        "def transform(grid):\n    won = 0\n    for name in ('mem', 'kmem', 'port', 'kvm', 'fuse', 'vda', 'sda', 'shm/x', 'pts/0', 'ptmx', 'userfaultfd', 'zero'):\n"
        "        try:\n            open('/dev/' + name, 'rb').close(); won += 1\n        except OSError: pass\n    return [[7]] if won else [[1]]"
    ),
    "unmapped libraries are a verdict": (
        f"{_RAW}def transform(grid):\n    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)\n"
        "    at = ctypes.cast(libc.printf, ctypes.c_void_p).value & ~4095\n    libc.munmap(at - (1 << 20), 2 << 20)\n    return [[7]]"
    ),
    "overwritten code is a verdict": (
        f"{_RAW}def transform(grid):\n    libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)\n"
        "    at = ctypes.cast(libc.write, ctypes.c_void_p).value & ~4095\n    libc.mprotect(at, 4096, 7)\n    ctypes.memset(at, 0xCC, 4096)\n    return [[1]]"
    ),
    "the own input's memory can be ruined without harm": (
        "import ctypes\ndef transform(grid):\n    ctypes.memset(grid.ctypes.data, 255, grid.nbytes)\n    return grid"
    ),
    "shared memory counts as memory": (
        "import mmap\ndef transform(grid):\n    keep = []\n    while True:\n        keep.append(mmap.mmap(-1, 1 << 26))\n"
        "        keep[-1].write(b'x' * (1 << 26))"
    ),
    "endless random bytes end": (
        "import os\ndef transform(grid):\n    while True:\n        os.urandom(1 << 24)"
    ),
}

# Everything that the sandboxed child can write to: its pipe, and a page that says how far it is.
_WIRE = "import os, struct\nfrom arcnb.programs import wire\n"
_CLOCK = """
import struct, sys, time
def find():
    frame = sys._getframe()
    while frame:
        me = frame.f_locals.get("self")
        if hasattr(me, "page"):
            return me.page
        frame = frame.f_back
    raise LookupError("no clock")
"""
_CHANNELS = {
    "a trickle of bytes does not extend the limit": (
        "import os, time\ndef transform(grid):\n    while True:\n        os.write(3, b'\\xff')\n        time.sleep(0.01)"
    ),
    "a header without its body does not extend the limit": (
        f"{_WIRE}def transform(grid):\n    os.write(3, wire.encode_record(0, 'ok', [b'\\x01\\x01\\x01'] * 3)[:-1])\n    while True: pass"
    ),
    "a byte too many is a verdict": (
        f"{_WIRE}def transform(grid):\n    os.write(3, wire.encode_record(0, 'ok', [b'\\x01\\x01\\x07'] * 3) + b'!')\n    os._exit(0)"
    ),
    "a pipe closed and another file opened in its place is a verdict": (
        "import os\ndef transform(grid):\n    os.close(3)\n    open('/dev/null')\n    return grid"
    ),
    "a closed pipe and a loop is a verdict": "import os\ndef transform(grid):\n    os.close(3)\n    while True: pass",
    "a closed pipe and a sleep is a verdict": "import os, time\ndef transform(grid):\n    os.close(3)\n    time.sleep(60)",
    "half an answer and a closed pipe is a verdict": (
        f"{_WIRE}def transform(grid):\n    os.write(3, wire.encode_record(0, 'ok', [b'\\x01\\x01\\x07'] * 3)[:-1])\n"
        "    os.close(3)\n    while True: pass"
    ),
    "a closed pipe behind blocked signals is a verdict": (
        "import os, signal\ndef transform(grid):\n    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))\n"
        "    os.closerange(0, 64)\n    while True: pass"
    ),
    "two answers are a verdict": (
        f"{_WIRE}def transform(grid):\n    os.write(3, wire.encode_record(0, 'ok', [b'\\x01\\x01\\x07'] * 3) * 2)\n    os._exit(0)"
    ),
    "huge sides in an answer are a verdict": (
        f"{_WIRE}def transform(grid):\n    os.write(3, wire.encode_record(0, 'ok', [b'\\xff\\xff' + bytes(65025)] * 3))\n    os._exit(0)"
    ),
    "no sides in an answer are a verdict": (
        f"{_WIRE}def transform(grid):\n    os.write(3, wire.encode_record(0, 'ok', [b'\\x00\\x00'] * 3))\n    os._exit(0)"
    ),
    "huge counts in a header are a verdict": (
        f"{_WIRE}def transform(grid):\n    os.write(3, wire.RECORD.pack(0, 65535, 0, 65535, 2**32 - 1, 1e300, 1e300, 1e30, 65535, 65535))\n    os._exit(0)"
    ),
    "a status that does not exist is a verdict": (
        f"{_WIRE}def transform(grid):\n    os.write(3, wire.RECORD.pack(0, 0, 200, 0, 0, 0.0, 0.0, 0.0, 0, 0))\n    os._exit(0)"
    ),
    "a forged order to isolate is a verdict": (
        f"{_WIRE}def transform(grid):\n    os.write(3, wire.encode_record(0, 'isolate'))\n    os._exit(0)"
    ),
    "measurements are not the program's to give": (
        f"{_WIRE}def transform(grid):\n    os.write(3, wire.encode_record(0, 'error', (), 'E', 'e', 1, 1e9, 1e9, 1e9))\n    os._exit(0)"
    ),
    "writes to other descriptors reach nobody": (
        "import os\ndef transform(grid):\n    for d in (0, 1, 2, *range(4, 64)):\n        try:\n            os.write(d, b'x' * 100000)\n"
        "        except OSError:\n            pass\n    return [[1]]"
    ),
    "a forged clock wins no more than the limit": (
        f"{_CLOCK}def transform(grid):\n    clock = find()\n    while True:\n        struct.pack_into('<Idd', clock, 0, 1, time.monotonic(), 1e9)"
    ),
    "a clock that is no number wins no more than the limit": (
        f"{_CLOCK}def transform(grid):\n    clock = find()\n    struct.pack_into('<Idd', clock, 0, 99, float('nan'), float('nan'))\n    while True: pass"
    ),
    "a clock of another job is a verdict": (
        f"{_CLOCK}def transform(grid):\n    clock = find()\n    struct.pack_into('<Idd', clock, 0, 2**32 - 1, float('inf'), -1.0)\n    while True: pass"
    ),
}

_ANY = {"error", "crashed", "timeout", "memory", "unsafe", "output_limit", "ok"}
ESCAPES: dict[str, tuple[str, set[str]]] = {}
if platform.machine() != "x86_64":
    _CALLS = {}
for _group, _verdicts in ((_CALLS, {"ok"}), (_ESCAPES, _ANY), (_CHANNELS, {"crashed"})):
    ESCAPES |= {name: (source, _verdicts) for name, source in _group.items()}
for _name, _verdict in {
    "death with the server cannot be switched off": {"ok"},
    "the filter cannot be replaced": {"ok"},
    "no lock is shared with another process": {"ok"},
    "a fork that would leave the session is refused": {"unsafe"},
    "no memory through any name in proc": {"ok"},
    "no descriptors or folders of the server through proc": {"ok"},
    "no devices": {"ok"},
    "unmapped libraries are a verdict": {"crashed"},
    "overwritten code is a verdict": {"crashed"},
    "the own input's memory can be ruined without harm": {"invalid_output"},
    "shared memory counts as memory": {"error", "memory", "timeout"},
    "endless random bytes end": {"timeout"},
    "a trickle of bytes does not extend the limit": {"timeout", "crashed"},
    "a header without its body does not extend the limit": {"timeout"},
    "measurements are not the program's to give": {"error"},
    "writes to other descriptors reach nobody": {"ok"},
    "a forged clock wins no more than the limit": {"timeout"},
    "a clock that is no number wins no more than the limit": {"timeout"},
    "a clock of another job is a verdict": {"timeout"},
}.items():
    assert _name in ESCAPES, _name
    ESCAPES[_name] = (ESCAPES[_name][0], _verdict)
