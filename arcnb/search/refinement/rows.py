"""Second-turn conversations: task, the program the model wrote, what it did, the request for a better one.

Works for any depth and any number of prediction sets: a prediction of turn t gives a conversation for t + 1,
whose history is rebuilt through its parents, in its own set or in another given set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from arcnb.arc.predictions.prediction import KEY_COLUMNS, SCORE_COLUMNS, Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet, slices
from arcnb.arc.predictions.tables import prediction_ids
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Task
from arcnb.arc.views import COLUMNS
from arcnb.errors import ArcnbError
from arcnb.machine.files import replaced_file
from arcnb.models.prompts.chat import prompt_ids
from arcnb.models.prompts.conversations import Conversations
from arcnb.models.prompts.format import PromptFormat
from arcnb.models.prompts.rendering import Prompt
from arcnb.programs.executor.executor import Executor
from arcnb.search.comparing.sets import NAMING
from arcnb.search.turns.selection import check_choice, choose
from arcnb.values import listed

if TYPE_CHECKING:
    import pandas as pd


@dataclass
class RefinementDataset:
    """rows: one conversation each, see `refinement_rows`; parents: the predictions that they refine.

    n_solved: tasks with a prediction that is right on all train pairs; test outputs choose nothing here.
    too_long: folder of its set and prediction id -> tokens, of those left out. n_right_on_train: programs
    that failed on a test input only, about which nothing may be said. n_repeated: predictions that an earlier
    set holds, too. why_empty: a sentence where there are no rows, else "".
    """

    rows: list[dict] = field(default_factory=list)
    parents: list[Prediction] = field(default_factory=list)
    n_tasks: int = 0
    n_solved: int = 0
    too_long: dict[str, int] = field(default_factory=dict)
    n_right_on_train: int = 0
    n_repeated: int = 0
    why_empty: str = ""

    def outcome(self) -> dict:
        """Plain numbers for the run's manifest."""
        return {
            "conversations": len(self.rows),
            "tasks": len({row["task_id"] for row in self.rows}),
            "tasks_seen": self.n_tasks,
            "tasks_right_on_train": self.n_solved,
            "parents_that_failed": sum(parent.status != "ok" for parent in self.parents),
            "parents_without_a_right_pair": sum(not parent.train_correct_grids for parent in self.parents),
            "left_out_as_too_long": self.too_long,
            "left_out_as_right_on_train": self.n_right_on_train,
            "left_out_as_in_two_sets": self.n_repeated,
            "longest_prompt": max((row["n_prompt_tokens"] for row in self.rows), default=0),
        }

    def headline(self, n_successes: int) -> str:
        """How many conversations of how many tasks, and how many answers to learn from."""
        n_tasks = len({row["task_id"] for row in self.rows})
        right = (
            f" {self.n_solved} of {self.n_tasks} tasks had all train pairs right." if self.n_solved else ""
        )
        taught = (
            f"{n_successes} answers solved their task" if n_successes else "No refinement solved its task yet"
        )
        return f"{len(self.rows)} conversations of {n_tasks} tasks ask for a better program.{right} {taught}."

    def summary(self) -> pd.DataFrame:
        """The outcome as a one-column table."""
        import pandas as pd

        shown = self.outcome() | {"left_out_as_too_long": len(self.too_long)}
        return pd.DataFrame({"refinement dataset": shown})

    def lengths(self) -> pd.DataFrame:
        """Prompt tokens by turn: conversations, mean, quantiles, longest."""
        import pandas as pd

        frame = pd.DataFrame({name: [row[name] for row in self.rows] for name in ("turn", "n_prompt_tokens")})
        percentiles = [0.5, 0.9, 0.99]
        return frame.groupby("turn")["n_prompt_tokens"].describe(percentiles=percentiles).round(0)


def turn_numbers(text: str) -> list[int]:
    """Turns separated by commas, counted from 0. ArcnbError for anything else."""
    parts = listed(text)
    for part in parts:
        if not part.isdecimal():
            wanted = 'numbers separated by commas, as in "0,1"'
            raise ArcnbError(f"turns_to_refine takes {wanted}, not {part!r}")
    return [int(part) for part in parts]


