"""Several adapters of one model compared in one run: one engine, one prediction set for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arcnb.arc.predictions import PredictionSet
from arcnb.models.compatibility import adapter_rank
from arcnb.models.registry import resolve_adapter, resolve_model
from arcnb.search.rounds import PlanError

ALONE = "none"  # in a list of adapters: the model without any


@dataclass(frozen=True)
class AdapterRun:
    """One of the compared: its name in tables, the adapter ("" for none), and where its predictions go."""

    name: str
    adapter: str
    predictions: PredictionSet


def set_folder(output: str, own: Path, n_shards: int) -> Path:
    """Where predictions go: `output`, or without it `own`, in the run's folder.

    PlanError for shards without it: their runs have folders of their own, so it would be n_shards sets.
    """
    if n_shards > 1 and not output:
        raise PlanError(
            f"n_shards is {n_shards} and output is empty: give all shards the same output, or start them by "
            "`arcnb sweep 03 --shards`; each run folder is its own, so their predictions would not meet"
        )
    return Path(output) if output else own


def adapter_runs(adapters: str, folder: str | Path) -> list[AdapterRun]:
    """The runs for a list of adapters, separated by commas. One adapter, or "" for none: one set in `folder`.

    Several: a set in a folder below it for each, called by the last part of the adapter's path, or, of those
    that share it (`A/adapter, B/adapter`), by the first part before it in which they all differ.
    """
    listed = [name.strip() for name in adapters.split(",") if name.strip()] or [ALONE]
    chosen = ["" if name == ALONE else name for name in listed]
    names = _names(listed)
    if len(listed) == 1:
        return [AdapterRun(names[0], chosen[0], PredictionSet(folder))]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise PlanError(f"two of the adapters to compare are called {twice[0]!r}; take one out or rename it")
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


def highest_rank(runs: Sequence[AdapterRun], model: str, backend: str) -> int | None:
    """The LoRA rank that an engine has to make room for; None for a single run, and for servers.

    An engine for a single adapter sees its rank, or merges it into its weights.
    """
    adapters = [run.adapter for run in runs if run.adapter]
    if not adapters or len(runs) == 1 or backend == "server":
        return None
    resolved = resolve_model(model)
    return max(adapter_rank(resolve_adapter(adapter, resolved)) for adapter in adapters)
