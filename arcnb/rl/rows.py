"""The prompts GRPO trains on: row i is a function of (seed, i) and of which prompts taught nothing before it.

An epoch shows every task once, in an order of its own; each row draws its own view of its task. A resumed or
sharded run therefore sees what an unbroken run would have seen. Rows are made when the trainer asks for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Task
from arcnb.arc.views import View
from arcnb.models.prompts.chat import prompt_ids
from arcnb.models.prompts.format import PromptFormat
from arcnb.models.prompts.lengths import longest_prompt
from arcnb.rl.signal_history import SignalHistory


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

    @staticmethod
    def longest_prompt(task: Task, prompt_format: PromptFormat, tokenizer) -> int:
        """Tokens of the longest prompt that a row of this task can have."""
        return longest_prompt(task, prompt_format, tokenizer)

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
    too_long = {}
    fitting = []
    order = rng(seed, "tasks").permutation(len(tasks)) if n_tasks else range(len(tasks))
    for task in (tasks[int(index)] for index in order):
        if n_tasks and len(fitting) == n_tasks:
            break
        longest = kind.longest_prompt(task, prompt_format, tokenizer)
        if longest > max_prompt_tokens:
            too_long[task.task_id] = longest
        else:
            fitting.append(task)
    if not fitting:
        raise ValueError(f"no task of {len(tasks)} has a prompt within {max_prompt_tokens} tokens")
    history = SignalHistory() if history is None else history
    return kind(fitting, prompt_format, tokenizer, seed, augment, history, too_long)


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
