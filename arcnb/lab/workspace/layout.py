"""`arcnb init` and `arcnb upgrade`: the notebooks of the installed version in a folder of one's own.

A delivered file is kept twice, in `notebooks/` to be edited and in `.arcnb/` to compare with. An upgrade
brings what is new; a file that its user edited stays, and what the new version changed in it is shown.
"""

import difflib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.lab.workspace.folders import DELIVERED, shipped
from arcnb.machine.files import make_folder, write_whole

_README = """# An arcnb workspace

    arcnb doctor                                   # what this machine has, and what will not work
    arcnb pipeline notebooks/pipelines/demo.yaml   # the whole loop, on two cores, in four to seven minutes
    arcnb run 03 -p n_tasks 4                      # one notebook: its page is in runs/
    jupyter lab                                    # the same notebooks by hand

Notebooks are yours to edit. `arcnb upgrade` brings a newer package's notebooks, and keeps what you edited.
"""


@dataclass(frozen=True)
class Upgrade:
    """What an upgrade did to one file: `brought` (new, or unedited before), `kept` (edited here, unchanged
    there), `both` (edited here and changed there: `difference` is a unified one of what changed there) or
    `gone` (no longer delivered; it stays)."""

    name: str
    what: str
    difference: str = ""


def init(folder: Path) -> Path:
    """Lay out a workspace; a folder that holds `notebooks` already is refused."""
    upgradable = os.path.isdir(folder / DELIVERED)  # False also where one may not enter
    remedy = f"`arcnb upgrade {folder}` brings newer notebooks" if upgradable else "name another folder"
    for name in ("notebooks", DELIVERED):
        if os.path.exists(folder / name):
            raise ArcnbError(f"{folder / name} is there already; {remedy}")
    make_folder(folder / "runs")
    for name, content in _delivery():
        _write(folder / "notebooks" / name, content)
        _write(folder / DELIVERED / name, content)
    if not (folder / "README.md").exists():
        write_whole(folder / "README.md", _README)
    return folder


def upgrade(folder: Path) -> list[Upgrade]:
    """Bring the notebooks of this package into a workspace; one entry for each file that differs."""
    delivered, own = folder / DELIVERED, folder / "notebooks"
    if not os.path.isdir(delivered):
        remedy = "makes one in another folder" if os.path.exists(own) else "makes one"
        where = "DIR" if os.path.exists(own) else folder
        raise ArcnbError(f"{folder} is no workspace; `arcnb init {where}` {remedy}")
    done, names = [], set()
    for name, content in _delivery():
        names.add(name)
        before, now = _read(delivered / name), _read(own / name)
        edited = now is not None and before is not None and _text(name, now) != _text(name, before)
        if now == content or (before is not None and now is None):  # there already, or removed by its user
            _write(delivered / name, content)
        elif not edited and (before is None) == (now is None):
            _write(own / name, content)
            _write(delivered / name, content)
            done.append(Upgrade(name, "brought"))
        elif before == content:
            done.append(Upgrade(name, "kept"))
        else:
            _write(delivered / name, content)
            done.append(Upgrade(name, "both", _difference(name, before or b"", content)))
    for path in sorted(delivered.rglob("*")):
        name = path.relative_to(delivered).as_posix()
        if path.is_file() and name not in names:
            path.unlink()
            done.append(Upgrade(name, "gone"))
    return done


def _delivery() -> Iterator[tuple[str, bytes]]:
    folder = shipped()
    if not folder.is_dir():
        raise ArcnbError(f"this installation of arcnb lacks its notebooks ({folder}); install it again")
    for path in sorted(folder.rglob("*")):
        if path.is_file() and ".ipynb_checkpoints" not in path.parts:
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def _write(path: Path, content: bytes) -> None:
    make_folder(path.parent)
    write_whole(path, content)


def _read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def _text(name: str, content: bytes) -> str:
    """What of a file is edited by people: of a notebook the sources of its cells, not outputs and counts."""
    if name.endswith(".ipynb"):
        try:
            cells = json.loads(content)["cells"]
            return "\n".join(f"# [{cell['cell_type']}]\n{''.join(cell['source'])}" for cell in cells)
        except (ValueError, KeyError, TypeError):
            pass  # half written by an editor: then every byte counts
    return content.decode("utf-8", errors="replace")


def _difference(name: str, before: bytes, after: bytes) -> str:
    texts = (_text(name, content).splitlines() for content in (before, after))
    return "\n".join(difflib.unified_diff(*texts, f"{name} (delivered)", f"{name} (new)", lineterm="", n=1))
