"""`arcnb doctor` on this machine, and on machines that lack something."""

import os
import re
import subprocess
import sys
from collections import namedtuple
from importlib import metadata

import pytest

from arcnb.errors import ArcnbError
from arcnb.lab import cli
from arcnb.lab.workspace import doctor
from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Execution
from tests.paths import ROOT


def findings(subject):
    return [one for one in doctor.examine() if one.subject == subject]


def test_it_names_what_there_is_and_ends_with_zero(capsys, runs_root):
    assert cli.main(["doctor"]) == 0
    printed = capsys.readouterr().out
    for subject in ("Python", "torch", "GPU", "programs", "memory", "notebooks", "runs", "shared memory"):
        assert f" {subject} " in printed
    assert str(runs_root) in printed
    assert "BAD" not in printed


def test_a_sandbox_in_which_programs_fail_is_told(monkeypatch):
    failed = Execution("error", error_type="MemoryError", error_message="no page is left")
    monkeypatch.setattr(Executor, "run", lambda self, jobs: iter([failed]))
    (found,) = findings("programs")
    assert (found.state, found.found) == ("bad", "error: no page is left")


@pytest.mark.parametrize(
    ("python", "driver", "sentence"),
    [
        ((3, 12), "550.54", "550.54 is too old for the GPU packages"),
        ((3, 11), "580.10", "are for Python 3.12"),
        ((3, 12), "580.10", None),
    ],
)
def test_a_gpu_that_the_packages_cannot_use_is_told_with_the_remedy(monkeypatch, python, driver, sentence):
    monkeypatch.setattr(doctor, "nvidia_smi", lambda *fields: [["NVIDIA H100", "81559", driver]])
    monkeypatch.setattr(sys, "version_info", namedtuple("V", "major minor micro")(*python, 0))
    found = [one for one in doctor.examine() if one.subject in ("GPU", "driver", "GPU packages")]
    assert found[0].found == f"NVIDIA H100, 80 GB, driver {driver}"
    assert [one.found for one in found[1:]] == ([sentence] if sentence else [])
    assert all(one.remedy for one in found[1:])


def test_a_gpu_whose_kernels_cannot_be_compiled_is_told_with_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "nvidia_smi", lambda *fields: [["NVIDIA H100", "81559", "580.10"]])
    monkeypatch.setattr(doctor.sysconfig, "get_path", lambda *names: str(tmp_path))
    monkeypatch.setenv("CC", "cc")
    assert [one.found for one in findings("C compiler")] == ["no Python.h: Triton's kernels need it"]
    (tmp_path / "Python.h").touch()
    assert findings("C compiler") == []
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    (found,) = findings("C compiler")
    assert found.found == "none: Triton's kernels need it"
    assert found.remedy == "apt-get install g++ python3-dev"


@pytest.mark.parametrize("version", [(3, 14, 0), (3, 10, 2)])
def test_a_python_that_is_not_supported_is_bad(monkeypatch, capsys, version):
    monkeypatch.setattr(sys, "version_info", (*version, "final", 0))
    assert cli.main(["doctor"]) == 1
    assert "BAD  Python" in capsys.readouterr().out


def test_missing_packages_come_with_the_command_that_brings_them(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda name: None)
    remedy = "pip install '.[cpu]' in the checkout, or the wheel of arcnb with [cpu]"
    assert findings("trl")[0].remedy == remedy


def test_a_checkout_that_is_not_installed_is_examined_against_its_own_file(monkeypatch):
    def requires(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "requires", requires)
    monkeypatch.setattr(doctor, "_version", lambda name: "0.0.1")
    tested = re.findall(r'"trl==([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert findings("trl")[0].found == f"0.0.1; tested is {' or '.join(sorted(set(tested)))}"


def test_what_nvidia_smi_cannot_tell_is_no_failure(monkeypatch):
    monkeypatch.setattr(doctor, "nvidia_smi", lambda *fields: [["NVIDIA GB10", "[N/A]", "[N/A]"]])
    assert findings("GPU")[0].found == "NVIDIA GB10, memory not told, driver [N/A]"
    assert findings("driver") == []


def test_a_sandbox_that_cannot_start_is_told_and_the_rest_is_asked(monkeypatch):
    def no_server(*args, **kwargs):
        raise ArcnbError("the program server cannot start under python (exit 1): no numpy")

    monkeypatch.setattr("arcnb.programs.executor.executor.Executor", no_server)
    assert "cannot start under" in findings("programs")[0].found
    assert findings("memory")


def test_free_memory_is_no_more_than_a_container_allows(monkeypatch):
    monkeypatch.setattr(doctor, "usable_memory_gb", lambda: 2.0)
    (memory,) = findings("memory")
    assert memory.found.startswith("2.1 GB free")
    assert memory.state == "note"


def test_a_full_disk_and_a_folder_that_takes_no_files_are_told(monkeypatch):
    usage = namedtuple("Usage", "total used free")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage(10, 9, int(1e8)))
    assert findings("runs")[0].state == "note"
    monkeypatch.setattr(doctor, "write_problem", lambda folder: f"{folder}: Disk quota exceeded")
    assert findings("runs")[0].state == "bad"
    assert findings("runs")[0].found.endswith("Disk quota exceeded")


@pytest.mark.parametrize(
    ("python", "driver", "requirements"),
    [("3.12", "580.1", "requirements.txt"), ("3.11", "580.1", "requirements-cpu.txt"),
     ("3.12", "550.5", "requirements-cpu.txt"), ("3.12", None, "requirements-cpu.txt")],
)  # fmt: skip
def test_make_takes_the_cpu_way_where_the_gpu_cannot_be_used_and_says_so(
    tmp_path, python, driver, requirements
):
    scripts = {"python9": f"echo {python}", "nvidia-smi": f"echo {driver}" if driver else "exit 9"}
    for name, line in scripts.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = ["make", "-n", "-B", "install", "PYTHON=python9"]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert f"--no-deps -r {requirements}\n" in result.stdout
    assert ("everything runs on the CPU" in result.stdout) == (driver is not None and "-cpu" in requirements)
