"""The NVIDIA GPUs of this machine, and which of them this process takes: the least used of those it may use.

nvidia-smi is asked, so that no CUDA context is opened. Processes that start at the same moment on one machine
would all find the same GPU the emptiest. So each takes a lock on its choice: a file below the system's
temporary folder, locked as long as the process lives and free again when it ends, however it ends. With more
processes than GPUs, those without a lock share the GPU with the most free memory;
`vllm_gpu_memory_utilization` then has to leave room for all of them.
"""

import gc
import itertools
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from arcnb.errors import ArcnbError, number_of
from arcnb.machine.locks import Lock

VARIABLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Gpu:
    """One GPU; memory in bytes."""

    index: int
    uuid: str
    total: int
    free: int


def nvidia_smi(*fields: str) -> list[list[str]]:
    """These fields of every GPU of the machine, in the order of the bus; empty where nvidia-smi fails."""
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=True, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [[value.strip() for value in line.split(",")] for line in answer.stdout.strip().splitlines()]


def torch_sees_gpu() -> bool:
    """Whether torch can compute on a GPU in this process."""
    import torch

    return torch.cuda.is_available()


def release_memory() -> None:
    """Give back the GPU memory that torch keeps in this process after its tensors are gone.

    A training leaves gigabytes of it, which the driver counts as used: an engine that is opened next, in a
    process of its own, would not find them.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


def visible_names(visible: str) -> list[str]:
    """The names in a value of CUDA_VISIBLE_DEVICES. CUDA stops reading at the first negative number, so -1
    alone hides all GPUs."""
    names = [name.strip() for name in visible.split(",") if name.strip()]
    return list(itertools.takewhile(lambda name: not name.startswith("-"), names))


def usable_names() -> list[str]:
    """Names of the GPUs that this process may use, as CUDA_VISIBLE_DEVICES has them or would have them."""
    if (visible := os.environ.get(VARIABLE)) is not None:
        return visible_names(visible)
    return [row[0] for row in nvidia_smi("index")]


def visible_gpus(visible: str | None = None) -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves this process, or that `visible`, written alike, names; in the
    order of the names. Empty where nvidia-smi is missing or does not know the names."""
    try:
        gpus = [
            Gpu(int(index), uuid, int(total) << 20, int(free) << 20)
            for index, uuid, total, free in nvidia_smi("index", "uuid", "memory.total", "memory.free")
        ]
    except ValueError:  # "[N/A]" in place of a number
        return []
    visible = os.environ.get(VARIABLE) if visible is None else visible
    if visible is None:
        return gpus
    names = visible_names(visible)
    return [gpu for name in names for gpu in gpus if is_name(name, str(gpu.index), gpu.uuid)]


def is_name(name: str, index: str, uuid: str) -> bool:
    """Whether CUDA_VISIBLE_DEVICES means this GPU by the name: its number, or how its UUID begins."""
    return name == index or uuid.startswith(name)


class GpuChoice:
    """`take` sets CUDA_VISIBLE_DEVICES for this process and what it starts; `release` undoes that.

    Where nvidia-smi is missing, or does not know the names in CUDA_VISIBLE_DEVICES (slices of a GPU, say), or
    names no more GPUs than are needed, everything stays as it is.
    """

    def __init__(self, n_gpus: int = 1, locks: Path | None = None):
        self.n_gpus = n_gpus
        self.taken: list[Gpu] = []
        self._locks = locks or Path(tempfile.gettempdir()) / f"arcnb-gpus-{os.getuid()}"
        self._held: list[Lock] = []
        self._before: str | None = None

    @property
    def description(self) -> str:
        """The GPUs in words, for the line that a backend announces itself with."""
        if self.taken:
            return ", ".join(f"GPU {gpu.index}" for gpu in self.taken)
        return number_of(self.n_gpus, "GPU")

    def take(self) -> None:
        """Chooses and locks. Taking again keeps the choice."""
        if self.taken:
            return
        self._before = os.environ.get(VARIABLE)
        gpus = visible_gpus()
        if not gpus:
            return
        emptiest_first = sorted(gpus, key=lambda gpu: (-gpu.free, gpu.index))
        chosen = [gpu for gpu in emptiest_first if len(self._held) < self.n_gpus and self._lock(gpu)]
        chosen += [gpu for gpu in emptiest_first if gpu not in chosen]
        self.taken = sorted(chosen[: self.n_gpus], key=lambda gpu: gpu.index)
        if self._before is not None and len(gpus) <= self.n_gpus:
            return
        # nvidia-smi counts in the order of the bus, CUDA by default from the fastest.
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        os.environ[VARIABLE] = ",".join(str(gpu.index) for gpu in self.taken)

    def release(self) -> None:
        """Gives the GPUs back and CUDA_VISIBLE_DEVICES its earlier value."""
        if not self.taken:
            return
        for lock in self._held:
            lock.release()
        self._held, self.taken = [], []
        if self._before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = self._before

    def _lock(self, gpu: Gpu) -> bool:
        """Whether this GPU is ours now."""
        try:
            self._locks.mkdir(mode=0o700, exist_ok=True)
            lock = Lock(self._locks / gpu.uuid)
            ours = lock.take(0) and lock.supported
        except (OSError, ArcnbError):  # a folder that takes no files: then nobody's choice is known
            return False
        if ours:
            self._held.append(lock)
        else:
            lock.release()
        return ours
