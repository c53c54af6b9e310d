"""Notebooks as git keeps them: no outputs, no counters, no traces of a run or an editor.

python -m arcnb.lab.notebooks.stripping NOTEBOOK...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError
from arcnb.lab.notebooks.files import ERROR_TAG, read_notebook
from arcnb.machine.files import write_whole

_ADDED = {"injected-parameters", ERROR_TAG}  # cells that papermill and the engine add


def stripped(notebook: Any) -> dict[str, Any]:
    """The notebook (nbformat 4) as a plain dictionary with nothing but what people wrote."""
    kept = []
    for cell in notebook["cells"]:
        tags = cell["metadata"].get("tags", [])
        if _ADDED & set(tags):
            continue
        plain = {name: value for name, value in cell.items() if name not in ("metadata", "source")}
        plain |= {
            "metadata": {"tags": tags} if tags else {},
            "source": cell["source"].splitlines(keepends=True),
        }
        if cell["cell_type"] == "code":
            plain |= {"execution_count": None, "outputs": []}
        kept.append(plain)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": kept, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def strip_file(path: Path) -> bool:
    """Strip a notebook in place; whether that changed it. Raises ArcnbError."""
    text = json.dumps(stripped(read_notebook(path)), indent=1, ensure_ascii=False) + "\n"
    changed = text != path.read_text(encoding="utf-8")
    if changed:
        write_whole(path, text)
    return changed


def main(arguments: list[str]) -> int:
    try:
        for name in arguments:
            if strip_file(Path(name)):
                print(f"stripped {name}")
    except ArcnbError as error:
        print(f"arcnb: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
