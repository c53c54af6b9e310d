"""How tasks become prompts, as one object that stages pass around: templates and grid encoding.

format_ = prompt_format("arc_code")
ids = format_.prompt_ids(tokenizer, view.apply(task))
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from arcnb.arc.encodings import grid_encoding
from arcnb.arc.tasks.task import Task
from arcnb.models.prompts import chat
from arcnb.models.prompts.feedback import ProgramError, build_refinement
from arcnb.models.prompts.rendering import (
    DEFAULT_ENCODING,
    DEFAULT_TEMPLATE,
    Prompt,
    build_prompt,
    refuse_test_outputs,
)
from arcnb.programs.extraction import open_fence

FENCE = "```"
_TRIAL = Task.from_dict(
    "trial",
    {
        "train": [
            {"input": [[1]], "output": [[1]]},
            {"input": [[1, 2]], "output": [[1, 3]]},
            {"input": [[1]], "output": [[1, 1]]},
        ],
        "test": [{"input": [[1]]}],
    },
)


@dataclass(frozen=True)
class PromptFormat:
    """Template names or paths, and a grid encoding; see `prompt_format`."""

    template: str
    encoding: str
    refine_template: str

    def prompt(self, shown: Task) -> Prompt:
        """The first turn for a task as a view shows it; its first test input is the one shown."""
        return build_prompt(shown, self.template, self.encoding)

    def prompt_ids(self, tokenizer, shown: Task) -> list[int]:
        """Token ids of the first turn, the beginning of the answer included."""
        return chat.prompt_ids(tokenizer, self.prompt(shown))

    def completion_ids(self, tokenizer, program: str) -> list[int]:
        """Token ids of the completion that answers with `program`: see `answer_with`, and the end token."""
        return chat.answer_ids(tokenizer, answer_with(program, self._prefix))

    @cached_property
    def _prefix(self) -> str:
        """How the template lets answers begin."""
        return self.prompt(_TRIAL).prefix


def answer_with(program: str, prefix: str) -> str:
    """The rest of an answer that began with `prefix` and gives `program` as one fenced block."""
    return fence_after(prefix) + program.rstrip("\n") + "\n" + (open_fence(prefix) or FENCE)


def fence_after(prefix: str) -> str:
    """What has to stand between `prefix` and a program: an opening fence, nothing where one is open."""
    line_break = "" if prefix.endswith("\n") or not prefix else "\n"
    return line_break + ("" if open_fence(prefix) else f"{FENCE}python\n")


def prompt_format(
    template: str = DEFAULT_TEMPLATE, encoding: str = "", refine_template: str = "refine"
) -> PromptFormat:
    """The checked format; an empty encoding is the default one. ArcnbError otherwise.

    Both templates are tried on a small task, so that a name that they do not get is noticed before any work.
    """
    for name in (template, refine_template):
        refuse_test_outputs(name)
    grid_encoding(encoding or DEFAULT_ENCODING)
    format_ = PromptFormat(template, encoding or DEFAULT_ENCODING, refine_template)
    first = format_.prompt(_TRIAL)
    outputs = [pair.input for pair in _TRIAL.train]  # right, wrong in a cell, and of another size
    for said in ({"outputs": outputs}, {"error": ProgramError("Error")}):
        build_refinement(_TRIAL, first, "", **said, template=refine_template, encoding=format_.encoding)
    return format_
