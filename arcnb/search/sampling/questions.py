"""What a sampling stage asks: for each task a list of slots, each one prompt with several completions.

`FirstTurns` are the rounds of a plan; refinements of what came out of them are in arcnb.search.turns.choice.
A slot and its prompt are functions of the plan and of what earlier turns left, so any process can make them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from arcnb.arc.seeds import derive_seed
from arcnb.arc.tasks.task import Task
from arcnb.arc.views import View
from arcnb.models.prompts.format import PromptFormat
from arcnb.models.prompts.rendering import Prompt
from arcnb.search.sampling.rounds import RoundPlan


@dataclass(frozen=True)
class Question:
    """One prompt, and what its answers are called: predictions of that round and turn, refining `parent`."""

    view: View
    prompt: Prompt
    round: int
    seed: int
    turn: int = 0
    parent: str | None = None


class Questions(Protocol):
    """What `arcnb.search.sampling.stage.sample` needs to know of the prompts it is to ask."""

    plan: RoundPlan

    def slots(self, task_id: str) -> int:
        """How many prompts the task gets; 0 for none."""

    def completions_in(self, slot: int) -> int:
        """Completions of the prompt in that slot."""

    def slot_of(self, task_id: str, turn: int, round_: int, parent: str | None) -> int | None:
        """The slot that a row on disk belongs to, None if it is of another stage."""

    def question(self, task: Task, slot: int) -> Question: ...


class FirstTurns:
    """The rounds of a plan."""

    def __init__(self, plan: RoundPlan, prompt_format: PromptFormat):
        self.plan, self.prompt_format = plan, prompt_format

    def slots(self, task_id: str) -> int:
        return self.plan.n_rounds

    def completions_in(self, slot: int) -> int:
        return self.plan.completions_in(slot)

    def slot_of(self, task_id: str, turn: int, round_: int, parent: str | None) -> int | None:
        return round_ if turn == 0 and 0 <= round_ < self.plan.n_rounds else None

    def question(self, task: Task, slot: int) -> Question:
        return first_question(task, slot, self.plan, self.prompt_format)


def first_question(task: Task, round_: int, plan: RoundPlan, prompt_format: PromptFormat) -> Question:
    """The first turn that a plan shows of the task in that round."""
    view = plan.view(task, round_)
    seed = derive_seed(plan.seed, "sampling", task.task_id, round_)
    return Question(view, prompt_format.prompt(view.apply(task)), round_, seed)
