"""Run folders: `runs/<UTC date-time>-<name>/`, one for each execution of a notebook.

In a notebook:

    from arcnb.lab import open_run
    run = open_run()                      # the folder that `arcnb run` made, or a new one
    ...                                   # write artifacts below run.path
    run.record(outcome={"solved": 12}, artifacts=["table.html"])    # last cell

The folder and its manifest (arcnb.lab.runs.manifest) are all that is known of a run; there is no database.
The root of all runs is $ARCNB_RUNS, or `runs/` of the work tree, or `./runs`.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError, reason
from arcnb.lab.runs import provenance
from arcnb.lab.runs.cards import first, run_card
from arcnb.lab.runs.heartbeat import read_heartbeat
from arcnb.lab.runs.manifest import (
    JOB,
    MANIFEST,
    RUN_DIR,
    RUNS,
    SCHEMA,
    STATUSES,
    locked,
    now,
    plain,
    read_manifest,
    seconds_between,
    stamp,
    write_manifest,
)
from arcnb.lab.runs.named_paths import existing, existing_file, pieces_that, texts
from arcnb.lab.workspace import folders
from arcnb.machine.files import age_of, make_folder, size_of
from arcnb.machine.processes import is_alive, process_identity

SILENCE_SECONDS = 120.0  # a run on another machine is taken for dead after so long without a heartbeat
# Where there is none, so long after its manifest was written: it has one while its kernel lives, and kernels
# come and go in a minute or two, also where libraries are read from a slow disk.
NO_SIGN_SECONDS = 900.0


def runs_root() -> Path:
    """The folder that holds the run folders."""
    if os.environ.get(RUNS):
        return Path(os.path.realpath(Path(os.environ[RUNS]).expanduser()))
    return folders.home() / "runs"


@dataclass(frozen=True)
class Run:
    """A run folder. Every property reads the disk, so it is as fresh as the moment you ask."""

    path: Path

    @property
    def manifest(self) -> dict[str, Any]:
        return read_manifest(self.path)

    @property
    def parameters(self) -> dict[str, Any]:
        """What the notebook was given, flat: names of its parameters cell, paths of other options."""
        return dict(self.manifest["parameters"])

    @property
    def name(self) -> str:
        return str(self.manifest["name"])

    @property
    def called(self) -> str:
        """Its folder's name without the time: its own name, also where the manifest cannot be read, but for
        the number of a second one of that second. Of a folder that somebody renamed it is all of the name."""
        return re.sub(r"^\d{8}-\d{6}-(?=.)", "", self.path.name)

    @property
    def kind(self) -> str:
        """Its notebook's stem, "05_grpo" say; "" of a script's."""
        return Path((self.manifest["notebook"] or {}).get("path", "")).stem

    @property
    def status(self) -> str:
        """queued, running, done, failed, preempted or killed: what is true now, not only what was last
        written."""
        return self.verdict()[0]

    def verdict(self) -> tuple[str, str | None]:
        """(status, one sentence why), noticing a run whose process vanished without writing its end."""
        manifest = self.manifest
        if manifest["status"] != "running":
            return manifest["status"], (manifest["error"] or {}).get("sentence")
        alive = is_alive(manifest["process"])
        beat = read_heartbeat(self.path)
        if alive or (alive is None and beat is not None and beat["age"] < SILENCE_SECONDS):
            return "running", None
        if alive is None and beat is None and age_of(self.path / MANIFEST) < NO_SIGN_SECONDS:
            return "running", f"on {manifest['process']['host']}; no heartbeat to check it by"
        seen = f"last seen {beat['time']}" if beat else "no heartbeat left"
        if manifest["stop"]:
            return "preempted", stopped_early(manifest["stop"], seen)
        return "killed", f"its process on {manifest['process']['host']} is gone ({seen})"

    @property
    def age(self) -> float:
        """Seconds since its last attempt began."""
        return seconds_between(self.manifest["start"], now())

    @property
    def copy_path(self) -> Path:
        """Where the executed notebook is, or will be."""
        return self.path / Path((self.manifest["notebook"] or {}).get("path", "notebook.ipynb")).name

    @property
    def page_path(self) -> Path:
        """Where the exported page is, or will be."""
        return self.copy_path.with_suffix(".html")

    def update(self, **fields: Any) -> None:
        """Replace top-level keys of the manifest."""
        with locked(self.path):
            write_manifest(self.path, self.manifest | fields)

    def record(
        self,
        outcome: dict[str, Any] | None = None,
        artifacts: Iterable[str | Path] = (),
        parents: Iterable["str | Path | Run"] = (),
    ) -> "Run":
        """Add to the outcome, the artifacts (files or folders below the run folder) and the parents (runs
        whose artifacts were inputs; those that a parameter points into are found without help).

        Outcome values are numbers, texts, lists or data frames (kept as rows). Outside `arcnb run` this also
        marks the run as done, so it belongs into the last cell. Raises ArcnbError for an artifact that does
        not exist.
        """
        entries = [self._artifact(artifact) for artifact in artifacts]
        given = [(parent.path if isinstance(parent, Run) else Path(parent)).resolve() for parent in parents]
        with locked(self.path):
            manifest = self.manifest
            mothers = [*manifest["parents"], *map(str, [*given, *_runs_in(manifest["parameters"])])]
            own = (str(self.path), str(self.path.resolve()))
            files = {entry["path"]: entry for entry in [*manifest["artifacts"], *entries]}
            manifest["outcome"] = first(manifest["outcome"] | plain(outcome or {}))
            manifest["artifacts"] = list(files.values())
            manifest["parents"] = [folder for folder in dict.fromkeys(mothers) if folder not in own]
            if manifest["owner"] == "notebook":
                end = now()
                manifest |= {"status": "done", "end": end, "error": None}
                manifest["seconds"] = seconds_between(manifest["start"], end)
            write_manifest(self.path, manifest)
        return self

    def _artifact(self, artifact: str | Path) -> dict[str, Any]:
        folder = self.path.resolve()  # runs/ may be a link to another disk
        path = (folder / artifact).resolve()
        if not path.is_relative_to(folder):
            raise ArcnbError(f"artifact {artifact} is not below the run folder {self.path}")
        if not path.exists():
            raise ArcnbError(f"artifact {artifact} does not exist in {self.path}")
        return {"path": str(path.relative_to(folder)), "bytes": size_of(path)}

    def _repr_html_(self) -> str:
        status, why = self.verdict()
        # A run that shows its own card is still running; a reader of the executed copy must not be told.
        own = os.environ.get(RUN_DIR) == str(self.path)
        return run_card(self.path.name, self.manifest, None if own else status, why)

    def __str__(self) -> str:
        return str(self.path)


def new_run(
    name: str,
    parameters: dict[str, Any] | None = None,
    notebook: dict[str, str] | None = None,
    owner: str = "notebook",
    command: list[str] | None = None,
    fields: dict[str, Any] | None = None,
) -> Run:
    """Make a run folder that no other run has, with its manifest (status running, this process).

    Two runs of one name in one second get different folders: the second is called `<name>-2`. `fields` are
    manifest keys that are to differ from the start (see arcnb.lab.runs.queueing).
    """
    check_name(name)
    fields = fields or {}
    manifest = {
        "schema": SCHEMA,
        "name": name,
        "notebook": notebook,
        "parameters": parameters or {},
        "parents": [],
        "command": command,
        "cwd": _current_folder(),
        **({} if "hardware" in fields else provenance.surroundings()),
        **fresh_attempt(owner),
        "attempts": [],
        "outcome": {},
        "artifacts": [],
        **fields,
    }
    run = Run(_new_folder(name))
    try:
        write_manifest(run.path, manifest)
    except ArcnbError:
        run.path.rmdir()  # a folder without a manifest is nobody's
        raise
    return run


def check_name(name: str) -> None:
    """ArcnbError unless a folder can be called so."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ArcnbError(f"run name {name!r} may hold letters, digits, dots, hyphens and underscores only")


