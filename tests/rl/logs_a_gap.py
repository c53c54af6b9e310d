"""One of several processes that each measure a gap of their own and log it.

Run: torch.distributed.run -m tests.rl.logs_a_gap FOLDER
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from accelerate import Accelerator

from arcnb.rl.watching.sampler_gap import measuring


class Base:
    """What a GRPO trainer has of a step: the public methods that are extended, and its accelerator."""

    def __init__(self):
        self.model = SimpleNamespace(training=True)
        self.args = SimpleNamespace(vllm_importance_sampling_clip_max=3.0)
        self.accelerator = Accelerator(cpu=True)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return 0.0

    def log(self, logs, start_time=None):
        path = Path(sys.argv[1]) / f"{self.accelerator.process_index}.json"
        path.write_text(json.dumps(logs))


def main():
    """The first process: three tokens, 1 nat apart. The second: one token, 2 nats apart."""
    trainer = measuring(Base)()
    first = trainer.accelerator.is_main_process
    sampler = torch.full((1, 3 if first else 1), -3.0)
    learner = sampler + (1.0 if first else 2.0)
    trainer.compute_loss(
        None,
        {
            "sampling_per_token_logps": sampler,
            "old_per_token_logps": learner,
            "completion_mask": torch.ones_like(sampler),
        },
    )
    trainer.log({"loss": 0.5})
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main()
