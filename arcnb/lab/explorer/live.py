"""The explorer: filter tasks, page through predictions, change a program and run it.

    Explorer(task_set, predictions)          # the last line of a cell

In JupyterLab it is alive (ipywidgets), and an edited program runs in the sandbox at the press of a button.
Under `arcnb run`, where nobody can press one, and in exported pages it is the static one (static_explorer),
which filters and pages without a kernel.
"""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from arcnb.arc.augmentation import Augmentation
from arcnb.arc.grids import MAX_SIDE, Grid
from arcnb.arc.pictures.figures import prediction_html
from arcnb.arc.pictures.palettes import PALETTES, palette_name
from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task_set import TaskSet
from arcnb.errors import number_of
from arcnb.lab.explorer.entries import Entry, TaskFilter, entries
from arcnb.lab.explorer.static import explorer_html
from arcnb.lab.runs.manifest import RUN_DIR
from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Job
from arcnb.programs.extraction import Extraction
from arcnb.programs.judging import judged

# A program whose printing is collected and raised; its own errors are told elsewhere. It is compiled by
# itself, for an import from `__future__` has to come first.
_PRINTING = """\
class Printed(Exception): pass
_printed = []
def print(*values, sep=" ", end="\\n", **_): _printed.append((sep or "").join(map(str, values)) + (end or ""))
exec({program})
_asked = transform
def transform(grid):
    try: _asked(grid)
    finally: raise Printed("".join(_printed))
"""
_FIRST_PROGRAM = "def transform(grid):\n    return grid\n"


class Explorer:
    """Tasks, and predictions of them, to look through. predictions: one set, several by name, or none."""

    def __init__(
        self, tasks: TaskSet, predictions: PredictionSet | Mapping[str, PredictionSet] | None = None
    ):
        sets = {"": predictions} if isinstance(predictions, PredictionSet) else dict(predictions or {})
        self.entries = entries(tasks, sets)
        nothing = bool(sets) and not any(entry.predictions for entry in self.entries)
        changed = sum(entry.changed for entry in self.entries)
        self.title = f"{tasks.name}: {number_of(len(tasks), 'task')}" + (
            ", and no predictions of them" if nothing else ""
        )
        if changed:
            self.title += f"; predictions of another version of {changed} of them are left out"
        self.found = self.entries
        self.executor: Executor | None = None
        self.panel: Any = None

    def __repr__(self) -> str:
        n_predictions = sum(len(entry.predictions) for entry in self.entries)
        return f"<Explorer of {self.title}, {n_predictions} predictions>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        bundle = {"text/plain": repr(self), "text/html": explorer_html(self.entries, self.title)}
        if RUN_DIR not in os.environ:
            bundle |= self.widget()._repr_mimebundle_() or {}
            bundle["text/plain"] = repr(self)
        return bundle

    def run(self, program: str, entry: Entry, shown: Prediction | None = None) -> Prediction:
        """The program judged on the entry's task; it runs in the sandbox, as any program here. shown: the
        prediction that it was written for, whose prompt may have turned and recolored the task."""
        task = entry.task
        self.executor = self.executor or Executor(1)
        execution = self.executor.submit(Job(program, _inputs(entry, shown))).result()
        asked = Prediction(task.task_id, task.fingerprint, 0, 0)
        if shown:
            asked = replace(asked, hflip=shown.hflip, n_rot90=shown.n_rot90, color_map=shown.color_map)
        return judged(asked, Extraction(program, "edited"), execution, task)

    def printed(self, program: str, entry: Entry, shown: Prediction | None = None) -> str:
        """What the program prints, input by input, run in the sandbox once more; "" where it prints nothing.
        shown: as in `run`.

        The sandbox lets nothing out but grids and one short message an exception, so that is how it comes: of
        each input as many characters as a message has.
        """
        ran = self.executor or Executor(1)
        jobs = [Job(_PRINTING.replace("{program}", repr(program)), (grid,)) for grid in _inputs(entry, shown)]
        said = [one.error_message for one in ran.run(jobs) if one.error_type == "Printed"]
        return "\n".join(text for text in said if text)

    def widget(self) -> Any:
        """The living explorer as one ipywidget."""
        self.panel = self.panel or _Panel(self)
        return self.panel.box


