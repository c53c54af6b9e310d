"""Tasks from BARC-style data: rows with `examples`, and a program where the row carries one.

A row of JSON, JSON lines or Parquet holds `examples`, a list of [input, output] grids.
Its program is, in this order: the field `source` (a script whose function `main` maps a grid to a grid; it
becomes `transform`, and the input generator is left out), or the code of the last assistant message in
`messages`. Other fields are left alone. A task's id holds the number of its row: `barc_000007`.

Kept and split as BARC's reinforcement-learning sets were: at least 3 examples; the number of train pairs as
in ARC; one test pair; pairs drawn without replacement, again up to 10 times while their cells exceed 4,500.
Beyond that: a seed, no pair twice, no tasks that change nothing, provenance in `meta`, everything counted.
A row that has a pair of a reserved task is reserved (`meta`), whichever of its pairs are drawn.
"""

import ast
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from arcnb.arc.grids import as_grid
from arcnb.arc.seeds import rng as seeded_rng
from arcnb.arc.tasks.task import Pair, Task
from arcnb.errors import ArcnbError
from arcnb.machine.reading import read_rows, unpacked
from arcnb.programs.checks import static_checks
from arcnb.programs.extraction import extract_program
from arcnb.programs.syntax import ProgramSyntaxError, parse_shallow, source_of
from arcnb.synth.splits import draw_n_train, is_held_out
from arcnb.synth.validation.reports import TaskReport

MIN_EXAMPLES = 3
MAX_CELLS = 4500  # 5 x 30 x 30, inputs and outputs of all drawn pairs together
MAX_DRAWS = 10


def barc_tasks(path: str | Path, seed: int = 0, report: TaskReport | None = None) -> Iterator[Task]:
    """The tasks of a file, one for each usable row, in the file's order.

    Rejections counted in `report`: `few examples` (fewer than 3 valid, different ones), `too large`,
    `identity`, `duplicate` (the examples of an earlier task's row), `unreadable` (no object with `examples`).
    A program that does not parse is left out, its task kept and counted in `programs_dropped`.
    ArcnbError for a file of another kind, one that is damaged, or when its first row has no `examples`.
    """
    path, report = Path(path), TaskReport() if report is None else report
    fingerprints: set[str] = set()
    for index, (place, row) in enumerate(read_rows(path, strict=False)):
        try:
            if isinstance(row, ArcnbError):
                raise row
            examples = unpacked(row.get("examples"), f"{place}: examples")
            if not isinstance(examples, list):
                raise ArcnbError(f'{place}: it has no list "examples"')
        except ArcnbError:
            if index == 0:  # a file of another kind
                raise
            report.reject("unreadable", path.name)
            continue
        pairs = _pairs(examples)
        fingerprint = _fingerprint(pairs)  # before pairs are drawn, each row in its own way
        if fingerprint in fingerprints:
            reason, task = "duplicate", None
        else:
            reason, task = _task(path, index, row, pairs, seed)
        if task is None:
            report.reject(reason, path.name)
            continue
        fingerprints.add(fingerprint)
        report.programs_dropped += task.program is None and _has_code(row)
        yield task


def _task(path: Path, index: int, row: Mapping, pairs: list[Pair], seed: int) -> tuple[str, Task | None]:
    if len(pairs) < MIN_EXAMPLES:
        return "few examples", None
    if all(np.array_equal(pair.input, pair.output) for pair in pairs):
        return "identity", None
    drawn = _draw(pairs, seeded_rng(seed, "barc", index))
    if drawn is None:
        return "too large", None
    program = _program(row)
    meta = {"file": path.name, "row": index, "seed": seed}
    if is_held_out(Task("", (), tuple(pairs))):  # each might have been drawn as the test pair
        meta["reserved"] = True
    if program is not None:
        meta["program_sha256"] = hashlib.sha256(program.encode()).hexdigest()
    *train, test = drawn
    return "", Task(f"barc_{index:06d}", tuple(train), (test,), source="barc", program=program, meta=meta)


def _pairs(examples: list) -> list[Pair]:
    """The valid examples, each input once."""
    found: dict[tuple, Pair] = {}
    for example in examples:
        try:
            given, output = example
            pair = Pair(as_grid(_lists(given)), as_grid(_lists(output)))
        except (ArcnbError, TypeError, ValueError):  # an example that is no pair of grids
            continue
        found.setdefault((pair.input.shape, pair.input.tobytes()), pair)
    return list(found.values())


def _fingerprint(pairs: list[Pair]) -> str:
    """The same for these pairs in any order."""
    each = sorted(Task("", (pair,), ()).fingerprint for pair in pairs)
    return hashlib.sha256("".join(each).encode()).hexdigest()


def _draw(pairs: list[Pair], rng: np.random.Generator) -> list[Pair] | None:
    """Train pairs, then the test pair; None when they do not get small enough."""
    for _ in range(MAX_DRAWS):
        n_train = draw_n_train(rng, len(pairs) - 1)
        drawn = [pairs[i] for i in rng.permutation(len(pairs))[: n_train + 1]]
        if sum(pair.input.size + pair.output.size for pair in drawn) <= MAX_CELLS:
            return drawn
    return None


def _has_code(row: Mapping) -> bool:
    return bool(row.get("source")) or any("```" in answer for answer in _answers(row))


def _answers(row: Mapping) -> list[str]:
    """What the assistant says in the row's messages; nothing where they are no chat."""
    messages = row.get("messages")
    if not isinstance(messages, list):
        return []
    said = [m.get("content") for m in messages if isinstance(m, Mapping) and m.get("role") == "assistant"]
    return [content for content in said if isinstance(content, str)]


def _program(row: Mapping) -> str | None:
    """A program that defines `transform`, or None."""
    source = row.get("source")
    if isinstance(source, str) and source.strip():
        return transform_of_source(source)
    answers = _answers(row)
    program = extract_program(answers[-1]).program if answers else None
    broken = program is None or {"syntax", "entry"} & {hint.rule for hint in static_checks(program)}
    return None if broken else program


def transform_of_source(source: str) -> str | None:
    """A BARC script as a program: `main` renamed to `transform`, without the input generator.

    None when it does not parse, cannot be written again, or has no `main` (nor `transform`).
    """
    try:
        tree = parse_shallow(source)
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        if "main" in functions:
            _rename(tree, "transform", "_transform")  # a helper of that name
            _rename(tree, "main", "transform")
        elif "transform" not in functions:
            return None
        tree.body = [node for node in tree.body if not _is_for_generation(node)]
        return source_of(tree) + "\n"
    except ProgramSyntaxError:
        return None


def _rename(tree: ast.Module, old: str, new: str) -> None:
    """Give another name to functions, variables and arguments of this name, wherever they are used."""
    for node in ast.walk(tree):
        for kind, field in ((ast.FunctionDef, "name"), (ast.Name, "id"), (ast.arg | ast.keyword, "arg")):
            if isinstance(node, kind) and getattr(node, field) == old:
                setattr(node, field, new)


def _is_for_generation(node: ast.stmt) -> bool:
    is_main_block = isinstance(node, ast.If) and "__name__" in source_of(node.test)
    return is_main_block or (isinstance(node, ast.FunctionDef) and node.name.startswith("generate_input"))


def _lists(grid: object) -> object:
    """Integral floats are JSON's doing."""
    rows = [list(row) for row in grid]
    if any(isinstance(cell, float) for row in rows for cell in row):
        rows = [[int(cell) if float(cell).is_integer() else cell for cell in row] for row in rows]
    return rows
