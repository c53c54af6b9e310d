"""What the processes of multi_turn.py do: sampling units on one engine, conversations, trainings, the whole study."""

import json
import os
import shutil
import sys
import time
import traceback

from multi_turn_plan import Plan
from one_gpu import cap_memory, small_engine
from solved_counts import READ, cells_of, kept_up_to_date, write_json

SHARE = 0.06  # what vLLM wants to find free of a GPU, beside others; its cache is given in GB
NOTHING_READY, GO_ON = 77, 76  # exit statuses: of a sampler, of a training that goes on from its checkpoint


def on_gpu() -> bool:
    return shutil.which("nvidia-smi") is not None  # torch would touch CUDA before vLLM does


def plan_of(args) -> Plan:
    return Plan(args.out, args.arms.split(","), args.seeds, args.train_seeds)


def splits(args):
    """(tasks to train on, tasks to compare on)"""
    from arcnb.arc.tasks.task_set import TaskSet, load_tasks
    from arcnb.models.prompts.format import prompt_format
    from arcnb.models.prompts.lengths import longest_prompt
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


def executor(args):
    from arcnb.programs.executor.executor import Executor, Limits

    return Executor(args.workers or None, Limits(seconds_per_input=1.0))


# ---------------------------------------------------------------- sampling


def sampler(args) -> int:
    """Units, one after the other, on one engine; exit status."""
    plan = plan_of(args)
    if not plan.ready(plan.units):
        return 0 if plan.is_settled(plan.units) else NOTHING_READY
    if on_gpu():
        small_engine(args.sampler_kv_gb, max_num_seqs=512)
    since, idle = time.time(), None
    bench = Sampling(args)
    print(f"engine and tasks after {time.time() - since:.0f} s", flush=True)
    with bench.backend, bench.pool:
        while True:
            with plan.claim(plan.ready(plan.units)) as name:
                if name:
                    idle, since = None, time.time()
                    try:
                        facts = bench.do(name)
                    except Exception as error:
                        traceback.print_exc()
                        plan.fail(name, f"{type(error).__name__}: {error}")
                        return 1  # a new process gets a new engine
                    plan.finish(name, facts | {"seconds": time.time() - since})
                    print(f"{name}: {time.time() - since:.0f} s", flush=True)
                    continue
            if plan.is_settled(plan.units):
                return 0
            idle = idle or time.time()
            if time.time() - idle >= args.patience:
                return NOTHING_READY
            time.sleep(1)


