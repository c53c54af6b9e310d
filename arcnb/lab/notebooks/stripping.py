"""Notebooks as git keeps them: no outputs, no counters, no traces of a run or an editor.

python -m arcnb.lab.notebooks.stripping NOTEBOOK...

(nbconvert's --clear-output leaves the metadata of papermill and of editors, and the cells that a run adds.)
"""

import json
import sys
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError
from arcnb.lab.notebooks.files import ERROR_TAG, read_notebook
from arcnb.machine.files import write_whole

_ADDED = {"injected-parameters", ERROR_TAG}  # cells that papermill and the engine add
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def stripped(notebook: Any) -> dict[str, Any]:
    """The notebook (nbformat 4) as a plain dictionary with nothing but what people wrote."""
    kept = []
    for cell in notebook["cells"]:
        tags = cell["metadata"].get("tags", [])
        if _ADDED & set(tags):
            continue
        plain = dict(cell, metadata={"tags": tags} if tags else {})
        source = plain.pop("source").splitlines(keepends=True)
        kept.append(plain | {"source": source})
        if cell["cell_type"] == "code":
            kept[-1] |= {"execution_count": None, "outputs": []}
    return {"cells": kept, "metadata": _METADATA, "nbformat": 4, "nbformat_minor": 5}


def strip_file(path: Path) -> bool:
    """Strip a notebook in place; whether that changed it. Raises ArcnbError."""
    text = json.dumps(stripped(read_notebook(path)), indent=1, ensure_ascii=False) + "\n"
    changed = text != path.read_text(encoding="utf-8")
    if changed:
        write_whole(path, text)
    return changed


if __name__ == "__main__":
    for name in sys.argv[1:]:
        try:
            if strip_file(Path(name)):
                print(f"stripped {name}")
        except ArcnbError as error:
            sys.exit(f"arcnb: {error}")
