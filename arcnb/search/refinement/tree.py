"""Pictures of refinement: the conversations that ask for it, and trees of what came of it, with their grids.

A tree has a task's first attempts, what came of refining them, and so on. Tasks come in the order in which
refinement gained most. Of each attempt's refinements the best few are drawn, all are counted.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from arcnb.arc.grids import Grid
from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task import Task
from arcnb.machine.files import write_whole
from arcnb.search.turns.budget import first_turns_refined

_STYLE = (
    "<style>.arcnb-tree ul{list-style:none;margin:0 0 0 1.2em;padding:0 0 0 1em;border-left:1px solid #888}"
    ".arcnb-tree li{margin:.5em 0}.arcnb-attempt{display:flex;flex-wrap:wrap;gap:8px;align-items:center}"
    ".arcnb-said,.arcnb-tree details{font-size:12px}.arcnb-attempt svg{flex:none}</style>"
)
_PICTURE = 90  # pixels: a grid is drawn about this large, in cells of 4 to 14 pixels
_SHOWN_PAIRS = 3
BREADTH = 3  # refinements of an attempt that are shown


@dataclass(frozen=True)
class ConversationView:
    """Draws itself in a notebook: for each row the train grids in the prompt's frame, then the messages."""

    tasks: Mapping[str, Task]
    rows: Sequence[Mapping]
    parents: Sequence[Prediction]

    def _repr_html_(self) -> str:
        shown = zip(self.rows, self.parents, strict=True)
        return "".join(self._card(row, parent) for row, parent in shown) or "<p>No conversation.</p>"

    def __repr__(self) -> str:
        return "\n\n".join(map(self._said, self.rows)) or "No conversation."

    def _said(self, row: Mapping) -> str:
        """One message after the other under its role, ending as the answer begins."""
        turns = [f"--- {message['role']}\n{message['content']}" for message in row["messages"]]
        return "\n".join([*turns, f"--- assistant begins\n{row['prefix']}"])

    def _card(self, row: Mapping, parent: Prediction) -> str:
        from arcnb.arc.pictures.figures import prediction_html

        view = parent.view
        shown = view.apply(self.tasks[parent.task_id])
        outputs = None
        if parent.outputs is not None:
            outputs = [view.augmentation.apply(parent.outputs[i]) for i in view.pair_order]
        pictures = prediction_html(shown.task_id, replace(shown, test=()).named_pairs, outputs)
        head = f"{_verdict(parent)} · turn {row['turn']} · {row['n_prompt_tokens']:,} prompt tokens"
        messages = "".join(
            f"<details{' open' if number == len(row['messages']) - 1 else ''}>"
            f"<summary>{html.escape(message['role'])}</summary>"
            f"<pre>{html.escape(message['content'])}</pre></details>"
            for number, message in enumerate(row["messages"])
        )
        return f"<h4>{html.escape(head)}</h4>{pictures}{messages}"


@dataclass(frozen=True)
class Attempt:
    """A prediction with its refinements, best first; n_children counts also those not kept."""

    prediction: Prediction
    children: tuple[Attempt, ...] = ()
    n_children: int = 0


@dataclass(frozen=True)
class Tree:
    """The attempts at one task that were refined, best first."""

    task: Task
    roots: tuple[Attempt, ...]


@dataclass(frozen=True)
class Trees:
    """Draws itself in a notebook; prints as indented lines elsewhere."""

    trees: list[Tree] = field(default_factory=list)

    def _repr_html_(self) -> str:
        if not self.trees:
            return "<p>Nothing was refined.</p>"
        return _STYLE + "".join(
            f'<div class="arcnb arcnb-tree"><h4>{html.escape(tree.task.task_id)}</h4>{_expected(tree.task)}'
            f"<ul>{''.join(_html(root, tree.task) for root in tree.roots)}</ul></div>"
            for tree in self.trees
        )

    def __repr__(self) -> str:
        lines = [f"{tree.task.task_id}\n" + "\n".join(map(_text, tree.roots)) for tree in self.trees]
        return "\n".join(lines) or "Nothing was refined."

    def write(self, path: Path) -> Path:
        """The pictures as a fragment of HTML."""
        write_whole(path, self._repr_html_())
        return path


