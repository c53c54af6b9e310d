"""Prompts: a task, a Jinja template and a grid encoding make a chat; a tokenizer makes it token ids.

A template is a file, by path or by its name under models/prompts/templates, with up to three blocks:

    {% block system %}, {% block user %}    the messages (system may be missing)
    {% block prefix %}                      how the answer begins, exactly as written, line break included

It is given `train` (a list with the texts `input`, `output` and the sizes `input_size`, `output_size`, "3x4"
is 3 rows of 4), `test_input` and `test_size`. Test outputs are never given to it.

    prompt = build_prompt(view.apply(task), "arc_code", "minimal")
    ids = prompt_ids(tokenizer, prompt)
    # after generating: prompt.prefix + completion is the answer
"""

import re
import traceback
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from arcnb.arc.encodings import grid_encoding
from arcnb.arc.grids import grid_size
from arcnb.arc.tasks.task import Task
from arcnb.errors import ArcnbError
from arcnb.machine.reading import named_errors

TEMPLATES = Path(__file__).parent / "templates"
# The shortest encoding for the embedded model's tokenizer (one token a digit, one a line break).
DEFAULT_TEMPLATE, DEFAULT_ENCODING = "arc_code", "minimal"
_TEST_OUTPUT = re.compile(
    r"(?i)solution|(?<![a-z])tests?_?\w*(output|expected|answer|target)|(output|expected|answer)\w*test"
)
_TEST = re.compile(r"(?i)^tests?(_pairs?|_samples?)?$")


@dataclass(frozen=True)
class Prompt:
    """Chat messages (`role`, `content`), ending with the user's, and the text the answer begins with."""

    messages: tuple[dict, ...]
    prefix: str = ""

    def __str__(self) -> str:
        """For people: each message under a line that says whose it is."""
        said = [(message["role"], message["content"]) for message in self.messages]
        said += [("assistant, to be continued", self.prefix)] if self.prefix else []
        return "\n".join(f"--- {role}\n{content}" for role, content in said)


def build_prompt(
    task: Task, template: str | Path = DEFAULT_TEMPLATE, encoding: str = DEFAULT_ENCODING
) -> Prompt:
    """The first turn for a task as a view shows it; of its test inputs the first. Raises ArcnbError."""
    write = grid_encoding(encoding).to_text
    test_input = task.test[0].input
    variables = {
        "train": [
            {
                "input": write(pair.input),
                "output": write(pair.output),
                "input_size": grid_size(pair.input),
                "output_size": grid_size(pair.output),
            }
            for pair in task.train
        ],
        "test_input": write(test_input),
        "test_size": grid_size(test_input),
    }
    return render_prompt(template, variables)


def render_prompt(template: str | Path, variables: dict) -> Prompt:
    """The prompt that a template's blocks make. Raises ArcnbError, also where there is no block `user`."""
    blocks = render_blocks(template, variables)
    if not blocks.get("user"):
        raise ArcnbError(f"template {template}: it has no block user")
    messages = [{"role": role, "content": blocks[role]} for role in ("system", "user") if blocks.get(role)]
    return Prompt(tuple(messages), blocks.get("prefix", ""))


def render_blocks(template: str | Path, variables: dict) -> dict[str, str]:
    """The rendered blocks of a template by name; all but `prefix` without blank space around them.

    Raises ArcnbError that names the template, and the line or the variable that is wrong.
    """
    loaded = _load_template(str(template))
    context = loaded.new_context(variables)
    try:
        blocks = {name: "".join(block(context)) for name, block in loaded.blocks.items()}
    except jinja2.UndefinedError as error:
        there = _names_in(variables)
        raise ArcnbError(f"template {template}{_line(loaded, error)}: {error}; there are {there}") from error
    except jinja2.TemplateError as error:
        raise ArcnbError(f"template {template}{_line(loaded, error)}: {error}") from error
    except Exception as error:  # of what the template computes: it divides, formats, calls itself
        what = f"{type(error).__name__}: {error}"
        raise ArcnbError(f"template {template}{_line(loaded, error)}: {what}") from error
    return {name: text if name == "prefix" else text.strip() for name, text in blocks.items()}


def _line(loaded: jinja2.Template, error: Exception) -> str:
    """ ", line 3": where in the template it was raised; "" where that is not known."""
    lines = [
        loaded.get_corresponding_lineno(frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == "<template>"
    ]
    return f", line {lines[-1]}" if lines else ""


def _names_in(variables: dict) -> str:
    """ "train (input, output), test_input": what a template is given."""
    inner = {
        name: f" ({', '.join(value[0])})"
        for name, value in variables.items()
        if isinstance(value, list) and value and isinstance(value[0], dict)
    }
    return ", ".join(f"{name}{inner.get(name, '')}" for name in variables)


def template_path(template: str | Path) -> Path:
    """The file of a template given by name or path. Raises ArcnbError."""
    named = TEMPLATES / f"{template}.jinja"
    path = named if named.is_file() else Path(template).expanduser()
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in TEMPLATES.glob("*.jinja")))
        raise ArcnbError(f"there is no template {template}; known are {known}, or give the path of a file")
    return path


def template_digest(template: str | Path) -> str:
    """SHA-256 of a template's text: an edited template is a different template. Raises ArcnbError."""
    return sha256(template_path(template).read_bytes()).hexdigest()


def refuse_test_outputs(template: str | Path) -> None:
    """ArcnbError, naming file and line, when the template's code mentions test pairs' outputs.

    Templates are never given them, so such a template would fail anyway, but only where the line that asks is
    reached. Here the whole template is read, before anything else is done.
    """
    path = template_path(template)
    try:
        tree = ImmutableSandboxedEnvironment().parse(_source(path))
    except Exception:
        render_blocks(template, {})  # says which line is no Jinja
        raise
    for node in tree.find_all((jinja2.nodes.Name, jinja2.nodes.Getattr, jinja2.nodes.Getitem)):
        name = _name(node)
        if name and (_TEST_OUTPUT.search(name) or _TEST.search(name)):
            raise ArcnbError(
                f"template {path}, line {node.lineno}: it mentions {name!r}; prompts never show test outputs"
            )


def _name(node: jinja2.nodes.Node) -> str:
    if isinstance(node, jinja2.nodes.Name):
        return node.name
    if isinstance(node, jinja2.nodes.Getattr):
        return node.attr
    key = node.arg
    return key.value if isinstance(key, jinja2.nodes.Const) and isinstance(key.value, str) else ""


def _load_template(template: str) -> jinja2.Template:
    path = template_path(template)
    return _compile(path, _source(path))


def _source(path: Path) -> str:
    with named_errors(path):
        return path.read_text(encoding="utf-8")


@lru_cache(maxsize=32)
def _compile(path: Path, source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise ArcnbError(f"template {path}, line {error.lineno}: {error.message}") from error
