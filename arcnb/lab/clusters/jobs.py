"""A job as every scheduler understands it: which runs, on what, in which environment.

Options (OPTIONS) come from the command line, from a YAML file (`arcnb submit --job site.yaml`) and from the
`job:` of a pipeline's stage, by the same names; later ones win.
"""

import math
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError, number_of
from arcnb.lab.notebooks.parameters import Parameter, check_parameters
from arcnb.lab.runs.named_paths import existing, existing_file
from arcnb.lab.runs.run import Run
from arcnb.values import range_problem

_OPTIONS: dict[str, tuple[Any, str]] = {  # default, meaning
    "gpus": (1, "of each run, on each of its nodes"),
    "nodes": (1, "of each run; notebooks 02 and 05 train on all (num_processes = nodes x gpus)"),
    "serve": (
        "",
        "model that the last node serves by vLLM (vllm_mode = server), and options of `vllm serve`",
    ),
    "cpus": (4, "of each run"),
    "memory": ("16G", "of each run; a bare number is megabytes"),
    "time": (
        "4h",
        "of each run, then it is told to save and stop; also 90m, 1d12h, 2:30:00, or the scheduler's own "
        "notation (Slurm: 30:00 is half an hour, 1-12 a day and a half; HTCondor: seconds)",
    ),
    "partition": ("", "Slurm only"),
    "constraint": ("", "Slurm: features; HTCondor: an expression for `requirements`"),
    "at_once": (0, "runs of an array at the same time; 0 leaves it to the scheduler"),
    "requeue": (True, "a preempted run waits again and goes on in its folder"),
    "grace": (60, "seconds that a stopped run may take to save"),
    "extra": ([], "line for the submit file, as it is (Slurm: what follows #SBATCH); may be repeated"),
    "venv": ("", "environment: a venv that the nodes see; without it the one arcnb runs in"),
    "container": ("", "environment: an image (Slurm: by apptainer; HTCondor: container universe)"),
    "packed": ("", "environment: a venv built once from this requirements file, unpacked on the node's disk"),
    "env": ({}, "environment variable NAME=VALUE; may be repeated"),
}
_DEFAULTS = {name: default for name, (default, _) in _OPTIONS.items()}
_MEGABYTES = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}
_SECONDS = (86400, 3600, 60, 1)  # of a day, an hour, a minute, a second
# What is more likely a unit that was forgotten than meant.
LEAST_MB, MOST_MB, MOST_DAYS = 1024, 8 * 1024**2, 366
# Slurm tells a run to stop `grace` + 30 seconds before its time is over (slurm.sbatch.jinja), or up to a
# minute earlier, as it says itself; HTCondor afterwards.
BEFORE_SECONDS = 30 + 60
_KINDS = {"extra": "list[str]", "env": "dict[str, str]"}
_RANGES = {
    "gpus": "[0, 1024]", "nodes": "[1, 1024]", "cpus": "[1, 4096]", "at_once": "[0, inf)",
    "grace": "[0, 86400]",
}  # fmt: skip
OPTIONS = {
    name: Parameter(name, default, _KINDS.get(name, type(default).__name__), meaning)
    for name, (default, meaning) in _OPTIONS.items()
}


@dataclass(frozen=True)
class Resources:
    gpus: int
    nodes: int
    serve: str
    cpus: int
    memory_mb: int
    minutes: int
    partition: str
    constraint: str
    at_once: int
    requeue: bool
    grace: int
    extra: list[str]


@dataclass(frozen=True)
class Environment:
    """What the notebook runs in: at most one of `container` and `packed`, else `python`."""

    python: str
    container: str = ""
    packed: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ClusterJob:
    """Runs that are alike but for their parameters: one task, or an array of one task each."""

    name: str
    folder: Path
    runs: tuple[Run, ...]
    notebooks: tuple[Path, ...]  # of the runs
    resources: Resources
    environment: Environment

    @property
    def is_array(self) -> bool:
        return len(self.runs) > 1

    @property
    def title(self) -> str:
        return f"{self.name}, {number_of(len(self.runs), 'run')} of arcnb"


