"""Which GPU a process takes: the emptiest that no other process has locked, among those it may use.

A small program stands in for nvidia-smi.
"""

import os
import subprocess
import sys

import pytest

from arcnb.machine.gpus import VARIABLE, GpuChoice

SMI = """#!/bin/sh
echo "0, GPU-aa, 1000, 400"
echo "1, GPU-bb, 1000, 900"
echo "2, GPU-cc, 1000, 700"
"""

# A process of its own: takes a GPU, says which, and waits to be told to end.
OTHER = """
import os, sys
from pathlib import Path
from arcnb.machine.gpus import GpuChoice
choice = GpuChoice(1, Path(sys.argv[1]))
choice.take()
print(os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def locks(tmp_path, monkeypatch):
    """A machine of three GPUs; the folder of its locks."""
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path / "locks"


def choice(locks, n=1):
    taken = GpuChoice(n, locks)
    taken.take()
    return taken, os.environ.get(VARIABLE)


def test_the_emptiest_is_taken_and_given_back(locks):
    taken, visible = choice(locks)
    assert visible == "1"
    assert taken.description == "GPU 1"
    taken.release()
    assert VARIABLE not in os.environ
    assert choice(locks)[1] == "1"


def test_processes_take_different_ones_until_none_is_left(locks):
    others = []
    try:
        for expected in ("1", "2", "0", "1"):  # the fourth shares the emptiest
            command = [sys.executable, "-c", OTHER, str(locks)]
            other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            others.append(other)
            assert other.stdout.readline().strip() == expected
        others[1].kill()
        others[1].wait()
        assert choice(locks)[1] == "2", "a killed process keeps its GPU"
    finally:
        for other in others:
            other.kill()
            other.communicate()


@pytest.mark.parametrize(
    ("before", "n", "after"), [("0,2", 1, "2"), ("0", 1, "0"), ("GPU-aa", 1, "GPU-aa"), ("2,0,1", 2, "1,2")]
)
def test_only_what_the_scheduler_allows_is_taken(locks, monkeypatch, before, n, after):
    monkeypatch.setenv(VARIABLE, before)
    taken, visible = choice(locks, n)
    assert visible == after
    taken.release()
    assert os.environ[VARIABLE] == before


@pytest.mark.parametrize("before", ["", "MIG-1234", None])
def test_what_nvidia_smi_does_not_know_stays(locks, monkeypatch, before):
    if before is None:
        monkeypatch.setenv("PATH", "/nowhere")
    else:
        monkeypatch.setenv(VARIABLE, before)
    assert choice(locks)[1] == before


def test_an_engine_over_two_gpus_takes_two(locks):
    taken, visible = choice(locks, 2)
    assert visible == "1,2"
    assert taken.description == "GPU 1, GPU 2"
