"""Many processes on one GPU: what the experiments share.

Imported before torch and vLLM: it sets the variables that those read when they are imported, and makes `arcnb`
importable from a checkout.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
for name, value in {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
}.items():
    os.environ.setdefault(name, value)

GRAPH_SIZES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512)
PROBE = "import torch; torch.ones(1, device='cuda').sum().item()"


def small_engine(kv_gb: float, engine: str = "graphs", max_num_seqs: int = 256) -> None:
    """From now on vLLM starts soon and keeps to a cache of `kv_gb` GiB: several processes share the GPU and start at
    once, which its own memory profiling does not bear.

    `engine`: graphs (for decoding only, no compilation; eager where that fails), eager, or default (vLLM's own).
    """
    import vllm

    whole = vllm.LLM
    sizes = [size for size in GRAPH_SIZES if size <= max_num_seqs]
    graphs = {"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": sizes}

    class SmallLLM(whole):
        def __init__(self, *positional, **options):
            options |= {"kv_cache_memory_bytes": int(kv_gb * 2**30), "max_num_seqs": max_num_seqs}
            if engine == "graphs":
                try:
                    super().__init__(*positional, **options | {"compilation_config": graphs})
                    return
                except Exception as error:
                    print(f"engine without graphs: {str(error)[:200]}", flush=True)
            if engine != "default":
                options |= {"enforce_eager": True}
            super().__init__(*positional, **options)

    vllm.LLM = SmallLLM


def cap_memory(fraction: float) -> None:
    """Let torch take no more than this share of the GPU; 0: no cap. Several uncapped trainers fill any GPU."""
    if fraction:
        import torch

        torch.cuda.set_per_process_memory_fraction(fraction)


def quiet_port(number: int) -> int:
    """A port for this process's child of that number (below 30): not one that the system hands out to others, as
    happened to one that was free when it was asked for, and apart from those of another call on this machine."""
    return 10000 + 100 * (os.getpid() % 200) + 3 * number


def count_gpus() -> int:
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    return len(listed.splitlines())


def start_service(folder: Path) -> dict[str, str]:
    """Environment of processes that share GPUs through CUDA's multi-process service: their small kernels then run
    side by side, not in turns. Empty where it does not start or already runs; its pipes and logs lie in `folder`."""
    if os.environ.get("CUDA_MPS_PIPE_DIRECTORY"):
        return {}
    if not shutil.which("nvidia-cuda-mps-control"):
        print("no multi-process service: the processes of a GPU take turns", flush=True)
        return {}
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    names = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    # The daemon sees all GPUs: clients name them as it does.
    environment = {
        name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"
    } | names
    started = subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment, check=False).returncode == 0
    probe = [sys.executable, "-c", PROBE]
    if started and subprocess.run(probe, env=environment, check=False, timeout=120).returncode == 0:
        return names
    print("the multi-process service did not start: the processes of a GPU take turns", flush=True)
    return {}


def stop_service(service: dict[str, str]) -> None:
    if service:
        subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", env=os.environ | service, check=False)
