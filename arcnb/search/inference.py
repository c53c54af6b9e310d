"""What notebook 03 is asked to do, as one plan, and the prediction sets that it fills.

Several adapters of one model can be compared in one run: one engine, and a prediction set for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from arcnb.arc.encodings import encoding_option
from arcnb.errors import ArcnbError
from arcnb.models.lora.compatibility import adapter_rank, check_apart
from arcnb.models.prompts.format import prompt_format
from arcnb.models.registry import adapter_name, resolve_adapter, resolve_model
from arcnb.models.sampling.backends import BACKENDS, EngineOptions, backend_name
from arcnb.plans import Plan, branch, option
from arcnb.search.branches import Drawing, Engine, Programs
from arcnb.search.turns.budget import TurnPlan
from arcnb.values import COUNT, POSITIVE, listed

if TYPE_CHECKING:
    from arcnb.arc.tasks.task import Task
    from arcnb.arc.tasks.task_set import TaskSet
    from arcnb.search.sampling.sampled_set import SampledSet

NO_ADAPTER = "none"  # in a list of adapters: the model without any


@dataclass(frozen=True)
class InferenceEngine(Engine):
    """The engine, or the servers, that sample."""

    tensor_parallel: int = option(1, "GPUs an engine is spread over", within=COUNT, free=True)
    prefix_caching: bool = option(True, "compute a prompt once for all its completions", free=True)
    load_in_4bit: bool = option(
        False, "quantise the base model by bitsandbytes; the rows say so behind its name"
    )
    dtype: str = option("auto", "of weights; auto: the model's own, or float32 on a CPU that is slow at it")
    enforce_eager: bool | None = option(
        None, "no compilation, no CUDA graphs; None: on a CPU only", free=True
    )
    server_urls: str = option("", "for backend=server: base URLs, separated by commas", free=True)
    server_model: str | None = option(None, "the model's name on the servers; None: the first they list")
    server_concurrency: int = option(64, "completions in flight a server", within=COUNT, free=True)
    server_timeout: float = option(
        3600.0, "time that one completion of a server may take", "s", within=POSITIVE, free=True
    )

    def options(self, **more: Any) -> EngineOptions:
        urls = tuple(listed(self.server_urls))
        return super().options(server_urls=urls, **more)


@dataclass(frozen=True)
class InferencePlan(TurnPlan, Plan):
    """A turn plan, of which tasks, by what, and where to."""

    checks: ClassVar[str] = "arcnb.search.checks:plan_problems"

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
    backend: str = option(
        "auto",
        "vllm, server, transformers, or auto: vllm where it is installed",
        within=("auto", *BACKENDS),
    )
    template: str = option("arc_code", "prompt template: a name or a path to a Jinja file")
    refine_template: str = option(
        "refine", "with turns: template of the feedback: refine (short), refine_full, or a path"
    )
    encoding: str = encoding_option()
    output: str = option("", 'folder of the prediction set; "" is predictions/ in the run folder')
    sampling: Drawing = branch(Drawing)
    engine: InferenceEngine = branch(InferenceEngine)
    programs: Programs = branch(Programs)

    @property
    def made_by(self) -> str:
        """The model, as the rows say it."""
        return f"{self.model} (4 bit)" if self.engine.load_in_4bit else self.model


def sampled_sets(plan: InferencePlan, tasks: Sequence[Task], own: Path) -> dict[str, SampledSet]:
    """The set of each adapter, by its name in tables. They go to the plan's output; without it to `own`."""
    from arcnb.arc.predictions.prediction_set import PredictionSet
    from arcnb.search.sampling.sampled_set import SampledSet

    format_ = prompt_format(plan.template, plan.encoding, plan.refine_template)
    return {
        name: SampledSet(
            tasks, PredictionSet(folder), format_, plan.sampling.sampling(), plan.made_by, adapter
        )
        for name, (adapter, folder) in compared_adapters(plan, own).items()
    }


def counted_tasks(plan: InferencePlan, tasks: TaskSet, sets: Mapping[str, SampledSet], engine) -> TaskSet:
    """The tasks that a run tells of: those of its shard, since others may be sampled later or never."""
    from arcnb.search.sampling.predict import shard_of

    if plan.rounds.n_shards == 1:
        return tasks
    return tasks.subset([task.task_id for task in shard_of(next(iter(sets.values())), plan.rounds, engine)])


def compared_adapters(plan: InferencePlan, own: str | Path = "") -> dict[str, tuple[str, Path]]:
    """{name in tables: (adapter, "" for none; the folder of its predictions)}. ArcnbError where two names are
    the same.

    One adapter, or none, fills the folder itself. Several have folders below it, each called by the last part
    of the adapter's path, or, of those that share it (`A/adapter, B/adapter`), by the first part before it in
    which they all differ.
    """
    asked = [adapter_name(name, plan.model) for name in listed(plan.adapter)]
    compared = [name or NO_ADAPTER for name in asked] or [NO_ADAPTER]
    folder, names = Path(plan.output or own), _names(compared)
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ArcnbError(f"two of the adapters to compare are called {twice[0]!r}; take one out or rename it")
    return {
        name: ("" if adapter == NO_ADAPTER else adapter, folder / name if len(compared) > 1 else folder)
        for name, adapter in zip(names, compared, strict=True)
    }


def _names(adapters: Sequence[str]) -> list[str]:
    names = [Path(adapter).name for adapter in adapters]
    for shared in {name for name in names if names.count(name) > 1}:
        same = [i for i, name in enumerate(names) if name == shared]
        levels = zip(*(reversed(Path(adapters[i]).parts) for i in same), strict=False)
        different = next((level for level in levels if len(set(level)) == len(same)), None)
        for i, name in zip(same, different or (), strict=False):
            names[i] = name
    return names


def highest_rank(plan: InferencePlan, sets: Iterable[SampledSet]) -> int | None:
    """The LoRA rank that an engine has to make room for; None for a single run, and for servers.

    An engine for a single adapter sees its rank, or merges it into its weights.
    """
    compared = [made.adapter for made in sets]
    adapters = [adapter for adapter in compared if adapter]
    if not adapters or len(compared) == 1 or plan.backend == "server":
        return None
    resolved = resolve_model(plan.model)
    folders = [resolve_adapter(adapter, resolved) for adapter in adapters]
    if backend_name(plan.backend) == "vllm":
        for folder in folders:
            check_apart(folder)
    return max(map(adapter_rank, folders))