@dataclass(frozen=True)
class Gathered:
    """The predictions of one task from all sets, each with the number of its set."""

    rows: list[tuple[int, Prediction]]
    sets: Sequence[PredictionSet]

    def once(self) -> list[tuple[int, Prediction]]:
        """The rows, without those that repeat one of an earlier set, as folders that overlap give them.

        Equal ids are not enough, any two sets share some: the answers and those they refine have to be equal.
        """
        ancestors = {number: self.ancestors(number) for number in {number for number, _ in self.rows}}
        first_in: dict[tuple, int] = {}
        return [
            (number, prediction)
            for number, prediction in self.rows
            if first_in.setdefault(_history(prediction, ancestors[number]), number) == number
        ]

    def ancestors(self, number: int) -> dict[str, Prediction]:
        """id -> prediction as the rows of that set mean it: their own set's, else the one that they refine.

        ArcnbError where other sets hold different ones of its id and view.
        """
        found = {prediction.id: prediction for of, prediction in self.rows if of == number}
        held: dict[str, list[tuple[int, Prediction]]] = {}
        for row in self.rows:
            held.setdefault(row[1].id, []).append(row)
        children = [*found.values()]
        for child in children:  # it grows by their parents
            if child.parent is None or child.parent in found:
                continue
            # A refinement has its parent's view, which sets of other seeds have not.
            parents = [row for row in held.get(child.parent, ()) if row[1].view == child.view]
            for of, parent in parents[1:]:
                if _turn(parent) != _turn(parents[0][1]):
                    first, other = (self.sets[i].folder for i in (parents[0][0], of))
                    raise ArcnbError(
                        f"prediction {child.id} of {self.sets[number].folder} refines {parent.id}, and "
                        f"{first} and {other} hold different ones: name the one set that was refined"
                    )
            if parents:
                found[child.parent] = parents[0][1]
                children.append(parents[0][1])
        return found


def _history(prediction: Prediction, ancestors: Mapping[str, Prediction]) -> tuple:
    """What the conversation that ends with this prediction is made of, turn by turn, the last one first."""
    turns = []
    one: Prediction | None = prediction
    while one is not None:
        turns.append(_turn(one))
        one = ancestors.get(one.parent)
    return tuple(turns)


def _turn(one: Prediction) -> tuple:
    return (one.id, one.view, one.completion_prefix, one.completion)


def gather(sets: Sequence[PredictionSet], tasks: Sequence[Task]) -> Iterator[tuple[str, Gathered]]:
    """(task id, its predictions), some tasks in memory at a time. ArcnbError before the first for sets
    without predictions or completions, and for predictions that do not fit the tasks."""
    _check_sets(sets, {task.task_id: task.fingerprint for task in tasks})
    for some in slices(tasks):
        ids = [task.task_id for task in some]
        found = {id_: Gathered([], sets) for id_ in ids}
        for number, one in enumerate(sets):
            for prediction in one.iter_predictions(task_ids=ids):
                found[prediction.task_id].rows.append((number, prediction))
        yield from ((id_, gathered) for id_, gathered in found.items() if gathered.rows)


def _check_sets(sets: Sequence[PredictionSet], fingerprints: Mapping[str, str]) -> None:
    if not sets:
        raise ArcnbError(f"no prediction set is named: {NAMING}")
    for one in sets:
        names = [*KEY_COLUMNS, "task_fingerprint", "status", "pair_order", "completion"]
        frame = one.read(columns=names)
        if frame.empty:
            raise ArcnbError(f"prediction set {one.folder} holds no predictions")
        expected = frame["task_id"].astype(object).map(fingerprints)
        problems = [
            (
                expected.isna(),
                "answers a task that is not in this task set: `tasks` is to be the set that was sampled",
            ),
            (
                expected != frame["task_fingerprint"].astype(object),
                "answers another version of its task: the fingerprints differ",
            ),
            (frame["status"].isna(), "was never judged"),
            (frame["pair_order"].isna(), "does not say what its prompt showed"),
        ]
        for wrong, what in problems:
            if wrong.any():
                raise ArcnbError(f"{one.folder}: prediction {prediction_ids(frame[wrong]).iloc[0]} {what}")
        if not frame["completion"].astype(bool).any():
            raise ArcnbError(f"prediction set {one.folder} holds no completions: nothing can be rebuilt")


