"""Notebooks carried out in this process, whose libraries are loaded: a kernel would load them for seconds. By
`arcnb run`, in a kernel, each notebook runs elsewhere: 01 to 06 in tests/road, 07 and 09 in their rooms."""

import ast
import contextlib
import io
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest
from IPython.core.formatters import DisplayFormatter

from arcnb.lab.execution.stopping import NUDGE
from arcnb.lab.notebooks.parameters import check_parameters, default_values, folded, notebook_parameters
from arcnb.lab.runs.manifest import RUN_DIR, RUNS
from arcnb.lab.runs.provenance import notebook_record
from arcnb.lab.runs.run import new_run, run_name
from tests.paths import NOTEBOOKS


@dataclass(frozen=True)
class CarriedOut:
    """A run folder, the outcome that its notebook recorded, and what its cells printed and showed."""

    path: Path
    outcome: dict[str, Any]
    text: str


def carried_out(runs: Path, number: str, **parameters: Any) -> CarriedOut:
    """carried_out(folder, "03", n_tasks=1): all cells of notebook 03, one after the other."""
    (path,) = NOTEBOOKS.glob(f"{number}_*.ipynb")
    notebook = nbformat.read(path, as_version=4)
    declared = notebook_parameters(notebook, path.name)
    texts = {name: str(value) if isinstance(value, Path) else value for name, value in parameters.items()}
    given = check_parameters(texts, declared, path.name)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, NUDGE)}
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setenv(RUNS, str(runs))
        run = new_run(run_name(path.stem), default_values(declared) | given, notebook_record(path))
        patch.setenv(RUN_DIR, str(run.path))
        patch.setattr("IPython.display.display", _show)
        names: dict[str, Any] = {}
        try:
            for cell in notebook.cells:
                if cell.cell_type == "code":
                    _run_cell(cell.source, path.name, names)
                    if "parameters" in cell.metadata.get("tags", []):
                        names |= folded(given, declared)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return CarriedOut(run.path, run.manifest["outcome"], said.getvalue())


def _run_cell(source: str, name: str, names: dict[str, Any]) -> None:
    """As a kernel does: the value of the last expression is shown."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), names)
    if last is not None:
        value = eval(compile(ast.Expression(last.value), name, "eval"), names)
        if value is not None:
            _show(value)


def _show(*values: Any) -> None:
    """Prints what an HTML page would have of the values."""
    for value in values:
        shown, _ = DisplayFormatter().format(value)
        print(shown.get("text/html", shown.get("text/plain")))
