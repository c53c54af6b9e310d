"""Tasks and prompts that GRPO trains on: row i is a function of (seed, i) and of what taught nothing before.

An epoch shows every task once, in an order of its own; each row draws its own view of its task. A resumed or
sharded run therefore sees what an unbroken run would have seen. Rows are made when the trainer asks for them.

A group whose completions all fail, or all succeed, has no advantages and teaches nothing; to a small model
most ARC tasks are such. Predictions sampled before training (notebook 03) say which are not
(`tasks_solved_between`); `SignalHistory` finds out while training, anew in each run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.predictions.stop_rules import early_stops
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Task
from arcnb.arc.tasks.task_set import TaskSet, load_tasks
from arcnb.arc.views import View
from arcnb.errors import ArcnbError
from arcnb.models.prompts.chat import prompt_ids
from arcnb.models.prompts.format import PromptFormat
from arcnb.models.prompts.lengths import longest_prompt
from arcnb.synth.splits import trainable_tasks

if TYPE_CHECKING:
    from arcnb.rl.plan import GrpoPlan

_JUDGED = ["task_id", "task_fingerprint", "turn", "train_is_correct", "test_is_correct"]


def training_tasks(plan: GrpoPlan) -> tuple[TaskSet, TaskSet]:
    """(tasks to train on, tasks to evaluate on). Raises ArcnbError."""
    tasks, eval_tasks = load_tasks(plan.tasks), load_tasks(plan.eval_tasks)
    tasks = tasks if plan.train_on_held_out else trainable_tasks(tasks)
    if plan.learn_from:
        tasks = tasks_solved_between(tasks, PredictionSet(plan.learn_from), 0.0, plan.max_solved)
    return tasks, eval_tasks


def tasks_solved_between(
    tasks: TaskSet, predictions: PredictionSet, min_solved: float, max_solved: float
) -> TaskSet:
    """The tasks, in order, of whose samples a share above min_solved and up to max_solved solves them.

    A sample solves a task if its program is right on all train pairs and on all test pairs whose outputs are
    known. Only first turns count. Tasks without predictions are left out. Raises ArcnbError for shares
    that are none, for predictions of another version of a task, for tasks that early stop ended (their share
    is too high: see arcnb.arc.predictions.stop_rules), and when no task is left.
    """
    if not 0 <= min_solved < max_solved <= 1:
        raise ArcnbError(
            "min_solved and max_solved are shares, 0 <= min_solved < max_solved <= 1, "
            f"not {min_solved:g} and {max_solved:g}"
        )
    frame = predictions.read(columns=_JUDGED)
    frame = frame[(frame["turn"] == 0) & frame["task_id"].isin(tasks.ids)]
    if frame.empty:
        raise ArcnbError(f"{predictions.folder} holds no first turns of the tasks of {tasks.name}")
    versions = frame[["task_id", "task_fingerprint"]].drop_duplicates().itertuples(index=False)
    if changed := sorted({id_ for id_, version in versions if tasks[id_].fingerprint != version}):
        raise ArcnbError(f"{predictions.folder}: predictions of another version of {', '.join(changed[:5])}")
    if early_stops({"learn_from": predictions}, tasks.ids):
        raise ArcnbError(
            f"learn_from {predictions.folder}: tasks of {tasks.name} were stopped by stop_after, so the "
            "share of their samples that solve them is too high; fill the set up with stop_after=0, or name "
            "another"
        )
    right = (frame["train_is_correct"] == 1) & (frame["test_is_correct"].fillna(1) == 1)
    shares = right.groupby(frame["task_id"].astype(object)).mean()
    chosen = shares.index[(shares > min_solved) & (shares <= max_solved)]
    if chosen.empty:
        raise ArcnbError(
            f"{predictions.folder}: no task is solved by more than {min_solved:g} and at most {max_solved:g} "
            f"of its samples; the largest share is {shares.max():.3g}"
        )
    kept = set(chosen)
    return tasks.subset([task_id for task_id in tasks.ids if task_id in kept])


@dataclass
class SignalHistory:
    """Which tasks still teach: a group whose completions all earn the same moves nothing.

    A task is silent when the last `visits` groups of it were all without spread and all right or all wrong.
    A row that would show a silent task shows another one with probability 1 - weight, drawn from (seed, row):
    weight 0 drops silent tasks, weights below 1 show them less, visits 0 switches the choice off. What a row
    may know is fixed, so that a resumed run chooses as the unbroken run would have: the groups of rows at
    least `lag` before it, since loaders fetch a batch ahead.

    groups: row -> [task id, whether the group had signal].
    """

    visits: int = 0
    weight: float = 0.0
    lag: int = 2
    groups: dict[int, tuple[str, bool]] = field(default_factory=dict)

    def __post_init__(self):
        if self.visits < 0 or not 0 <= self.weight <= 1:
            raise ValueError(
                f"signal_visits={self.visits}, signal_weight={self.weight}: visits must be at least 0 and "
                "the weight within 0..1"
            )

    def record(self, row: int, task_id: str, rewards: Sequence[float], solved: Sequence[bool]) -> None:
        """Note the group of a row. Spread among half-right programs is signal, whatever is solved."""
        flat = max(rewards) - min(rewards) < 1e-9
        self.groups[row] = (task_id, not (flat and (all(solved) or not any(solved))))

    def silent(self, before: int) -> set[str]:
        """Tasks that taught nothing in their last `visits` groups among the rows below `before`."""
        if not self.visits:
            return set()
        seen: dict[str, list[bool]] = {}
        for row in sorted(self.groups):
            if row < before:
                task_id, signal = self.groups[row]
                seen.setdefault(task_id, []).append(signal)
        return {
            task_id
            for task_id, signals in seen.items()
            if len(signals) >= self.visits and not any(signals[-self.visits :])
        }

    def choose(self, row: int, task_id: str, pool: Sequence[str], seed: int) -> str:
        """The task that row shows instead of task_id, or task_id itself."""
        silent = self.silent(row - self.lag + 1)
        if task_id not in silent:
            return task_id
        speaking = [name for name in pool if name not in silent]
        random = rng(seed, "replacement", row)
        if not speaking or random.random() < self.weight:
            return task_id
        return speaking[int(random.integers(len(speaking)))]

    def as_dict(self) -> dict:
        """Plain values for a checkpoint."""
        return {str(row): [task_id, signal] for row, (task_id, signal) in self.groups.items()}

    def restore(self, groups: dict) -> None:
        """The inverse of as_dict."""
        self.groups = {int(row): (task_id, signal) for row, (task_id, signal) in groups.items()}


def row_task(tasks: Sequence[Task], seed: int, index: int) -> Task:
    """The task of row `index`: position index mod n in the order of epoch index div n."""
    epoch, position = divmod(index, len(tasks))
    return tasks[int(rng(seed, "epoch", epoch).permutation(len(tasks))[position])]


@dataclass
class PromptRows:
    """Rows `{prompt, prefix, row, task_id, hflip, n_rot90, color_map, pair_order, test_index}` by index.

    tasks: those whose prompts fit. too_long: task id -> tokens of its longest prompt, of those left out.
    """

    tasks: Sequence[Task]
    prompt_format: PromptFormat
    tokenizer: object
    seed: int
    augment: str = "all"
    history: SignalHistory = field(default_factory=SignalHistory)
    too_long: dict[str, int] = field(default_factory=dict)

    longest_prompt = staticmethod(longest_prompt)  # tokens, of all rows that a task can have

    def __post_init__(self):
        self._by_id = {task.task_id: task for task in self.tasks}

    def __len__(self) -> int:
        """Rows of an epoch."""
        return len(self.tasks)

    def __getitem__(self, index: int) -> dict:
        task = row_task(self.tasks, self.seed, index)
        task = self._by_id[self.history.choose(index, task.task_id, list(self._by_id), self.seed)]
        shown, frame = self._shown(task, index)
        prompt = self.prompt_format.prompt(shown)
        return {
            "prompt": trainer_text(self.tokenizer, prompt_ids(self.tokenizer, prompt)),
            "prefix": prompt.prefix,
            "row": index,
            "task_id": task.task_id,
            **frame,
        }

    def _shown(self, task: Task, index: int) -> tuple[Task, dict]:
        """The task as row `index` shows it, and the columns that say how."""
        view = View.sample(task, self.seed, "row", index, augment=self.augment)
        return view.apply(task), view.columns()

    def dataset(self, n_rows: int):
        """The first n_rows as a dataset that makes a row when it is read."""
        from datasets import Dataset

        def rows(batch: dict) -> dict:
            made = {index: self[index] for index in dict.fromkeys(batch["row"])}  # a group repeats its row
            return {name: [made[index][name] for index in batch["row"]] for name in made[batch["row"][0]]}

        return Dataset.from_dict({"row": list(range(n_rows))}).with_transform(rows)


def prompt_rows(
    tasks: Sequence[Task],
    prompt_format: PromptFormat,
    tokenizer,
    *,
    seed: int,
    max_prompt_tokens: int,
    augment: str = "all",
    n_tasks: int = 0,
    history: SignalHistory | None = None,
    kind: type[PromptRows] = PromptRows,
) -> PromptRows:
    """The rows over the tasks whose longest view fits; ValueError when no task does.

    kind: of the rows, see arcnb.rl.subject.
    n_tasks: only so many of them, in an order drawn from the seed (0: all, in their own order).
    """
    order = rng(seed, "tasks").permutation(len(tasks)) if n_tasks else range(len(tasks))
    longest = partial(kind.longest_prompt, prompt_format=prompt_format, tokenizer=tokenizer)
    fitting, too_long = fitting_tasks(tasks, order, n_tasks or len(tasks), longest, max_prompt_tokens)
    if not fitting:
        raise ValueError(f"no task of {len(tasks)} has a prompt within {max_prompt_tokens} tokens")
    history = SignalHistory() if history is None else history
    return kind(fitting, prompt_format, tokenizer, seed, augment, history, too_long)


def fitting_tasks(
    tasks: Sequence[Task], order: Iterable[int], n: int, longest: Callable[[Task], int], limit: int
) -> tuple[list[Task], dict[str, int]]:
    """The first n tasks in this order whose longest prompt is within `limit` tokens, and the lengths of those
    passed over, by id."""
    fitting, too_long = [], {}
    for index in order:
        if len(fitting) == n:
            break
        task = tasks[int(index)]
        length = longest(task)
        if length > limit:
            too_long[task.task_id] = length
        else:
            fitting.append(task)
    return fitting, too_long


def trainer_text(tokenizer, prompt_ids: list[int]) -> str:
    """The text that the trainer's tokenizer call turns into exactly prompt_ids.

    TRL tokenises text prompts with special tokens added; text that already starts with the
    begin-of-text token would get a second one (huggingface/trl issue 3853). ValueError where no text
    gives the ids, because then sampling and training would see different prompts.
    """
    text = tokenizer.decode(prompt_ids, skip_special_tokens=False)
    candidates = [text]
    if tokenizer.bos_token and text.startswith(tokenizer.bos_token):
        candidates.append(text.removeprefix(tokenizer.bos_token))
    for candidate in candidates:
        if tokenizer(text=candidate)["input_ids"] == prompt_ids:
            return candidate
    raise ValueError(
        "the tokenizer does not give this prompt's token ids back; use another grid encoding or template"
    )
