"""What a fine-tuning (notebook 02) takes of a GPU, beside the estimate of its dry run, in one table.

    python bench/sft_memory.py --json memory.json       # on one GPU of 80 GB or more
    python bench/sft_memory.py --cases toy              # a look on a CPU, which counts no bytes

Rows are random tokens, all of one length, or of lengths from a quarter of it on (`mixed`), half of them
trained. Each case runs in a process of its own, which trains a few steps: the most memory that torch had in
use and that it held (GiB), seconds of the last step, and the estimate with its largest item.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from grpo_speed import made, reason

GIB = 1 << 30
# case -> (shape, rows a step, tokens a row, options of the plan, mixed lengths)
CASES = {
    "toy": ("tiny", 2, 64, {}, False),
    "small": ("embedded", 16, 2048, {}, False),
    "small full": ("embedded", 16, 2048, {"full": True}, False),
    "small recomputed": ("embedded", 64, 2048, {"gradient_checkpointing": True}, False),
    "middle": ("1.5b", 4, 3072, {}, False),
    "middle recomputed": ("1.5b", 32, 3072, {"gradient_checkpointing": True}, False),
    "middle mixed": ("1.5b", 32, 3072, {"gradient_checkpointing": True}, True),
    "middle packed": ("1.5b", 8, 3072, {"gradient_checkpointing": True, "packing": True}, True),
    "large recomputed": ("8b", 8, 4096, {"gradient_checkpointing": True}, False),
}
STEPS = 4


def rows_of(n: int, length: int, mixed: bool, vocabulary: int):
    """A dataset of n rows as `arcnb.models.sft.rows` has them."""
    import pyarrow as pa
    from datasets import Dataset

    drawn = np.random.default_rng(0)
    columns: dict[str, list] = {"input_ids": [], "labels": [], "length": []}
    for _ in range(n):
        own = int(drawn.integers(length // 4, length + 1)) if mixed else length
        ids = drawn.integers(100, vocabulary, own)
        labels = np.where(np.arange(own) < own // 2, -100, ids)
        for name, value in (("input_ids", ids), ("labels", labels), ("length", own)):
            columns[name].append(value)
    return Dataset(pa.table(columns))


def work(job: dict) -> None:
    """One case in this process; leaves its numbers in found.json of its folder."""
    import torch
    from transformers import TrainerCallback

    from arcnb.models.sft.plan import SftPlan
    from arcnb.models.sft.rows import packed_rows
    from arcnb.models.sft.training import train_sft

    n_rows, length, options, mixed = CASES[job["case"]][1:]
    asked = {
        "model": job["model"],
        "adapter": "",
        "eval_tasks": "",
        "max_steps": STEPS,
        "per_device_train_batch_size": n_rows,
        "max_length": length,
        "save_steps": 1000,
        "logging_steps": 1,
    }
    plan = SftPlan.of(asked | options)
    table = plan.needed_memory()
    training = table[table["GPU of"] == "training"].set_index("what")["GiB"]
    parts = training.drop(["needed", "room"])
    found = {"estimate": float(training["needed"]), "largest": f"{parts.idxmax()} {parts.max():.1f}"}
    rows = rows_of(4 * STEPS * n_rows if plan.packing else STEPS * n_rows, length, mixed, 20000)
    rows = packed_rows(rows, length) if plan.packing else rows
    times = [time.perf_counter()]

    class Clock(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times.append(time.perf_counter())

    train_sft(plan, rows, Path(job["folder"]), steps=STEPS, callbacks=[Clock()])
    if torch.cuda.is_available():
        used, held = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
        found |= {"used": round(used / GIB, 2), "held": round(held / GIB, 2)}
    found["step_seconds"] = round(times[-1] - times[-2], 2)
    (Path(job["folder"]) / "found.json").write_text(json.dumps(found))


def run(case: str, model: str, limit: float) -> dict:
    """The numbers of a case, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        job, log = {"case": case, "model": model, "folder": folder}, Path(folder) / "said.txt"
        command = [sys.executable, __file__, "--work", json.dumps(job)]
        with open(log, "w") as said:
            try:
                code = subprocess.run(command, stdout=said, stderr=said, timeout=limit).returncode
            except subprocess.TimeoutExpired:
                return {"case": case, "failed": f"stopped after {limit:.0f} s"}
        if code:
            print(log.read_text(errors="replace")[-4000:], file=sys.stderr, flush=True)
            return {"case": case, "failed": reason(log, code)}
        return {"case": case, **json.loads((Path(folder) / "found.json").read_text())}


def main() -> None:
    if sys.argv[1:2] == ["--work"]:
        return work(json.loads(sys.argv[2]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--cases", nargs="+", choices=CASES, default=[case for case in CASES if case != "toy"]
    )
    parser.add_argument("--seconds", type=float, default=560, help="for everything together")
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "grpo_speed_models")
    parser.add_argument("--json", type=Path, help="rewritten after every case")
    args = parser.parse_args()
    if set(args.cases) - {"toy"} and shutil.which("nvidia-smi") is None:
        print("bench/sft_memory.py needs a GPU and was left out; --cases toy is a look on a CPU.")
        return
    began, results = time.monotonic(), []
    for case in args.cases:
        shape = CASES[case][0]
        left = args.seconds - (time.monotonic() - began)
        if left < 20:
            print(f"{case}: no time left", flush=True)
            continue
        model = "default" if shape == "embedded" else made(shape, args.models)
        results.append(run(case, model, left))
        print(json.dumps(results[-1]), flush=True)
        if args.json:
            args.json.write_text(json.dumps(results, indent=1))
    columns = ("case", "estimate", "largest", "used", "held", "step_seconds", "failed")
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for one in results:
        print("| " + " | ".join(str(one.get(name, "")) for name in columns) + " |")


if __name__ == "__main__":
    main()
