"""The log of a trainer as JSON lines, so that curves open from the run folder alone, years later."""

from __future__ import annotations

import json
from pathlib import Path


def metrics_log(path: Path):
    """A trainer callback that appends every log as one line `{"step": ..., name: value, ...}` to path."""
    from transformers import TrainerCallback

    class MetricsLog(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            if logs and state.is_world_process_zero:
                with open(path, "a") as file:
                    file.write(json.dumps({"step": state.global_step, **logs}) + "\n")

    return MetricsLog()


def read_metrics(path: Path) -> list[dict]:
    """The logged lines of a metrics.jsonl, oldest first."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]
