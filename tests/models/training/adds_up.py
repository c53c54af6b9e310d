"""A training of two processes that only adds up: `python -m tests.models.training.adds_up FOLDER MODE`.

MODE: "ends"; "fails0" or "fails1", of that process; "waits", after it has added up; "idles", without.
"""

import os
import sys
import time
from pathlib import Path

from arcnb.machine.imports import nothing_collected
from arcnb.machine.processes import leave

folder, mode = Path(sys.argv[1]), sys.argv[2]
rank = int(os.environ["RANK"])
if mode == "idles":
    (folder / f"{rank}.txt").touch()
    time.sleep(600)

with nothing_collected():
    import torch
    from torch import distributed

distributed.init_process_group("gloo")
total = torch.ones(1)
distributed.all_reduce(total)
(folder / f"{rank}.txt").write_text(f"{int(total)} of {distributed.get_world_size()}")
(folder / f"{rank}.pid").write_text(str(os.getpid()))
if mode == "waits":
    time.sleep(600)
if mode == f"fails{rank}":
    raise ValueError(f"process {rank} had enough on {os.environ['ARCNB_NODES']} nodes")
distributed.barrier()
distributed.destroy_process_group()
leave()
