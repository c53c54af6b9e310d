"""Prompts: a task, a Jinja template and a grid encoding make a chat; a tokenizer makes it token ids.

A template is a file, by path or by its name under models/prompts/templates, with up to three blocks:

    {% block system %}, {% block user %}    the messages (system may be missing)
    {% block prefix %}                      how the answer begins, exactly as written, line break included

It is given `train` (a list with the texts `input`, `output` and the sizes `input_size`, `output_size`, "3x4"
is 3 rows of 4), `test_input` and `test_size`. Test outputs are never given to it.

    prompt = build_prompt(task, "arc_code", "minimal", pair_order=[2, 0, 1], test_index=0)
    ids = prompt_ids(tokenizer, prompt)
    # after generating: prompt.prefix + completion is the answer
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from arcnb.arc.encodings import grid_encoding
from arcnb.arc.tasks.task import Task
from arcnb.errors import ArcnbError

TEMPLATES = Path(__file__).parent / "templates"
# The shortest encoding for the embedded model's tokenizer (one token a digit, one a line break).
DEFAULT_TEMPLATE, DEFAULT_ENCODING = "arc_code", "minimal"


@dataclass(frozen=True)
class Prompt:
    """Chat messages (`role`, `content`), ending with the user's, and the text the answer begins with."""

    messages: tuple[dict, ...]
    prefix: str = ""


def build_prompt(
    task: Task,
    template: str | Path = DEFAULT_TEMPLATE,
    encoding: str = DEFAULT_ENCODING,
    pair_order: Sequence[int] | None = None,
    test_index: int = 0,
) -> Prompt:
    """The first turn for a task.

    pair_order: the train pairs to show, in this order (None: all, as they come; fewer shorten the prompt).
    test_index: the one test input that is shown. Raises ArcnbError.
    """
    order = list(range(len(task.train)) if pair_order is None else pair_order)
    if not order or len(set(order)) != len(order) or not set(order) <= set(range(len(task.train))):
        raise ArcnbError(
            f"task {task.task_id}: pair_order {order} is no selection of its {len(task.train)} train pairs"
        )
    if not 0 <= test_index < len(task.test):
        raise ArcnbError(
            f"task {task.task_id}: test_index {test_index}, but it has {len(task.test)} test inputs"
        )
    write = grid_encoding(encoding).to_text
    pairs = [task.train[i] for i in order]
    test_input = task.test[test_index].input
    variables = {
        "train": [
            {
                "input": write(pair.input),
                "output": write(pair.output),
                "input_size": grid_size(pair.input),
                "output_size": grid_size(pair.output),
            }
            for pair in pairs
        ],
        "test_input": write(test_input),
        "test_size": grid_size(test_input),
    }
    blocks = render_blocks(template, variables)
    if not blocks.get("user"):
        raise ArcnbError(f"template {template}: it has no block user")
    messages = [{"role": role, "content": blocks[role]} for role in ("system", "user") if blocks.get(role)]
    return Prompt(tuple(messages), blocks.get("prefix", ""))


def grid_size(grid) -> str:
    """Rows x columns of a grid, as templates get it: "3x4"."""
    return f"{grid.shape[0]}x{grid.shape[1]}"


def render_blocks(template: str | Path, variables: dict) -> dict[str, str]:
    """The rendered blocks of a template by name; all but `prefix` without blank space around them.

    Raises ArcnbError that names the template, and the line or the variable that is wrong.
    """
    loaded = _load_template(str(template))
    context = loaded.new_context(variables)
    try:
        blocks = {name: "".join(block(context)) for name, block in loaded.blocks.items()}
    except (jinja2.TemplateError, TypeError) as error:
        raise ArcnbError(f"template {template}: {error}") from error
    return {name: text if name == "prefix" else text.strip() for name, text in blocks.items()}


def template_path(template: str | Path) -> Path:
    """The file of a template given by name or path. Raises ArcnbError."""
    named = TEMPLATES / f"{template}.jinja"
    path = named if named.is_file() else Path(template).expanduser()
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in TEMPLATES.glob("*.jinja")))
        raise ArcnbError(f"there is no template {template}; known are {known}, or give the path of a file")
    return path


def _load_template(template: str) -> jinja2.Template:
    path = template_path(template)
    return _compile(path, path.read_text())


@lru_cache(maxsize=32)
def _compile(path: Path, source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ArcnbError(f"template {path}, line {error.lineno}: {error.message}") from error
