"""What the first notebook shows: models and task sets at hand, the last runs, the latest predictions."""

from __future__ import annotations

import html
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.errors import ArcnbError
from arcnb.lab.pages.links import relative
from arcnb.lab.runs import cards
from arcnb.lab.runs.finding import list_runs
from arcnb.lab.runs.manifest import RUN_DIR
from arcnb.lab.runs.run import Run, runs_root
from arcnb.lab.workspace.folders import home
from arcnb.machine.files import size_of

if TYPE_CHECKING:
    import pandas as pd

_RECENT = 60  # runs that are looked through for what they left


def models() -> pd.DataFrame:
    """Models and adapters on this machine: by what to write as a parameter, where each is from, its size."""
    import pandas as pd

    from arcnb.models.registry import SHIPPED_ADAPTERS, resolve_model

    embedded = resolve_model("default").folder
    shipped = sorted(path for path in SHIPPED_ADAPTERS.iterdir() if path.is_dir())
    rows = [("model", "default", "embedded: SmolLM2-135M-Instruct", size_of(embedded))]
    rows += [("model", name, "in the hub's cache", size) for name, size in _cached_models()]
    rows += [("adapter", path.name, "shipped, for the embedded model", size_of(path)) for path in shipped]
    rows += [
        ("adapter", str(run.path / item["path"]), f"trained by {run.path.name}", item["bytes"])
        for run, _, item in _recent_artifacts()
        if Path(item["path"]).name == "adapter"
    ]
    table = pd.DataFrame(rows, columns=["what", "parameter", "origin", "size"])
    return _by_parameter(table.assign(size=table["size"].map(cards.size_text)))


def task_sets() -> pd.DataFrame:
    """Task sets on this machine, by what to write as a parameter: the named sources and what runs wrote."""
    import pandas as pd

    from arcnb.arc.tasks.task_set import SOURCES, load_tasks

    rows: list[tuple[str, Any, str]] = []
    for name in SOURCES:
        try:
            tasks = load_tasks(name)
            rows.append((name, len(tasks), tasks.version))
        except ArcnbError as error:
            rows.append((name, None, str(error)))
    rows += [
        (str(run.path / item["path"]), tasks if type(tasks) is int else None, f"written by {run.path.name}")
        for run, manifest, item in _recent_artifacts()
        if item["path"] == "tasks.parquet"
        for tasks in [manifest["outcome"].get("tasks")]
    ]
    table = pd.DataFrame(rows, columns=["parameter", "tasks", "version"]).astype({"tasks": "Int64"})
    return _by_parameter(table)


def _by_parameter(table: pd.DataFrame) -> pd.DataFrame:
    """The table without row numbers; the index is shown whole, where a column would be cut at 50 letters."""
    return table.set_index("parameter").rename_axis(index=None, columns="parameter")


@dataclass(frozen=True)
class RunList:
    """Runs as a table that leads to their pages and notebooks."""

    runs: list[Run]

    def _repr_html_(self) -> str:
        if not self.runs:
            return f"<p>No runs in {html.escape(str(runs_root()))} yet.</p>"
        rows = [("", "run", "took", "what came out", ""), *map(_run_row, self.runs)]
        start = '<td style="text-align:left">'
        lines = [f"<tr>{''.join(f'{start}{cell}</td>' for cell in row)}</tr>" for row in rows]
        return f'<table class="dataframe">{"".join(lines)}</table>'

    def __repr__(self) -> str:
        return "\n".join(run.path.name for run in self.runs) or "no runs yet"


def last_runs(n: int = 10) -> RunList:
    """The last n runs, newest first, without the one that asks."""
    own = os.environ.get(RUN_DIR)
    return RunList([run for run in list_runs()[::-1] if str(run.path) != own][:n])


def latest_predictions() -> PredictionSet | None:
    """The newest prediction set of a run, None where there is none yet."""
    for run in list_runs()[::-1][:_RECENT]:
        try:
            if (found := PredictionSet(run.path / "predictions")).parts():
                return found
        except ArcnbError:
            continue
    return None


def _recent_artifacts() -> Iterator[tuple[Run, dict[str, Any], dict[str, Any]]]:
    """(run, its manifest, an artifact) of the last runs whose manifests can be read, newest first."""
    for run in list_runs()[::-1][:_RECENT]:
        try:
            manifest = run.manifest
        except ArcnbError:
            continue
        yield from ((run, manifest, item) for item in manifest["artifacts"])


def _run_row(run: Run) -> tuple[str, str, str, str, str]:
    name = html.escape(run.path.name)
    try:
        status, why = run.verdict()
        manifest = run.manifest
    except ArcnbError as error:
        return "", name, "", html.escape(str(error)), ""
    took = (
        "" if manifest["seconds"] is None else cards.duration_text(manifest["seconds"]).replace(" ", "&nbsp;")
    )
    facts = why or cards.news(manifest["outcome"])
    links = " ".join(
        _link(kind, path)
        for kind, path in (("page", run.page_path), ("notebook", run.copy_path))
        if path.is_file()
    )
    return cards.badge(status), name, took, html.escape(facts), links


def _link(kind: str, path: Path) -> str:
    """A link that starts from the page: the run folder under `arcnb run`, else the notebook's own folder.
    There JupyterLab serves nothing from outside of the lab: such a path is for copying."""
    own, here = os.environ.get(RUN_DIR), Path.cwd()
    if own or any(path.is_relative_to(root) for root in (home(), here)):
        return f'<a href="{relative(path, own or here)}">{kind}</a>'
    return f"{kind}: <code>{html.escape(str(path))}</code>"


def _cached_models() -> list[tuple[str, int]]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        found = scan_cache_dir().repos
    except CacheNotFound:
        return []
    return sorted((one.repo_id, one.size_on_disk) for one in found if one.repo_type == "model")
