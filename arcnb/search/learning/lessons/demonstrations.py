"""Demonstrations: the model's own answer to a hindsight task, and what it makes of it once it is shown the
program that solves the task.

SDFT (Shenfeld et al. 2026, arXiv 2601.19897): the model answers the prompt of a hindsight task, and the
teacher is the model itself after that prompt and the program. What the model would not write is not copied.

    lesson = Demonstrations(tasks, tokenizer, prompt_format("arc_code"), ...)
    lesson.probes()
    rows, dropped = lesson.rows(engine, Sampling())
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from arcnb.arc.seeds import derive_seed
from arcnb.models.prompts.chat import answer_ids, prompt_ids
from arcnb.models.prompts.format import PromptFormat
from arcnb.models.prompts.rendering import Prompt, render_prompt
from arcnb.models.sampling.backends import Backend, Request, Sampling
from arcnb.search.learning.lessons.hindsight import HindsightTask, learning_view
from arcnb.search.learning.lessons.rows import PROBES, taught_row

TEMPLATE = Path(__file__).with_name("demonstrated.jinja")


class Demonstrations:
    """Hindsight tasks, each with its prompt as the model is asked (`asked`) and as the teacher reads it
    (`told`). max_tokens: of a row."""

    def __init__(
        self,
        tasks: Sequence[HindsightTask],
        tokenizer,
        prompt_format: PromptFormat,
        *,
        seed: int,
        round_: int,
        max_tokens: int,
    ):
        self.tasks, self.tokenizer, self.max_tokens = tasks, tokenizer, max_tokens
        self.seed, self.round_ = seed, round_
        self.prompts = {}
        for one in tasks:
            asked = prompt_format.prompt(learning_view(one.task, seed, round_).apply(one.task))
            both = (asked, shown_solution(asked, one.answer))
            self.prompts[one.task.task_id] = [prompt_ids(tokenizer, prompt) for prompt in both]

    def probes(self) -> list[dict]:
        """The last PROBES programs themselves, on which the teacher can be tried."""
        made = []
        for one in self.tasks:
            asked, told = self.prompts[one.task.task_id]
            answer = answer_ids(self.tokenizer, one.answer)
            if len(told) + len(answer) <= self.max_tokens:
                made.append(taught_row(asked, told, answer))
        return made[-PROBES:]

    def rows(self, engine: Backend, sampling: Sampling) -> tuple[list[dict], Counter[str]]:
        """The model's own answers, in the order of the tasks, and how many were left out: "cut off", "row too
        long".

        engine: samples one answer to each task, drawn by (seed, task, round), with the adapter that it uses.
        """
        requests = (
            Request(asked, seed=derive_seed(self.seed, "demonstration", name, self.round_), key=(name,))
            for name, (asked, _) in self.prompts.items()
        )
        answers = {one.key[0]: one for one in engine.generate(requests, sampling)}
        made, dropped = [], Counter()
        for one in self.tasks:
            asked, told = self.prompts[one.task.task_id]
            own = answers.get(one.task.task_id)  # none where the time was up
            if own is None or own.finish_reason == "length":
                dropped["cut off"] += 1
            elif own.finish_reason == "skipped" or len(told) + len(own.token_ids) > self.max_tokens:
                dropped["row too long"] += 1
            else:
                made.append(taught_row(asked, told, list(own.token_ids)))
        return made, dropped


def shown_solution(asked: Prompt, answer: str) -> Prompt:
    """The prompt with a right answer to it in front of the question."""
    *before, question = asked.messages
    variables = {"answer": asked.prefix + answer, "asked": question["content"]}
    return Prompt((*before, *render_prompt(TEMPLATE, variables).messages), asked.prefix)
