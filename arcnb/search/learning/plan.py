"""What notebook 07 is asked to do, as one plan: tasks, budget, rounds, what is learned, and with what."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Self

from arcnb.arc.encodings import encoding_option
from arcnb.arc.tasks.task import Task
from arcnb.arc.views import augment_option
from arcnb.models.registry import adapter_name
from arcnb.models.sampling.backends import LOCAL_BACKENDS
from arcnb.plans import Plan, branch, option
from arcnb.search.branches import Drawing, Engine, Programs
from arcnb.search.learning.budgets import Budget
from arcnb.search.learning.learner.settings import LoraSettings
from arcnb.search.learning.lessons.feedback import FeedbackSettings
from arcnb.search.learning.lessons.hindsight import HindsightSettings
from arcnb.search.sampling.rounds import RoundPlan
from arcnb.values import COUNT, SEED, SOME_SHARE, KeysOf, listed

if TYPE_CHECKING:
    from arcnb.arc.tasks.task_set import TaskSet

ALONE, LEARN = "alone", "learn"  # arms
ARMS = {ALONE: "search alone", LEARN: "search and learn"}


@dataclass(frozen=True)
class LearningRounds:
    """How a search is cut into rounds and groups; the budget cuts the last round."""

    first_round: int = option(8, "completions of a task before anything is learned", within=COUNT)
    per_round: int = option(8, "completions of a task between two trainings", within=COUNT)
    per_prompt: int = option(
        4, "completions of one prompt; each prompt shows another view of the task", within=COUNT
    )
    group_size: int = option(
        1,
        "tasks that share an adapter: 1 each its own, -1 all of a process, n consecutive groups",
        within="[-1, inf)",
    )
    stop_after: int = option(
        1, "a task ends with the round after which so many distinct programs solve its train pairs; 0 never"
    )
    keep_adapter: bool = option(
        True, "a training goes on from the last round's adapter; False starts anew each round"
    )
    num_train_epochs: int = option(
        1, "passes over the hindsight tasks of a round, each in other views", within=COUNT
    )
    adapter_gb: float = option(
        2.0, "disk for adapters; the oldest go first, the newest of each group stays", "GB", free=True
    )


@dataclass(frozen=True)
class SearchDrawing(Drawing):
    """Programs are short: what is learned from has at most `max_answer_tokens`."""

    max_completion_length: int = option(192, "longest completion", "tokens", within=COUNT)


@dataclass(frozen=True)
class SearchEngine(Engine):
    """The engine shares the GPU with the trainer."""

    max_length: int = option(
        2048,
        "longest sequence, prompt plus completion, of engine and training; a prompt that does not fit is "
        "skipped, a longer row not learned from",
        "tokens",
    )
    vllm_gpu_memory_utilization: float = option(
        0.5,
        "share of GPU memory that vLLM takes; the training needs the rest",
        within=SOME_SHARE,
        free=True,
    )
    adapters_at_once: int = option(
        16, "adapters that vLLM applies in one batch, where groups have their own", within=COUNT, free=True
    )


@dataclass(frozen=True)
class SearchPlan(Plan):
    """Search alone, search and learn, or both; processes are given it as JSON of its values."""

    checks: ClassVar[str] = "arcnb.search.checks:plan_problems"

    tasks: str = option(
        "arc-agi-1/training",
        "task set: a name, ladder/lines, ladder/squares, a tasks.parquet of notebook 01, or ARC JSON",
    )
    task_ids: str = option("", 'only these tasks of it, separated by commas; "" takes n_tasks')
    n_tasks: int = option(1, "tasks to sample from it; 0 takes all")
    model: str = option("default", "default (embedded), a folder or a hub id")
    adapter: str = option(
        "auto",
        "LoRA folded into it before the search: auto (shipped, for the embedded model), a folder, or "
        '"" for none',
    )
    backend: str = option("auto", "vllm, transformers, or auto: vllm on a GPU", within=LOCAL_BACKENDS)
    template: str = option("arc_code", "prompt template: a name or a path to a Jinja file")
    encoding: str = encoding_option()
    augment: str = augment_option()
    shuffle: bool = option(True, "views show the train pairs in an order of their own")
    arms: str = option(
        f"{ALONE}, {LEARN}",
        "searches to run: learn, alone (search alone, same prompts), or both to compare them",
    )
    lessons: str = option(
        "hindsight",
        "what is learned from: hindsight (programs are right for the tasks they did solve), demonstrations "
        "(new answers to these tasks, token by token, by what the model makes of them when it is shown the "
        "program), feedback (failed answers, by what it makes of them when it is told what went wrong), or "
        "both (hindsight and feedback)",
        within=("hindsight", "demonstrations", "feedback", "both"),
    )
    seed: int = option(0, "everything derives from (seed, task, round, index)", within=SEED)
    submission: bool = option(False, "write a Kaggle submission, valid from the first second on")
    submission_file: str = option("", 'path of the submission; "" is submission.json in the run folder')
    submission_rule: str = option(
        "train-score",
        "how the attempts of a submission are chosen",
        within=KeysOf("arcnb.arc.scores.attempts:RULES"),
    )
    time_budget_hours: float = option(
        0.0, "the whole run ends within so many hours, on each GPU; 0 is no limit", free=True
    )
    num_processes: int = option(
        0, "processes that share the tasks, each with a GPU of its own; 0 is one a GPU, at most one a task"
    )
    n_pictures: int = option(2, "tasks to look at closely", free=True)
    output: str = option("", 'folder of everything that is made; "" is search/ in the run folder')
    budget: Budget = branch(Budget)
    rounds: LearningRounds = branch(LearningRounds)
    hindsight: HindsightSettings = branch(HindsightSettings)
    feedback: FeedbackSettings = branch(FeedbackSettings)
    lora: LoraSettings = branch(LoraSettings)
    sampling: SearchDrawing = branch(SearchDrawing)
    engine: SearchEngine = branch(SearchEngine)
    programs: Programs = branch(Programs)

    def settled(self, home: Path) -> Self:
        """With the adapter that "auto" stands for, and places in the run's folder where none are named."""
        return replace(
            self,
            adapter=str(adapter_name(self.adapter, self.model)),
            output=self.output or str(home / "search"),
            submission_file=self.submission_file or str(home / "submission.json"),
        )

    @property
    def searches(self) -> tuple[str, ...]:
        """The arms; the second begins with the first round of the first."""
        return tuple(name.strip() for name in self.arms.split(","))

    @property
    def n_built(self) -> int:
        """Tasks to take of the source: all, where they are named."""
        return 0 if self.ids else self.n_tasks

    @property
    def ids(self) -> list[str]:
        return listed(self.task_ids)

    def named(self, tasks: TaskSet) -> TaskSet:
        """The tasks that are named, else all."""
        return tasks.subset(self.ids) if self.ids else tasks

    def prompts(self, round_: int, shard: tuple[int, int] = (0, 1)) -> RoundPlan:
        """All prompts up to the end of a round, of every task."""
        n = self.rounds.first_round + round_ * self.rounds.per_round
        n = min(n, self.budget.n_predictions or n)
        return RoundPlan(n, self.rounds.per_prompt, self.seed, self.augment, self.shuffle, 0, *shard)

    def round_of(self, prompt_round: int) -> int:
        """The round of learning that a prompt belongs to, by the `round` that its predictions carry."""
        done = (prompt_round + 1) * self.rounds.per_prompt - self.rounds.first_round
        return max(0, math.ceil(done / self.rounds.per_round))

    def groups(self, tasks: Sequence[Task]) -> list[list[Task]]:
        """Consecutive slices of the tasks, which learn together."""
        size = len(tasks) if self.rounds.group_size == -1 else self.rounds.group_size
        return [list(tasks[i : i + size]) for i in range(0, len(tasks), max(1, size))]
