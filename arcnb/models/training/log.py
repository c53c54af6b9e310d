"""The log of a trainer as JSON lines, so that curves open from the run folder alone, years later."""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from arcnb.errors import ArcnbError, number_of
from arcnb.machine.progress import progress

# Places that a trainer can log to besides, and packages of which one has to be there.
PLACES = {"wandb": ("wandb",), "trackio": ("trackio",), "tensorboard": ("tensorboard", "tensorboardX")}
PROJECT = "arcnb"


def _places(report_to: str | Sequence[str] | None) -> Sequence[str]:
    return [report_to or "none"] if isinstance(report_to, str) or not report_to else report_to


def log_problem(report_to: str | Sequence[str] | None) -> str | None:
    """What is wrong with a setting `report_to`, in one sentence; None when nothing is."""
    for name in _places(report_to):
        if name != "none" and name not in PLACES:
            return f"report_to={name!r} does not exist; there are none, {', '.join(PLACES)}"
        if name != "none" and not any(importlib.util.find_spec(package) for package in PLACES[name]):
            return f"report_to={name!r} needs the package {name}, which is not installed"
    return None


def logged_as(output: Path) -> dict[str, str]:
    """Settings of transformers' trainers under which those places show a run: by its folder's name."""
    return {"run_name": output.name, "project": PROJECT}


def steps_in(steps: int, seconds: float, resumed_at: int = 0) -> str:
    """What a training did in its last start: `40 steps in 228 s`, `40 steps, 24 of them in 120 s`.

    seconds: since that start. resumed_at: the step that it began at.
    """
    own = f", {max(0, steps - resumed_at)} of them" if resumed_at else ""
    return f"{number_of(steps, 'step')}{own} in {seconds:.0f} s"


@contextmanager
def reporting(output: Path, report_to: str | Sequence[str] | None) -> Iterator[None]:
    """While a trainer works: a run of wandb where it reports there, named after the run folder and kept in
    it, unless WANDB_PROJECT and WANDB_DIR say otherwise.

    A trainer joins the run that is open. Where none is it opens one, but in the working directory, and leaves
    it open for the next training of this process to join. One that was open before stays open.
    """
    if "wandb" not in _places(report_to) or os.environ.get("RANK", "0") != "0":
        yield
        return
    import wandb

    if wandb.run is not None:
        yield
        return
    folder = os.environ.get("WANDB_DIR") or output
    Path(folder).mkdir(parents=True, exist_ok=True)
    run = wandb.init(project=os.environ.get("WANDB_PROJECT", PROJECT), name=output.name, dir=folder)
    failed = True
    try:
        yield
        failed = False
    finally:
        try:
            run.finish(int(failed))
        except Exception as error:  # a tracker that is out of reach makes no trained run a failed one
            print(f"wandb did not end its run: {type(error).__name__}: {error}")


def metrics_log(path: Path, without: Sequence[str] = ()):
    """A trainer callback: shows progress and appends every log to path as `{"step": ..., name: value}`.

    without: names to leave out. Of several processes only the first shows and writes. Weights or a
    loss that are no finite numbers end the training with an ArcnbError, before they are saved. In float16 a
    loss does not: a step whose gradients overflow is not made.
    """
    from transformers import TrainerCallback

    class MetricsLog(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            if state.is_world_process_zero:
                self.bar = progress(None, "training", state.max_steps, "step", done=state.global_step)

        def on_step_end(self, args, state, control, model, **kwargs):
            if state.is_world_process_zero:
                self.bar.update(1)
            if not _finite(model):
                raise beyond_recovery("a trained weight", "no finite number", args, state)

        def on_train_end(self, args, state, control, **kwargs):
            if state.is_world_process_zero:
                self.bar.close()

        def on_log(self, args, state, control, logs=None, **kwargs):
            if logs and state.is_world_process_zero:
                kept = {name: value for name, value in logs.items() if name not in without} | _peak_memory()
                with open(path, "a") as file:
                    file.write(json.dumps({"step": state.global_step, **kept}) + "\n")
            for name in ("loss", "eval_loss"):
                value = (logs or {}).get(name, 0.0)
                if not (math.isfinite(value) or args.fp16):
                    raise beyond_recovery(name, str(value), args, state)

    return MetricsLog()


def _finite(model) -> bool:
    """Whether all trained weights are finite numbers; of ZeRO-3 those that this process has whole."""
    import torch

    trained = [weight.detach() for weight in model.parameters() if weight.requires_grad]
    return bool(torch.stack([weight.isfinite().all() for weight in trained]).all())


def beyond_recovery(name: str, value: str, args, state) -> ArcnbError:
    """What ends a training whose numbers are lost; args, state: of a transformers trainer."""
    return ArcnbError(
        f"{name} of step {state.global_step} is {value}, from which no training recovers: "
        f"lower learning_rate, which is {args.learning_rate:g}"
    )


def _peak_memory() -> dict[str, float]:
    """{"gpu_peak_gib": what torch has held of this process's GPU at most}; nothing where there is none."""
    import torch

    if not torch.cuda.is_initialized():
        return {}
    return {"gpu_peak_gib": torch.cuda.max_memory_reserved() / 2**30}


def stop_printing(trainer) -> None:
    """Take away the trainer's own callback that prints each log as a dictionary."""
    from transformers import PrinterCallback

    trainer.remove_callback(PrinterCallback)


def keep_asked_intervals(trainer) -> None:
    """Have a resumed training log and save as often as its own settings say, not as its checkpoint's did."""
    from transformers import TrainerCallback

    class AskedIntervals(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            state.compute_steps(args, state.max_steps)

    trainer.add_callback(AskedIntervals())


def read_metrics(path: Path) -> list[dict]:
    """The logged lines of a metrics.jsonl, oldest first; a last line that a kill cut off is left out.
    ArcnbError for any other that is no JSON object."""
    lines = Path(path).read_bytes().splitlines()
    rows = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict):
            rows.append(row)
        elif number < len(lines):
            shown = line[:80].decode(errors="replace")
            raise ArcnbError(f"{path}, line {number} is not a JSON object: {shown!r}")
    return rows
