"""Pages made from the notebooks: docs/reference/notebooks.md (every parameter) and the list in the launcher.

python docs/tooling/notebooks.py            # write both
python docs/tooling/notebooks.py --check    # say which is stale, end with 1
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from arcnb.lab.notebooks.files import read_notebook, title_and_purpose
from arcnb.lab.notebooks.parameters import Declared, Parameter, first_sentence, notebook_parameters
from arcnb.lab.workspace.folders import notebooks_folder
from arcnb.machine.files import write_whole
from arcnb.plans import Library

LAUNCHER = "00_start"
LIST_CELL = "notebooks"  # id of the launcher's cell that holds the list
_HEAD = """# The notebooks and their parameters

Made by `make docs` from the notebooks themselves; a test says when it is stale. A parameter is given on the
command line (`arcnb run 03 -p n_predictions 8`), in a profile (`-f FILE`), or by papermill. So is a further
option, which has no line in the parameters cell: by its path (`-p guard.window 10`, in a profile also
nested), or by its last word where nothing else is called so; for papermill and in JupyterLab it goes into the
parameter `more`. `arcnb params 03` lists all, `arcnb params 03 NAME` says what one means.
"""


@dataclass(frozen=True)
class NotebookFacts:
    """What a notebook says of itself: title, the paragraph under it, its parameters."""

    path: Path
    title: str
    purpose: str
    parameters: Declared

    @property
    def sentence(self) -> str:
        """The first sentence of the purpose."""
        return first_sentence(self.purpose)

    @property
    def picture(self) -> Path | None:
        """Its picture, if it has one."""
        path = self.path.parent / "pictures" / f"{self.path.stem}.svg"
        return path if path.is_file() else None


def notebook_facts(folder: Path | None = None) -> list[NotebookFacts]:
    """The notebooks of a folder (default: the project's), by name. Raises ArcnbError."""
    return [_facts(path) for path in sorted((folder or notebooks_folder()).glob("*.ipynb"))]


def parameter_page(facts: list[NotebookFacts]) -> str:
    """docs/reference/notebooks.md."""
    parts = [_HEAD]
    for one in facts:
        purpose = re.sub(r"\]\((?=[\w-]+\.ipynb\))", "](../../notebooks/", one.purpose)  # links beside it
        parts.append(f"## {one.title}\n\n`notebooks/{one.path.name}` — {purpose}\n")
        parts += [_table("parameter", one.parameters.values()), *_further(one.parameters)]
    return "\n".join(parts)


def _further(declared: Declared) -> Iterator[str]:
    """The options of the notebook's plan that have no line in its cell: a title and a table for each branch;
    of a library's class only those with a default of ours."""
    branches: dict[str, list[Parameter]] = {}
    for known in declared.all()[1].values():
        branches.setdefault(known.branch, []).append(known)
    libraries = declared.plan.libraries() if declared.plan else {}
    for branch, options in branches.items():
        title = f"Further options, `{branch}`" if branch else "Further options"
        yield f"**{title}**{_of_library(libraries[branch]) if branch in libraries else ''}\n"
        if ours := [known for known in options if known.ours]:
            yield _table("option", ours)


def _of_library(known: Library) -> str:
    """Which class it is, and where its fields are described."""
    file, _, name = known.sources[-1].partition(":")
    package, page = file.partition("/")[0], Path(file).stem.replace("_config", "_trainer")
    link = f"https://huggingface.co/docs/{package}/{page}#{package}.{name}"
    return (
        f": every field of [{name}]({link}) of the installed {package}. Below, those with a default of ours."
    )


def _table(head: str, parameters: Iterable[Parameter]) -> str:
    lines = [f"| {head} | default | type | meaning |", "|---|---|---|---|"]
    for known in parameters:
        default = known.default
        text = json.dumps(default, ensure_ascii=False) if isinstance(default, str | list) else str(default)
        meaning = f"{known.comment} ({known.unit})" if known.unit else known.comment
        cells = (f"`{known.name}`", f"`{_cell(text)}`", f"`{_cell(known.kind)}`", _cell(meaning))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def launcher_list(facts: list[NotebookFacts]) -> str:
    """The launcher's list: picture, link and sentence of every other notebook."""
    rows = [
        f"| {f'![](pictures/{one.picture.name})' if one.picture else ''} "
        f"| [{_cell(one.title)}]({one.path.name}) | {_cell(one.sentence)} |"
        for one in facts
        if one.path.stem != LAUNCHER
    ]
    return "\n".join(["## 1 · The notebooks", "", "| | notebook | |", "|---|---|---|", *rows])


def stale(folder: Path | None = None, write: bool = False) -> list[Path]:
    """The made files that differ from what they would be now; with `write` they are written."""
    folder = folder or notebooks_folder()
    facts = notebook_facts(folder)
    launcher = folder / f"{LAUNCHER}.ipynb"
    wanted = {folder.parent / "docs" / "reference" / "notebooks.md": parameter_page(facts)}
    if launcher.is_file():
        wanted[launcher] = _with_list(launcher, launcher_list(facts))
    found = [
        path for path, text in wanted.items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]  # fmt: skip
    for path in found if write else ():
        write_whole(path, wanted[path])
    return found


def _facts(path: Path) -> NotebookFacts:
    notebook = read_notebook(path)
    return NotebookFacts(path, *title_and_purpose(notebook), notebook_parameters(notebook, path.name))


def _with_list(launcher: Path, text: str) -> str:
    notebook = json.loads(launcher.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        if cell.get("id") == LIST_CELL:
            cell["source"] = text.splitlines(keepends=True)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> int:
    check = arguments == ["--check"]
    found = stale(write=not check)
    for path in found:
        print(f"{path} is stale: run `make docs`" if check else f"wrote {path}")
    return 1 if found and check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
