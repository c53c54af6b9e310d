"""Checkpoints that can be trusted: complete ones.

A process that is killed while it saves leaves a folder that looks like a checkpoint; transformers'
`get_last_checkpoint` takes it. Here a checkpoint counts only when every file that resuming reads is whole.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.machine.files import write_problem, write_whole
from arcnb.models.lora.compatibility import WEIGHTS, tensor_shapes
from arcnb.plans import refusals

SENTINEL = "checkpoint-is-incomplete.txt"  # transformers' mark of a checkpoint that a signal asked for
STATE = "trainer_state.json"


def step_of(checkpoint: Path) -> int:
    """The optimizer step in a folder name `checkpoint-N`, else -1."""
    found = re.fullmatch(r"checkpoint-(\d+)", checkpoint.name)
    return int(found[1]) if found else -1


def checkpoint_problem(folder: Path) -> str | None:
    """Why training cannot resume from this folder; None for a complete checkpoint."""
    if (folder / SENTINEL).exists():
        return "its saving was interrupted"
    try:
        state = json.loads((folder / STATE).read_text())
        if state["global_step"] != step_of(folder):
            return f"{STATE} is of step {state['global_step']}"
    except FileNotFoundError:
        return f"{STATE} is missing"
    except (ValueError, KeyError, TypeError, OSError):
        return f"{STATE} is damaged"
    weights = [*folder.glob(WEIGHTS), *folder.glob("model*.safetensors")]
    if not weights:
        return "the weights are missing"
    for path in [*weights, *folder.glob(f"*/{WEIGHTS}")]:
        if refusals(tensor_shapes, path):  # which compares the header with the length of the file
            return f"{path.relative_to(folder)} is cut off"
    if any(folder.glob("global_step*")):  # ZeRO keeps the optimizer in parts of its own
        return None if (folder / "latest").is_file() else "the optimizer's index is missing"
    for name in ("optimizer.pt", "scheduler.pt"):
        if not (folder / name).is_file():
            return f"{name} is missing"
        if not zipfile.is_zipfile(folder / name):
            return f"{name} is cut off"
    random_states = sorted(folder.glob("rng_state*.pth"))  # of several processes one each
    if not random_states:
        return "the random state is missing"
    for path in [*random_states, *folder.glob("round-*.pt")]:  # the latter: samples of a round under way
        if not zipfile.is_zipfile(path):
            return f"{path.name} is cut off"
    return None


def newest_complete(folder: Path, announce=print) -> Path | None:
    """The complete checkpoint of the highest step below folder; incomplete newer ones are announced."""
    found = sorted(
        (p for p in Path(folder).glob("checkpoint-*") if step_of(p) >= 0), key=step_of, reverse=True
    )
    for checkpoint in found:
        problem = checkpoint_problem(checkpoint)
        if problem is None:
            return checkpoint
        announce(f"{checkpoint.name} cannot be resumed from: {problem}")
    return None


@contextmanager
def naming_what_is_whole(output: Path, trainer) -> Iterator[None]:
    """A full disk ends training in a sentence with the checkpoint that is left: tokenizers, safetensors and
    torch raise errors of many kinds, some of which do not say why."""
    from safetensors import SafetensorError

    try:
        yield
    except ArcnbError:
        raise
    except Exception as error:
        why = write_problem(output)
        if why is None and isinstance(error, OSError | SafetensorError):
            why = str(error) or type(error).__name__
        if why is None:
            raise
        kept = newest_complete(output / "checkpoints")
        raise ArcnbError(
            f"training under {output} ended at step {trainer.state.global_step}: {why}; "
            + (f"{kept.name} is complete, resume from it" if kept else "there is no complete checkpoint")
        ) from error


def checkpoint_to_resume(resume: str, own: Path, announce=print) -> Path | None:
    """The checkpoint meant by `resume`: "" or "never": none; "auto": the newest complete one of this run, if
    any; else the path of a run folder, a folder of checkpoints or one checkpoint. ArcnbError if that has
    none. A run that began from the checkpoint of a different run, and was stopped, resumes from its own."""
    if resume in ("", "never"):
        return None
    if resume == "auto":
        return newest_complete(own, announce)
    folder = Path(resume).expanduser()
    if not folder.resolve().is_relative_to(own.parent.resolve()):
        begun = newest_complete(own, announce)
        if begun is not None:
            announce(f"goes on from {begun}, not from {folder}, where this run began")
            return begun
    if step_of(folder) >= 0:
        problem = checkpoint_problem(folder) if folder.is_dir() else "it does not exist"
        if problem:
            raise ArcnbError(f"resume={resume!r}: {problem}")
        return folder
    found = newest_complete(folder / "checkpoints", announce) or newest_complete(folder, announce)
    if found is None:
        raise ArcnbError(f"resume={resume!r}: there is no complete checkpoint")
    return found


def plain_difference(name: str, before: object, now: object) -> str:
    return f"{name} was {before!r} and is {now!r}"


def refuse_differences(
    checkpoint: Path,
    before: Mapping | None,
    now: Mapping,
    accept: bool,
    announce=print,
    said=plain_difference,
) -> None:
    """ArcnbError that names every setting which differs from the checkpoint's, unless `accept`.

    before: the checkpoint's settings, None where it does not say them. said: one difference as a sentence.
    """
    now = json.loads(json.dumps(now))
    differences = ["the checkpoint does not say its settings"]
    if before is not None:
        names = sorted(before.keys() | now.keys())
        pairs = {name: (before.get(name), now.get(name)) for name in names}
        differences = [said(name, *pair) for name, pair in pairs.items() if pair[0] != pair[1]]
    if not differences:
        return
    sentence = f"{checkpoint} is of other settings: {'; '.join(differences)}"
    if not accept:
        raise ArcnbError(f"{sentence}; set accept_other_settings=True to resume all the same")
    announce(sentence)


def set_aside_log(output: Path, step: int, others: Sequence[tuple[Path, str]] = ()) -> Path | None:
    """Move log lines of steps after `step` (-1: all of them), and `others`, to `abandoned/N/`, each of these
    under the name that comes with it; later checkpoints are deleted. Returns that folder, or None where
    nothing was moved."""
    aside = output / "abandoned" / str(1 + sum(1 for _ in output.glob("abandoned/*")))
    log = output / "metrics.jsonl"
    lines = log.read_bytes().splitlines() if log.is_file() else []
    late = [line for line in lines if _step_in(line) > step]
    if others or late:
        aside.mkdir(parents=True)
        for path, name in others:
            (aside / name).parent.mkdir(exist_ok=True)
            path.rename(aside / name)
        if late:
            write_whole(aside / "metrics.jsonl", b"\n".join(late) + b"\n")
            undone = set(late)
            write_whole(log, b"".join(line + b"\n" for line in lines if line not in undone))
    for checkpoint in (output / "checkpoints").glob("checkpoint-*"):
        if step_of(checkpoint) > step:
            shutil.rmtree(checkpoint)
    return aside if others or late else None


def _step_in(line: bytes) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")  # a line that a kill cut off, or a power cut
