"""Problems with tests, on one H200: does pass@1 on generated Python problems rise over a GRPO run?

    python bench/experiments/problems.py --seconds 480 --out DIR [--seed 0] [--steps 400] [--lr 4e-5]
    python bench/experiments/problems.py --tiny --seconds 200 --out DIR        # rehearsal on a CPU

The embedded model with a fresh LoRA trains on `simple` (324 problems); the 70 held-out problems are sampled
before, every --every steps and at the last evaluation that fits into --seconds (same problems, same number of
samples, all 8 tests). DIR/problems-sSEED.json gets pass@1 before and after with bootstrap intervals over
problems, the paired difference, the curve, and seconds a step. Prints a short table.

Two GPUs (server on one, trainer on the other), through the notebook; look at vllm_server.log, processes.log
and metrics.jsonl (step_time) of the run folder:

    arcnb run 09 --name two-gpus -p tasks simple -p eval_tasks simple/held_out -p use_vllm true \
        -p vllm_mode server -p vllm_server_gpus 1 -p num_processes 1 -p vllm_gpu_memory_utilization 0.5 \
        -p max_steps 30 -p num_generations 16 -p prompts_per_step 8 -p max_completion_length 128 \
        -p max_length 2048 -p learning_rate 4e-5 -p eval_steps 10 -p n_eval_tasks 15 \
        -p num_generations_eval 4 -p n_predictions 8
"""

import argparse
import json
import os
import time
from pathlib import Path

from one_gpu import cap_memory, small_engine

BEGAN = time.time()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=480, help="for everything")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--every", type=int, default=25)
    parser.add_argument("--repeats", type=int, default=16)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--group", type=int, default=16)
    parser.add_argument("--lr", type=float, default=4e-5)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--share", type=float, default=0.06, help="vllm_gpu_memory_utilization")
    parser.add_argument("--kv-gb", type=float, default=4.0, help="of vLLM's cache; 0: as --share says")
    parser.add_argument("--memory-fraction", type=float, default=0.0, help="of the GPU, at most; 0: no cap")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--no-vllm", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args()


def stopping(args):
    from transformers import TrainerCallback

    class Stopping(TrainerCallback):
        """Stops at an evaluation when the next one would come too late (it runs before the evaluation)."""

        last = time.time()

        def on_step_end(self, options, state, control, **kwargs):
            if state.global_step % args.every:
                return
            now = time.time()
            if now + 1.3 * (now - self.last) + 20 > BEGAN + args.seconds:
                control.should_training_stop = True
            self.last = now

        def on_train_begin(self, *_, **__):
            self.last = time.time()

    return Stopping()


def measured(frame):
    """{problem: share of its samples that pass all tests}"""
    right = frame["train_is_correct"].astype(float).fillna(0) * frame["test_is_correct"].astype(float).fillna(
        0
    )
    return right.groupby(frame["task_id"].astype(object)).mean()


def interval(values, seed=0):
    import numpy as np

    from arcnb.arc.seeds import rng

    draws = rng(seed, "bootstrap").choice(values, (4000, len(values))).mean(axis=1)
    return [float(v) for v in (values.mean(), *np.percentile(draws, (2.5, 97.5)))]


def main():
    args = arguments()
    if args.tiny:
        args.steps, args.every, args.repeats, args.prompts, args.group = 2, 1, 2, 1, 2
        args.tokens, args.no_vllm = 24, True
    from arcnb.arc.predictions.prediction_set import PredictionSet
    from arcnb.plans import refuse
    from arcnb.problems.plan import ProblemPlan
    from arcnb.problems.sets.files import load_problems
    from arcnb.rl.checks import problems
    from arcnb.rl.engine.options import vllm_environment
    from arcnb.rl.launch import train_here

    os.environ |= vllm_environment()
    if not args.tiny:
        cap_memory(args.memory_fraction)
    if args.kv_gb and not args.no_vllm:
        small_engine(args.kv_gb)
    training, held_out = load_problems("simple", args.seed), load_problems("simple/held_out", args.seed)
    if args.tiny:
        training, held_out = training[:4], held_out[:2]
    folder = args.out / f"problems-s{args.seed}"
    asked = {
        "n_eval_tasks": 0,
        "eval_steps": args.every,
        "num_generations_eval": args.repeats,
        "max_prompt_length": 512,
        "max_length": 1024,
        "prompts_per_step": args.prompts,
        "max_steps": args.steps,
        "num_generations": args.group,
        "max_completion_length": args.tokens,
        "learning_rate": args.lr,
        "warmup_steps": 0.02,
        "beta": 0.005,
        "max_grad_norm": 0.5,
        "save_steps": 10**6,
        "use_vllm": not args.no_vllm,
        "detect_cheating": False,
        "seconds_per_input": 2.0,
        "resume": "never",
        "workers": args.workers,
        "seed": args.seed,
    }
    if not args.no_vllm:
        asked |= {
            "vllm_gpu_memory_utilization": args.share,
            "vllm_importance_sampling_mode": "token_truncate",
            "vllm_importance_sampling_clip_max": 2.0,
        }
    plan = ProblemPlan.of(asked, output=folder)
    refuse(problems(plan, training, held_out))
    report = train_here(plan, training, held_out, [stopping(args)])
    frame = PredictionSet(folder / "held_out").read()
    by_step = {int(step): measured(rows) for step, rows in frame.groupby("round")}
    first, last = min(by_step), max(by_step)
    before, after = by_step[first], by_step[last]
    after = after.reindex(before.index)
    steps = [row for row in report.history if "reward" in row]
    found = {
        "seed": args.seed,
        "status": report.status,
        "steps": report.steps,
        "training_seconds": report.seconds,
        "seconds_a_step": sorted(row["step_time"] for row in steps if "step_time" in row)[len(steps) // 2],
        "executor_seconds_a_step": sum(row["executor_seconds"] for row in steps) / len(steps),
        "problems": len(before),
        "samples_a_problem": args.repeats,
        "evaluated_steps": [first, last],
        "pass@1_before": interval(before.to_numpy()),
        "pass@1_after": interval(after.to_numpy()),
        "difference": interval((after - before).to_numpy()),
        "curve": {step: float(values.mean()) for step, values in sorted(by_step.items())},
        "held_out": [
            {k: v for k, v in row.items() if k.startswith(("held_out", "step"))}
            for row in report.history
            if "held_out/pass@1" in row
        ],
        "reward": [round(row["reward"], 4) for row in steps],
        "strict": [round(row["parse/strict"], 3) for row in steps],
        "kl": [round(row.get("kl", 0.0), 5) for row in steps],
        "settings": plan.settings,
        "notes": report.notes,
        "seconds": time.time() - BEGAN,
    }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / f"problems-s{args.seed}.json").write_text(json.dumps(found, indent=1))
    print("\nstep  pass@1 (held out)")
    for step, value in found["curve"].items():
        print(f"{step:4d}  {value:.3f}")
    for name in ("pass@1_before", "pass@1_after", "difference"):
        mean, low, high = found[name]
        print(
            f"{name:14s} {mean:.3f}  (95% {low:.3f} to {high:.3f}), {len(before)} problems x {args.repeats}"
        )
    print(
        f"{found['seconds_a_step']:.2f} s a step, executor {found['executor_seconds_a_step']:.2f} s; "
        f"{found['steps']} steps, {found['seconds']:.0f} s in all"
    )


if __name__ == "__main__":
    main()
