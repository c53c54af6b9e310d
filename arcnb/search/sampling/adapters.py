"""Several adapters of one model compared in one run: one engine, one prediction set for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task import Task
from arcnb.errors import ArcnbError
from arcnb.models.lora.compatibility import adapter_rank
from arcnb.models.prompts.format import prompt_format
from arcnb.models.registry import adapter_name, resolve_adapter, resolve_model
from arcnb.search.sampling.plan import InferencePlan
from arcnb.search.sampling.sampled_set import SampledSet

ALONE = "none"  # in a list of adapters: the model without any


@dataclass(frozen=True)
class AdapterRun:
    """One of the compared: its name in tables, the adapter ("" for none), and where its predictions go."""

    name: str
    adapter: str
    predictions: PredictionSet


def sampled_sets(plan: InferencePlan, tasks: Sequence[Task], own: Path) -> dict[str, SampledSet]:
    """The set of each adapter, by its name in tables. They go to the plan's output; without it to `own`."""
    format_ = prompt_format(plan.template, plan.encoding, plan.refine_template)
    runs = adapter_runs(plan.adapter, plan.output or own, plan.model)
    return {
        run.name: SampledSet(
            tasks, run.predictions, format_, plan.sampling.sampling(), plan.made_by, run.adapter
        )
        for run in runs
    }


def adapter_runs(adapters: str, folder: str | Path, model: str = "") -> list[AdapterRun]:
    """The runs for a list of adapters, separated by commas. One adapter, or "" for none: one set in `folder`.

    Several: a set in a folder below it for each, called by the last part of the adapter's path, or, of those
    that share it (`A/adapter, B/adapter`), by the first part before it in which they all differ.
    """
    listed = [adapter_name(name.strip(), model) or ALONE for name in adapters.split(",") if name.strip()]
    listed = listed or [ALONE]
    chosen = ["" if name == ALONE else name for name in listed]
    names = _names(listed)
    if len(listed) == 1:
        return [AdapterRun(names[0], chosen[0], PredictionSet(folder))]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ArcnbError(f"two of the adapters to compare are called {twice[0]!r}; take one out or rename it")
    runs = zip(names, chosen, strict=True)
    return [AdapterRun(name, adapter, PredictionSet(Path(folder) / name)) for name, adapter in runs]


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
    return max(adapter_rank(resolve_adapter(adapter, resolved)) for adapter in adapters)
