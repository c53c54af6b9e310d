"""Predictions worth a look: the one that came closest on each task, drawn with its program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from arcnb.arc.predictions.prediction import KEY_COLUMNS, Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.predictions.tables import RANKING, best_first, prediction_ids
from arcnb.arc.tasks.task_set import TaskSet
from arcnb.machine.files import replaced_file, write_whole
from arcnb.models.prompts.format import PromptFormat
from arcnb.models.sampling.backends import Sampling
from arcnb.programs.executor.executor import Executor
from arcnb.search.sampling.predict import predict
from arcnb.search.sampling.rounds import RoundPlan
from arcnb.search.sampling.sampled_set import SampledSet

if TYPE_CHECKING:
    import pandas as pd

_NOTHING = "There is no program with valid outputs to show."


def best_predictions(
    predictions: PredictionSet, n: int, solved: bool | None = None, task_ids: Iterable[str] | None = None
) -> list[Prediction]:
    """The best prediction of each of the n tasks that came closest to being solved, best first.

    Solved train pairs count before solved test pairs, then shares of right grids, then similarity. solved:
    True takes solved tasks only, False the others only, those that may be solved among them: a program gets
    their train pairs right, and their test outputs are unknown. task_ids: of these tasks only.
    """
    ranked = _ranked(predictions, task_ids=task_ids)
    if solved is not None:
        ranked = ranked[ranked["solved"].fillna(False) == solved]
    keys = list(ranked.head(n)[list(KEY_COLUMNS)].itertuples(index=False, name=None))
    found = predictions.get(keys)
    return [found[key] for key in keys]


def best_programs(sets: Mapping[str, PredictionSet]) -> pd.DataFrame:
    """One row a task: the best program that any of the sets holds, of equally good ones the shortest.

    Columns task_id, set, prediction (its id), solved (missing where test outputs that would say so are
    unknown), the scores and the program; best tasks first.
    """
    import pandas as pd

    ranked = [_ranked(one, ["program"]).assign(set=name) for name, one in sets.items()]
    frame = pd.concat(ranked).assign(length=lambda f: f["program"].str.len())
    frame = best_first(frame.sort_values("length", kind="stable")).drop_duplicates("task_id")
    frame["prediction"] = prediction_ids(frame)
    columns = ["task_id", "set", "prediction", "solved", *RANKING, "program"]
    return frame[columns].reset_index(drop=True)


def write_programs(programs: pd.DataFrame, path: Path) -> Path:
    """The table of `best_programs` as Parquet, in place of what an attempt before has left."""
    with replaced_file(path) as file:
        programs.to_parquet(file, index=False)
    return path


def _ranked(
    predictions: PredictionSet, more: Sequence[str] = (), task_ids: Iterable[str] | None = None
) -> pd.DataFrame:
    """The best valid prediction of each task, best first, with the columns of the ranking and "solved"."""
    columns = [*KEY_COLUMNS, "status", *RANKING, *more]
    frame = predictions.read(columns, task_ids)
    frame = frame[frame["status"] == "ok"]
    train, test = (frame[name].astype("Float64") == 1 for name in ("train_is_correct", "test_is_correct"))
    frame = frame.assign(solved=train.fillna(False) & test)  # unknown where only test is
    if more:
        frame = frame.assign(length=frame["program"].str.len()).sort_values("length", kind="stable")
    return best_first(frame).drop_duplicates("task_id")


def sample_tasks(
    tasks: TaskSet, engine, folder: Path, executor: Executor, prompt_format: PromptFormat, seed: int
) -> PredictionSet:
    """Four unaugmented predictions of each task, to see what a model writes; the set is left in folder."""
    predictions = PredictionSet(folder)
    sampling = Sampling(max_tokens=min(512, engine.context // 2))
    made = SampledSet(list(tasks), predictions, prompt_format, sampling)
    predict(made, engine, executor, RoundPlan(4, 4, seed=seed, augment="none"))
    return predictions


@dataclass(frozen=True)
class Showcase:
    """Predictions that draw themselves in a notebook: verdict, grids, program. heads: one each; they are then
    drawn small, side by side."""

    tasks: TaskSet
    predictions: list[Prediction]
    heads: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.predictions)

    def _repr_html_(self) -> str:
        if not self.predictions:
            return f"<p>{_NOTHING}</p>"
        if not self.heads:
            return "".join(p.card(self.tasks[p.task_id]) for p in self.predictions)
        rows = zip(self.predictions, self.heads, strict=True)
        cards = "".join(p.small_card(self.tasks[p.task_id], head) for p, head in rows)
        return f'<div class="arcnb arcnb-cards">{cards}</div>'

    def write(self, path: Path) -> Path:
        """The pictures as a fragment of HTML, for the index of runs."""
        write_whole(path, self._repr_html_())
        return path

    def __repr__(self) -> str:
        return "\n".join(p.verdict for p in self.predictions) or _NOTHING


def highlights(tasks: TaskSet, predictions: PredictionSet) -> Showcase:
    """Three solved tasks and the one that came closest without being solved, each with its program; tasks of
    different programs come before tasks of the same program."""
    found = best_predictions(predictions, 12, True, tasks.ids)
    once = {one.program: one for one in reversed(found)}.values()
    solved = sorted(found, key=lambda one: not any(one is other for other in once))[:3]
    missed = best_predictions(predictions, 1, False, tasks.ids)
    heads = [f"Solved: {one.task_id}" for one in solved]
    for one in missed:
        near = "All train pairs right" if one.train_is_correct else "Near miss"
        heads.append(f"{near}: {one.task_id}, {one.verdict.partition(' · ')[2]}")
    return Showcase(tasks, [*solved, *missed], heads)


def side_by_side(tasks: TaskSet, predictions: Iterable[Prediction]) -> Showcase:
    """The first prediction of each of four tasks, drawn small under its task and what was right."""
    first: dict[str, Prediction] = {}
    for one in predictions:
        first.setdefault(one.task_id, one)
    shown = list(first.values())[:4]
    return Showcase(tasks, shown, [f"{p.task_id}: {p.verdict.partition(' · ')[2]}" for p in shown])


def show_predictions(tasks: TaskSet, predictions: Iterable[Prediction]) -> Showcase:
    """The predictions as the last line of a cell."""
    return Showcase(tasks, list(predictions))
