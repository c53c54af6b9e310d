"""Tasks and prompts that GRPO trains on: row i is a function of (seed, i) and of what came before it.

An epoch shows every task once, in an order of its own; each row draws its own view of its task. A resumed or
sharded run therefore sees what an unbroken run would have seen. Rows are made when the trainer asks for them.

A group whose completions all fail, or all succeed, has no advantages and teaches nothing. `SignalHistory`
finds out while training which tasks are such; they are shown less, are guided (`arcnb.rl.rows.guides`), or
get fewer completions (`arcnb.rl.rows.shares`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Task
from arcnb.arc.views import View
from arcnb.errors import ArcnbError
from arcnb.models.prompts.chat import prompt_ids
from arcnb.models.prompts.format import PromptFormat, fence_after
from arcnb.models.prompts.lengths import longest_prompt
from arcnb.rl.rows.guides import Guides
from arcnb.rl.rows.history import SignalHistory
from arcnb.rl.rows.shares import places


def row_task(tasks: Sequence[Task], seed: int, index: int) -> Task:
    """The task of row `index`: position index mod n in the order of epoch index div n."""
    epoch, position = divmod(index, len(tasks))
    return tasks[int(rng(seed, "epoch", epoch).permutation(len(tasks))[position])]


@dataclass
class PromptRows:
    """Rows `{prompt, prefix, row, task_id, hflip, n_rot90, color_map, pair_order, test_index}` by index, and
    `lines` where there are guides.

    tasks: those whose prompts fit. too_long: task id -> tokens of its longest prompt, of those left out.
    adaptive: the completions of a round are shared out by how often tasks were solved.
    """

    tasks: Sequence[Task]
    prompt_format: PromptFormat
    tokenizer: object
    seed: int
    augment: str = "all"
    history: SignalHistory = field(default_factory=SignalHistory)
    too_long: dict[str, int] = field(default_factory=dict)
    guides: Guides | None = None
    adaptive: bool = False

    longest_prompt = staticmethod(longest_prompt)  # tokens, of all rows that a task can have

    def __post_init__(self):
        self._by_id = {task.task_id: task for task in self.tasks}

    def __len__(self) -> int:
        """Rows of an epoch."""
        return len(self.tasks)

    def __getitem__(self, index: int) -> dict:
        task = self._task(index)
        guided = self.guides and self.guides.guided(self._prompt, task, index, self.history, self.seed)
        ids, prefix, frame = guided or self._prompt(*self._shown(task, index))
        return {
            "prompt": trainer_text(self.tokenizer, ids),
            "prefix": prefix,
            "row": index,
            "task_id": task.task_id,
            **({"lines": 0} if self.guides else {}),
            **frame,
        }

    def _prompt(self, shown: Task, frame: dict, begun: str = "") -> tuple[list[int], str, dict]:
        """Token ids, the answer's beginning and the frame's columns. begun: a program's lines that follow."""
        prompt = self.prompt_format.prompt(shown)
        if begun:
            prompt = replace(prompt, prefix=prompt.prefix + fence_after(prompt.prefix) + begun)
        return prompt_ids(self.tokenizer, prompt), prompt.prefix, frame

    def _shown(self, task: Task, index: int) -> tuple[Task, dict]:
        """The task as row `index` shows it, and the columns that say how."""
        view = View.sample(task, self.seed, "row", index, augment=self.augment)
        return view.apply(task), view.columns()

    def _rate(self, index: int) -> float | None:
        """How often the last group of row `index`'s task solved it, drawn to a half as one of few would be;
        None for a task not seen yet."""
        groups = self.history.before(index).get(self._task(index).task_id)
        return (groups[-1].right + 1) / (groups[-1].n + 2) if groups else None

    def _task(self, index: int) -> Task:
        task = row_task(self.tasks, self.seed, index)
        return self._by_id[self.history.choose(index, task.task_id, list(self._by_id), self.seed)]

    def dataset(self, n_rows: int):
        """The first n_rows as a dataset that makes a row when it is read."""
        from datasets import Dataset

        def rows(batch: dict) -> dict:
            wanted = places(batch["row"], self._rate) if self.adaptive else batch["row"]
            made = {index: self[index] for index in dict.fromkeys(wanted)}  # a group repeats its row
            return {name: [made[index][name] for index in wanted] for name in made[wanted[0]]}

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
    guides: Guides | None = None,
    adaptive: bool = False,
) -> PromptRows:
    """The rows over the tasks whose longest view fits; ValueError when no task does.

    kind: of the rows, see arcnb.rl.subject. guides, adaptive: see PromptRows.
    n_tasks: only so many of them, in an order drawn from the seed (0: all, in their own order).
    """
    order = rng(seed, "tasks").permutation(len(tasks)) if n_tasks else range(len(tasks))
    measure = kind.longest_prompt
    longest = partial(measure, prompt_format=prompt_format, tokenizer=tokenizer, augment=augment)
    fitting, too_long = fitting_tasks(tasks, order, n_tasks or len(tasks), longest, max_prompt_tokens)
    if not fitting:
        raise none_within(max_prompt_tokens, f"no task of {len(tasks)} has a prompt")
    history = SignalHistory() if history is None else history
    return kind(fitting, prompt_format, tokenizer, seed, augment, history, too_long, guides, adaptive)


def none_within(limit: int, said: str) -> ArcnbError:
    """What to raise where every prompt is longer than the limit, with the parameters that it derives from."""
    return ArcnbError(f"{said} within {limit} tokens (max_prompt_length, max_length, max_completion_length)")


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