def checked_options(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Names and types of job options; `where` opens the sentence. YAML's numbers are taken for texts."""
    texts = {
        name: str(value)
        for name, value in values.items()
        if name in ("memory", "time") and type(value) is int
    }
    checked = check_parameters({**values, **texts}, OPTIONS, where)
    for name, value in checked.items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and re.search(r"[\n\r]", text):
                raise ArcnbError(f"{where}: {name} must be one line, got {text!r}")
    return checked


def resources_of(options: Mapping[str, Any], where: str, scheduler: str) -> Resources:
    """What the options ask this scheduler for; ArcnbError for numbers that nobody can have meant."""
    options = _DEFAULTS | options
    for name, within in _RANGES.items():
        if wanted := range_problem(options[name], within):
            raise ArcnbError(f"{where}: {name} must be {wanted}, got {options[name]}")
    if options["serve"] and options["nodes"] < 2:
        raise ArcnbError(f"{where}: serve needs nodes of at least 2: the last one serves, the others train")
    try:
        shlex.split(options["serve"])
    except ValueError as error:
        raise ArcnbError(f"{where}: serve {options['serve']!r}: {error}") from None
    same = Resources.__dataclass_fields__.keys() & _DEFAULTS.keys()
    sizes = {"memory_mb": megabytes(options["memory"], where)}
    sizes["minutes"] = minutes(options["time"], where, scheduler)
    least = (options["grace"] + BEFORE_SECONDS) // 60 + 1
    if scheduler == "slurm" and sizes["minutes"] < least:
        raise ArcnbError(
            f"{where}: with time {options['time']} and grace {options['grace']} a run would be told to stop "
            f"as it starts; give a time of {least}m or more, or less grace"
        )
    return Resources(**sizes, **{name: options[name] for name in same})


def environment_of(options: Mapping[str, Any], where: str) -> Environment:
    """The environment that the options name; a venv must be there, a packed one is built by the caller."""
    kinds = [name for name in ("venv", "container", "packed") if options.get(name)]
    if len(kinds) > 1:
        raise ArcnbError(f"{where}: give one of venv, container and packed, not {' and '.join(kinds)}")
    variables = dict(options.get("env", {}))
    for name in variables:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ArcnbError(f"{where}: {name!r} is no name of an environment variable")
    python = sys.executable
    if options.get("venv"):
        found = existing(str(Path(options["venv"], "bin", "python")))
        if found is None:
            raise ArcnbError(f"{where}: {options['venv']} is no venv: it has no bin/python")
        python = str(found.absolute())
    packed = existing_file(options["packed"]) if options.get("packed") else None
    if options.get("packed") and packed is None:
        raise ArcnbError(f"{where}: there is no requirements file {options['packed']}")
    return Environment(python, options.get("container", ""), packed, variables)


def megabytes(text: str, where: str) -> int:
    """`16G`, `16GB`, `512M`, `1.5T`; a bare number is megabytes, as with Slurm and HTCondor."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.I)
    size = float(match[1]) * _MEGABYTES[match[2].upper()] if match else 0
    if size < 1:
        raise ArcnbError(f"{where}: memory must be written like 16G or 512M, got {text!r}")
    if (match[2] == "" and size < LEAST_MB) or size > MOST_MB:
        asked = f"{size:g} MB" if size < LEAST_MB else f"{size / 1024**2:.3g} TB"
        raise ArcnbError(f"{where}: memory {text} means {asked}; is that meant? Write it like 64G or 512M")
    return math.ceil(size)


def minutes(text: str, where: str, scheduler: str = "slurm") -> int:
    """`4h`, `90m`, `1d12h`, `45s`, `2:30:00`; else as the scheduler has it. Slurm: minutes,
    `minutes:seconds`, `days-hours`, `days-hours:minutes`, `days-hours:minutes:seconds`. HTCondor: seconds. A
    part of a minute counts as one."""
    text = text.strip()
    days, dash, clock = text.rpartition("-")
    numbers = [int(part) for part in clock.split(":")] if re.fullmatch(r"\d+(:\d+){0,2}", clock) else []
    bare = len(numbers) == 1 and not dash
    seconds = 0
    if numbers and (days.isdecimal() or not dash):
        # From the days on with a dash, else to the seconds, but for Slurm's bare minutes.
        units = _SECONDS[1:] if dash else _SECONDS[-len(numbers) - (bare and scheduler == "slurm") :]
        seconds = int(days or 0) * 86400 + sum(n * unit for n, unit in zip(numbers, units, strict=False))
    elif text and (match := re.fullmatch(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", text, re.I)):
        seconds = sum(int(part or 0) * unit for part, unit in zip(match.groups(), _SECONDS, strict=True))
    if seconds < 1:
        raise ArcnbError(f"{where}: time must be written like 4h, 90m or 2:30:00, got {text!r}")
    if seconds > MOST_DAYS * 86400:
        raise ArcnbError(f"{where}: time {text} means {seconds / 86400:.0f} days; is that meant?")
    if scheduler != "slurm" and len(numbers) == 2 and not dash:
        raise ArcnbError(f"{where}: is time {text} hours or minutes? Write 2h30m, 2:30:00 or 30m")
    return math.ceil(seconds / 60)