def best_trees(sets: Sequence[PredictionSet], tasks: Iterable[Task], n: int) -> Trees:
    """The trees of the n tasks where refinement gained most on train pairs; a branching shows three.

    sets: the refinements' set and, where it is a different one, the set of the first turns. They may hold
    other tasks, too.
    """
    by_id = {task.task_id: task for task in tasks}
    gains = _gains(sets)
    chosen = sorted(gains.keys() & by_id, key=lambda task_id: (-gains[task_id], task_id))[:n]
    trees = []
    for task_id in chosen:
        own, *others = ([*one.iter_predictions(task_ids=[task_id])] for one in sets)
        first = [p for rows in others for p in rows if p.turn == 0]  # what became of them there is not ours
        rows = {p.id: p for p in (*first, *own)}
        children: dict[str, list[Prediction]] = {}
        for row in rows.values():
            if row.parent in rows:
                children.setdefault(row.parent, []).append(row)
        roots = [_grown(rows[id_], children) for id_ in children if rows[id_].parent not in rows]
        trees.append(Tree(by_id[task_id], tuple(sorted(roots, key=_promise)[:BREADTH])))
    return Trees(trees)


def _gains(sets: Sequence[PredictionSet]) -> dict[str, float]:
    """task id -> how much closer its best refinement is than its best first turn."""
    import pandas as pd

    names = ["task_id", "turn", "round", "train_correct_grids", "train_pixel_score"]
    own, *others = (one.read(columns=names) for one in sets)
    frame = pd.concat([own, *(first_turns_refined(one, sets[0]) for one in others)], ignore_index=True)
    score = frame["train_correct_grids"].fillna(0) + 1e-3 * frame["train_pixel_score"].fillna(0)
    first = score[frame["turn"] == 0].groupby(frame["task_id"]).max()
    later = score[frame["turn"] > 0].groupby(frame["task_id"]).max()
    return {str(id_): float(best - first.get(id_, 0.0)) for id_, best in later.items()}


def _grown(prediction: Prediction, children: dict[str, list[Prediction]]) -> Attempt:
    grown = [_grown(child, children) for child in children.get(prediction.id, ())]
    return Attempt(prediction, tuple(sorted(grown, key=_promise)[:BREADTH]), len(grown))


def _promise(attempt: Attempt) -> tuple[float, float]:
    """Closest first, where an attempt is as good as the best that came of it."""
    below = [attempt]
    best = attempt.prediction.closeness
    while below:
        one = below.pop()
        best = max(best, one.prediction.closeness)
        below += one.children
    return (-best[0], -best[1])


def _expected(task: Task) -> str:
    from arcnb.arc.pictures.figures import grid_svg

    outputs = [pair.output for pair in task.train[:_SHOWN_PAIRS]]
    grids = "".join(grid_svg(output, cell=_cell(output), hover=False) for output in outputs)
    return f'<div class="arcnb-attempt">{grids}<span class="arcnb-said">expected on train pairs</span></div>'


def _html(attempt: Attempt, task: Task) -> str:
    from arcnb.arc.pictures.figures import grid_svg

    prediction, grids = attempt.prediction, ""
    if prediction.outputs is not None:
        shown = zip(task.train[:_SHOWN_PAIRS], prediction.outputs, strict=False)
        grids = "".join(grid_svg(out, pair.output, cell=_cell(out), hover=False) for pair, out in shown)
    said = html.escape(_verdict(prediction)) + _others(attempt)
    program = (
        f"<details><summary>program</summary><pre>{html.escape(prediction.program or '')}</pre></details>"
    )
    below = "".join(_html(child, task) for child in attempt.children)
    below = f"<ul>{below}</ul>" if below else ""
    grids += f'<span class="arcnb-said">{said}</span>{program}'
    return f'<li><div class="arcnb-attempt">{grids}</div>{below}</li>'


def _cell(grid: Grid) -> int:
    return max(4, min(14, _PICTURE // max(grid.shape)))


def _text(attempt: Attempt, depth: int = 1) -> str:
    line = "  " * depth + _verdict(attempt.prediction) + _others(attempt)
    return "\n".join([line, *(_text(child, depth + 1) for child in attempt.children)])


def _others(attempt: Attempt) -> str:
    hidden = attempt.n_children - len(attempt.children)
    return f" · and {hidden} more refinements of it" if hidden else ""


def _verdict(prediction: Prediction) -> str:
    """One line on a prediction, also on one whose program failed."""
    if prediction.status == "ok":
        return prediction.verdict
    line = f" in line {prediction.error_line}" if prediction.error_line else ""
    return f"{prediction.id} · {prediction.error_type or prediction.status}{line}"
