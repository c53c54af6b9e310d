"""Demonstrations: the model's own answer to a hindsight task, and what it makes of it once it is shown the
program that solves the task.

SDFT (Shenfeld et al. 2026, arXiv 2601.19897): the model answers the prompt of a hindsight task, and the
teacher is the model itself after that prompt and the program. What the model would not write is not copied.

    rows, dropped = demonstration_rows(tasks, engine, prompt_format("arc_code"), Sampling(), ...)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from arcnb.arc.seeds import derive_seed
from arcnb.models.prompts.chat import prompt_ids
from arcnb.models.prompts.format import PromptFormat
from arcnb.models.prompts.rendering import Prompt, render_prompt
from arcnb.models.sampling.backends import Request, Sampling
from arcnb.search.learning.lessons.hindsight import HindsightTask, learning_view
from arcnb.search.learning.lessons.rows import answer_row

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
) -> tuple[list[dict], Counter[str]]:
    """Rows {"input_ids", "labels", "told"} in the order of the tasks, and how many were left out, by reason.

    engine: samples one answer to each task, drawn by (seed, task, round), with the adapter that it uses.
    "told" has the "input_ids" and "labels" of the same answer after the program. Left out: "cut off", "row
    too long".
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
    answers = {made.key[0]: made for made in engine.generate(requests, sampling)}
    rows, dropped = [], Counter()
    for name, (asked, told) in prompts.items():
        made = answers.get(name)  # none where the time was up
        if made is None or made.finish_reason == "length":
            dropped["cut off"] += 1
        elif made.finish_reason == "skipped" or len(told) + len(made.token_ids) > max_tokens:
            dropped["row too long"] += 1
        else:
            answer = list(made.token_ids)
            rows.append(answer_row(asked, answer) | {"told": answer_row(told, answer)})
    return rows, dropped


def shown_solution(asked: Prompt, answer: str) -> Prompt:
    """The prompt, a right answer to it, and the request for another one, which begins as the first did."""
    right = {"role": "assistant", "content": asked.prefix + answer}
    request = render_prompt(TEMPLATE, {}).messages[-1]
    return Prompt((*asked.messages, right, request), asked.prefix)
