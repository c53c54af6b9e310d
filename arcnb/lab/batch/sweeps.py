"""Sweeps: one notebook, many parameter sets, each a run folder of its own.

`runs/sweeps/NAME/sweep.json` says which sets there are and which run folder each has. Asking for the same
sweep again runs what is not done yet; asking for more sets adds them. table.csv beside it has the parameters
and how each run ended.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError
from arcnb.lab.batch.parameter_sets import ParameterSet, refuse_duplicates, set_name
from arcnb.lab.runs import provenance
from arcnb.lab.runs.cards import value_text
from arcnb.lab.runs.manifest import locked, plain
from arcnb.lab.runs.queueing import queue_run
from arcnb.lab.runs.run import Run, check_name, runs_root
from arcnb.machine.files import write_whole

SWEEP = "sweep.json"
SCHEMA = 1
OUTCOME_COLUMNS = 6  # numbers of the outcome that the printed table shows; table.csv has all


@dataclass(frozen=True)
class Member:
    """One parameter set of a sweep: `label` is what tells it from the others."""

    name: str
    label: dict[str, Any]
    run: Run


@dataclass(frozen=True)
class Sweep:
    folder: Path
    members: list[Member]

    def table(self) -> list[dict[str, Any]]:
        """Rows of parameters, status and the outcome's numbers; writes table.csv, too."""
        rows = [self._row(member) for member in self.members]
        columns = list(dict.fromkeys(column for row in rows for column in row))
        text = io.StringIO()
        writer = csv.DictWriter(text, columns)
        writer.writeheader()
        writer.writerows(rows)
        write_whole(self.folder / "table.csv", text.getvalue())
        return rows

    def table_text(self) -> str:
        """The table as aligned lines."""
        rows = self.table()
        given = list(dict.fromkeys(name for member in self.members for name in member.label))
        numbers = [name for row in rows for name, value in row.items() if type(value) in (int, float)]
        outcome = [name for name in dict.fromkeys(numbers) if name not in (*given, "run_seconds")]
        columns = [*given, "status", "run_seconds", *outcome[:OUTCOME_COLUMNS], "run"]
        lines = [columns, *([value_text(row.get(name, "")) for name in columns] for row in rows)]
        widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
        return "\n".join(
            "  ".join(f"{text:{width}}" for text, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )

    @staticmethod
    def _row(member: Member) -> dict[str, Any]:
        try:
            status, _ = member.run.verdict()
            manifest = member.run.manifest
        except ArcnbError:  # removed or broken meanwhile: the others still make a table
            return {**member.label, "status": "unreadable", "run": member.run.path.name}
        outcome = manifest["outcome"].items()
        row = {**member.label, "status": status, "run_seconds": manifest["seconds"]}
        row |= {k: value for k, value in outcome if k not in row and not isinstance(value, list | dict)}
        return row | {"run": member.run.path.name}


def sweeps_folder() -> Path:
    return runs_root() / "sweeps"


def plan_sweep(
    name: str,
    notebook: Path,
    base: Mapping[str, Any],
    sets: Sequence[ParameterSet],
    shared: Mapping[str, Any] | None = None,
) -> Sweep:
    """The sweep's folder with a run for every set: those it has already, and new queued ones.

    `base`: the complete parameters of a run of no set; `sets`: what changes; `shared`: what all sets have
    and no name needs to tell ("{sweep}" in a text is the sweep's folder). ArcnbError if there is a sweep of
    that name with another notebook or other values.
    """
    check_name(name)
    folder = sweeps_folder() / name
    fixed = {**base, **{key: _placed(value, folder) for key, value in (shared or {}).items()}}
    refuse_duplicates(sets, fixed)
    named = [(set_name(one.label), one) for one in sets]
    twice = [member for member, n in Counter(member for member, _ in named).items() if n > 1]
    if twice:
        raise ArcnbError(f"two sets of sweep {name!r} would have the same name, {twice[0]}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArcnbError(f"cannot make {folder}: {error.strerror or error}") from None
    with locked(folder):
        record = _read(folder) or {"schema": SCHEMA, "notebook": str(notebook), "members": {}}
        if record["notebook"] != str(notebook):
            raise ArcnbError(
                f"there is a sweep {name!r} of {record['notebook']} already, in {folder}; take another name"
            )
        known = {member: _kept(folder, entry) for member, entry in record["members"].items()}
        for member, one in named:
            if run := known.get(member):
                _refuse_other_values(name, member, run, fixed | one.values)
        surroundings = provenance.surroundings()
        members = []
        for member, one in named:
            run = known.get(member) or queue_run(
                f"{name}.{member}", notebook, fixed | one.values, surroundings
            )
            record["members"][member] = {"label": plain(one.label), "run": run.path.name}
            write_whole(folder / SWEEP, json.dumps(record, indent=2) + "\n")
            members.append(Member(member, one.label, run))
    return Sweep(folder, members)


def find_sweep(name: str) -> Sweep | None:
    """The sweep of that name with all of its members whose run folders are still there, or None."""
    folder = sweeps_folder() / name
    record = _read(folder)
    if record is None:
        return None
    entries = [(name, entry["label"], _kept(folder, entry)) for name, entry in record["members"].items()]
    return Sweep(folder, [Member(name, label, run) for name, label, run in entries if run])


def _kept(folder: Path, entry: Mapping[str, Any]) -> Run | None:
    """The member's run, unless its folder was removed."""
    run = Run(folder.parent.parent / entry["run"])
    return run if run.path.is_dir() else None


def _refuse_other_values(sweep: str, member: str, run: Run, values: Mapping[str, Any]) -> None:
    recorded = run.manifest["parameters"]
    for name in sorted({*recorded, *values}):
        if recorded.get(name) != values.get(name):
            raise ArcnbError(
                f"there is a sweep {sweep!r} already, and its run {member} has {name} = "
                f"{recorded.get(name)!r}, not {values.get(name)!r}; take another name"
            )


def _read(folder: Path) -> dict[str, Any] | None:
    path = folder / SWEEP
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ArcnbError(f"{path} cannot be read: {error}") from None
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise ArcnbError(f"{path} is of another version of arcnb; this one reads schema {SCHEMA}")
    return record


def _placed(value: Any, folder: Path) -> Any:
    return value.replace("{sweep}", str(folder)) if isinstance(value, str) else value
