"""Runs side by side: parameters that differ, what came out, curves, and what it cost."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from arcnb.arc.predictions.prediction import KEY_COLUMNS
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.predictions.tables import solving
from arcnb.arc.scores.intervals import (
    FEWEST_TASKS,
    mean_and_interval,
    points,
    rate_text,
    resampled_weights,
)
from arcnb.arc.scores.pass_rates import pass_at_k
from arcnb.arc.seeds import rng
from arcnb.errors import ArcnbError, number_of, some
from arcnb.lab.batch.sweeps import runs_named
from arcnb.lab.runs import cards
from arcnb.lab.runs.finding import list_runs
from arcnb.lab.runs.manifest import seconds_between
from arcnb.lab.runs.run import Run
from arcnb.models.training.log import read_metrics
from arcnb.search.comparing import evaluation
from arcnb.search.comparing.sets import table_frame
from arcnb.values import listed

if TYPE_CHECKING:
    import pandas as pd

# What runs without prediction sets are ranked by: the first that all have; -1 where less is better.
MEASURES = {"submission": 1, r"pass@\d+": 1, "solved": 1, "reward": 1, "eval_loss": -1, "loss": -1}
_LATEST = 4  # runs that are compared when none is named
_LOOKING = ("00_start", "08_compare_runs")  # kinds of runs that only look at others
_SEARCH = (
    "07_search_and_learn"  # its processes are searches, and its `output` is a folder for each of its arms
)
_SAMPLES = ("predictions", "rollouts", "guided", "search")  # folders of a run that hold prediction sets
_SAMPLE = [*KEY_COLUMNS, "adapter", "n_tokens"]  # what tells one sample from another


def open_runs(references: str = "", names: str = "") -> dict[str, Run]:
    """{name: run} of runs (paths, folder names, run names, sweeps for all of theirs) and names, separated by
    commas.

    Without references the last four that are done. Names default to the runs' own, the folder's where two
    share one. ArcnbError for a run that does not exist or is named twice, and names that do not fit.
    """
    asked = listed(references)
    runs = runs_named(asked) if asked else _latest()
    given = listed(names)
    if not runs:
        raise ArcnbError("there are no runs to compare yet")
    if given and len(given) != len(runs):
        raise ArcnbError(f"{len(runs)} runs but {len(given)} names")
    own = [run.name for run in runs]
    labels = given or [run.name if own.count(run.name) == 1 else run.path.name for run in runs]
    for label in labels:
        if labels.count(label) > 1:
            raise ArcnbError(
                f"two of the runs to compare are called {label!r}; name each once, or give names"
            )
    return dict(zip(labels, runs, strict=True))


def _latest() -> list[Run]:
    found: list[Run] = []
    for run in list_runs()[::-1]:
        try:
            fits = run.status == "done" and run.kind not in _LOOKING
        except ArcnbError:  # of an older version, say: it is not among the last that can be compared
            continue
        if fits:
            found.insert(0, run)
        if len(found) == _LATEST:
            break
    return found


def parameter_differences(runs: Mapping[str, Run]) -> pd.DataFrame:
    """One row a parameter that is not the same everywhere, one column a run; empty where a run has none.

    Those that most runs have come first.
    """
    import pandas as pd

    given = {name: run.manifest["parameters"] for name, run in runs.items()}
    every = dict.fromkeys(key for values in given.values() for key in values)
    rows = {
        key: {name: cards.value_text(values[key]) if key in values else "" for name, values in given.items()}
        for key in every
        if len({repr(values[key]) if key in values else None for values in given.values()}) > 1
    }
    held = {key: -sum(key in values for values in given.values()) for key in rows}
    ordered = {key: rows[key] for key in sorted(rows, key=held.get)}
    return pd.DataFrame.from_dict(ordered, orient="index", columns=list(runs))


def outcome_table(runs: Mapping[str, Run]) -> pd.DataFrame:
    """One row a number of the outcomes (inner ones as outer/inner), one column a run; NaN for none."""
    import pandas as pd

    columns = {}
    for name, run in runs.items():
        outcome = cards.flat(run.manifest["outcome"])
        numbers = {key: value for key, value in outcome.items() if isinstance(value, int | float)}
        columns[name] = pd.Series(numbers, dtype=float)
    table = pd.DataFrame(columns)
    return table.loc[list(cards.first(dict.fromkeys(key for one in columns.values() for key in one.index)))]


def readable(table: pd.DataFrame) -> pd.DataFrame:
    """The numbers as short texts, unknown ones empty."""
    return table.map(cards.short_text)


def prediction_sets(runs: Mapping[str, Run]) -> dict[str, PredictionSet]:
    """{run, or run/adapter: its prediction set} of the runs that sampled one."""
    return {
        label: one
        for name, run in runs.items()
        for folder in ("predictions", "search")
        for label, one in _sets(name, run, folder).items()
    }


def prediction_frames(runs: Mapping[str, Run]) -> dict[str, pd.DataFrame]:
    """{run, or run/adapter: predictions} of the runs that sampled some, with what tables and curves need."""
    frames = {label: table_frame(one) for label, one in prediction_sets(runs).items()}
    return {label: frame for label, frame in frames.items() if len(frame)}


def on_shared_tasks(
    frames: Mapping[str, pd.DataFrame],
) -> tuple[dict[str, pd.DataFrame], list[str], str]:
    """(the frames, on the tasks that all of them have predictions of, in the same version; the ids of these
    tasks; a sentence that names those left out as their versions differ, else "")."""
    versions: dict[str, set[str]] = {}
    for frame in frames.values():
        for id_, version in frame[["task_id", "task_fingerprint"]].drop_duplicates().itertuples(index=False):
            versions.setdefault(id_, set()).add(version)
    ids = set(versions).intersection(*(frame["task_id"] for frame in frames.values()))
    shared = sorted(id_ for id_ in ids if len(versions[id_]) == 1)
    kept = {name: frame[frame["task_id"].isin(shared)] for name, frame in frames.items()}
    apart = sorted(ids.difference(shared))
    said = f"Left out, as the sets answer different versions of them: {number_of(len(apart), 'task')}"
    return kept, shared, f"{said}, {some(apart)}." if apart else ""


def ranking(
    frames: Mapping[str, pd.DataFrame], task_ids: Sequence[str], seed: int = 0, stopped: Container[str] = ()
) -> pd.DataFrame:
    """One row a prediction set, best first: columns k, mean, low, high, n_tasks of its pass@k at the largest
    k for which every set has as many predictions of every task, and behind, behind_low, behind_high: the best
    set's mean minus its own, with a 95% interval by bootstrap over tasks. Sets that refine, learn or end
    early have no pass@k, no row; tasks whose test outputs are unknown to one of the others do not count."""
    import pandas as pd

    frames = _with_curves(frames, task_ids, seed, stopped)
    task_ids = evaluation.solve_rates(frames, task_ids).dropna().index.tolist()
    frames = {name: frame[frame["task_id"].isin(task_ids)] for name, frame in frames.items()}
    drawn = evaluation.curves(frames, task_ids, seed)
    drawn = {name: curve.set_index("k", drop=False) for name, curve in drawn.items() if len(curve)}
    if not drawn:
        return pd.DataFrame()
    k = max(set.intersection(*(set(curve.index[curve["n_short"] == 0]) for curve in drawn.values())))
    table = pd.DataFrame({name: curve.loc[k].drop("n_short") for name, curve in drawn.items()}).T
    table = table.sort_values("mean", ascending=False, kind="stable")
    chances = {name: _chances(frames[name], task_ids, int(k)) for name in table.index}
    best = chances[table.index[0]]
    weights = resampled_weights(len(best), rng(seed, "ranking"))
    behind = [mean_and_interval(best - own, weights) for own in chances.values()]
    table[["behind", "behind_low", "behind_high"]] = behind
    return table


def _with_curves(
    frames: Mapping[str, pd.DataFrame], task_ids: Sequence[str], seed: int, stopped: Container[str]
) -> dict[str, pd.DataFrame]:
    """The frames that have a pass@k curve under their own names, as of all of their predictions."""
    drawn = evaluation.curves(frames, task_ids, seed, stopped)
    return {name: frame for name, frame in frames.items() if len(drawn.get(name, ()))}


def standing(ranked: pd.DataFrame) -> pd.DataFrame:
    """A ranking as texts: how many of the tasks each set solves, and how far it is behind the best."""
    import pandas as pd

    rows = {}
    for name, one in ranked.iterrows():
        behind = f"{points(one.behind)} ({points(one.behind_low)} to {points(one.behind_high)})"
        rows[name] = {
            f"solved by {one.k:.0f} predictions a task": rate_text(one["mean"], one.low, one.high),
            "behind the best, points": behind,
            "tasks": f"{one.n_tasks:.0f}",
        }
    return pd.DataFrame.from_dict(rows, orient="index")


def _chances(frame: pd.DataFrame, task_ids: Sequence[str], k: int) -> np.ndarray:
    """pass@k of each task whose test outputs are known."""
    found = solving(frame).groupby(frame["task_id"].astype(object)).agg(["size", "sum"])
    rates = evaluation.solve_rates({"": frame}, task_ids)[""].dropna()
    counts = found.loc[rates.index].itertuples(index=False)
    return np.array([pass_at_k(n, c, k) for n, c in counts])


def which_was_best(ranked: pd.DataFrame, runs: Mapping[str, Run]) -> str:
    """The answer in a sentence or two: by the prediction sets where there are two, else by the first of
    MEASURES that all of the runs recorded."""
    if len(ranked) > 1:
        first, second = ranked.iloc[0], ranked.iloc[1]
        tasks = number_of(int(first.n_tasks), "shared task")
        said = [rate_text(one["mean"], one.low, one.high) for one in (first, second)]
        if first["mean"] == second["mean"]:
            both = " and ".join(ranked.index[ranked["mean"] == first["mean"]])
            return f"None is best: of {tasks} {both} solve {said[0]} at {first.k:.0f} predictions a task."
        low, high = points(second.behind_low), points(second.behind_high)
        enough = first.n_tasks >= FEWEST_TASKS and second.behind_low > 0
        proof = "shown" if enough else "not shown by these tasks"
        return (
            f"Best is {ranked.index[0]}: of {tasks} it solves {said[0]} at "
            f"{first.k:.0f} predictions a task, {ranked.index[1]} comes next with {said[1]}. That it is "
            f"better is {proof}: {low} to {high} points."
        )
    table = outcome_table(runs)
    for measure, sign in MEASURES.items():
        for name in filter(re.compile(measure).fullmatch, table.index):
            if len(runs) > 1 and table.loc[name].notna().all():
                ordered = (sign * table.loc[name]).sort_values(ascending=False, kind="stable") * sign
                best = ordered[ordered == ordered.iloc[0]]
                told = f"Best by {name} is {best.index[0]}: {best.iloc[0]:.4g}"
                if len(best) > 1:
                    told = f"None is best by {name}: {' and '.join(best.index)} have {best.iloc[0]:.4g}"
                rest = ", ".join(f"{run} {value:.4g}" for run, value in ordered.iloc[len(best) :].items())
                return f"{told}; {rest}." if rest else f"{told}."
    return "These runs recorded no number in common that says which is best."


def metric_logs(runs: Mapping[str, Run]) -> dict[str, list[dict]]:
    """{run: lines of its metrics.jsonl} of the runs that trained."""
    logs = {name: run.path / "metrics.jsonl" for name, run in runs.items()}
    return {name: read_metrics(path) for name, path in logs.items() if path.is_file() and path.stat().st_size}


def cost_table(runs: Mapping[str, Run]) -> pd.DataFrame:
    """One row a run: hours (of all attempts with a known end), GPU hours, completion tokens, tasks solved,
    tokens for each.

    GPUs are those that the run could use: its processes times the GPUs of each, and the GPUs of a server
    that it starts, at most what its machine has. Tokens and solved tasks count what it sampled, rollouts of
    training included: of a set that shards fill together its own part, and once what two searches share
    (their first round). A solved task has a prediction that is right on train and test.
    """
    import pandas as pd

    return pd.DataFrame([_cost(name, run) for name, run in runs.items()]).set_index("run")


def _cost(name: str, run: Run) -> dict[str, Any]:
    manifest = run.manifest
    earlier = [(attempt["start"], attempt["end"]) for attempt in manifest["attempts"]]
    seconds = sum(seconds_between(start, end) for start, end in earlier if start and end)
    hours = (seconds + (manifest["seconds"] or 0.0)) / 3600
    gpus = _gpus(run)
    tokens, solved, tasks = 0, set(), set()
    for folder in _SAMPLES:
        frame = _own_samples(name, run, folder)
        tokens += int(frame["n_tokens"].fillna(0).sum())
        solved |= set(frame.loc[solving(frame), "task_id"])
        tasks |= set(frame["task_id"])
    n_solved = len(solved)
    return {
        "run": name,
        "hours": hours,
        "GPUs": gpus,
        "GPU hours": hours * gpus,
        "completion tokens": tokens or None,
        "tasks": len(tasks) or None,
        "solved": n_solved if tasks else None,
        "tokens per solved task": tokens / n_solved if n_solved else None,
        "GPU seconds per solved task": 3600 * hours * gpus / n_solved if n_solved and gpus else None,
    }


def _gpus(run: Run) -> int:
    manifest = run.manifest
    parameters = _asked(manifest)
    there = len(manifest["hardware"]["gpus"])
    processes = int(parameters.get("num_processes") or 0) or (there if run.kind == _SEARCH else 1)
    if reports := run.kind == _SEARCH and manifest["outcome"].get("reports"):
        processes = len({name.partition(" ")[2] for name in reports})  # an arm and a shard each
    wanted = processes * int(parameters.get("tensor_parallel") or 1)
    if parameters.get("vllm_mode") == "server" and not parameters.get("vllm_server_base_url"):
        wanted += int(parameters.get("vllm_server_gpus") or 1)
    return min(there, wanted)


def _own_samples(name: str, run: Run, folder: str) -> pd.DataFrame:
    """What the run itself sampled into that folder, each sample once."""
    import pandas as pd

    columns = [*_SAMPLE, "train_is_correct", "test_is_correct"]
    parameters = _asked(run.manifest)
    shard, n_shards = int(parameters.get("shard") or 0), int(parameters.get("n_shards") or 1)
    sets = list(_sets(name, run, folder).values()) or [PredictionSet(run.path / folder)]
    own = [_Shard(one.folder, shard, n_shards) for one in sets] if n_shards > 1 else sets
    return pd.concat([one.read(columns) for one in own], ignore_index=True).drop_duplicates(_SAMPLE)


class _Shard(PredictionSet):
    """The part of a prediction set that one of its shards wrote."""

    def __init__(self, folder: Path, shard: int, n_shards: int):
        super().__init__(folder)
        self._mark = f"-shard{shard:02d}-of-{n_shards:02d}-"

    def parts(self) -> list[Path]:
        return [part for part in super().parts() if self._mark in part.name]


def _asked(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a run by every name they go by: a.b_c is also b_c, whichever branch of a plan it is
    of, and a_b_c, as messages and older runs say."""
    parameters = manifest["parameters"]
    last = {name.rpartition(".")[2]: value for name, value in parameters.items()}
    return last | {name.replace(".", "_"): value for name, value in parameters.items()} | parameters


def _sets(name: str, run: Run, folder: str) -> dict[str, PredictionSet]:
    """The prediction sets of a run in that folder (or in its parameter `output`), and in its subfolders."""
    manifest = run.manifest
    replaced = "search" if run.kind == _SEARCH else "predictions"
    output = _asked(manifest).get("output") if folder == replaced else None
    path = Path(manifest.get("cwd") or "", output) if output else run.path / folder
    inner = sorted(one for one in path.glob("*/") if one.is_dir())
    places = {} if folder == "search" else {name: path}
    places |= {f"{name}/{one.name}": one / "predictions" if folder == "search" else one for one in inner}
    sets = {label: PredictionSet(place) for label, place in places.items()}
    return {label: one for label, one in sets.items() if one.parts()}
