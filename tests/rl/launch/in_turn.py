"""Plans that the same processes carry out one after another, each as `python -m arcnb.rl.launch` does; then
each process measures a gap of its own and logs it.

Run: accelerate launch -m tests.rl.launch.in_turn FOLDER LAUNCH.JSON ...
"""

import gc
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from accelerate import Accelerator

from arcnb.machine.processes import leave
from arcnb.rl.launch import main
from arcnb.rl.watching.sampler_gap import measuring


def logs_a_gap(folder: Path) -> None:
    """The first process: three tokens, 1 nat apart. The second: one token, 2 nats apart."""

    class Base:
        """What a GRPO trainer has of a step: the public methods that are extended, and its accelerator."""

        model = SimpleNamespace(training=True)
        args = SimpleNamespace(vllm_importance_sampling_clip_max=3.0)
        accelerator = Accelerator()

        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return 0.0

        def log(self, logs, start_time=None):
            (folder / f"{self.accelerator.process_index}.json").write_text(json.dumps(logs))

    trainer = measuring(Base)()
    first = trainer.accelerator.is_main_process
    sampler = torch.full((1, 3 if first else 1), -3.0)
    inputs = {"sampling_per_token_logps": sampler, "old_per_token_logps": sampler + (1.0 if first else 2.0)}
    trainer.compute_loss(None, inputs | {"completion_mask": torch.ones_like(sampler)})
    trainer.log({"loss": 0.5})


def nothing_compiled() -> None:
    """deepspeed would compile for a minute what adds on one machine's CPUs, and only inference calls."""
    import deepspeed

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


if __name__ == "__main__":
    folder, *plans = sys.argv[1:]
    if "ACCELERATE_USE_DEEPSPEED" in os.environ:
        nothing_compiled()
    for path in plans:
        main(path)
        gc.freeze()  # trainers collect garbage, for which all that was imported would be looked through
    logs_a_gap(Path(folder))
    Accelerator().end_training()
    leave()
