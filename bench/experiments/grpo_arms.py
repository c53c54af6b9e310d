"""Many arms, several at once, spread over GPUs.

    python bench/experiments/grpo_arms.py a:0 b:0 c:0 learn:0:400 --seconds 540 --out DIR [-- ARGUMENTS OF grpo_arm.py]

An entry is ARM:SEED or ARM:SEED:STEPS. With --at-once N the others wait for a place; one that would have less than
--least seconds is not begun, and said. The processes of a GPU share it evenly, through CUDA's multi-process service
where the driver brings it. What still runs 25 seconds after --seconds is ended. DIR/grpo.tar.gz holds every JSON,
log tail and metrics.jsonl; the table is printed.
"""

import argparse
import os
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

from one_gpu import count_gpus, quiet_port, start_service, stop_service

HERE = Path(__file__).resolve().parent
PATIENCE = 25.0  # seconds beyond the time given
PART = 14 << 20  # bytes of one part of an adapter


@dataclass
class Running:
    """One arm with one seed, in a process of its own."""

    entry: str  # "learn:0"
    out: Path
    place: int
    process: subprocess.Popen

    @property
    def name(self) -> str:
        return name_of(self.entry)

    def runs(self) -> bool:
        return self.process.poll() is None

    def state(self) -> str:
        log = self.out / self.name / "metrics.jsonl"
        lines = len(log.read_text().splitlines()) if log.is_file() else 0
        ended = "" if self.runs() else f" (ended {self.process.returncode})"
        return f"{self.entry} {lines}{ended}"

    def last_lines(self, n: int) -> list[str]:
        text = (self.out / f"{self.name}.log").read_text(errors="replace").replace("\r", "\n")
        lines = [line.strip() for line in text.splitlines()]
        return [line for line in lines if line and "it/s]" not in line][-n:]

    def end(self) -> None:
        """Say how it went; what still runs is killed."""
        if self.runs():
            os.killpg(self.process.pid, signal.SIGKILL)
            print(f"{self.entry} had to be ended", flush=True)
        elif self.process.returncode:
            print(f"{self.entry} failed: " + " | ".join(self.last_lines(3)), flush=True)


def name_of(entry: str) -> str:
    """of an arm's files: learn-s0"""
    return "-s".join(entry.split(":")[:2])


def arguments() -> argparse.Namespace:
    words, _, rest = " ".join(sys.argv[1:]).partition(" -- ")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("arms", nargs="+", metavar="ARM:SEED[:STEPS]")
    parser.add_argument("--seconds", type=float, default=540)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--devices", help="GPUs by number, 0,1; without it all that nvidia-smi lists")
    parser.add_argument("--at-once", type=int, default=0, help="processes at the same time; 0: all")
    parser.add_argument("--least", type=float, default=150, help="seconds that a run must have left to begin")
    parser.add_argument("--share-of-gpu", type=float, default=0.88, help="for all processes of a GPU")
    parser.add_argument("--keep", nargs="*", default=[], metavar="ARM:SEED", help="whose adapters come back")
    args = parser.parse_args(words.split())
    args.rest = rest.split()
    args.at_once = min(args.at_once or len(args.arms), len(args.arms))
    args.devices = args.devices.split(",") if args.devices else [str(gpu) for gpu in range(count_gpus())]
    return args


def start(args: argparse.Namespace, entry: str, place: int, seconds: float) -> Running:
    arm, seed, *steps = entry.split(":")
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "MASTER_PORT": str(quiet_port(place))}
    environment["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) // args.at_once))
    command = [sys.executable, str(HERE / "grpo_arm.py"), arm, seed, "--out", str(args.out)]
    command += ["--seconds", str(seconds), "--began", str(time.time()), *args.rest]
    command += ["--steps", *steps] if steps else []
    if args.devices:
        environment["CUDA_VISIBLE_DEVICES"] = args.devices[place % len(args.devices)]
        each = -(-args.at_once // len(args.devices))
        command += ["--memory-fraction", f"{args.share_of_gpu / each:.3f}"]
    with (args.out / f"{name_of(entry)}.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    return Running(entry, args.out, place, process)


def run_all(args: argparse.Namespace, began: float) -> list[Running]:
    """Until all have ended or the time is up, a line a minute."""
    waiting, running, told = list(args.arms), [], 0.0
    while (passed := time.time() - began) < args.seconds + PATIENCE:
        free = set(range(args.at_once)) - {one.place for one in running if one.runs()}
        while waiting and free and args.seconds - passed >= args.least:
            running.append(start(args, waiting.pop(0), free.pop(), args.seconds - passed))
        if len(free) == args.at_once:
            break
        if passed > told + 60:
            told = passed
            print(f"{passed:.0f} s: " + "  ".join(one.state() for one in running), flush=True)
        time.sleep(1)
    for one in running:
        one.end()
    if waiting:
        print("not begun: " + " ".join(waiting), flush=True)
    return running


def pack(out: Path, running: list[Running]) -> None:
    with tarfile.open(out / "grpo.tar.gz", "w:gz") as archive:
        for one in running:
            tail = out / f"{one.name}.tail.txt"
            tail.write_text("\n".join(one.last_lines(60)))
            ends = (".json", ".metrics.jsonl", ".error.txt", "-shared.error.txt")
            kept = [tail, *(out / f"{one.name}{end}" for end in ends)]
            kept += [out / one.name / "metrics.jsonl", *(out / one.name).glob("collapse-*.html")]
            for path in kept:
                if path.is_file():
                    archive.add(path, str(path.relative_to(out)))


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
    data = whole.read_bytes()
    for number, begin in enumerate(range(0, len(data), PART)):
        whole.with_suffix(f".{number}").write_bytes(data[begin : begin + PART])
    whole.unlink()


def main() -> None:
    args = arguments()
    began = time.time()
    args.out.mkdir(parents=True, exist_ok=True)
    service = start_service(args.out / "mps") if 0 < len(args.devices) < args.at_once else {}
    os.environ.update(service)
    running = run_all(args, began)
    stop_service(service)
    pack(args.out, running)
    for entry in args.keep:
        keep_adapter(args.out, name_of(entry))
    subprocess.run([sys.executable, str(HERE / "grpo_table.py"), str(args.out)], check=False)


if __name__ == "__main__":
    main()
