"""A vLLM server that samples for a training run, started on GPUs of its own and ended with it.

    with generation_server(model, ["2", "3"], context=8192, log=run.path / "server.log") as server: ...

It is what `trl vllm-serve` starts: vLLM's own server with the settings that TRL's trainers need. Every GPU
holds a copy of the model (data parallel). vLLM ends all copies when one of them dies.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from arcnb.errors import ArcnbError
from arcnb.machine.gpus import VARIABLE, visible_gpus
from arcnb.machine.processes import end_session, start_session
from arcnb.machine.starts import free_port, tried_again
from arcnb.models.registry import ModelPath
from arcnb.models.training.processes import LaunchError
from arcnb.rl.engine.options import vllm_environment

READY_SECONDS = 900  # a large model is read, compiled and its graphs are captured
END_SECONDS = 20  # that the server gets to end in order
_COPY = re.compile(r"EngineCore(?:_DP(\d+))?$")  # the title of its process, in vLLM 0.23 and 0.31
_SAMPLED = "vllm:generation_tokens"


class GenerationServer:
    """A server that is ready. gpus: of its copies, in their order. began: where in the log."""

    def __init__(self, address: str, gpus: Sequence[str], process: subprocess.Popen, log: Path, began: int):
        self.address, self.gpus, self.process, self.log, self.began = address, gpus, process, log, began
        self._died: list[int] = []  # copies, in the order in which they did

    def watch(self) -> None:
        """Notice from now on which copy dies first: vLLM's log does not say so."""
        import psutil

        for child in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error, OSError):
                if copy := _COPY.search((child.cmdline() or [""])[0].strip()):
                    wait = partial(self._wait_for, os.pidfd_open(child.pid), int(copy[1] or 0))
                    threading.Thread(target=wait, daemon=True, name="arcnb-copy").start()

    def _wait_for(self, process: int, copy: int) -> None:
        """process: its descriptor, which can be read as soon as it is dead, whenever its parent notices."""
        select.select([process], [], [])
        self._died.append(copy)
        os.close(process)

    def lost(self) -> str | None:
        """A sentence where it serves no more: which copy died first, or what the server said last."""
        if self._died:
            copy, n = self._died[0], len(self.gpus)
            where = f"the vLLM server, on GPU {self.gpus[copy]}"
            return f"copy {copy + 1} of {n} of {where}, died; see {self.log}"
        if self.process.poll() is None:
            return None
        said = self.log.read_bytes()[self.began :].decode(errors="replace")
        lines = [line for line in said.splitlines() if line.strip()]
        last = lines[-1].strip() if lines else "it said nothing"
        return f"the vLLM server ended ({self.process.returncode}): {last}; see {self.log}"

    def shares(self) -> str:
        """What share of the tokens each copy has sampled, or why that is not known, in a sentence."""
        try:
            sampled = self.sampled()
        except (OSError, LookupError, StopIteration) as error:  # the training is done all the same
            return f"the server did not say what its copies sampled ({type(error).__name__}: {error})"
        parts = ", ".join(f"{100 * tokens / max(1, sum(sampled)):.0f}%" for tokens in sampled)
        return f"the server's copies sampled {parts} of {sum(sampled):,} tokens"

    def sampled(self) -> list[int]:
        """Tokens that each copy has sampled."""
        from prometheus_client.parser import text_string_to_metric_families

        with urlopen(f"{self.address}/metrics", timeout=30) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        samples = next(family.samples for family in families if family.name == _SAMPLED)
        counts = {sample.labels["engine"]: int(sample.value) for sample in samples}
        return [counts[str(copy)] for copy in range(len(self.gpus))]


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
) -> Iterator[GenerationServer]:
    """A server on these GPUs, ready to sample; what it prints goes to log.

    LaunchError where it ends or is not ready within READY_SECONDS; the message quotes its last line.
    """
    settings = {"VLLM_SERVER_DEV_MODE": "1", VARIABLE: ",".join(gpus)}
    log.parent.mkdir(parents=True, exist_ok=True)

    def started() -> GenerationServer:
        port = free_port()
        with open(log, "a") as file:  # behind what the servers said that the run had before it was resumed
            command = server_command(model, len(gpus), context, port, share, kv_cache_dtype)
            environment = os.environ | vllm_environment() | settings
            began = file.tell()
            server = start_session(command, stdout=file, stderr=file, env=environment)
        ready = GenerationServer(f"http://127.0.0.1:{port}", gpus, server, log, began)
        try:
            _wait(ready)
            ready.watch()
        except BaseException:
            end_session(server, END_SECONDS)
            raise
        return ready

    server = tried_again(started)
    try:
        yield server
    finally:
        end_session(server.process, END_SECONDS)


def _wait(server: GenerationServer) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline:
        if lost := server.lost():
            raise LaunchError(lost)
        with suppress(URLError, OSError):
            urlopen(f"{server.address}/health", timeout=5).close()
            return
        time.sleep(0.5)
    raise LaunchError(f"the vLLM server was not ready after {READY_SECONDS} s; see {server.log}")