def run_name(text: str) -> str:
    """A name for a run after its notebook's or its file's."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._") or "notebook"


def fresh_attempt(owner: str) -> dict[str, Any]:
    """The manifest keys of an attempt that starts now, in this process."""
    known = {"status": "running", "start": now(), "process": process_identity(), "job": os.environ.get(JOB)}
    later = ("end", "seconds", "kernel", "cell", "stop", "error", "peak_memory_gb", "lost_outputs")
    return {**known, "owner": owner, **dict.fromkeys(later)}


def folder_of(name: str) -> Path:
    """The folder of a run that is made now, unless another one of its name is made in the same second."""
    return runs_root() / f"{stamp()}-{name}"


def _new_folder(name: str) -> Path:
    first = folder_of(name)
    root, count = first.parent, 1
    while True:
        folder = first if count == 1 else first.with_name(f"{first.name}-{count}")
        try:
            root.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
            return folder
        except FileExistsError:
            if not root.is_dir():
                raise ArcnbError(f"cannot make a run folder in {root}: it is not a folder") from None
            count += 1
        except OSError as error:
            why = f"cannot make a run folder in {root}: {reason(error)}"
            raise ArcnbError(f"{why}; $ARCNB_RUNS names another place") from None


def made_folder(folder: Path) -> Path:
    """The folder, made if need be; one below the root for what is no run (`sweeps`, say) is then as open to
    others as the root is. ArcnbError."""
    root = runs_root()
    shelves = [one for one in (folder, *folder.parents) if one.parent == root and not one.exists()]
    make_folder(folder)
    try:
        for shelf in shelves:
            shelf.chmod(root.stat().st_mode)
    except OSError as error:
        raise ArcnbError(f"cannot open {folder} to others: {reason(error)}") from None
    return folder


def is_run(folder: Path) -> bool:
    """Is there a manifest of ours in this folder? Below the root every one is, also of another version; web
    pages and browser extensions have files of that name elsewhere."""
    if existing_file(folder / MANIFEST) is None:
        return False
    if folder.resolve().parent == runs_root().resolve():
        return True
    try:
        manifest = read_manifest(folder)
    except ArcnbError:
        return False
    return isinstance(manifest.get("name"), str) and manifest.get("status") in STATUSES


def _current_folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:  # somebody has removed it
        return None


def _runs_in(parameters: dict[str, Any]) -> list[Path]:
    """The run folders that parameter values point into."""
    found = []
    for text in texts(parameters):
        if not text or "\n" in text:
            continue
        for piece in pieces_that(lambda piece: existing(piece) is not None, text):
            path = Path(piece).expanduser().resolve()
            found += [folder for folder in [path, *path.parents] if is_run(folder)][:1]
    return found


def stopped_early(stop: Mapping[str, str], seen: str) -> str:
    """Why a run is preempted that noted a stop and no end. seen: its last sign of life."""
    return f"stopped by {stop['signal']}, then ended before it could say more ({seen})"
