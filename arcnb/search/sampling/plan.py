"""What notebook 03 is asked to do, as one plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from arcnb.models.sampling.backends import EngineOptions
from arcnb.plans import Plan, branch, option
from arcnb.search.branches import Drawing, Engine, Programs
from arcnb.search.turns.budget import TurnPlan


@dataclass(frozen=True)
class InferenceEngine(Engine):
    """The engine, or the servers, that sample."""

    engines: int = option(
        0,
        "vLLM engines that share the GPU and its memory; 0 takes 2 for a small model with 6 cores, else 1",
    )
    tensor_parallel: int = option(1, "GPUs an engine is spread over")
    prefix_caching: bool = option(True, "compute a prompt once for all its completions")
    load_in_4bit: bool = option(
        False, "quantise the base model by bitsandbytes; the rows say so behind its name"
    )
    dtype: str = option("auto", "of weights; auto: the model's own, or float32 on a CPU that is slow at it")
    enforce_eager: bool | None = option(None, "no compilation, no CUDA graphs; None: on a CPU only")
    cpu_kv_cache_gb: float = option(2.0, "vLLM's cache on a CPU, of every engine", "GiB")
    server_urls: str = option("", "for backend=server: base URLs, separated by commas")
    server_model: str | None = option(None, "the model's name on the servers; None: the first they list")
    server_concurrency: int = option(64, "completions in flight a server")
    server_timeout: float = option(3600.0, "time that one completion of a server may take", "s")

    def options(self, **more: Any) -> EngineOptions:
        urls = tuple(url.strip() for url in self.server_urls.split(",") if url.strip())
        return super().options(server_urls=urls, **more)


@dataclass(frozen=True)
class InferencePlan(TurnPlan, Plan):
    """A turn plan, of which tasks, by what, and where to."""

    RENAMED: ClassVar[Mapping[str, str]] = {
        "first_from": "refine_from",
        "early_stop": "stop_after",
        "max_tokens": "max_completion_length",
        "max_model_len": "max_length",
        "gpu_memory": "vllm_gpu_memory_utilization",
    }

    refine_from: str = option(
        "", 'with turns: folder of a prediction set whose first turns are refined; "" samples them'
    )
    tasks: str = option("arc-agi-1/training", "task set: a name, a tasks.parquet of notebook 01, or ARC JSON")
    n_tasks: int = option(4, "tasks to sample from it; 0 takes all")
    model: str = option("default", "default (embedded), a folder or a hub id")
    adapter: str = option(
        "auto",
        'LoRA of that model: auto (shipped, for the embedded model), a folder, "" for none, or several to '
        'compare: "none, A, B"; with backend=server a served name',
    )
    backend: str = option("auto", "vllm, server, transformers, or auto: vllm where it is installed")
    template: str = option("arc_code", "prompt template: a name or a path to a Jinja file")
    refine_template: str = option(
        "refine", "with turns: template of the feedback: refine (short), refine_full, or a path"
    )
    encoding: str = option("", 'text form of grids; "" takes the template\'s own')
    output: str = option("", 'folder of the prediction set; "" is predictions/ in the run folder')
    sampling: Drawing = branch(Drawing)
    engine: InferenceEngine = branch(InferenceEngine)
    programs: Programs = branch(Programs)

    @property
    def made_by(self) -> str:
        """The model, as the rows say it."""
        return f"{self.model} (4 bit)" if self.engine.load_in_4bit else self.model
