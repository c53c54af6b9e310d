"""Seconds a step and completions a second of GRPO against group size and accumulation.

    python bench/grpo_speed.py --trainer trl --groups 8 32 128 --accumulation 1 4 --vllm

Short real runs on ARC-AGI-1 training tasks, one process each; the first `--warm` steps of each are left out
(engine start, first allocations). One JSON line a run: quartiles of step_time, completions a second, executor
seconds, mean completion tokens.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path


def measure(args, group: int, accumulation: int) -> dict:
    """One run in this process; its numbers."""
    from arcnb.arc.tasksets import load_tasks
    from arcnb.rl.grpo import GrpoOptions
    from arcnb.rl.launch import GrpoPlan, run_grpo

    settings = {
        "max_steps": args.steps,
        "num_generations": group,
        "gradient_accumulation_steps": accumulation,
        "max_completion_length": args.max_completion_length,
        "use_vllm": args.vllm,
    } | ({"vllm_gpu_memory_utilization": args.share} if args.vllm else {})
    with tempfile.TemporaryDirectory() as folder:
        plan = GrpoPlan(
            load_tasks("arc-agi-1/training").sample(64, 0),
            Path(folder),
            model=args.model,
            adapter=args.adapter,
            settings=settings,
            lora={"r": args.rank},
            options=GrpoOptions(
                trainer=args.trainer, max_prompt_tokens=args.max_prompt_tokens, resume="never"
            ),
        )
        report = run_grpo(plan)
    rows = [row for row in report.history if "reward" in row and "step_time" in row][args.warm :]
    times = sorted(row["step_time"] for row in rows)
    low, middle, high = statistics.quantiles(times, n=4)
    return {
        "trainer": args.trainer,
        "model": args.model,
        "group": group,
        "accumulation": accumulation,
        "steps": len(rows),
        "step_time": [round(value, 3) for value in (low, middle, high)],
        "completions_per_second": round(group / middle, 2),
        "executor_seconds": round(statistics.median(row["executor_seconds"] for row in rows), 3),
        "mean_tokens": round(statistics.mean(row["completions/mean_length"] for row in rows), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trainer", default="trl", choices=["trl", "unsloth"])
    parser.add_argument("--model", default="default")
    parser.add_argument("--adapter", default="")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--groups", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--accumulation", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--max-prompt-tokens", type=int, default=1200)
    parser.add_argument("--max-completion-length", type=int, default=256)
    parser.add_argument("--vllm", action="store_true")
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--one", action="store_true", help="measure the first group and accumulation here")
    args = parser.parse_args()
    if args.one:
        print("RESULT", json.dumps(measure(args, args.groups[0], args.accumulation[0])), flush=True)
        return
    for group in args.groups:
        for accumulation in args.accumulation:
            if group % accumulation:
                continue
            # A process each: an engine does not give its memory back within one.
            words = [sys.executable, __file__, *sys.argv[1:], "--one"]
            words += ["--groups", str(group), "--accumulation", str(accumulation)]
            done = subprocess.run(words, capture_output=True, text=True)
            result = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
            failed = {"group": group, "accumulation": accumulation, "failed": done.stderr[-400:]}
            print(result[-1].removeprefix("RESULT ") if result else json.dumps(failed), flush=True)


if __name__ == "__main__":
    main()