def refinement_rows(
    sets: Sequence[PredictionSet],
    tasks: Sequence[Task],
    tokenizer,
    prompt_format: PromptFormat,
    executor: Executor,
    *,
    chooser: str = "distinct",
    per_task: int = 4,
    turns: Iterable[int] = (),
    keep_solved: bool = False,
    max_prompt_length: int = 7000,
    seed: int = 0,
) -> RefinementDataset:
    """Conversations to refine at most `per_task` predictions of each task, as rows

    `{task_id, task_fingerprint, parent, parent_set, turn, messages, prefix, prompt_ids, n_prompt_tokens,
    hflip, n_rot90, color_map, pair_order, test_index, parent_status, parent_<score> ...}`; the scores are for
    rewards that ask for improvement, no message mentions test pairs.

    turns: only refine predictions of these turns (empty: of all). executor: see
    arcnb.models.prompts.conversations. ArcnbError as `check_choice`, or for predictions that do not fit the
    tasks.
    """
    check_choice(chooser, per_task)
    wanted = set(turns)
    book = Conversations({task.task_id: task for task in tasks}, prompt_format, executor)
    dataset = RefinementDataset()
    for task_id, found in gather(sets, tasks):
        dataset.n_tasks += 1
        solved = any(p.train_is_correct for _, p in found.rows)
        dataset.n_solved += solved
        if solved and not keep_solved:
            continue
        rows = found.once()
        dataset.n_repeated += len(found.rows) - len(rows)
        of_set = {id(p): number for number, p in rows if not wanted or p.turn in wanted}
        candidates = [p for _, p in rows if id(p) in of_set]
        for parent in choose(chooser, candidates, per_task, rng(seed, "refine", task_id)):
            if parent.status != "ok" and book.right_on_train(parent):
                dataset.n_right_on_train += 1
                continue
            number = of_set[id(parent)]
            prompt = book.refining(parent, found.ancestors(number))
            ids = prompt_ids(tokenizer, prompt)
            if len(ids) > max_prompt_length:
                dataset.too_long[f"{sets[number].folder}/{parent.id}"] = len(ids)
                continue
            dataset.rows.append(_row(parent, sets[number], prompt, ids))
            dataset.parents.append(parent)
    if not dataset.rows:
        dataset.why_empty = _why_empty(dataset, chooser, wanted, keep_solved, max_prompt_length)
    return dataset


def _why_empty(dataset: RefinementDataset, chooser, wanted, keep_solved, limit) -> str:
    of_turns = f" of turns {', '.join(map(str, sorted(wanted)))}" if wanted else ""
    kept = "" if keep_solved else " and are left out"
    return (
        f"nothing to refine: of {dataset.n_tasks} tasks {dataset.n_solved} have all train pairs right{kept}, "
        f"{len(dataset.too_long)} conversations exceed {limit} tokens, {dataset.n_right_on_train} programs "
        f"failed on test inputs only, and chooser {chooser!r} found no other candidate{of_turns}"
    )


def _row(parent: Prediction, one: PredictionSet, prompt: Prompt, ids: list[int]) -> dict:
    return {
        "task_id": parent.task_id,
        "task_fingerprint": parent.task_fingerprint,
        "parent": parent.id,
        "parent_set": str(one.folder),
        "turn": parent.turn + 1,
        "messages": list(prompt.messages),
        "prefix": prompt.prefix,
        "prompt_ids": ids,
        "n_prompt_tokens": len(ids),
        **{name: getattr(parent, name) for name in COLUMNS},
        "parent_status": parent.status,
        **{f"parent_{name}": getattr(parent, name) for name in SCORE_COLUMNS},
    }


def write_conversations(rows: Sequence[Mapping], path: Path) -> Path:
    """Conversations as Parquet, whole or not at all, in place of what an attempt before has left."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with replaced_file(path) as file:
        pq.write_table(pa.Table.from_pylist(list(rows)), file, compression="zstd")
    return path