class _Panel:
    """The controls and what follows from them."""

    def __init__(self, explorer: Explorer):
        import ipywidgets as w

        self.explorer = explorer
        wide = w.Layout(width="98%")
        self.text = w.Text(placeholder="task id", layout=w.Layout(width="9em"))
        self.sides = w.IntRangeSlider(value=(1, MAX_SIDE), min=1, max=MAX_SIDE, description="sides")
        self.rates = w.FloatRangeSlider(
            value=(0.0, 1.0), min=0.0, max=1.0, step=0.01, description="solve rate", readout_format=".0%"
        )
        self.colors = [w.ToggleButton(description=str(i), layout=w.Layout(width="2.6em")) for i in range(10)]
        for button, color in zip(self.colors, PALETTES[palette_name()], strict=True):
            button.layout.border_bottom = f"6px solid {color}"
        some = any(entry.predictions for entry in explorer.entries)
        self.predicted = w.Checkbox(value=some, description="with predictions", indent=False)
        self.task = w.Dropdown(description="task", layout=w.Layout(width="28em"))
        self.prediction = w.Dropdown(description="prediction", layout=w.Layout(width="46em"))
        self.turns = {
            name: w.Button(description=sign, tooltip=name.replace("-", " "), layout=w.Layout(width="2.6em"))
            for name, sign in (("previous-task", "◀"), ("next-task", "▶"), ("previous-prediction", "◀"),
                               ("next-prediction", "▶"))
        }  # fmt: skip
        self.count = w.Label()
        self.view = w.HTML()
        self.program = w.Textarea(layout=w.Layout(width="98%", height="15em"))
        self.program.add_class("arcnb-program")
        self.go = w.Button(
            description="Run", button_style="primary", tooltip="run the program in the sandbox"
        )
        self.go.add_class("arcnb-go")
        self.result = w.HTML()
        self.result.add_class("arcnb-result")
        turns = self.turns
        self.box = w.VBox([
            w.HTML(f"<b>{html.escape(explorer.title)}</b>"),
            w.HBox([self.text, self.sides, self.rates, self.predicted]),
            w.HBox([w.Label("with colors"), *self.colors]),
            w.HBox([turns["previous-task"], turns["next-task"], self.task, self.count]),
            w.HBox([turns["previous-prediction"], turns["next-prediction"], self.prediction]),
            self.view,
            w.HTML("<b>Program</b> (change it, run it)"), self.program, self.go, self.result,
        ], layout=wide)  # fmt: skip
        self.box.add_class("arcnb-live-explorer")
        for control in (self.text, self.sides, self.rates, self.predicted, *self.colors):
            control.observe(lambda change: self.refilter(), "value")
        self.task.observe(lambda change: self.quiet or self.show_task(), "value")
        self.prediction.observe(lambda change: self.quiet or self.show_prediction(), "value")
        for name, button in turns.items():
            button.on_click(lambda _, name=name: self.turn(name))
        self.go.on_click(lambda _: self.run())
        self.quiet = False
        self.refilter()

    def refilter(self) -> None:
        colors = frozenset(i for i, button in enumerate(self.colors) if button.value)
        wanted = TaskFilter(self.text.value, self.sides.value, colors, self.rates.value, self.predicted.value)
        found = [entry for entry in self.explorer.entries if wanted(entry)]
        self.count.value = f"{len(found)} of {len(self.explorer.entries)} tasks"
        self._offer(self.task, [(_label(entry), entry.task.task_id) for entry in found])
        self.show_task()

    def entry(self) -> Entry | None:
        return next((e for e in self.explorer.entries if e.task.task_id == self.task.value), None)

    def show_task(self) -> None:
        entry = self.entry()
        rows = entry.predictions if entry else ()
        said = [
            " · ".join(filter(None, (f"{n + 1}", name, row.verdict))) for n, (name, row) in enumerate(rows)
        ]
        self._offer(self.prediction, list(zip(said, range(len(rows)), strict=True)))
        self.show_prediction()

    def _offer(self, control: Any, options: list) -> None:
        """Give a menu its options and choose the first; what it shows is drawn once, after that."""
        self.quiet = True
        control.index = None
        control.options = options
        control.index = 0 if options else None
        self.quiet = False

    def show_prediction(self) -> None:
        entry, number = self.entry(), self.prediction.value
        self.result.value = ""
        if entry is None:
            self.view.value, self.program.value = "No task fits.", ""
        elif number is None:
            self.view.value = entry.task._repr_html_()
            self.program.value = entry.task.program or _FIRST_PROGRAM
        else:
            _, row = entry.predictions[number]
            said = f'<div style="overflow-wrap:anywhere">{html.escape(row.failure)}</div>'
            self.view.value = said + prediction_html(entry.task.task_id, entry.task.named_pairs, row.outputs)
            self.program.value = row.program or row.completion_prefix + row.completion

    def turn(self, name: str) -> None:
        control = self.task if name.endswith("-task") else self.prediction
        if control.options:
            step = 1 if name.startswith("next") else -1
            control.index = (control.index + step) % len(control.options)

    def run(self) -> None:
        entry = self.entry()
        if entry is None:
            return
        self.go.disabled = True
        number = self.prediction.value
        shown = None if number is None else entry.predictions[number][1]
        try:
            made = self.explorer.run(self.program.value, entry, shown)
            turned = " on the grids as its prompt showed them" if made.augmentation != Augmentation() else ""
            took = f"{1000 * (made.seconds or 0):.1f} ms"
            head = f"your program{turned}, {took}: {made.verdict.partition(' · ')[2]}"
            said = html.escape(self.explorer.printed(self.program.value, entry, shown))
            said = f"<b>It prints</b><pre>{said}</pre>" if said else ""
            self.result.value = replace(made, program=None).card(entry.task, head) + said
        finally:
            self.go.disabled = False


def _inputs(entry: Entry, shown: Prediction | None) -> tuple[Grid, ...]:
    """The task's inputs, as the prompt of a prediction showed them."""
    augmentation = shown.augmentation if shown else Augmentation()
    return tuple(map(augmentation.apply, entry.task.inputs))


def _label(entry: Entry) -> str:
    rate = "" if entry.rate is None else f" · solve rate {entry.rate:.1%}"
    return f"{entry.task.task_id} · side {entry.side}{rate}"