class Sampling:
    """An engine, an executor, and the units that they do."""

    def __init__(self, args):
        from arcnb.models.lora.compatibility import adapter_rank
        from arcnb.models.registry import resolve_adapter, resolve_model
        from arcnb.models.sampling.backends import EngineOptions, open_backend

        self.args = args
        self.model = resolve_model(args.model)
        self.shipped = resolve_adapter(args.adapter, self.model)
        self.train_tasks, self.tasks = splits(args)
        options = EngineOptions(
            max_model_len=args.max_model_len,
            max_lora_rank=adapter_rank(self.shipped),  # of all arms: trainings go on from this adapter
            max_num_seqs=512 if on_gpu() else None,
            gpu_memory_utilization=SHARE,
        )
        self.backend = open_backend("vllm" if on_gpu() else "transformers", args.model, None, options)
        self.pool = executor(args)

    def do(self, name: str) -> dict:
        if name == "sample":
            return self.training_sample()
        what, _, seed = name.partition("@")
        return (
            self.independent(int(seed), what) if what in ("first", "rest") else self.refined(what, int(seed))
        )

    def training_sample(self) -> dict:
        """First turns of the trainable tasks, for conversations and for refinements to learn from."""
        from arcnb.search.sampling.rounds import RoundPlan
        from arcnb.search.turns.budget import TurnPlan

        rounds = RoundPlan(self.args.train_predictions, self.args.per_prompt, seed=100)
        made = self.args.out / "train_first"
        facts = self.predict(self.train_tasks, made, TurnPlan(rounds), self.shipped, self.args.adapter)
        return {"tasks": len(self.train_tasks)} | facts

    def independent(self, seed: int, part: str) -> dict:
        from arcnb.search.sampling.rounds import RoundPlan
        from arcnb.search.turns.budget import TurnPlan

        n = self.args.first if part == "first" else self.args.budget
        plan = TurnPlan(RoundPlan(n, self.args.per_prompt, seed=seed))
        with kept_up_to_date(lambda: self.count("independent", seed)):
            facts = self.predict(
                self.tasks, self.set_of("independent", seed), plan, self.shipped, self.args.adapter
            )
        self.count("independent", seed, finished=part == "rest")
        return facts

    def refined(self, arm: str, seed: int) -> dict:
        from arcnb.arc.predictions.prediction_set import PredictionSet
        from arcnb.models.registry import resolve_adapter
        from arcnb.search.sampling.rounds import RoundPlan
        from arcnb.search.turns.budget import TurnPlan

        rounds = RoundPlan(self.args.budget, self.args.per_prompt, seed=seed)
        plan = TurnPlan(rounds, 2, self.args.first / self.args.budget, self.args.chooser)
        adapter = self.shipped
        if arm != "untrained":
            trained = self.args.out / plan_of(self.args).training_of(arm, seed) / "adapter"
            adapter = resolve_adapter(str(trained), self.model)
        first = PredictionSet(self.set_of("independent", seed))
        with kept_up_to_date(lambda: self.count(arm, seed)):
            facts = self.predict(self.tasks, self.set_of(arm, seed), plan, adapter, arm, first)
        self.count(arm, seed, finished=True)
        return facts

    def predict(self, tasks, folder, plan, adapter, name: str, refine_from=None) -> dict:
        from arcnb.arc.predictions.prediction_set import PredictionSet
        from arcnb.models.prompts.format import prompt_format
        from arcnb.models.sampling.backends import Sampling as Drawing
        from arcnb.search.sampling.sampled_set import SampledSet
        from arcnb.search.turns.turns import predict_turns

        self.backend.use_adapter(str(adapter))
        drawing = Drawing(max_tokens=self.args.max_tokens, seeded=not on_gpu())
        made = SampledSet(
            tasks, PredictionSet(folder), prompt_format(), drawing, self.args.model, name, 512, 15.0
        )
        report = predict_turns(made, self.backend, self.pool, plan, refine_from)
        print(f"{folder.name}\n{report}", flush=True)
        return report.outcome()

    def set_of(self, arm: str, seed: int):
        return self.args.out / "eval" / f"{arm}-{seed}"

    def count(self, arm: str, seed: int, finished: bool = False) -> None:
        """Write down how far an arm is; one that is finished stays so."""
        args = self.args
        path = args.out / "results" / f"counts-{arm}-{seed}.json"
        done = finished or plan_of(args).is_done(f"{'rest' if arm == 'independent' else arm}@{seed}")
        cells = self.cells_of("independent", seed)
        ended = []
        if arm != "independent":
            later = self.cells_of(arm, seed)
            n_first = -(-args.first // args.per_prompt)
            cells = {
                task: [cell for cell in own if cell[1] < n_first] + later[task] for task, own in cells.items()
            }
            ended = [task for task, own in cells.items() if any(cell[4] for cell in own)]
        facts = {"arm": arm, "seed": seed, "first": args.first, "budget": args.budget}
        write_json(path, facts | {"finished": done, "ended": ended, "cells": cells})

    def cells_of(self, arm: str, seed: int) -> dict:
        from arcnb.arc.predictions.prediction_set import PredictionSet

        return cells_of(PredictionSet(self.set_of(arm, seed)).read(columns=READ), self.tasks.ids)


# ---------------------------------------------------------------- trainings


def train(args, name: str) -> int:
    """A training, or the conversations for it; exit status."""
    arm = name.rpartition("-")[0] or name
    if on_gpu() and arm != "data":
        cap_memory(float(os.environ.get("EXP_FRACTION", "0")))
    stage = {"data": data, "sft": sft}.get(arm, reinforce)
    since, plan = time.time(), plan_of(args)
    with plan.held(name):  # one that a killed call left may still be writing its checkpoint
        if plan.is_done(name):
            return 0
        facts = stage(args, name)
        plan.finish(name, facts | {"process_seconds": time.time() - since})
    print(json.dumps({k: v for k, v in facts.items() if k != "curves"}, default=str)[:600], flush=True)
    return 0


def data(args, name: str) -> dict:
    """Conversations to train on, and those whose refinement succeeded."""
    from arcnb.arc.predictions.prediction_set import PredictionSet
    from arcnb.models.prompts.format import prompt_format
    from arcnb.models.registry import load_tokenizer, resolve_model
    from arcnb.search.refinement.rows import refinement_rows, write_conversations, write_refinement
    from arcnb.search.refinement.successes import successful_rows

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
            max_prompt_length=args.rl_context - args.rl_completion,
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


def sft(args, name: str) -> dict:
    from arcnb.models.registry import resolve_model
    from arcnb.models.sft.conversations import conversation_rows
    from arcnb.models.sft.plan import SftPlan
    from arcnb.models.sft.training import train_sft

    if not (args.out / "sft.parquet").exists():
        return {"skipped": "no refinement succeeded"}
    model = resolve_model(args.model)
    rows = conversation_rows(args.out / "sft.parquet", model, max_length=args.rl_context)
    passes = 3 * len(rows.dataset) // 16
    asked = {
        "model": str(model.folder),
        "adapter": str(args.adapter or ""),
        "seed": int(name.rpartition("-")[2]),
        "max_seconds": args.sft_seconds,
        "resume": "never",
        "max_steps": min(args.sft_steps, max(2, passes)),
        "learning_rate": args.sft_lr,
        # Whole logits of 2 rows of 3,072 tokens are 1.2 GB in float32, with copies and gradients about 5.
        "per_device_train_batch_size": 1 if args.rehearse else 2,
        "gradient_accumulation_steps": 1 if args.rehearse else 8,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0 if args.rehearse else 0.05,
        "save_steps": 1000,
    }
    report = train_sft(SftPlan.of(asked), rows, args.out / name)
    return {
        "rows": len(rows.dataset),
        "too_long": len(rows.too_long),
        "steps": report.steps,
        "loss": [row["loss"] for row in report.history if "loss" in row][-1:],
    }


def reinforce(args, name: str) -> dict:
    import torch

    arm, _, seed = name.rpartition("-")
    warm, frozen = arm == "onpolicy-warm", arm == "frozen"
    if on_gpu():
        small_engine(args.kv_gb, max_num_seqs=256)
    else:
        torch.set_num_threads(1)
    from arcnb.plans import refuse
    from arcnb.rl.checks import problems
    from arcnb.rl.plan import GrpoPlan
    from arcnb.rl.trainer.training import train_grpo
    from bench.grpo_speed import part_log, parts_of

    tasks, _ = splits(args)
    clock, parts = training_clock(args, name), args.out / name / "parts.jsonl"
    asked = {
        "n_tasks": 0,
        "eval_steps": 0,
        "model": args.model,
        "adapter": str(args.out / f"sft-{seed}" / "adapter") if warm else args.adapter,
        "max_length": args.rl_context,
        "prompts_per_step": args.prompts,
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
        "save_steps": args.save_steps,
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_max": 2.0,
        "reward": "right-grids",  # a point for valid outputs taught short programs that only run (docs/log.md)
        "overlong_weight": 0.2,
        "overlong_buffer": args.rl_completion // 3,
        "shared_prompt": True,
        "shared_prompt_tokens": args.packed_tokens,
        "seed": int(seed),
    } | ({"vllm_gpu_memory_utilization": SHARE} if on_gpu() else {})
    asked |= (
        {
            "refine_conversations": str(args.out / "refine.parquet"),
            "improvement_weight": 0.2,
            "max_prompt_length": 0,
        }
        if frozen
        else {"turns": 2, "turn_reward": args.turn_reward, "max_prompt_length": args.rl_prompt_tokens}
    )
    plan = GrpoPlan.of(asked, output=args.out / name)
    refuse(problems(plan, tasks, ()))
    with executor(args) as pool:
        report = train_grpo(plan, tasks, (), pool, [clock, part_log(parts, parts_of_episodes)])
    if not clock.over and report.status == "preempted":
        print("cut by the end of the call; goes on from its checkpoint", flush=True)
        sys.exit(GO_ON)
    return {
        "steps": report.steps,
        "status": "out of its seconds" if clock.over else report.status,
        "seconds": report.seconds,
        "seconds a step": parts_of([json.loads(line) for line in parts.read_text().splitlines()]),
        "notes": report.notes,
        "too_long": len(report.too_long),
    } | ends_of(report.history)


def parts_of_episodes(trainer) -> dict:
    """What of a trainer's generation is clocked apart."""
    rollout = getattr(trainer, "rollout_func", None)  # frozen turns have none
    return {"sampling": (rollout, "answers"), "running and feedback": (rollout, "_take")}


def training_clock(args, name: str):
    """A callback that ends training after --rl-seconds of steps, over all calls; one that is about to end saves first."""
    from transformers import TrainerCallback

    spent = args.out / f"{name}.seconds"
    deadline = float(os.environ.get("EXP_END", "inf")) - 20

    class Clock(TrainerCallback):
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

    return Clock()


CURVES = (
    "reward",
    "solved_tasks_ratio",
    "turns/solved_by_1",
    "turns/solved_by_2",
    "turns/improved",
    "turns/copied",
    "turns/end_truncated",
    "turns/end_context",
    "groups_without_spread",
    "unique_outputs",
    "kl",
    "step_time",
    "sampling/logp_gap",
    "sampling/ess",
)


def ends_of(history) -> dict:
    """Means of the first and the last ten steps, and the whole curves."""
    curves = {name: [row[name] for row in history if name in row] for name in CURVES}
    ends = {name: [sum(v[:10]) / len(v[:10]), sum(v[-10:]) / len(v[-10:])] for name, v in curves.items() if v}
    return {"first and last ten steps": ends, "curves": curves}


# ---------------------------------------------------------------- the whole study, from all predictions


def study(args) -> int:
    """Arms with all their seeds, from the predictions themselves: adjusted p-values, equal tokens, what turns changed."""
    import pandas as pd

    from arcnb.arc.predictions.prediction_set import PredictionSet
    from arcnb.search.comparing.arms import read_arms
    from arcnb.search.comparing.fair_comparison import compare_arms
    from arcnb.search.turns.report import turn_table

    _, tasks = splits(args)
    plan, folder = plan_of(args), args.out / "eval"
    arms = [arm for arm in plan.arms if all(plan.is_done(f"{arm}@{seed}") for seed in plan.seeds)]
    text = "independent = " + " | ".join(f"{folder}/independent-{s}" for s in plan.seeds)
    for arm in arms:
        cut = [f"{folder}/independent-{s}[:{args.first}] + {folder}/{arm}-{s}" for s in plan.seeds]
        text += f"; {arm} = " + " | ".join(cut)
    fair = compare_arms(read_arms(text, tasks.ids), tasks.ids, args.first, args.budget)
    pd.set_option("display.width", 250, "display.max_columns", 30, "display.max_colwidth", 60)
    lines = [fair.table().T.to_string(), "", fair.study.T.to_string()]
    turns = {}
    for arm in arms:
        tables = [
            turn_table(
                PredictionSet(folder / f"{arm}-{s}"),
                PredictionSet(folder / f"independent-{s}"),
            )
            for s in plan.seeds
        ]
        mean = sum(tables) / len(tables)
        turns[arm] = json.loads(mean.to_json(orient="index"))
        lines += ["", f"{arm}, mean of seeds", mean.T.to_string()]
    results = args.out / "results"
    write_json(
        results / "study.json",
        {
            "comparison": fair.outcome(),
            "study": json.loads(fair.study.to_json(orient="index")),
            "turns": turns,
            "arguments": vars(args),
            "stages": {name: plan.facts(name) for name in plan.needs if plan.is_done(name)},
        },
    )
    (results / "study.txt").write_text("\n".join(lines))
    return 0
