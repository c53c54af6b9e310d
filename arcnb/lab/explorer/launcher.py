"""What the first notebook shows: models and task sets at hand, the last runs, the latest predictions."""

from __future__ import annotations

import html
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.errors import ArcnbError
from arcnb.lab.runs import cards
from arcnb.lab.runs.manifest import RUN_DIR
from arcnb.lab.runs.run import Run, list_runs, runs_root

if TYPE_CHECKING:
    import pandas as pd

_RECENT = 60  # runs that are looked through for what they left


def models() -> pd.DataFrame:
    """Models and adapters on this machine: what to write as a parameter, where it is, its size."""
    import pandas as pd

    from arcnb.models.registry import SHIPPED_ADAPTERS, resolve_model

    embedded = resolve_model("default").folder
    rows = [("model", "default", "embedded: SmolLM2-135M-Instruct", _size(embedded))]
    rows += [("model", name, "in the hub's cache", size) for name, size in _cached_models()]
    rows += [
        ("adapter", path.name, "shipped, for the embedded model", _size(path))
        for path in sorted(SHIPPED_ADAPTERS.iterdir())
        if path.is_dir()
    ]
    rows += [
        (
            "adapter",
            str(run.path / item["path"]),
            f"trained by {run.path.name}",
            cards.size_text(item["bytes"]),
        )
        for run, manifest in _recent()
        for item in manifest["artifacts"]
        if Path(item["path"]).name == "adapter"
    ]
    return pd.DataFrame(rows, columns=["what", "parameter", "origin", "size"])


def task_sets() -> pd.DataFrame:
    """Task sets on this machine: the named sources and what runs have written."""
    import pandas as pd

    from arcnb.arc.tasks.task_set import SOURCES, load_tasks
    from arcnb.errors import ArcnbError

    rows: list[tuple[str, Any, str]] = []
    for name in SOURCES:
        try:
            tasks = load_tasks(name)
            rows.append((name, len(tasks), tasks.version))
        except ArcnbError as error:
            rows.append((name, None, str(error)))
    rows += [
        (str(run.path / item["path"]), manifest["outcome"].get("tasks"), f"written by {run.path.name}")
        for run, manifest in _recent()
        for item in manifest["artifacts"]
        if item["path"] == "tasks.parquet"
    ]
    return pd.DataFrame(rows, columns=["parameter", "tasks", "version"]).astype({"tasks": "Int64"})


@dataclass(frozen=True)
class RunList:
    """The last runs as a table that leads to their pages and notebooks."""

    runs: list[Run]

    def _repr_html_(self) -> str:
        if not self.runs:
            return f"<p>No runs in {html.escape(str(runs_root()))} yet.</p>"
        rows = "".join(_run_row(run) for run in self.runs)
        names = ("", "run", "took", "what came out", "")
        head = "".join(f'<th style="text-align:left">{name}</th>' for name in names)
        return f'<table class="dataframe"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'

    def __repr__(self) -> str:
        return "\n".join(run.path.name for run in self.runs) or "no runs yet"


def last_runs(n: int = 10) -> RunList:
    """The last n runs, newest first, without the one that asks."""
    own = os.environ.get(RUN_DIR)
    return RunList([run for run in list_runs()[::-1] if str(run.path) != own][:n])


def latest_predictions() -> PredictionSet | None:
    """The newest prediction set of a run, None where there is none yet."""
    for run, _ in _recent():
        one = PredictionSet(run.path / "predictions")
        try:
            if one.parts():
                return one
        except ArcnbError:
            continue
    return None


def _recent() -> list[tuple[Run, dict[str, Any]]]:
    """The last runs whose manifests can be read, newest first."""
    found = []
    for run in list_runs()[::-1][:_RECENT]:
        try:
            found.append((run, run.manifest))
        except ArcnbError:
            continue
    return found


def _run_row(run: Run) -> str:
    left = 'style="text-align:left"'
    try:
        status, why = run.verdict()
        manifest = run.manifest
    except ArcnbError as error:
        name, says = html.escape(run.path.name), html.escape(str(error))
        return f"<tr><td></td><td {left}>{name}</td><td></td><td {left}>{says}</td><td></td></tr>"
    took = "" if manifest["seconds"] is None else cards.duration_text(manifest["seconds"])
    numbers = {name: value for name, value in manifest["outcome"].items() if type(value) in (int, float)}
    facts = why or " · ".join(f"{name} {value:.4g}" for name, value in list(numbers.items())[:4])
    links = " ".join(
        f'<a href="{html.escape(_relative(path))}">{name}</a>'
        for name, path in (("page", run.page_path), ("notebook", run.copy_path))
        if path.is_file()
    )
    return (
        f"<tr><td {left}>{cards.badge(status)}</td><td {left}>{html.escape(run.path.name)}</td>"
        f"<td>{took}</td>"
        f"<td {left}>{html.escape(facts)}</td><td {left}>{links}</td></tr>"
    )


def _relative(path: Path) -> str:
    """The path as seen from the page: the run folder under `arcnb run`, else the notebook's own folder."""
    return os.path.relpath(path, os.environ.get(RUN_DIR) or Path.cwd())


def _cached_models() -> list[tuple[str, str]]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return []
    found = [
        (one.repo_id, cards.size_text(one.size_on_disk)) for one in repositories if one.repo_type == "model"
    ]
    return sorted(found)


def _size(folder: Path) -> str:
    return cards.size_text(sum(item.stat().st_size for item in folder.rglob("*") if item.is_file()))
