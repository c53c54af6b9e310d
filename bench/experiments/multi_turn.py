"""Issue 8's experiment on one GPU: is it better to refine than to sample again?

    python bench/experiments/multi_turn.py --out DIR --seconds 560            # again and again until it says DONE
    python bench/experiments/multi_turn.py --out /tmp/x --rehearse            # tiny, on a CPU

Arms (the first 64 predictions of each task and seed are the same, by the shipped adapter):
  independent     64 more samples by the shipped adapter
  untrained       64 refinements by the shipped adapter, which was never trained to refine
  sft             64 refinements after supervised fine-tuning on refinements that succeeded (siblings)
  frozen          64 refinements by one trained with GRPO on frozen second turns
  onpolicy        64 refinements by one trained with on-policy episodes of two turns
  onpolicy-warm   the same, begun from sft
Training sees trainable ids of ARC-AGI-1 training only; the arms are compared on the 80 held-out ids.

Stages, each a process of its own that leaves DIR/NAME.done.json and is not done twice; sampling goes on where it was
killed, GRPO from its last checkpoint. DIR gets results.json and table.txt at the end.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from one_gpu import small_engine

# Done one after the other; the lanes of an entry at the same time, on one GPU or several.
PLAN = (
    [["sample"]],
    [["data"]],
    [["sft", "onpolicy-warm"], ["frozen"], ["onpolicy"]],
    [["evaluate"]],
    [["compare"]],
)
TRAINED = ("sft", "frozen", "onpolicy", "onpolicy-warm")
ORDER = ("sample", "data", "sft", "frozen", "onpolicy", "onpolicy-warm", "evaluate", "compare")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=560, help="of this call, everything included")
    parser.add_argument("--stage", choices=ORDER, help="one stage in this process (for the script's own use)")
    parser.add_argument("--stages", default=",".join(ORDER), help="which of them to do, separated by commas")
    parser.add_argument("--arms", default="untrained,sft,frozen,onpolicy,onpolicy-warm")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--model", default="default")
    parser.add_argument("--adapter", default="default")
    parser.add_argument("--train-tasks", type=int, default=0, help="of the trainable ones that fit; 0: all")
    parser.add_argument("--train-predictions", type=int, default=64, help="a task, for conversations and sft")
    parser.add_argument("--eval-tasks", type=int, default=0, help="of the held-out ones; 0: all")
    parser.add_argument(
        "--also-evaluation", type=int, default=0, help="so many tasks of the evaluation set as well"
    )
    parser.add_argument("--first", type=int, default=64)
    parser.add_argument("--budget", type=int, default=128)
    parser.add_argument("--per-prompt", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--chooser", default="promising")
    parser.add_argument("--max-tokens", type=int, default=512)
    parser.add_argument("--max-model-len", type=int, default=4096)
    parser.add_argument("--sft-seconds", type=float, default=90)
    parser.add_argument("--sft-steps", type=int, default=300)
    parser.add_argument("--sft-lr", type=float, default=1e-4)
    parser.add_argument("--rl-seconds", type=float, default=240, help="of each GRPO run's steps")
    parser.add_argument("--rl-steps", type=int, default=400)
    parser.add_argument("--rl-lr", type=float, default=1e-5)
    parser.add_argument("--group", type=int, default=16)
    parser.add_argument("--prompts", type=int, default=8, help="a step")
    parser.add_argument("--accumulation", type=int, default=8)
    parser.add_argument("--turn-reward", default="last")
    parser.add_argument("--rl-prompt-tokens", type=int, default=1000, help="longest first prompt in training")
    parser.add_argument("--rl-context", type=int, default=3072)
    parser.add_argument("--rl-completion", type=int, default=384)
    parser.add_argument("--kv-gb", type=float, default=8.0, help="of vLLM in a training process")
    parser.add_argument("--workers", type=int, default=0, help="programs at the same time, of each process")
    parser.add_argument(
        "--parallel", type=int, default=1, help="0: one process at a time, also while training"
    )
    parser.add_argument("--gpus", type=int, default=1, help="the training processes are spread over them")
    args = parser.parse_args()
    if args.rehearse:
        tiny = {
            "train_tasks": 2,
            "train_predictions": 4,
            "eval_tasks": 2,
            "first": 2,
            "budget": 4,
            "per_prompt": 2,
            "seeds": 1,
            "max_tokens": 48,
            "max_model_len": 2048,
            "sft_steps": 2,
            "rl_steps": 1,
            "group": 2,
            "prompts": 1,
            "accumulation": 1,
            "rl_prompt_tokens": 400,
            "rl_context": 1400,
            "rl_completion": 160,
            "workers": 1,
            "rl_seconds": 200,
        }
        for name, value in tiny.items():
            setattr(args, name, value)
        args.seconds = max(args.seconds, 1500)
    return args


# ---------------------------------------------------------------- the driver


def drive(args) -> int:
    import threading

    args.out.mkdir(parents=True, exist_ok=True)
    end = time.time() + args.seconds
    for lanes in PLAN:
        codes = {}
        if args.rehearse or not args.parallel:
            lanes = [[stage for stages in lanes for stage in stages]]
        threads = [
            threading.Thread(target=lane, args=(args, stages, number, end, codes))
            for number, stages in enumerate(lanes)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if any(codes.values()):
            return max(codes.values())
    if (args.out / "table.txt").exists():
        print((args.out / "table.txt").read_text())
        print("DONE")
    return 0


def lane(args, stages: list[str], number: int, end: float, codes: dict) -> None:
    for stage in stages:
        codes[stage] = one_stage(args, stage, number, end)
        if codes[stage]:
            return


def one_stage(args, stage: str, number: int, end: float) -> int:
    """Run a stage in a process of its own until it is done or the time is up; its exit status, 0 if done."""
    asked = set(args.arms.split(","))
    if stage not in args.stages.split(",") or (args.out / f"{stage}.done.json").exists():
        return 0
    if stage in TRAINED and stage not in asked and not (stage == "sft" and "onpolicy-warm" in asked):
        return 0
    left = end - time.time() - 5
    if left < (0 if args.rehearse else 30):
        return later(stage)
    started = time.time()
    words = [sys.executable, __file__, *sys.argv[1:], "--stage", stage]
    environment = os.environ | {
        "EXP_END": str(end - 10),
        "MASTER_PORT": str(21000 + 100 * number + os.getpid() % 97),
    }
    if args.gpus > 1:
        environment["CUDA_VISIBLE_DEVICES"] = str(number % args.gpus)
    log_path = args.out / f"{stage}.log"
    with log_path.open("a") as log:
        child = subprocess.Popen(
            words, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=environment
        )
        try:
            code = child.wait(left)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGTERM)
            try:
                child.wait(15)
            except subprocess.TimeoutExpired:
                os.killpg(child.pid, signal.SIGKILL)
                child.wait()
            return later(stage)
    lines = log_path.read_text(errors="replace").strip().splitlines()
    print(
        f"[{time.strftime('%H:%M:%S')}] {stage}: rc {code}, {time.time() - started:.0f} s  {' '.join(lines[-1:])[:300]}",
        flush=True,
    )
    if code == 76:
        return later(stage)
    if code:
        print("\n".join(lines[-30:]), flush=True)
    return code


def later(stage: str) -> int:
    print(f"out of time in {stage}: run the same command again", flush=True)
    return 75


def finish(args, facts: dict) -> None:
    path = args.out / f"{args.stage}.done.json"
    path.with_suffix(".tmp").write_text(json.dumps(facts, indent=1, default=str))
    path.with_suffix(".tmp").replace(path)
    print(json.dumps(facts, default=str)[:600], flush=True)


# ---------------------------------------------------------------- what stages share


def on_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None  # torch would touch CUDA before vLLM does


def splits(args):
    """(tasks to train on, tasks to compare on)"""
    from arcnb.arc.tasksets import TaskSet, load_tasks
    from arcnb.models.prompt_format import prompt_format
    from arcnb.models.prompt_lengths import longest_prompt
    from arcnb.models.registry import load_tokenizer, resolve_model
    from arcnb.synth.splits import training_split

    tokenizer, format_, split = load_tokenizer(resolve_model(args.model)), prompt_format(), training_split()
    everything = load_tasks("arc-agi-1/training")
    trainable = [everything[i] for i in split.trainable]
    fitting = []
    for task in trainable:
        if longest_prompt(task, format_, tokenizer) <= args.rl_prompt_tokens:
            fitting.append(task)
        if args.train_tasks and len(fitting) == args.train_tasks:
            break
    held_out = [everything[i] for i in split.held_out]
    if args.rehearse:
        held_out = [task for task in held_out if longest_prompt(task, format_, tokenizer) <= 600]
    held_out = held_out[: args.eval_tasks or None]
    if args.also_evaluation:
        held_out += list(load_tasks("arc-agi-1/evaluation"))[: args.also_evaluation]
    return TaskSet("trainable", tuple(fitting), "1"), TaskSet("held out", tuple(held_out), "1")


def engine(args, rank: int | None = None):
    from arcnb.models.generation import EngineOptions, open_backend

    options = EngineOptions(
        max_model_len=args.max_model_len, max_lora_rank=rank, max_num_seqs=512 if on_gpu() else None
    )
    return open_backend(
        "vllm" if on_gpu() else "transformers", args.model, args.adapter if rank is None else None, options
    )


def executor(args):
    from arcnb.programs.executor import Executor, Limits

    return Executor(args.workers or None, Limits(seconds_per_input=1.0))


def sampling(args):
    from arcnb.models.generation import Sampling

    return Sampling(max_tokens=args.max_tokens, seeded=not on_gpu())


def adapter_of(args, arm: str) -> str:
    return args.adapter if arm == "untrained" else str(args.out / arm / "adapter")


# ---------------------------------------------------------------- stages


def sample(args) -> dict:
    """First turns of the trainable tasks, for conversations and for refinements to learn from."""
    from arcnb.arc.predictions import PredictionSet
    from arcnb.models.prompt_format import prompt_format
    from arcnb.search.inference import RoundPlan, predict

    tasks, _ = splits(args)
    with engine(args) as backend, executor(args) as pool:
        plan = RoundPlan(args.train_predictions, args.per_prompt, seed=100)
        report = predict(
            tasks,
            backend,
            PredictionSet(args.out / "train_first"),
            pool,
            plan,
            prompt_format(),
            sampling(args),
            model=args.model,
            adapter=args.adapter,
        )
    return {"tasks": len(tasks)} | report.outcome()


def data(args) -> dict:
    from arcnb.arc.predictions import PredictionSet
    from arcnb.models.prompt_format import prompt_format
    from arcnb.models.registry import load_tokenizer, resolve_model
    from arcnb.search.refinement import refinement_rows, write_conversations, write_refinement
    from arcnb.search.refinement_successes import successful_rows

    tasks, _ = splits(args)
    sets = [PredictionSet(args.out / "train_first")]
    with executor(args) as pool:
        # Solved tasks are kept: their misses are those that can be refined, and training is where to learn it.
        dataset = refinement_rows(
            sets,
            tasks,
            load_tokenizer(resolve_model(args.model)),
            prompt_format(),
            pool,
            chooser=args.chooser,
            per_task=6,
            keep_solved=True,
            max_prompt_tokens=args.rl_context - args.rl_completion,
        )
        successes = successful_rows(sets, tasks, prompt_format(), pool, partners="siblings", per_task=16)
    if args.rehearse and not successes:
        row = dataset.rows[0]
        successes = [
            {name: row[name] for name in ("task_id", "turn", "messages", "prefix")}
            | {"answer": "def transform(grid):\n    return grid\n```"}
        ]
    write_refinement(dataset, args.out / "refine.parquet")
    if successes:
        write_conversations(successes, args.out / "sft.parquet")
    return dataset.outcome() | {
        "left_out_as_too_long": len(dataset.too_long),
        "successes": len(successes),
        "tasks_with_successes": len({row["task_id"] for row in successes}),
    }


def sft(args) -> dict:
    from arcnb.models.registry import resolve_adapter, resolve_model
    from arcnb.models.sft import train_sft
    from arcnb.models.sft_conversations import conversation_rows

    if not (args.out / "sft.parquet").exists():
        return {"skipped": "no refinement succeeded"}
    model = resolve_model(args.model)
    rows = conversation_rows(args.out / "sft.parquet", model, max_tokens=args.rl_context)
    passes = 3 * len(rows.dataset) // 16
    settings = {
        "max_steps": min(args.sft_steps, max(2, passes)),
        "learning_rate": args.sft_lr,
        "per_device_train_batch_size": 1 if args.rehearse else 16,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0 if args.rehearse else 0.05,
        "logging_steps": 1,
        "save_steps": 1000,
        "report_to": "none",
    }
    report = train_sft(
        model,
        rows.dataset,
        args.out / "sft",
        adapter=resolve_adapter(args.adapter, model),
        settings=settings,
        seed=0,
        max_seconds=args.sft_seconds,
    )
    return {
        "rows": len(rows.dataset),
        "too_long": len(rows.too_long),
        "steps": report.steps,
        "loss": [row["loss"] for row in report.history if "loss" in row][-1:],
    }


def reinforce(args) -> dict:
    import torch
    from transformers import TrainerCallback

    arm = args.stage
    warm = arm == "onpolicy-warm"
    if warm and not (args.out / "sft" / "adapter").exists():
        return {"skipped": "no warm start"}
    if on_gpu():
        small_engine(args.kv_gb, max_num_seqs=512)
    else:
        torch.set_num_threads(1)
    from arcnb.models.prompt_format import prompt_format
    from arcnb.models.registry import resolve_adapter, resolve_model
    from arcnb.rl.grpo import GrpoOptions, train_grpo

    tasks, _ = splits(args)
    model = resolve_model(args.model)
    deadline = float(os.environ.get("EXP_END", "inf")) - 20

    spent = args.out / f"{arm}.seconds"

    class Clock(TrainerCallback):
        """Ends training after --rl-seconds of steps, over all calls; a call that is about to end saves first."""

        before = float(spent.read_text()) if spent.exists() else 0.0
        began, over = None, False

        def on_step_begin(self, args_, state, control, **kwargs):
            self.began = self.began or time.time()

        def on_step_end(self, args_, state, control, **kwargs):
            seconds = self.before + time.time() - self.began
            if control.should_save or time.time() > deadline:
                spent.write_text(str(seconds))
            if seconds > args.rl_seconds:
                control.should_training_stop = self.over = True
            elif time.time() > deadline:
                control.should_save = control.should_training_stop = True

    clock = Clock()
    frozen = arm == "frozen"
    settings = {
        "max_steps": args.rl_steps,
        "num_generations": args.group,
        "gradient_accumulation_steps": args.accumulation,
        "max_completion_length": args.rl_completion,
        "learning_rate": args.rl_lr,
        "beta": 0.01,
        "max_grad_norm": 0.2,
        "warmup_steps": 0 if args.rehearse else 0.02,
        "gradient_checkpointing": on_gpu(),
        "use_vllm": on_gpu(),
        "save_steps": 25,
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_max": 2.0,
    } | ({"vllm_gpu_memory_utilization": 0.1} if on_gpu() else {})
    own = (
        {"conversations": str(args.out / "refine.parquet")}
        if frozen
        else {"turns": 2, "turn_reward": args.turn_reward, "max_prompt_tokens": args.rl_prompt_tokens}
    )
    weights = {"overlong": 0.2} | ({"improvement": 0.2} if frozen else {})
    with executor(args) as pool:
        report = train_grpo(
            model,
            tasks,
            prompt_format(),
            pool,
            args.out / arm,
            adapter=args.out / "sft" / "adapter" if warm else resolve_adapter(args.adapter, model),
            settings=settings,
            seed=0,
            callbacks=[clock],
            options=GrpoOptions(
                prompts_per_step=args.prompts,
                max_sequence_length=args.rl_context,
                reward="right-grids",  # a point for valid outputs taught short programs that only run (docs/log.md)
                reward_weights=weights,
                overlong_buffer=args.rl_completion // 3,
                **own,
            ),
        )
    if not clock.over and report.status != "done":
        print("cut by the end of the call; goes on from its checkpoint", flush=True)
        sys.exit(76)
    wanted = (
        "reward",
        "solved_tasks_ratio",
        "turns/solved_by_1",
        "turns/solved_by_2",
        "turns/improved",
        "turns/copied",
        "turns/end_truncated",
        "turns/end_context",
        "groups_without_spread",
        "kl",
        "step_time",
        "sampling/logp_gap",
        "sampling/ess",
    )
    curves = {name: [row[name] for row in report.history if name in row] for name in wanted}
    ends = {name: [sum(v[:10]) / len(v[:10]), sum(v[-10:]) / len(v[-10:])] for name, v in curves.items() if v}
    return {
        "steps": report.steps,
        "seconds": report.seconds,
        "first and last ten steps": ends,
        "notes": report.notes,
        "too_long": len(report.too_long),
        "curves": curves,
    }


def evaluate(args) -> dict:
    """All arms on one engine: 128 independent samples, then 64 refinements of the first 64 by each adapter."""
    from arcnb.arc.predictions import PredictionSet
    from arcnb.models.compatibility import adapter_rank
    from arcnb.models.prompt_format import prompt_format
    from arcnb.models.registry import resolve_adapter, resolve_model
    from arcnb.search.inference import RoundPlan
    from arcnb.search.turns import TurnPlan, predict_turns

    _, tasks = splits(args)
    model = resolve_model(args.model)
    arms = [
        arm for arm in args.arms.split(",") if arm == "untrained" or (args.out / arm / "adapter").exists()
    ]
    rank = max(adapter_rank(resolve_adapter(adapter_of(args, arm), model)) for arm in ["untrained", *arms])
    facts = {"arms": arms, "tasks": len(tasks)}
    with engine(args, rank) as backend, executor(args) as pool:
        for seed in range(args.seeds):
            rounds = RoundPlan(args.budget, args.per_prompt, seed=seed)
            backend.use_adapter(str(resolve_adapter(args.adapter, model)))
            alone = PredictionSet(args.out / "eval" / f"independent-{seed}")
            stage = (tasks, backend, alone, pool, TurnPlan(rounds), prompt_format(), sampling(args))
            report = predict_turns(*stage, model=args.model, adapter=args.adapter)
            facts[f"independent-{seed}"] = report.outcome()
            for arm in arms:
                backend.use_adapter(str(resolve_adapter(adapter_of(args, arm), model)))
                plan = TurnPlan(rounds, 2, args.first / args.budget, args.chooser)
                made = PredictionSet(args.out / "eval" / f"{arm}-{seed}")
                stage = (tasks, backend, made, pool, plan, prompt_format(), sampling(args))
                report = predict_turns(*stage, model=args.model, adapter=arm, first_from=alone)
                facts[f"{arm}-{seed}"] = report.outcome()
                print(f"{arm} {seed}\n{report}", flush=True)
    return facts


def compare(args) -> dict:
    import pandas as pd

    from arcnb.arc.predictions import PredictionSet
    from arcnb.search.arms import read_arms
    from arcnb.search.fair_comparison import compare_arms
    from arcnb.search.turns import TURN_READ, turn_table

    _, tasks = splits(args)
    arms = json.loads((args.out / "evaluate.done.json").read_text())["arms"]
    folder, seeds = args.out / "eval", range(args.seeds)
    text = "independent = " + " | ".join(f"{folder}/independent-{s}" for s in seeds)
    for arm in arms:
        cut = [f"{folder}/independent-{s}[:{args.first}] + {folder}/{arm}-{s}" for s in seeds]
        # A set without rows: every task was solved by its first predictions.
        text += f"; {arm} = " + " | ".join(cut)
    fair = compare_arms(read_arms(text, tasks.ids), tasks.ids, args.first, args.budget)
    pd.set_option("display.width", 250, "display.max_columns", 30, "display.max_colwidth", 60)
    lines = [fair.table().T.to_string(), "", fair.study.T.to_string()]
    turns = {}
    for arm in arms:
        tables = [
            turn_table(
                PredictionSet(folder / f"{arm}-{s}").read(columns=TURN_READ),
                PredictionSet(folder / f"independent-{s}").read(columns=TURN_READ),
            )
            for s in seeds
        ]
        mean = sum(tables) / len(tables)
        turns[arm] = json.loads(mean.to_json(orient="index"))
        lines += ["", f"{arm}, mean of seeds", mean.T.to_string()]
    (args.out / "table.txt").write_text("\n".join(lines))
    results = {
        "comparison": fair.outcome(),
        "study": json.loads(fair.study.to_json(orient="index")),
        "turns": turns,
        "arguments": vars(args),
        "stages": {
            p.stem.removesuffix(".done"): json.loads(p.read_text()) for p in args.out.glob("*.done.json")
        },
    }
    (args.out / "results.json").write_text(json.dumps(results, indent=1, default=str))
    return {"differences": len(fair.differences)}


STAGES = {
    "sample": sample,
    "data": data,
    "sft": sft,
    "frozen": reinforce,
    "onpolicy": reinforce,
    "onpolicy-warm": reinforce,
    "evaluate": evaluate,
    "compare": compare,
}

if __name__ == "__main__":
    chosen = arguments()
    if chosen.stage is None:
        sys.exit(drive(chosen))
    facts = STAGES[chosen.stage](chosen)
    finish(chosen, facts)
    sys.stdout.flush()
    os._exit(0)  # engines leave processes and threads that may not end by themselves
