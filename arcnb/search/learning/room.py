"""Whether any of the prompts that a task would still get in a search leaves room for an answer."""

from __future__ import annotations

from arcnb.arc.tasks.task import Task
from arcnb.models.prompts.chat import count_tokens
from arcnb.models.prompts.format import PromptFormat
from arcnb.search.learning.plan import SearchPlan

MOST_AHEAD = 64  # prompts that are looked at: a budget without a limit in completions has no last one


class PromptRoom:
    """max_tokens: tokens of the longest prompt that fits."""

    def __init__(self, plan: SearchPlan, prompt_format: PromptFormat, tokenizer, max_tokens: int):
        self.plan, self.prompt_format = plan, prompt_format
        self.tokenizer, self.max_tokens = tokenizer, max_tokens

    def for_any_after(self, task: Task, round_: int) -> bool:
        """Whether one of the next MOST_AHEAD prompts after a round fits.

        So a task that has none goes on for a while at most, and one that goes on will have completions.
        """
        prompts = self.plan.prompts(round_ + MOST_AHEAD)  # a round has at least one prompt
        first = self.plan.prompts(round_).n_rounds
        numbers = range(first, min(prompts.n_rounds, first + MOST_AHEAD))
        shown = [self.prompt_format.prompt(prompts.view(task, number).apply(task)) for number in numbers]
        return any(length <= self.max_tokens for length in count_tokens(self.tokenizer, shown))
