"""Finding and reading notebooks: `03`, `3`, `inference`, `03_inference` or a path."""

import contextlib
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError, nearest
from arcnb.lab.notebooks.parameters import Declared, notebook_parameters
from arcnb.lab.runs.named_paths import existing_file
from arcnb.lab.workspace.folders import notebooks_folder

ERROR_TAG = "papermill-error-cell-tag"  # of banners; papermill removes them when the copy is run again


def find_notebook(reference: str) -> Path:
    """A path to a notebook, its stem in `notebooks/`, the number that the stem begins with, or the rest of
    it."""
    if (file := existing_file(reference)) is not None:
        return file.resolve()
    folder = notebooks_folder()
    stems = {path.stem: path for path in sorted(folder.glob("*.ipynb"))}
    parts = {stem: stem.split("_", 1) for stem in stems}  # number and words
    matches = [path for stem, path in stems.items() if reference in (stem, *parts[stem])]
    matches = matches or [path for stem, path in stems.items() if reference == parts[stem][0].lstrip("0")]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ArcnbError(f"{reference!r} names several notebooks: {', '.join(path.stem for path in matches)}")
    raise ArcnbError(
        f"there is no notebook {reference!r}, neither as a file nor in {folder}{nearest(reference, stems)}"
    )


def read_notebook(path: Path) -> Any:
    """The notebook as nbformat 4; ArcnbError in one sentence if that is impossible."""
    import nbformat

    try:
        # Without nbformat's schema: papermill runs what others leave things out of.
        notebook = nbformat.convert(nbformat.reader.reads(path.read_text(encoding="utf-8")), 4)
        _complete(notebook)
    except Exception as error:  # nbformat answers JSON that is no notebook with whatever comes
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ArcnbError(f"{path} is not a notebook that can be read: {why}") from None
    language = str(notebook.metadata.get("kernelspec", {}).get("language", "python"))
    if not language.lower().startswith(("python", "ipython")):
        raise ArcnbError(f"{path} is a notebook in {language}; arcnb runs Python notebooks")
    return notebook


def _complete(notebook: Any) -> None:
    """Put in what is missing of it."""
    from nbformat import NotebookNode

    notebook.setdefault("metadata", NotebookNode())
    for cell in notebook["cells"]:
        cell.setdefault("metadata", NotebookNode())
        if not isinstance(cell.setdefault("source", ""), str) or not isinstance(cell["metadata"], dict):
            raise ValueError(f"a {cell['cell_type']} cell has no text")
        if cell["cell_type"] == "code":
            cell.setdefault("execution_count", None)
            cell.setdefault("outputs", [])


def sign(path: Path) -> None:
    """Tell this user's JupyterLab that the notebook's outputs are their own doing.

    JupyterLab keeps SVG and most HTML of an unknown notebook to itself: grids would appear as their hover
    texts. Without a home to keep signatures in, that stays so.
    """
    import nbformat
    from nbformat.sign import NotebookNotary

    with contextlib.suppress(Exception):  # the run is over, whatever is wrong with the home
        NotebookNotary().sign(nbformat.read(path, as_version=4))


def declared_beside(path: Path, profile: object = None) -> dict[str, Declared]:
    """stem -> parameters, of this notebook; where a profile is given, which may be for them, too, also of all
    in its folder that can be read."""
    declared = {path.stem: notebook_parameters(read_notebook(path), path.name)}
    for sibling in sorted(path.parent.glob("*.ipynb")) if profile else ():
        if sibling.stem not in declared:
            with contextlib.suppress(ArcnbError):  # its own run will say so
                declared[sibling.stem] = notebook_parameters(read_notebook(sibling), sibling.name)
    return declared


def title_and_purpose(notebook: Any) -> tuple[str, str]:
    """What a notebook's first cell says: its title and the paragraph under it; empty texts without one."""
    text = next((cell["source"] for cell in notebook["cells"] if cell["source"].startswith("# ")), "")
    title, _, rest = text.partition("\n")
    return title.lstrip("# ").strip(), " ".join(rest.strip().split("\n\n")[0].split())


def cell_titles(notebook: Any) -> list[str]:
    """For each cell the nearest heading above it (without its number signs), "" before the first."""
    titles, title = [], ""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            headings = [line for line in "".join(cell["source"]).splitlines() if line.startswith("#")]
            title = headings[-1].lstrip("# ").strip() if headings else title
        titles.append(title)
    return titles
