"""Demonstrations: the model's own answer to a hindsight task, and what it makes of it once it is shown the
program that solves the task.

SDFT (Shenfeld et al. 2026, arXiv 2601.19897): the model answers the prompt of a hindsight task, and the
teacher is the model itself after that prompt and the program. What the model would not write is not copied.

    made = demonstration_rows(tasks, engine, prompt_format("arc_code"), Sampling(), ...)
    made.rows, made.probes, made.dropped
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from arcnb.arc.seeds import derive_seed
from arcnb.models.prompts.chat import answer_ids, prompt_ids
from arcnb.models.prompts.format import PromptFormat
from arcnb.models.prompts.rendering import Prompt, render_prompt
from arcnb.models.sampling.backends import Request, Sampling
from arcnb.search.learning.lessons.hindsight import HindsightTask, learning_view
from arcnb.search.learning.lessons.rows import PROBES, Taught, taught_row

TEMPLATE = Path(__file__).with_name("demonstrated.jinja")


def demonstration_rows(
    tasks: Sequence[HindsightTask],
    engine,
    prompt_format: PromptFormat,
    sampling: Sampling,
    *,
    seed: int,
    round_: int,
    max_tokens: int,
) -> Taught:
    """The model's answers, in the order of the tasks; the probes are the programs themselves.

    engine: samples one answer to each task, drawn by (seed, task, round), with the adapter that it uses.
    "told" is the answer after the program. Left out: "cut off", "row too long".
    """
    prompts = {}
    for one in tasks:
        asked = prompt_format.prompt(learning_view(one.task, seed, round_).apply(one.task))
        both = (asked, shown_solution(asked, one.answer))
        prompts[one.task.task_id] = [prompt_ids(engine.tokenizer, prompt) for prompt in both]
    requests = (
        Request(asked, seed=derive_seed(seed, "demonstration", name, round_), key=(name,))
        for name, (asked, _) in prompts.items()
    )
    answers = {one.key[0]: one for one in engine.generate(requests, sampling)}
    made = Taught()
    for one in tasks:
        asked, told = prompts[one.task.task_id]
        own = answers.get(one.task.task_id)  # none where the time was up
        if own is None or own.finish_reason == "length":
            made.dropped["cut off"] += 1
        elif own.finish_reason == "skipped" or len(told) + len(own.token_ids) > max_tokens:
            made.dropped["row too long"] += 1
        else:
            made.rows.append(taught_row(asked, told, list(own.token_ids)))
            made.probes.append(taught_row(asked, told, answer_ids(engine.tokenizer, one.answer)))
    made.probes = [one for one in made.probes if len(one["told"]["input_ids"]) <= max_tokens][-PROBES:]
    return made


def shown_solution(asked: Prompt, answer: str) -> Prompt:
    """The prompt with a right answer to it in front of the question."""
    *before, question = asked.messages
    variables = {"answer": asked.prefix + answer, "asked": question["content"]}
    return Prompt((*before, *render_prompt(TEMPLATE, variables).messages), asked.prefix)
