"""Sweeps: one notebook, many parameter sets, each a run folder of its own.

`runs/sweeps/NAME/sweep.json` says which sets there are and which run folder each has. Asking for the same
sweep again runs what is not done yet; asking for more sets adds them. table.csv beside it has the parameters
and how each run ended.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError, reason
from arcnb.lab.batch.parameter_sets import ParameterSet, refuse_duplicates, set_name
from arcnb.lab.runs import provenance
from arcnb.lab.runs.cards import aligned, flat, value_text
from arcnb.lab.runs.finding import find_run
from arcnb.lab.runs.manifest import locked, plain
from arcnb.lab.runs.queueing import foreseen_run, queue_run, withdraw
from arcnb.lab.runs.run import Run, check_name, made_folder, runs_root
from arcnb.machine.files import write_whole
from arcnb.values import misfit

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
        return aligned([columns, *([value_text(row.get(name, "")) for name in columns] for row in rows)])

    @staticmethod
    def _row(member: Member) -> dict[str, Any]:
        try:
            status, _ = member.run.verdict()
            manifest = member.run.manifest
        except ArcnbError:  # removed or broken since the sweep began: the others still make a table
            return {**member.label, "status": "unreadable", "run": member.run.path.name}
        outcome = flat(manifest["outcome"]).items()
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
    dry_run: bool = False,
    check: Callable[[str, Mapping[str, Any]], object] = lambda member, values: None,
) -> Sweep:
    """The sweep's folder with a run for every set: those it has already, and new queued ones. In a dry run
    nothing is made, and the folders of new ones are not there.

    `base`: the complete parameters of a run of no set; `sets`: what changes; `shared`: what all sets have
    and no name needs to tell ("{sweep}" in a text is the sweep's folder). check: gets the name and the
    values of each set that has no run yet, before anything is made. ArcnbError if there is a sweep of that
    name with another notebook or other values.
    """
    check_name(name)
    folder = sweeps_folder() / name
    fixed = {**base, **{key: _placed(value, folder) for key, value in (shared or {}).items()}}
    refuse_duplicates(sets, fixed)
    named = [(set_name(one.label), one) for one in sets]
    twice = [member for member, n in Counter(member for member, _ in named).items() if n > 1]
    if twice:
        raise ArcnbError(f"two sets of sweep {name!r} would have the same name, {twice[0]}")
    record = _read(folder)
    there = record["members"] if record else {}
    for member, one in named:
        if member not in there:
            check(member, fixed | one.values)
    if not dry_run:
        made_folder(folder)
    with nullcontext() if dry_run else locked(folder):
        record = _read(folder) or {"schema": SCHEMA, "notebook": str(notebook), "members": {}}
        if record["notebook"] != str(notebook):
            raise ArcnbError(
                f"there is a sweep {name!r} of {record['notebook']} already, in {folder}; take another name"
            )
        known = {member: _kept(folder, entry) for member, entry in record["members"].items()}
        for member, one in named:
            if run := known.get(member):
                _refuse_other_values(name, member, run, fixed | one.values)
        if dry_run:
            runs = [known.get(member) or foreseen_run(f"{name}.{member}") for member, _ in named]
            return Sweep(folder, [Member(m, s.label, run) for (m, s), run in zip(named, runs, strict=True)])
        surroundings = provenance.surroundings()
        members, fresh = [], []
        try:
            for member, one in named:
                if (run := known.get(member)) is None:
                    run = queue_run(f"{name}.{member}", notebook, fixed | one.values, surroundings)
                    fresh.append(run)
                record["members"][member] = {"label": plain(one.label), "run": run.path.name}
                write_whole(folder / SWEEP, json.dumps(record, indent=2) + "\n")
                members.append(Member(member, one.label, run))
        except ArcnbError:  # there is no space for all of them
            withdraw(fresh)
            raise
    return Sweep(folder, members)


def take_back(sweep: Sweep, fresh: Sequence[Run]) -> None:
    """Withdraw these members from the disk and from the sweep; of one without others nothing stays but what
    was there before it, as the predictions of runs that were removed."""
    with locked(sweep.folder):
        gone = {run.path.name for run in withdraw(fresh)}
        record = _read(sweep.folder) or {"members": {}}
        record["members"] = {m: e for m, e in record["members"].items() if e["run"] not in gone}
        with suppress(OSError):  # there are jobs of before
            (sweep.folder / "jobs").rmdir()
        if record["members"] or any(path.name != SWEEP for path in sweep.folder.iterdir()):
            write_whole(sweep.folder / SWEEP, json.dumps(record, indent=2) + "\n")
        else:
            (sweep.folder / SWEEP).unlink()
            sweep.folder.rmdir()


def find_sweep(name: str) -> Sweep | None:
    """The sweep of that name with all of its members whose run folders are still there, or None."""
    folder = sweeps_folder() / name
    record = _read(folder)
    if record is None:
        return None
    entries = [(name, entry["label"], _kept(folder, entry)) for name, entry in record["members"].items()]
    return Sweep(folder, [Member(name, label, run) for name, label, run in entries if run])


def named(reference: str, beginnings: bool = True) -> Sweep | Run:
    """The sweep or the run that a reference speaks of. Both may be called after their notebook: then nobody
    knows which is meant, and ArcnbError says how to name either."""
    sweep = find_sweep(reference) if reference.strip() else None
    if sweep is None:
        return find_run(reference, beginnings=beginnings)
    try:
        run = find_run(reference, beginnings=False)
    except ArcnbError:
        return sweep
    if not sweep.members:  # its runs were removed
        return run
    raise ArcnbError(
        f"{reference!r} is a sweep and a run; say which by its folder, {sweep.folder} or {run.path}"
    )


def runs_named(references: list[str], beginnings: bool = True) -> list[Run]:
    """The runs of these references, each once; the name of a sweep stands for all of its runs."""
    found: dict[Path, Run] = {}
    for reference in references:
        one = named(reference, beginnings)
        for run in [member.run for member in one.members] if isinstance(one, Sweep) else [one]:
            found.setdefault(run.path, run)
    return list(found.values())


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


_MEMBER = {"label": "dict[str, Any]", "run": "str"}


def _read(folder: Path) -> dict[str, Any] | None:
    path = folder / SWEEP
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ArcnbError(f"{path} cannot be read: {reason(error)}") from None
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise ArcnbError(f"{path} is of another version of arcnb; this one reads schema {SCHEMA}")
    members = record.get("members")
    shape = dict.fromkeys(members, _MEMBER) if isinstance(members, dict) else {}
    if wrong := misfit(record, {"notebook": "str", "members": shape}):
        raise ArcnbError(f"{path} is damaged: {wrong}")
    return record


def _placed(value: Any, folder: Path) -> Any:
    return value.replace("{sweep}", str(folder)) if isinstance(value, str) else value
