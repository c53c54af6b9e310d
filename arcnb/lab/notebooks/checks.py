"""What a notebook's own checks say of its parameters before there is a run: asked by dry runs, and by
whatever starts or queues a run.

The cell tagged `checks` asks whether the parameters go together, and whether what they name is there. It
loads no model and reads no tasks. Here its statements are carried out one by one, with the imports that they
need and a run that has no folder. One that fails in another way than by refusing is told and left to the
notebook, unless a refusal before, or a value that is still to come, explains it.
"""

import ast
import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError
from arcnb.lab.notebooks.files import read_notebook
from arcnb.lab.notebooks.parameters import default_values, folded, notebook_parameters
from arcnb.lab.runs.named_paths import existing, pieces, texts
from arcnb.lab.runs.placeholders import REFERENCE, names, run_meant
from arcnb.lab.runs.run import Run, folder_of, run_name

TAG = "checks"


@dataclass(frozen=True)
class Foreseen(Run):
    """A run that would have these parameters; its folder is not there."""

    asked: Mapping[str, Any]

    @property
    def parameters(self) -> dict[str, Any]:
        return dict(self.asked)


def refuse_early(
    notebook: Path,
    values: Mapping[str, Any],
    where: str,
    tell: Callable[[str], object],
    elsewhere: bool = False,
    later: bool = False,
) -> None:
    """ArcnbError, opened by `where`, with all that the notebook's checks refuse of these values (flat).

    Sentences about what an earlier stage has yet to make (`${stage.artifact}`) do not count. elsewhere: other
    machines run it, and may have disks of their own; later: it waits for work that may leave files. Absolute
    paths, or any, that are not here are then told and not refused.
    """
    given = list(texts(dict(values)))
    missing = {piece for text in given for piece in pieces(text) if "/" in piece and existing(piece) is None}
    allowed = [piece for piece in missing if later or (elsewhere and piece.startswith("/"))]
    refused, failed = [], []
    sentences = dict.fromkeys(_refusals(notebook, values, failed))
    for sentence in sentences:
        if REFERENCE.search(sentence):
            continue
        if any(names(sentence, piece) for piece in allowed):
            tell(f"arcnb: {where}: {sentence}; it is not refused, for it may be there when the run starts")
        else:
            refused.append(sentence + run_meant(values, sentence))
    if refused:
        raise ArcnbError(f"{where}: " + ";\n".join(refused))
    if failed and not sentences and not any(map(REFERENCE.search, given)):
        tell(f"arcnb: {where}: not all checks could be made here ({failed[0]}); the notebook makes them")


def _refusals(path: Path, values: Mapping[str, Any], failed: list[str]) -> Iterator[str]:
    """The sentences that the cell's statements end with; none of a notebook without such a cell. failed:
    gets the errors of statements that end in another way."""
    notebook = read_notebook(path)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    tagged = [number for number, cell in enumerate(code) if TAG in cell.metadata.get("tags", [])]
    if not tagged:
        return
    try:
        body = ast.parse(code[tagged[0]].source).body
    except SyntaxError as error:  # a magic, say
        failed.append(f"SyntaxError: {error}")
        return
    declared = notebook_parameters(notebook, path.name)
    asked = Foreseen(folder_of(run_name(path.stem)), values)
    known = default_values(declared) | folded(values, declared) | {"open_run": lambda name=None: asked}
    used = {node.id for part in body for node in ast.walk(part) if isinstance(node, ast.Name)} - {*known}
    imports = [part for cell in code[: tagged[0]] for part in _statements(cell.source)]
    for statement in [*filter(None, (_needed(part, used) for part in imports)), *body]:
        module = compile(ast.Module([statement], []), f"{path.name}, cell {TAG}", "exec")
        try:
            with contextlib.redirect_stdout(sys.stderr):
                exec(module, known)
        except ArcnbError as error:
            yield from str(error).split(";\n")
        except Exception as error:
            failed.append(f"{type(error).__name__}: {error}")


def _statements(source: str) -> list[ast.stmt]:
    try:
        return ast.parse(source).body
    except SyntaxError:  # a magic, say
        return []


def _needed(statement: ast.stmt, used: set[str]) -> ast.stmt | None:
    """An import of those of its names that are used; None where there are none, and of other statements."""
    if not isinstance(statement, ast.Import | ast.ImportFrom):
        return None
    statement.names = [alias for alias in statement.names if (alias.asname or alias.name) in used]
    return statement if statement.names else None
