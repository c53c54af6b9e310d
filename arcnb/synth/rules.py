"""Rules: what a task generator makes, and the registry of generators.

A generator is a function `(rng) -> Rule`: a program text with constants drawn at random, and a function that
draws inputs on which the program does something worth showing. Adding one is a function with the decorator
`@generator` in a module of `arcnb/synth/generators`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

import numpy as np

from arcnb.arc.grids import all_equal, as_grid
from arcnb.arc.seeds import rng as seeded_rng
from arcnb.arc.tasks.task import Pair, Task
from arcnb.errors import ArcnbError, nearest
from arcnb.programs.libraries import dsl
from arcnb.synth.inputs import Rng
from arcnb.synth.splits import draw_n_train
from arcnb.synth.validation.reduction import removals

DSL_IMPORT = "from dsl import *\n"
NUMPY_IMPORT = "import numpy as np\n"
_NAMES = {name: getattr(dsl, name) for name in dsl.__all__}  # what a rule's program finds
TURNS = (
    *("flip_horizontal", "flip_vertical", "rotate_180"),  # which keep the shape
    *("rotate_clockwise", "rotate_counterclockwise", "transpose"),
)
DIRECTIONS = ("down", "up", "left", "right")
MAX_TRIES = 30  # draws of a task's rule and inputs until one is worth showing


class NoExample(ArcnbError):
    """A generator drew as often as it may and made no usable example; the message names it."""

    def __init__(self, message: str, too_large: bool = False):
        super().__init__(message)
        self.too_large = too_large
        self.reason = "too large" if too_large else "no valid example"


@dataclass(frozen=True)
class Rule:
    """program: text that defines `transform(grid)` on `dsl`. draw: `(rng) -> input grid`."""

    program: str
    draw: Callable[[Rng], np.ndarray]


@dataclass(frozen=True)
class TaskGenerator:
    """A named source of rules; `family` is the module it lives in."""

    name: str
    family: str
    make: Callable[[Rng], Rule]


GENERATORS: dict[str, TaskGenerator] = {}


def generator(make: Callable[[Rng], Rule]) -> Callable[[Rng], Rule]:
    """Register the decorated `(rng) -> Rule` under its own name; its module is its family."""
    name = make.__name__
    if name in GENERATORS:
        raise ArcnbError(f"two generators are called {name}")
    GENERATORS[name] = TaskGenerator(name, make.__module__.rpartition(".")[2], make)
    return make


def program(*lines: str) -> str:
    """Program text with these lines, indented further as they are, as the body of `transform(grid)`."""
    body = "".join(f"    {line}\n" for line in lines)
    imports = DSL_IMPORT + (NUMPY_IMPORT if "np." in body else "")
    return f"{imports}\ndef transform(grid):\n{body}"


def for_each(*lines: str, found: str = "find_objects(grid)", at_end: str = "result") -> str:
    """Program text that does these lines for each object `obj`; `result` is the grid at first."""
    body = [f"    {line}" for line in lines]
    return program("result = grid", f"for obj in {found}:", *body, f"return {at_end}")


def compiled(text: str) -> Callable[[np.ndarray], object]:
    """`transform` of a program made here, in this process: for our own text only, never for a model's."""
    namespace = _NAMES.copy()
    exec(_code(text), namespace)
    return namespace["transform"]


@lru_cache(maxsize=4096)  # many rules are drawn again, with other inputs
def _code(text: str) -> CodeType:
    return compile(text.replace(DSL_IMPORT, "", 1), "<rule>", "exec")


def rule_task(name: str, seed: int, index: int) -> Task:
    """Task `index` of the generator of this name: rule, inputs and outputs from (name, seed, index) alone.

    Inputs are distinct; each pair changes something, and not all outputs are equal; the program has no line
    without effect. NoExample when 30 tries gave no such task, ArcnbError when there is no such generator.
    """
    if name not in GENERATORS:
        raise ArcnbError(f"no generator {name!r}{nearest(name, GENERATORS)}")
    for attempt in range(MAX_TRIES):
        rng = seeded_rng(seed, "dsl task", name, index, attempt)
        n_pairs = draw_n_train(rng) + 1
        rule = GENERATORS[name].make(rng)
        pairs = _pairs(rule, n_pairs, rng)
        if pairs is None:
            continue
        return Task(
            f"dsl_{name}_{seed}_{index}",
            tuple(pairs[:-1]),
            tuple(pairs[-1:]),
            source="dsl",
            program=_without_idle_lines(rule.program, pairs),
            meta={"generator": name, "family": GENERATORS[name].family, "seed": seed, "index": index},
        )
    raise NoExample(f"generator {name}, seed {seed}, index {index}: no usable task in {MAX_TRIES} tries")


def _without_idle_lines(text: str, pairs: list[Pair]) -> str:
    """The program without the lines that change none of these outputs.

    One line at a time, each judged on the program as it is by then. It runs here, since the text is ours.
    """
    candidates = removals(text)
    while (shorter := next(candidates, None)) is not None:
        if _solves(shorter, pairs):
            text, candidates = shorter, removals(shorter)
    return text


def _solves(text: str, pairs: list[Pair]) -> bool:
    try:
        transform = compiled(text)
        return all(np.array_equal(as_grid(transform(pair.input.copy())), pair.output) for pair in pairs)
    except Exception:  # a line that was needed went missing: names, shapes, types, anything
        return False


def _pairs(rule: Rule, n: int, rng: Rng) -> list[Pair] | None:
    """`n` pairs with distinct inputs that each change something, or None when too few draws give one."""
    transform = compiled(rule.program)
    found: dict[bytes, Pair] = {}
    for _ in range(4 * n):
        pair = _pair(transform, rule.draw(rng))
        if pair is not None:
            found.setdefault(bytes(pair.input.shape) + pair.input.tobytes(), pair)
        if len(found) == n:
            pairs = list(found.values())
            return None if all_equal([pair.output for pair in pairs]) else pairs
    return None


def _pair(transform: Callable, grid: np.ndarray) -> Pair | None:
    try:
        output = as_grid(transform(grid.copy()))
        given = as_grid(grid)
    except (ValueError, IndexError):  # this input has no object, no content, or the output is too large
        return None
    return None if np.array_equal(given, output) else Pair(given, output)
