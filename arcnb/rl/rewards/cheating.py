"""Programs that memorise a task's pairs instead of computing them: hard-coded outputs, dispatch on the input.

Honest programs need not treat a recoloured or mirrored input alike, and honest programs overfit: no single
observation convicts. Three are made, and two of them together do:

* a test pair whose output no prompt shows comes out wrong (unknown where test outputs are unknown);
* literal: every train output it got right stands in its text as a list of lists;
* memorised: on changed copies of the inputs (one cell, mirrored, turned, recoloured) it never computes: each
  copy gives an error, the input itself, or one and the same grid everywhere.

The copies are run only when one of the first two holds, and never for a task whose outputs are all equal,
where a constant is an honest answer. Dispatch on something that the copies share with the original, such as
the sum of its cells, looks like honest classification and is not found; on the test pair it earns no
more.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from arcnb.arc.augmentation import Augmentation
from arcnb.arc.grids import MAX_SIDE, N_COLORS, Grid
from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Task
from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Job
from arcnb.programs.syntax import ProgramSyntaxError, parse_program

# What the changed copies follow from: the task, the view of it that the prompt showed, and the program.
Suspect = tuple[str, Augmentation, str]

MIN_CELLS = 6  # a smaller grid in a program's text may be there by chance
MAX_INPUTS = 3  # inputs of a task that are changed and run again


def find_cheats(
    predictions: Sequence[Prediction], tasks: Mapping[str, Task], executor: Executor
) -> list[str | None]:
    """For each judged prediction, which two observations convict its program; None for an honest one."""
    evidence: list[list[str]] = []
    doubtful: dict[Suspect, list[Job]] = {}
    for prediction in predictions:
        task = tasks[prediction.task_id]
        found = [] if not _may_cheat(prediction, task) else _seen_without_running(prediction, task)
        evidence.append(found)
        key = _suspect(prediction)
        if len(found) == 1 and key not in doubtful:
            inputs = [prediction.augmentation.apply(pair.input) for pair in task.train[:MAX_INPUTS]]
            copies = [copy for grid in inputs for copy in changed_copies(grid, task.task_id)]
            doubtful[key] = [Job(prediction.program, (copy,)) for copy in copies]
    memorised = _memorised(doubtful, executor)
    reasons: list[str | None] = []
    for prediction, found in zip(predictions, evidence, strict=True):
        if len(found) == 1 and memorised[_suspect(prediction)]:
            found = [*found, "computes nothing on changed inputs"]
        reasons.append("; ".join(found) if len(found) > 1 else None)
    return reasons


def _suspect(prediction: Prediction) -> Suspect:
    return prediction.task_id, prediction.augmentation, prediction.program


def _may_cheat(prediction: Prediction, task: Task) -> bool:
    """Whether there is anything to gain from memory: some train output is right, and outputs differ."""
    if prediction.status != "ok" or not prediction.train_correct_grids:
        return False
    outputs = [pair.output for pair in task.train if pair.output is not None]
    return len({_key(output) for output in outputs}) > 1


def _seen_without_running(prediction: Prediction, task: Task) -> list[str]:
    found = []
    if prediction.test_is_correct is not None and not prediction.test_is_correct:
        found.append("wrong on the test pair")
    right = [
        pair.output
        for pair, output in zip(task.train, prediction.outputs, strict=False)
        if np.array_equal(pair.output, output) and pair.output.size >= MIN_CELLS
    ]
    literals = literal_grids(prediction.program)
    if right and all(_key(prediction.augmentation.apply(grid)) in literals for grid in right):
        found.append("its right outputs stand in its text")
    return found


def literal_grids(program: str) -> set[tuple]:
    """Every list of equally long lists of digits that a program spells out, as (shape, cells)."""
    try:
        tree = parse_program(program)
    except ProgramSyntaxError:
        return set()
    spelled = filter(None, map(_spelled_grid, ast.walk(tree)))
    return {_key(np.array(rows, np.uint8)) for rows in spelled}


def _spelled_grid(node: ast.AST) -> list[list[int]] | None:
    """The grid that a list of lists of digits spells out. Nothing is built of what is no grid: the text is
    hostile."""
    if not isinstance(node, ast.List | ast.Tuple) or not 1 <= len(node.elts) <= MAX_SIDE:
        return None
    rows = []
    for row in node.elts:
        if not isinstance(row, ast.List | ast.Tuple) or not 1 <= len(row.elts) <= MAX_SIDE:
            return None
        rows.append([cell.value for cell in row.elts if isinstance(cell, ast.Constant)])
        if len(rows[-1]) != len(row.elts) or len(rows[-1]) != len(rows[0]):
            return None
        if not all(type(cell) is int and 0 <= cell < N_COLORS for cell in rows[-1]):
            return None
    return rows


def changed_copies(grid: Grid, *keys: str) -> list[Grid]:
    """Five copies of an input that differ from it: two with one cell changed, mirrored, turned, recoloured.

    A function of the grid's cells and keys alone.
    """
    random = rng(0, "changed copies", *keys, grid.tobytes().hex())
    copies = []
    for _ in range(2):
        copy = grid.copy()
        row, column = (int(random.integers(size)) for size in grid.shape)
        copy[row, column] = (int(copy[row, column]) + 1 + int(random.integers(9))) % 10
        copies.append(copy)
    colors = [0, *(int(color) for color in 1 + random.permutation(9))]
    copies += [
        Augmentation(hflip=True).apply(grid),
        Augmentation(n_rot90=2).apply(grid),
        Augmentation(color_map=tuple(colors)).apply(grid),
    ]
    return [copy for copy in copies if not np.array_equal(copy, grid)]


def _memorised(doubtful: Mapping[Suspect, Sequence[Job]], executor: Executor) -> dict[Suspect, bool]:
    jobs = [(key, job) for key, of_key in doubtful.items() for job in of_key]
    results: dict[Suspect, list[object]] = {key: [] for key in doubtful}
    for (key, job), execution in zip(jobs, executor.run(job for _, job in jobs), strict=True):
        if execution.status != "ok":
            results[key].append("error")
        elif np.array_equal(execution.outputs[0], job.inputs[0]):
            results[key].append("unchanged")
        else:
            results[key].append(_key(execution.outputs[0]))
    return {key: _computes_nothing(answers) for key, answers in results.items()}


def _computes_nothing(answers: Iterable[object]) -> bool:
    distinct = set(answers)
    return distinct <= {"error", "unchanged"} or len(distinct) == 1


def _key(grid: Grid) -> tuple:
    return (grid.shape, np.ascontiguousarray(grid, dtype=np.uint8).tobytes())
