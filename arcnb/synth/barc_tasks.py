"""Tasks from BARC-style data: rows with `examples`, and a program where the row carries one.

A row of JSONL (`.jsonl`, `.json`, also `.gz`) or Parquet holds `examples`, a list of [input, output] grids.
Its program is, in this order: the field `source` (a script whose function `main` maps a grid to a grid; it
becomes `transform`, and the input generator is left out), or the code of the last assistant message in
`messages`.

Kept and split as BARC's reinforcement-learning sets were: at least 3 examples; the number of train pairs as
in ARC; one test pair; pairs drawn without replacement, again up to 10 times while their cells exceed 4,500.
Beyond that: a seed, no pair twice, no tasks that change nothing, provenance in `meta`, everything counted.
"""

import ast
import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from arcnb.arc.grids import as_grid
from arcnb.arc.seeds import rng as seeded_rng
from arcnb.arc.tasks.task import Pair, Task
from arcnb.errors import ArcnbError
from arcnb.programs.checks import static_checks
from arcnb.programs.extraction import extract_program
from arcnb.synth.splits import draw_n_train
from arcnb.synth.validation.reports import TaskReport

MIN_EXAMPLES = 3
MAX_CELLS = 4500  # 5 x 30 x 30, inputs and outputs of all drawn pairs together
MAX_DRAWS = 10


def barc_tasks(path: str | Path, seed: int = 0, report: TaskReport | None = None) -> Iterator[Task]:
    """The tasks of a file, one for each usable row, in the file's order.

    Rejections counted in `report`: `few examples` (fewer than 3 valid, different ones), `too large`,
    `identity`, `duplicate` (same grids as an earlier task), `unreadable` (no object with `examples`).
    A program that does not parse is left out, its task kept and counted in `programs_dropped`.
    ArcnbError for a file of another kind, one that is damaged, or when its first row has no `examples`.
    """
    path, report = Path(path), TaskReport() if report is None else report
    fingerprints: set[str] = set()
    for index, row in enumerate(_rows(path)):
        if not isinstance(row, Mapping) or not isinstance(row.get("examples"), list | np.ndarray):
            if index == 0:
                raise ArcnbError(f'{path}: row 0 has no list "examples"')
            report.reject("unreadable", path.name)
            continue
        reason, task = _task(path, index, row, seed)
        if task is not None and task.fingerprint in fingerprints:
            reason, task = "duplicate", None
        if task is None:
            report.reject(reason, path.name)
            continue
        fingerprints.add(task.fingerprint)
        report.programs_dropped += task.program is None and _has_code(row)
        yield task


def _task(path: Path, index: int, row: Mapping, seed: int) -> tuple[str, Task | None]:
    pairs = _pairs(row["examples"])
    if len(pairs) < MIN_EXAMPLES:
        return "few examples", None
    if all(np.array_equal(pair.input, pair.output) for pair in pairs):
        return "identity", None
    drawn = _draw(pairs, seeded_rng(seed, "barc", index))
    if drawn is None:
        return "too large", None
    program = _program(row)
    meta = {"file": path.name, "row": index, "seed": seed}
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
        except (ArcnbError, TypeError, ValueError):
            continue
        found.setdefault((pair.input.shape, pair.input.tobytes()), pair)
    return list(found.values())


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
    if not isinstance(messages, list | np.ndarray):
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

    None when it does not parse or has no `main` (nor `transform`).
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return None
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if "main" in functions:
        functions["main"].name = "transform"
    elif "transform" not in functions:
        return None
    tree.body = [node for node in tree.body if not _is_for_generation(node)]
    return ast.unparse(tree) + "\n"


def _is_for_generation(node: ast.stmt) -> bool:
    is_main_block = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
    return is_main_block or (isinstance(node, ast.FunctionDef) and node.name.startswith("generate_input"))


def _lists(grid: object) -> object:
    """Parquet gives arrays of arrays; grids are checked as nested lists. Integral floats are JSON's doing."""
    rows = [list(row) for row in grid]
    if any(isinstance(cell, float | np.floating) for row in rows for cell in row):
        rows = [[int(cell) if float(cell).is_integer() else cell for cell in row] for row in rows]
    return rows


def _rows(path: Path) -> Iterator[object]:
    import pyarrow as pa

    try:
        yield from _rows_of_kind(path)
    except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
        raise ArcnbError(f"{path}: damaged or cut short ({error})") from error


def _rows_of_kind(path: Path) -> Iterator[object]:
    if not path.exists():
        raise ArcnbError(f"{path}: no such file")
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    kind = suffixes[-1] if suffixes else ""
    if kind == ".parquet":
        from pyarrow import parquet

        for batch in parquet.ParquetFile(path).iter_batches(batch_size=256):
            yield from batch.to_pylist()
    elif kind in (".jsonl", ".json"):
        yield from _json_rows(path)
    else:
        raise ArcnbError(f"{path}: neither JSONL (.jsonl, .json, .gz) nor Parquet (.parquet)")


def _json_rows(path: Path) -> Iterator[object]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        for number, line in enumerate(file):
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError as error:  # no JSON, or no text
                    if number == 0:
                        raise ArcnbError(f"{path}: line 1 is not JSON ({error})") from None
                    yield None
