"""A vLLM server that samples for a training run, started on GPUs of its own and ended with it.

    with generation_server(model, ["2", "3"], context=8192, log=run.path / "server.log") as address: ...

It is what `trl vllm-serve` starts: vLLM's own server with the settings that TRL's trainers need. Every GPU
holds a copy of the model (data parallel).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from arcnb.errors import ArcnbError
from arcnb.machine.gpus import VARIABLE, visible_gpus
from arcnb.machine.processes import end_session, ending_with_parent
from arcnb.machine.starts import free_port, tried_again
from arcnb.models.registry import ModelPath
from arcnb.models.training.processes import LaunchError
from arcnb.rl.engine.options import vllm_environment

READY_SECONDS = 900  # a large model is read, compiled and its graphs are captured
END_SECONDS = 20  # that the server gets to end in order


def shared_out(n_server: int, n_training: int) -> tuple[list[str], list[str]]:
    """(GPUs of the server, GPUs of training) by number, of those visible; the server's are the last.

    ArcnbError where there are too few.
    """
    gpus = [str(gpu.index) for gpu in visible_gpus()]
    if n_server + n_training > len(gpus):
        raise ArcnbError(
            f"vllm_server_gpus={n_server} and num_processes={n_training} need {n_server + n_training} GPUs, "
            f"and there are {len(gpus)}"
        )
    return gpus[len(gpus) - n_server :], gpus[:n_training]


def server_command(
    model: ModelPath, n_gpus: int, context: int, port: int, share: float, kv_cache_dtype: str = "auto"
) -> list[str]:
    """The command of the server. share: of each GPU's memory."""
    words = [sys.executable, "-P", "-m", "vllm.entrypoints.cli.main", "serve", str(model.path)]
    words += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(context)]
    words += ["--data-parallel-size", str(n_gpus), "--gpu-memory-utilization", str(share)]
    words += ["--kv-cache-dtype", kv_cache_dtype]
    words += ["--weight-transfer-config", '{"backend": "nccl"}']
    # Log-probabilities after temperature and cuts: of the distribution that was drawn from.
    return [*words, "--logprobs-mode", "processed_logprobs", "--max-logprobs", "-1"]


@contextmanager
def generation_server(
    model: ModelPath,
    gpus: Sequence[str],
    context: int,
    log: Path,
    share: float = 0.9,
    kv_cache_dtype: str = "auto",
) -> Iterator[str]:
    """The address of a server on these GPUs, ready to sample; what it prints goes to log.

    LaunchError where it ends or is not ready within READY_SECONDS; the message quotes its last line.
    """
    settings = {"VLLM_SERVER_DEV_MODE": "1", VARIABLE: ",".join(gpus)}
    log.parent.mkdir(parents=True, exist_ok=True)

    def started() -> tuple[subprocess.Popen, str]:
        port = free_port()
        with open(log, "w") as file:
            server = subprocess.Popen(
                server_command(model, len(gpus), context, port, share, kv_cache_dtype),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                preexec_fn=ending_with_parent(),
                env=os.environ | vllm_environment() | settings,
            )
        try:
            _wait(server, address := f"http://127.0.0.1:{port}", log)
        except BaseException:
            end_session(server, END_SECONDS)
            raise
        return server, address

    server, address = tried_again(started)
    try:
        yield address
    finally:
        end_session(server, END_SECONDS)


def _wait(server: subprocess.Popen, address: str, log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if server.poll() is not None:
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            last = lines[-1].strip() if lines else "it said nothing"
            raise LaunchError(f"the vLLM server ended ({server.returncode}): {last}; see {log}")
        with suppress(URLError, OSError):
            urlopen(f"{address}/health", timeout=5).close()
            return
        time.sleep(0.5)
    raise LaunchError(f"the vLLM server was not ready after {READY_SECONDS} s; see {log}")
