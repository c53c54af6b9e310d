"""Augmented copies of RE-ARC tasks whose program is rewritten to fit.

An augmentation changes the rule of a task, so its program has to change with the grids. Candidates are
made by rewriting the program's text and the first that reproduces every augmented pair is taken:

* the program as it is (many rules do not care about colours or orientation);
* colour literals mapped, first where they surely are colours, then every integer 0..9;
* each of these between a turn of the input back into the old frame and a turn of the output forth.

Programs run here, in this process, so they are RE-ARC's own verifiers as this package has them, rewritten by
us. The text that a task brings comes from a file, perhaps: it is compared with them, and never run.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from arcnb.arc.augmentation import Augmentation
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Pair, Task
from arcnb.synth.rearc.programs import rearc_ids, rewritten_verifier

P_PLAIN = 0.25  # share of a training set's tasks that keep their orientation and colors

# (hflip, n_rot90) of an augmentation -> the RE-ARC function that does the same to a grid.
_TURNS = {
    (False, 1): "rot270",
    (False, 2): "rot180",
    (False, 3): "rot90",
    (True, 0): "vmirror",
    (True, 1): "dmirror",
    (True, 2): "hmirror",
    (True, 3): "cmirror",
}
_BACK = {"rot90": "rot270", "rot270": "rot90"}  # the others undo themselves

# Function -> positions of its arguments that are colours.
_COLOR_ARGUMENTS = {
    "fill": (1,),
    "underfill": (1,),
    "ofcolor": (1,),
    "replace": (1, 2),
    "switch": (1, 2),
    "canvas": (0,),
    "recolor": (0,),
    "colorfilter": (1,),
    "colorcount": (1,),
}
_LAST_IS_COLOR = {"ofcolor", "colorfilter", "colorcount"}  # under rbind
_FIRST_IS_COLOR = {"recolor", "canvas"}  # under lbind
_RETURNS_COLOR = {"color", "mostcolor", "leastcolor"}  # matcher(color, 3)
_RETURNS_COLORS = {"palette"}  # other(palette(grid), 0), remove(0, palette(grid))

_FOREIGN = (  # the same text for all, so that it is said once
    "tasks of source rearc whose program is not the one that RE-ARC has for their meta['original'] are shown "
    "as they are: only RE-ARC's own programs are turned and recolored"
)


def augmented_task(task: Task, augmentation: Augmentation) -> Task | None:
    """The RE-ARC task under augmentation, with a program that solves it; None if no rewriting does, or if its
    program is not RE-ARC's."""
    own = _own_program(task)
    if own is None:
        return None
    turned = replace(augmentation.apply_task(task), meta=task.meta)
    for program in _candidates(own, augmentation):
        if _reproduces(program, (*turned.train, *turned.test)):
            return replace(turned, program=program)
    return None


@dataclass(frozen=True)
class FreshAugmentations:
    """`(task, number) -> task`: a RE-ARC task turned and recolored in another way for every number.

    Of a task's first eight no two share mirror and rotation; number 0 leaves a quarter of all tasks as they
    are. Other tasks, those that were augmented before, and the few in a hundred that no rewriting solves
    come back unchanged. So do tasks that call themselves RE-ARC's and have another program, with a warning.
    """

    seed: int

    def __call__(self, task: Task, number: int) -> Task:
        if task.source != "rearc" or "augmentation" in task.meta:
            return task
        if _own_program(task) is None:
            warnings.warn(_FOREIGN, RuntimeWarning, stacklevel=2)
            return task
        if number == 0 and rng(self.seed, "plain", task.task_id).random() < P_PLAIN:
            return task
        turns = rng(self.seed, "turns", task.task_id).permutation(8)
        hflip, n_rot90 = divmod(int(turns[number % 8]), 4)
        drawn = Augmentation.sample(rng(self.seed, "colors", task.task_id, number))
        return augmented_task(task, Augmentation(bool(hflip), n_rot90, drawn.color_map)) or task


def _own_program(task: Task) -> str | None:
    """The package's program of the task's original, where the task has that very text."""
    original = task.meta.get("original")
    own = rewritten_verifier(original) if original in rearc_ids() else None
    return own if own == task.program else None


def _candidates(program: str, augmentation: Augmentation) -> Iterator[str]:
    texts = [program]
    if augmentation.color_map:
        texts += [recolored(program, augmentation.color_map, everywhere) for everywhere in (False, True)]
    yield from texts
    turn = _TURNS.get((augmentation.hflip, augmentation.n_rot90))
    if turn:
        yield from (turned_around(text, turn) for text in texts)


def turned_around(program: str, turn: str) -> str:
    """The program between `turn` undone on its input and `turn` done to its output."""
    tree = ast.parse(program)
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef))
    entry, result = function.body[0], function.body[-1]
    entry.value = ast.Call(ast.Name(_BACK.get(turn, turn)), [entry.value], [])
    result.value = ast.Call(ast.Name(turn), [result.value], [])
    return _unparse(tree)


def recolored(program: str, color_map: tuple[int, ...], everywhere: bool) -> str:
    """The program with colour literals mapped; `everywhere` takes every integer 0..9 for a colour."""
    tree = ast.parse(program)
    colors = _ColorLiterals(everywhere)
    colors.visit(tree)
    for node in colors.found.values():
        node.value = color_map[node.value]
    return _unparse(tree)


class _ColorLiterals(ast.NodeVisitor):
    def __init__(self, everywhere: bool):
        self.everywhere = everywhere
        self.found: dict[int, ast.Constant] = {}

    def visit_Constant(self, node: ast.Constant) -> None:
        if self.everywhere:
            self._take(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = _name(node.func)
        for position in _COLOR_ARGUMENTS.get(name, ()):
            if position < len(node.args):
                self._take(node.args[position])
        if len(node.args) == 2:
            first, second = node.args
            if (name == "rbind" and _name(first) in _LAST_IS_COLOR) or (
                name == "lbind" and _name(first) in _FIRST_IS_COLOR
            ):
                self._take(second)
            if name in ("matcher", "equality") and _callee(first) in _RETURNS_COLOR:
                self._take(second)
            if name == "other" and _callee(first) in _RETURNS_COLORS:
                self._take(second)
            if name == "remove" and _callee(second) in _RETURNS_COLORS:
                self._take(first)
        self.generic_visit(node)

    def _take(self, node: ast.expr) -> None:
        if isinstance(node, ast.Constant) and type(node.value) is int and 0 <= node.value <= 9:
            self.found[id(node)] = node


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _callee(node: ast.expr) -> str:
    """The name itself, or what a call calls: `color` for both `color` and `color(x)`."""
    return _name(node.func) if isinstance(node, ast.Call) else _name(node)


def _unparse(tree: ast.Module) -> str:
    return ast.unparse(tree).replace("\n\ndef", "\ndef").replace("\ndef", "\n\ndef") + "\n"


def _reproduces(program: str, pairs: tuple[Pair, ...]) -> bool:
    space: dict = {}
    exec(program.replace("from rearc_dsl ", "from arcnb.programs.libraries.rearc_dsl "), space)
    transform = space["transform"]
    try:
        return all(np.array_equal(np.array(transform(pair.input)), pair.output) for pair in pairs)
    except Exception:  # a wrongly mapped literal surfaces as anything: min() of nothing, recursion, types
        return False
