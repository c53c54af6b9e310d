"""Several arms at once: python bench/experiments/grpo_arms.py a:0 b:0 c:0 learn:0 --seconds 540 --out DIR [-- ARGS OF grpo_arm]

Spread over the GPUs there are; each gets its share of the GPU's memory. Where the driver brings its multi-process
service the processes of a GPU share it through that: their small kernels then run side by side, not in turns. After --seconds (plus 25) whatever still
runs is ended. DIR/grpo.tar.gz holds every JSON, log tail and metrics.jsonl; the table is printed.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    words, _, rest = " ".join(sys.argv[1:]).partition(" -- ")
    parser = argparse.ArgumentParser()
    parser.add_argument("arms", nargs="+")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=0, help="0: ask nvidia-smi")
    parser.add_argument(
        "--share-of-gpu", type=float, default=0.88, help="for all processes of a GPU together"
    )
    parser.add_argument(
        "--keep", nargs="*", default=[], help="arms whose adapter comes back, in parts of 14 MiB"
    )
    args = parser.parse_args(words.split())
    began = time.time()
    args.out.mkdir(parents=True, exist_ok=True)
    gpus = args.gpus or count_gpus()
    each = -(-len(args.arms) // max(1, gpus))
    cores = os.cpu_count() or 1
    service = start_service(args.out) if each > 1 and gpus else {}
    running = []
    for number, entry in enumerate(args.arms):
        arm, seed = entry.split(":")
        environment = (
            os.environ
            | {
                "OMP_NUM_THREADS": str(max(1, cores // len(args.arms))),
                "MASTER_PORT": str(23000 + 37 * number),
                "PYTHONUNBUFFERED": "1",
            }
            | service
        )
        extra = []
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = str(number % gpus)
            extra = ["--memory-fraction", f"{args.share_of_gpu / each:.3f}"]
        log = open(args.out / f"{arm}-s{seed}.log", "w")
        command = [
            sys.executable,
            str(HERE / "grpo_arm.py"),
            arm,
            seed,
            "--seconds",
            str(args.seconds),
            "--began",
            str(began),
            "--out",
            str(args.out),
            *extra,
            *rest.split(),
        ]
        running.append(
            (
                entry,
                subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True),
            )
        )
    told = 0.0
    while any(process.poll() is None for _, process in running):
        time.sleep(1)
        passed = time.time() - began
        if passed > told + 60:
            told = passed
            print(
                f"{passed:.0f} s: "
                + "  ".join(state(args.out, entry, process) for entry, process in running),
                flush=True,
            )
        if passed > args.seconds + 25:
            break
    for entry, process in running:
        if process.poll() is None:
            print(f"{entry} had to be ended", flush=True)
            os.killpg(process.pid, signal.SIGKILL)
        elif process.returncode:
            print(
                f"{entry} failed: " + " | ".join(last(args.out / f"{entry.replace(':', '-s')}.log", 3)),
                flush=True,
            )
    if service:
        subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", env=os.environ | service, check=False)
    with tarfile.open(args.out / "grpo.tar.gz", "w:gz") as archive:
        for entry, _ in running:
            name = entry.replace(":", "-s")
            kept = [
                args.out / f"{name}{end}"
                for end in (".json", ".metrics.jsonl", ".error.txt", "-shared.error.txt")
            ]
            kept += [args.out / name / "metrics.jsonl", *(args.out / name).glob("collapse-*.html")]
            tail = args.out / f"{name}.tail.txt"
            tail.write_text("\n".join(last(args.out / f"{name}.log", 60)))
            for path in [*kept, tail]:
                if path.is_file():
                    archive.add(path, str(path.relative_to(args.out)))
    for entry in args.keep:
        keep_adapter(args.out, entry.replace(":", "-s"))
    subprocess.run([sys.executable, str(HERE / "grpo_table.py"), str(args.out)], check=False)


def keep_adapter(out: Path, name: str) -> None:
    """NAME-adapter.0, .1, ...: cat them together for a tar of the adapter in bfloat16."""
    import torch
    from safetensors.torch import load_file, save_file

    folder = out / name / "adapter"
    weights = folder / "adapter_model.safetensors"
    if not weights.is_file():
        return
    save_file({key: value.to(torch.bfloat16) for key, value in load_file(weights).items()}, weights)
    whole = out / f"{name}-adapter.tar"
    with tarfile.open(whole, "w") as archive:
        for path in (weights, folder / "adapter_config.json"):
            archive.add(path, path.name)
    data, size = whole.read_bytes(), 14 << 20
    for number in range(-(-len(data) // size)):
        whole.with_suffix(f".{number}").write_bytes(data[number * size : (number + 1) * size])
    whole.unlink()


def start_service(out: Path) -> dict[str, str]:
    """Environment of processes that share GPUs through CUDA's multi-process service; {} where it does not start."""
    folder = str(out.absolute() / "mps")
    names = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
    if not shutil.which("nvidia-cuda-mps-control"):
        print("no multi-process service: the processes of a GPU take turns", flush=True)
        return {}
    Path(folder).mkdir(parents=True, exist_ok=True)
    daemon = ["nvidia-cuda-mps-control", "-d"]
    environment = {
        name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"
    } | names
    probe = [sys.executable, "-c", "import torch; torch.ones(1, device='cuda').sum().item()"]
    started = subprocess.run(daemon, env=environment, check=False).returncode == 0
    if started and subprocess.run(probe, env=environment, check=False, timeout=120).returncode == 0:
        return names
    print("the multi-process service did not start: the processes of a GPU take turns", flush=True)
    return {}


def count_gpus() -> int:
    try:
        return (
            len(
                subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.split(
                    "\n"
                )
            )
            - 1
        )
    except (OSError, subprocess.SubprocessError):
        return 0


def state(out: Path, entry: str, process) -> str:
    log = out / entry.replace(":", "-s") / "metrics.jsonl"
    lines = len(log.read_text().splitlines()) if log.is_file() else 0
    return f"{entry} {lines}" + ("" if process.poll() is None else f" (ended {process.returncode})")


def last(path: Path, n: int) -> list[str]:
    lines = [line.strip() for line in path.read_text(errors="replace").replace("\r", "\n").splitlines()]
    return [line for line in lines if line and "it/s]" not in line][-n:]


if __name__ == "__main__":
    main()
