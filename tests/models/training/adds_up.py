"""A training of two processes that only adds up: `python -m tests.models.training.adds_up FOLDER MODE`."""

import os
import sys
import time
from pathlib import Path

from arcnb.machine.imports import nothing_collected
from arcnb.machine.processes import leave

with nothing_collected():
    import torch
    from torch import distributed

distributed.init_process_group("gloo")
rank, total = distributed.get_rank(), torch.ones(1)
distributed.all_reduce(total)
Path(sys.argv[1], f"{rank}.txt").write_text(f"{int(total)} of {distributed.get_world_size()}")
Path(sys.argv[1], f"{rank}.pid").write_text(str(os.getpid()))
if sys.argv[2] == "waits":
    time.sleep(600)
if sys.argv[2] == f"fails{rank}":
    raise ValueError(f"process {rank} had enough on {os.environ['ARCNB_NODES']} nodes")
distributed.barrier()
distributed.destroy_process_group()
leave()
