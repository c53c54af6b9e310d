"""The last node of a job that was submitted with `serve`: a vLLM server that samples for the training of the
other nodes, a copy of the model on each of its GPUs.

    python -m arcnb.rl.engine.server_node FOLDER RANK MODEL [OPTION OF vllm serve]...

What it prints is in the node's log. It ends with the run on the first node (`arcnb.models.training.nodes`).
"""

import socket
import sys
from pathlib import Path

from arcnb.machine.gpus import visible_gpus
from arcnb.machine.starts import free_port
from arcnb.models.registry import resolve_model
from arcnb.models.training.nodes import serve
from arcnb.rl.engine.options import vllm_environment
from arcnb.rl.engine.server import server_command
from arcnb.rl.plan.grpo import SHARE_OF_SERVER


def main(folder: str, rank: str, name: str, *options: str) -> None:
    """Serve until the first node is done. The options come last: of one that is given twice vLLM takes the
    second."""
    model, port = resolve_model(name), free_port()
    n_gpus = max(1, len(visible_gpus()))
    command = server_command(model, n_gpus, model.context or 8192, port, SHARE_OF_SERVER)
    command += ["--host", "0.0.0.0", *options]  # the training is on other nodes
    environment = vllm_environment() | {"VLLM_SERVER_DEV_MODE": "1"}
    serve(Path(folder), int(rank), command, environment, f"http://{socket.gethostname()}:{port}")


if __name__ == "__main__":
    main(*sys.argv[1:])
