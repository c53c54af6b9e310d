"""Prompts: a task as chat messages by a template file, and messages as token ids by the chat template.

    format_ = prompt_format("arc_code")
    prompt_ids = format_.prompt_ids(tokenizer, view.apply(task))

A template is a Jinja file, found by name under templates/ or by path, with the blocks `user`, `system`
(optional), `prefix` (optional: the beginning of the answer, put into the model's mouth) and
`encoding`: the name of the grid encoding it was written for. It receives `train`, a list of {input, output},
and `test_input`; each grid has `text`, `height` and `width`. Test outputs never reach a template.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from arcnb.arc.encodings import grid_encoding
from arcnb.arc.grids import Grid
from arcnb.arc.tasks import Task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

TEMPLATES = Path(__file__).parent / "templates"


class PromptError(ValueError):
    """A template that does not exist or cannot be used, or messages that the chat template loses."""


@dataclass(frozen=True)
class GridText:
    """A grid as a template sees it."""

    text: str
    height: int
    width: int


@dataclass(frozen=True)
class PromptFormat:
    """How tasks become prompts: template names or paths, and the grid encoding."""

    template: str
    encoding: str
    refine_template: str = "refine"

    @property
    def prefix(self) -> str:
        """The beginning of the answer that every prompt ends with; completions go on from there."""
        return _block(self.template, "prefix", {})

    def messages(self, shown: Task) -> list[dict[str, str]]:
        """Chat messages of a task as a view shows it; its first test input is the one shown."""
        values = {
            "train": [{"input": self.grid(p.input), "output": self.grid(p.output)} for p in shown.train],
            "test_input": self.grid(shown.test[0].input),
        }
        system = _block(self.template, "system", values)
        start = [{"role": "system", "content": system}] if system else []
        return [*start, {"role": "user", "content": _block(self.template, "user", values)}]

    def refinement(self, messages: Sequence[Mapping], completion: str, feedback: Mapping) -> list[dict[str, str]]:
        """The next turn: messages so far, the answer (prefix + completion), and the feedback on it."""
        return [
            *map(dict, messages),
            {"role": "assistant", "content": self.prefix + completion},
            {"role": "user", "content": _block(self.refine_template, "user", feedback)},
        ]

    def prompt_ids(self, tokenizer, shown: Task) -> list[int]:
        """Token ids of the whole prompt, the prefix included."""
        return render(tokenizer, self.messages(shown), self.prefix)

    def completion_ids(self, tokenizer, program: str) -> list[int]:
        """Token ids of the completion that answers with `program`: its text, the closing fence, the end token."""
        text = program.rstrip("\n") + "\n```"
        return [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]

    def grid(self, grid: Grid) -> GridText:
        """The grid as a template sees it, in this format's encoding."""
        return GridText(grid_encoding(self.encoding).to_text(grid), *grid.shape)


def prompt_format(template: str = "arc_code", encoding: str = "", refine_template: str = "refine") -> PromptFormat:
    """The checked format; an empty encoding takes the one the template names. PromptError says what is wrong."""
    encoding = encoding or _block(template, "encoding", {}).strip()
    if not encoding:
        raise PromptError(f"template {template} names no grid encoding (block `encoding`); give one")
    grid_encoding(encoding)
    if "user" not in _template(template).blocks:
        raise PromptError(f"template {template} has no block `user`")
    return PromptFormat(template, encoding, refine_template)


def render(tokenizer, messages: Sequence[Mapping], prefix: str = "") -> list[int]:
    """Token ids of a chat that goes on with the assistant's turn, whose first words are `prefix`.

    Exactly one begin-of-text token stands in front where the model has one. A chat template that trims the
    last message drops the end of the prefix; what it dropped is put back.
    """
    if prefix:
        chat = [*messages, {"role": "assistant", "content": prefix}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, continue_final_message=True)
        if not text.endswith(prefix):
            kept = prefix.rstrip()
            if not text.endswith(kept):
                raise PromptError(f"the chat template loses the beginning of the answer, {prefix!r}")
            text += prefix[len(kept) :]
    else:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    begin = tokenizer.bos_token_id
    adds_begin = tokenizer("a")["input_ids"][:1] == [begin]
    if begin is not None and adds_begin and ids[0] != begin:
        ids.insert(0, begin)
    if begin is not None and ids[:2] == [begin, begin]:
        raise PromptError("the chat template writes the begin-of-text token twice")
    return ids


def _block(name: str, block: str, values: Mapping) -> str:
    template = _template(name)
    if block not in template.blocks:
        return ""
    return "".join(template.blocks[block](template.new_context(dict(values))))


@cache
def _template(name: str):
    import jinja2
    from jinja2.sandbox import SandboxedEnvironment

    path = Path(name) if name.endswith(".jinja") else TEMPLATES / f"{name}.jinja"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in TEMPLATES.glob("*.jinja")))
        raise PromptError(f"there is no prompt template {name!r}, neither a file nor one of {known}")
    environment = SandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    try:
        return environment.from_string(path.read_text())
    except jinja2.TemplateError as error:
        raise PromptError(f"prompt template {path}: {error}") from None
