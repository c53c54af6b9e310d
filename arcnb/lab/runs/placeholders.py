"""`${stage.thing}` in the parameters of a pipeline: what an earlier stage's run left.

${data.folder}              the run folder of stage `data`
${data.tasks}               its artifact tasks.parquet, by path, file name or stem
${data.outcome.longest}     a value of its outcome, with its type where the text is nothing else

On the command line the name of a run stands for what it left of the kind that a parameter takes:
`-p tasks data` for runs/...-data/tasks.parquet.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from arcnb.errors import ArcnbError, near_miss, nearest
from arcnb.lab.runs.finding import named_exactly, run_names
from arcnb.lab.runs.named_paths import existing, pieces, texts
from arcnb.lab.runs.run import Run

REFERENCE = re.compile(r"\$\{\s*([A-Za-z0-9_-]+)\.([^}\s][^}]*?)\s*\}")

# Parameter, or an option's last word -> what of a run's folder it takes; "" for the folder itself.
TAKEN = {
    "tasks": "tasks.parquet",
    "eval_tasks": "tasks.parquet",
    "trained": "trained.parquet",
    "adapter": "adapter",
    "resume": "",
    **dict.fromkeys(("predictions", "refine_from", "learn_from", "compare"), "predictions"),
}


def with_runs(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values with the path of what a run left in the place of its name, wherever a parameter takes that.
    A text that is a path, and the name of a run that left nothing of the kind, stay as they are: tasks and
    adapters have names of their own. ArcnbError where a folder of predictions is called nearly as a run is,
    or as one that is done and has none."""
    return {
        name: _with_runs(value, last)
        if isinstance(value, str) and (last := name.rpartition(".")[2]) in TAKEN
        else value
        for name, value in values.items()
    }


def _with_runs(text: str, parameter: str) -> str:
    if existing(text.strip()) is not None:
        return text
    taken, pieces = TAKEN[parameter], re.split(r"(\s*[,;|+=*[]\s*)", text)
    for number, piece in enumerate(pieces[::2]):
        if not piece.strip() or existing(piece) is not None:
            continue
        run = named_exactly(piece)
        if run is not None and (run.path / taken).exists():
            pieces[2 * number] = str(run.path / taken)
        elif parameter not in ("predictions", "refine_from", "learn_from"):
            continue
        elif run is not None and run.status == "done":
            there = ", ".join(
                sorted(key for key, left in TAKEN.items() if left and (run.path / left).exists())
            )
            raise ArcnbError(
                f"{parameter}: the run {run.path.name} left no predictions"
                + (f"; its name can stand for {there}" if there else "")
            )
        elif run is None and "/" not in piece and (near := near_miss(piece, run_names())):
            raise ArcnbError(f"{parameter}: {piece!r} is neither a folder nor a run{near}")
    return "".join(pieces)


def run_meant(values: Mapping[str, Any], sentence: str, own: str = "") -> str:
    """'; no run is called ...; did you mean ...?' if the sentence of an error names something that a
    parameter was given, and that is neither a path nor a run, but nearly one. Whoever takes tasks or an
    adapter by a name of its own, knows nothing of runs. own: what the run that failed is called."""
    runs = run_names() - {own}
    for name, value in values.items():
        if not isinstance(value, str) or name.rpartition(".")[2] not in TAKEN:
            continue
        for piece in pieces(value):
            near = near_miss(piece, runs) if piece and existing(piece) is None else ""
            if near and names(sentence, piece) and named_exactly(piece) is None:
                return f"; no run is called {piece!r}{near}"
    return ""


def names(sentence: str, piece: str) -> bool:
    """Whether a sentence speaks of this path or name."""
    return re.search(rf"(?<![\w./-]){re.escape(piece)}(?![\w/-])", sentence) is not None


def stages_named(value: Any) -> Iterator[tuple[str, str]]:
    """(stage, thing) of every reference in a parameter's value, lists and mappings included."""
    for text in texts(value):
        yield from REFERENCE.findall(text)


def refuse_malformed(value: Any, where: str) -> None:
    """ArcnbError for a `${` in a parameter's value that is no reference: it would be taken for plain text."""
    for text in texts(value):
        if wrong := re.search(r"\$\{[^}]*\}?", REFERENCE.sub("\0", text)):
            raise ArcnbError(
                f"{where}: {wrong[0]} is no reference; there are ${{stage.folder}}, ${{stage.artifact}} "
                "and ${stage.outcome.name}"
            )


def resolved(value: Any, runs: Mapping[str, Run], where: str) -> Any:
    """The value with every reference replaced; ArcnbError names the reference that leads nowhere."""
    if isinstance(value, list):
        return [resolved(item, runs, where) for item in value]
    if isinstance(value, dict):
        return {key: resolved(item, runs, where) for key, item in value.items()}
    if not isinstance(value, str):
        return value
    if whole := REFERENCE.fullmatch(value.strip()):
        return _thing(runs, *whole.groups(), where)
    return REFERENCE.sub(lambda match: str(_thing(runs, *match.groups(), where)), value)


def _thing(runs: Mapping[str, Run], stage: str, thing: str, where: str) -> Any:
    reference = f"{where}: ${{{stage}.{thing}}}"
    if stage not in runs:
        raise ArcnbError(f"{reference} speaks of a stage that is not there{nearest(stage, runs)}")
    run = runs[stage]
    if thing == "folder":
        return str(run.path)
    manifest = run.manifest
    if manifest["status"] != "done":
        raise ArcnbError(f"{reference} needs a finished run, and {run.path.name} is {run.status}")
    if thing.startswith("outcome."):
        key = thing.removeprefix("outcome.")
        if key not in manifest["outcome"]:
            raise ArcnbError(
                f"{reference} is not in the outcome of {run.path.name}{nearest(key, manifest['outcome'])}"
            )
        return manifest["outcome"][key]
    paths = [Path(item["path"]) for item in manifest["artifacts"]]
    for known_by in (str, lambda path: path.name, lambda path: path.stem):
        found = [path for path in paths if known_by(path) == thing]
        if len(found) > 1:
            raise ArcnbError(
                f"{reference} may be {' or '.join(map(str, found))} of {run.path.name}: name one"
            )
        if found:
            return str(run.path / found[0])
    names = [path.stem for path in paths]
    raise ArcnbError(f"{reference} is no artifact of {run.path.name}{nearest(thing, names)}")
