"""What a run depends on, in a form that can be compared: has this stage been done with the same inputs?

    {"notebook": sha256 of its source, "parameters": {name: value, or "text @ fingerprint of what it names"}}

A parameter that names files counts by their content, not by the folder they happen to be in: a stage that ran
again and made the same tasks lets the stages behind it be skipped. Of the folder of a run that is done its
artifacts and its outcome count, not what is written about it: its page is finished after the stages behind it
have begun. The code of the package is not counted.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError, reason
from arcnb.lab.runs.manifest import read_manifest
from arcnb.lab.runs.named_paths import existing, pieces_that
from arcnb.lab.runs.placeholders import REFERENCE

CONTENT_BYTES = 64 * 2**20  # larger files count by size and time of change


def run_inputs(notebook_sha256: str, written: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """`written`: the parameters as the pipeline has them, references and all; `values`: the resolved ones."""
    parameters = {name: _identity(written.get(name, value), value) for name, value in values.items()}
    return {"notebook": notebook_sha256, "parameters": parameters}


def differences(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> list[str]:
    """The names of what changed: "notebook", or parameters."""
    if before is None:
        return ["inputs unknown"]
    changed = ["notebook"] if before["notebook"] != now["notebook"] else []
    old, new, missing = before["parameters"], now["parameters"], object()
    return changed + [name for name in {**old, **new} if old.get(name, missing) != new.get(name, missing)]


def fingerprint(path: Path) -> str:
    """16 hexadecimal digits for the content of a file, for the names and contents of a folder's files, or for
    what a run left. ArcnbError for one that may not be read."""
    try:
        return _fingerprint(path)
    except OSError as error:
        raise ArcnbError(f"{error.filename or path} cannot be read: {reason(error)}") from None


def _fingerprint(path: Path) -> str:
    digest = hashlib.sha256()
    if path.is_dir():
        files = _files(path)
        if run := _done_run(path):
            digest.update(json.dumps(run["outcome"], sort_keys=True).encode())
            files = [file for item in run["artifacts"] for file in _files(path / item["path"])]
        for item in files:
            digest.update(f"{item.relative_to(path)}\0{_fingerprint(item)}\0".encode())
    elif path.stat().st_size > CONTENT_BYTES:
        state = path.stat()
        digest.update(f"{state.st_size} {state.st_mtime_ns}".encode())
    else:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _files(path: Path, above: tuple[Path, ...] = ()) -> list[Path]:
    """The file itself, or those below the folder that are not hidden, in folders that links lead to as well;
    none of what was removed, nor of a link that leads back to `above`."""
    if path.is_file():
        return [path]
    inside = (*above, path.resolve())
    if not path.is_dir() or inside[-1] in above:
        return []
    seen = [item for item in path.iterdir() if item.name[0] != "." or item.is_dir()]
    return sorted(file for item in seen for file in _files(item, inside))


def _done_run(folder: Path) -> dict[str, Any] | None:
    """The manifest of a run that is done; one that was stopped has recorded little of what it left."""
    try:
        manifest = read_manifest(folder)
    except ArcnbError:
        return None
    return manifest if manifest["status"] == "done" else None


def _identity(written: Any, value: Any) -> Any:
    """The value, unless it names files: then what was written of it, and what is in them."""
    if isinstance(value, list):
        texts = written if isinstance(written, list) else value
        return [_identity(text, item) for text, item in zip(texts, value, strict=True)]
    if isinstance(value, dict):
        parts = written if isinstance(written, dict) else value
        return {name: _identity(parts.get(name, item), item) for name, item in value.items()}
    if not isinstance(value, str):
        return value
    files = [path for piece in pieces_that(_names_files, value) if (path := existing(piece))]
    if not files:
        return value
    text = REFERENCE.sub("${\\1.\\2}", written) if isinstance(written, str) else value
    return f"{text} @ {' '.join(fingerprint(path) for path in files)}"


def _names_files(piece: str) -> bool:
    """Without a folder before it only a file with a suffix: a task set called `demo` is no file or folder
    that happens to lie about."""
    path = existing(piece)
    return path is not None and ("/" in piece or (path.suffix != "" and path.is_file()))
