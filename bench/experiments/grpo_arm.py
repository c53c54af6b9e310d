"""One arm of the GRPO experiments: train for a while, evaluate before and after with plain sampling.

    python bench/experiments/grpo_arm.py ARM SEED --steps 200 --seconds 480 --out DIR
        [--adapter DIR] [--tasks FILE.parquet] [--held-out FILE.parquet] [--solved-in PREDICTIONS]

Evaluated are tasks that it trains on, --kept tasks chosen as those were but trained on by no arm, and tasks of
--held-out. The guard of arm e looks at the kept ones alone, so that the best checkpoint is not chosen by what is
reported of the evaluation tasks.

DIR gets ARM-sSEED.json (everything the table needs) and ARM-sSEED.metrics.jsonl. Arms:
  learn          plain sampling, groups of 16, truncated completions kept with an overlong ramp, moderate step,
                 reward for right grids only (right-grids)
  learn-fast     learn, at four times its learning rate
  learn-valid    learn, with the study's reward: a point for outputs that are merely valid
  learn-focus    learn, with prompts that taught nothing twice shown less
  a              the study's recipe: top_p 0.95, repetition penalty 1.02, truncated masked, groups
                 of 8, token-level correction capped at 2, rewards scaled by the batch, beta 0.02, grad norm 0.05;
                 pushed hard: 25 times its learning rate
  a0             the same at the study's own learning rate, 4e-6
  b              a, with a sampler that matches the learner (no top_p, no penalty)
  c              b, with truncated completions kept and an overlong ramp
  d0, d1         c with beta 0, and 0.01
  v              c, with reward for right grids only
  e              v with the guard: rollback to the best checkpoint, learning rate halved
  rank1, 8, 32   learn-fast from a fresh LoRA on the base with the adapter folded in; alpha / sqrt(r) = 11.3
  rank1-fast     rank1 at 1e-4, the learning rate of a to e
  rank8-fast     rank8 at 1e-4
  wide, wide8    learn-fast and rank8 with thousands of tasks: those that the others train on, and --more, generated
                 ones that no SFT has seen; made from no kept task's generator
On a GPU: vLLM colocated, shared prompts (a run that fails with them starts anew without).
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
import traceback
from pathlib import Path

from one_gpu import cap_memory, small_engine

STUDY = {
    "num_generations": 8,
    "top_p": 0.95,
    "repetition_penalty": 1.02,
    "mask_truncated_completions": True,
    "scale_rewards": "batch",
    "beta": 0.02,
    "max_grad_norm": 0.05,
    "learning_rate": 1e-4,
    "warmup_steps": 0.01,
    "vllm_importance_sampling_mode": "token_truncate",
    "vllm_importance_sampling_clip_max": 2.0,
}
MATCHED = STUDY | {"top_p": 1.0, "repetition_penalty": 1.0}
KEPT = MATCHED | {"mask_truncated_completions": False}
LEARN = {
    "num_generations": 16,
    "beta": 0.01,
    "max_grad_norm": 0.2,
    "learning_rate": 1e-5,
    "warmup_steps": 0.02,
    "scale_rewards": "group",
    "vllm_importance_sampling_mode": "token_truncate",
    "vllm_importance_sampling_clip_max": 2.0,
}
LEARN_FAST = LEARN | {"learning_rate": 4e-5}
# The ramp costs at most a fifth of what the scheme can give.
RAMP = {"overlong_weight": 2.0, "overlong_buffer": 128}
RIGHT = {"reward": "right-grids", "overlong_weight": 0.2, "overlong_buffer": 128}
# arm -> options of a GrpoPlan
ARMS = {
    "learn": LEARN | RIGHT,
    "learn-fast": LEARN_FAST | RIGHT,
    "learn-valid": LEARN | RAMP,
    "learn-focus": LEARN | RIGHT | {"signal_visits": 2, "signal_weight": 0.3},
    "a": STUDY,
    "a0": STUDY | {"learning_rate": 4e-6},
    "b": MATCHED,
    "c": KEPT | RAMP,
    "d0": KEPT | RAMP | {"beta": 0.0},
    "d1": KEPT | RAMP | {"beta": 0.01},
    "v": KEPT | RIGHT,
    "e": KEPT | RIGHT,
    "rank1": LEARN_FAST | RIGHT,
    "rank1-fast": LEARN_FAST | RIGHT | {"learning_rate": 1e-4},
    "rank8": LEARN_FAST | RIGHT,
    "rank8-fast": LEARN_FAST | RIGHT | {"learning_rate": 1e-4},
    "rank32": LEARN_FAST | RIGHT,
    "wide": LEARN_FAST | RIGHT,
    "wide8": LEARN_FAST | RIGHT,
}
FRESH_RANKS = {"rank1": 1, "rank1-fast": 1, "rank8": 8, "rank8-fast": 8, "rank32": 32, "wide8": 8}
PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": None, "repetition_penalty": 1.0}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("arm", choices=list(ARMS))
    parser.add_argument("seed", type=int)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--seconds", type=float, default=480, help="for everything, imports and evaluation too"
    )
    parser.add_argument("--adapter", default="default")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", default="arc-agi-1/training")
    parser.add_argument("--held-out", default="arc-agi-1/evaluation")
    parser.add_argument("--solved-in", type=Path, help="predictions: train on tasks that they solve at times")
    parser.add_argument("--more", type=Path, help="generated tasks for the wide arms, which need them")
    parser.add_argument("--more-solved-in", type=Path, help="predictions: of --more, tasks solved at times")
    parser.add_argument("--kept", type=int, default=36, help="tasks that no arm trains on")
    parser.add_argument("--eval-tasks", type=int, default=128, help="of the trained, and of --held-out")
    parser.add_argument("--eval-repeats", type=int, default=8)
    parser.add_argument("--without-start", action="store_true", help="other arms evaluate the common start")
    parser.add_argument("--end-seconds", type=float, default=100, help="for an evaluation, before the first")
    parser.add_argument("--mid-repeats", type=int, default=8)
    parser.add_argument("--eval-every", type=int, default=25, help="steps between small evaluations; 0: none")
    parser.add_argument("--prompts", type=int, default=8, help="a step")
    parser.add_argument("--max-prompt-tokens", type=int, default=1000)
    parser.add_argument("--max-completion-length", type=int, default=384)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--set", nargs="*", default=[], help="NAME=JSON options that override the arm's")
    parser.add_argument("--accumulation", type=int, default=0, help="0: 1 with shared prompts, else 4")
    parser.add_argument("--no-shared", action="store_true")
    parser.add_argument("--packed-tokens", type=int, default=0, help="most of a packed row; 0: the default")
    parser.add_argument("--kv-gb", type=float, default=4.0)
    parser.add_argument("--engine", choices=["graphs", "eager", "default"], default="graphs")
    parser.add_argument("--share", type=float, default=0.06, help="vllm_gpu_memory_utilization")
    parser.add_argument("--memory-fraction", type=float, default=0.0, help="of the GPU, at most; 0: no cap")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--model", default="default")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, default=0.0, help=argparse.SUPPRESS)
    return parser.parse_args()


def evaluation_class():
    from transformers import TrainerCallback

    class Evaluation(TrainerCallback):
        """Plain sampling on the same tasks, before, in between and after; keeps the clock."""

        trainer = None  # given by make_trainer

        def __init__(self, args, sets, folder, format_, tokenizer, executor):
            self.args, self.sets, self.folder = args, sets, folder
            self.format, self.tokenizer, self.executor = format_, tokenizer, executor
            self.found, self.curve, self.seconds, self.first_step = {}, [], args.end_seconds, None
            self.looks = 0

        def left(self) -> float:
            return self.args.seconds - (time.time() - self.args.began)

        def on_train_begin(self, args, state, control, **kwargs):
            if "start" not in self.found and not self.args.without_start:
                self.run("start", 0)

        def on_step_end(self, args, state, control, **kwargs):
            self.first_step = self.first_step or time.time()
            if self.left() < 1.3 * self.seconds + 10:
                control.should_training_stop = True
            elif self.args.eval_every and state.global_step % self.args.eval_every == 0:
                found = self.one("mid", self.sets["kept"], self.args.mid_repeats, state.global_step)
                self.curve.append({"step": state.global_step, **summary(found)})
                say(self.args, f"step {state.global_step}: kept {brief(self.curve[-1])}")
                self.save(state.global_step)

        def save(self, step):
            """What there is so far, for the table of a run that does not come to its end."""
            write(self.args, outcome(self.args, self, "running", step))

        def run(self, name, step):
            started = time.time()
            self.found[name] = {
                which: self.one(f"{name}-{which}", tasks, self.args.eval_repeats, step)
                for which, tasks in self.sets.items()
            }
            self.seconds = time.time() - started
            self.save(step)
            say(
                self.args,
                f"{name} {self.seconds:.0f} s  "
                + "  ".join(f"{which} {brief(summary(found))}" for which, found in self.found[name].items()),
            )

        def one(self, name, tasks, repeats, step):
            """{task id: [samples, solved, distinct outputs, valid, truncated, tokens]}"""
            from arcnb.arc.predictions.prediction_set import PredictionSet
            from arcnb.rl.watching.held_out import HeldOut

            # A set for every look: after a rollback the same steps are looked at again.
            self.looks += 1
            predictions = PredictionSet(self.folder / f"{name}-{self.looks}")
            held_out = HeldOut(
                tasks,
                repeats,
                1,
                self.format,
                self.tokenizer,
                self.executor,
                predictions,
                self.args.seed,
                self.args.max_completion_length,
            )
            trainer = self.trainer
            training = trainer.model.training
            trainer.model.eval()
            generation = trainer.vllm_generation if trainer.args.use_vllm else trainer.generation_config
            before = {key: getattr(generation, key) for key in PLAIN if hasattr(generation, key)}
            try:
                for key in before:
                    setattr(generation, key, PLAIN[key] if before[key] is not None else None)
                held_out.evaluate(trainer, step)
            finally:
                for key, value in before.items():
                    setattr(generation, key, value)
                trainer.model.train(training)
            frame = predictions.read(
                columns=[
                    "task_id",
                    "round",
                    "status",
                    "fingerprint",
                    "finish_reason",
                    "n_tokens",
                    "train_is_correct",
                    "test_is_correct",
                ]
            )
            frame = frame[frame["round"] == step]
            right = frame["train_is_correct"].astype(float).fillna(0) * frame["test_is_correct"].astype(
                float
            ).fillna(1)
            frame = frame.assign(
                right=right, ok=frame["status"] == "ok", cut=frame["finish_reason"] == "length"
            )
            return {
                str(task): [
                    len(rows),
                    int(rows["right"].sum()),
                    int(rows["fingerprint"].dropna().nunique()),
                    int(rows["ok"].sum()),
                    int(rows["cut"].sum()),
                    int(rows["n_tokens"].sum()),
                ]
                for task, rows in frame.groupby(frame["task_id"].astype(object))
            }

    return Evaluation


def summary(found: dict) -> dict:
    rows = list(found.values())
    n = sum(row[0] for row in rows)
    return {
        "per_sample": sum(row[1] for row in rows) / n,
        "any": sum(row[1] > 0 for row in rows) / len(rows),
        "unique": sum(row[2] / row[0] for row in rows) / len(rows),
        "valid": sum(row[3] for row in rows) / n,
        "truncated": sum(row[4] for row in rows) / n,
        "tokens": sum(row[5] for row in rows) / n,
    }


def brief(values: dict) -> str:
    return f"{100 * values['per_sample']:.1f}% any {100 * values['any']:.0f}% unique {values['unique']:.2f}"


def say(args, text: str) -> None:
    print(f"[{time.time() - args.began:4.0f} s] {args.arm} {args.seed}: {text}", flush=True)


def lora_start(args) -> dict:
    """Model, adapter and shape of a fresh LoRA of an arm, as options."""
    if args.arm not in FRESH_RANKS:
        return {"model": args.model, "adapter": args.adapter}
    from arcnb.models.lora.merging import merged_model
    from arcnb.models.registry import resolve_adapter, resolve_model

    model = resolve_model(args.model)
    adapter = resolve_adapter(args.adapter, model)
    base = merged_model(model, adapter) if adapter else model
    rank = FRESH_RANKS[args.arm]
    alpha = 64 / math.sqrt(32) * math.sqrt(rank)  # peft takes any number
    return {"model": str(base.folder), "adapter": "", "lora_r": rank, "lora_alpha": alpha}


def more_tasks(args, kept, format_, tokenizer) -> list:
    """Tasks of --more that fit and are solved at times, none made by a generator of a kept task."""
    from arcnb.arc.predictions.prediction_set import PredictionSet
    from arcnb.arc.tasks.task_set import load_tasks
    from arcnb.rl.rows import prompt_rows, tasks_solved_between

    if not args.more:
        raise SystemExit(f"arm {args.arm} trains on more tasks: --more names their file")
    more = load_tasks(args.more)
    if args.more_solved_in:
        more = tasks_solved_between(more, PredictionSet(args.more_solved_in), 0.0, 0.9)
    originals = {task.task_id for task in kept}
    more = more.subset([task.task_id for task in more if task.meta.get("original") not in originals])
    fitting = prompt_rows(
        more, format_, tokenizer, seed=0, n_tasks=len(more), max_prompt_tokens=args.max_prompt_tokens
    )
    return list(fitting.tasks)


def plan_of(args, on_gpu: bool):
    """The run that an arm is."""
    from arcnb.rl.plan import GrpoPlan

    asked = ARMS[args.arm] | lora_start(args)
    if "overlong_buffer" in asked:
        asked["overlong_buffer"] = min(asked["overlong_buffer"], args.max_completion_length // 3)
    completions = asked["num_generations"] * args.prompts
    asked |= {
        "n_tasks": 0,
        "n_eval_tasks": 0,
        "eval_steps": 0,
        "max_prompt_length": args.max_prompt_tokens,
        "max_completion_length": args.max_completion_length,
        "max_length": args.max_prompt_tokens + args.max_completion_length,
        "prompts_per_step": args.prompts,
        "max_steps": args.steps,
        "gradient_accumulation_steps": args.accumulation
        or (max(1, completions // 16) if args.no_shared else 1),
        "gradient_checkpointing": on_gpu,
        "shared_prompt": not args.no_shared,
        "use_vllm": on_gpu,
        "guard_action": "warn",
        "guard_window": 10,
        "save_steps": args.steps + 1,
        "disk_budget_gb": 1e-6,
        "resume": "never",
        "workers": args.workers,
        "seed": args.seed,
    }
    if args.arm == "e":
        asked |= {"guard_action": "rollback", "guard_max_rollbacks": 3}
        asked |= {"eval_steps": args.eval_every or 25, "num_generations_eval": args.mid_repeats}
    if on_gpu:
        asked["vllm_gpu_memory_utilization"] = args.share
    if args.packed_tokens:
        asked["shared_prompt_tokens"] = args.packed_tokens
    if args.lr:
        asked["learning_rate"] = args.lr
    asked |= {name: json.loads(value) for name, _, value in (entry.partition("=") for entry in args.set)}
    return GrpoPlan.of(asked, output=args.out / f"{args.arm}-s{args.seed}")


def train(args) -> dict:
    import torch

    on_gpu = torch.cuda.is_available()
    if on_gpu:
        cap_memory(args.memory_fraction)
        small_engine(args.kv_gb, args.engine)
    else:
        torch.set_num_threads(1)
    from arcnb.arc.predictions.prediction_set import PredictionSet
    from arcnb.arc.tasks.task_set import load_tasks
    from arcnb.models.registry import load_tokenizer, resolve_model
    from arcnb.plans import refuse
    from arcnb.programs.executor.executor import Executor
    from arcnb.rl.checks import problems
    from arcnb.rl.rows import prompt_rows, tasks_solved_between
    from arcnb.rl.trainer.training import train_grpo
    from arcnb.synth.splits import trainable_tasks

    say(args, "imported")
    plan = plan_of(args, on_gpu)
    format_, tokenizer = plan.subject.prompt_format, load_tokenizer(resolve_model(plan.model))
    same = {"max_prompt_tokens": args.max_prompt_tokens}
    train_set = trainable_tasks(load_tasks(args.tasks))
    if args.solved_in:
        train_set = tasks_solved_between(train_set, PredictionSet(args.solved_in), 0.0, 0.9)
    # The same in all arms and seeds: in an order drawn from seed 0.
    fitting = prompt_rows(train_set, format_, tokenizer, seed=0, n_tasks=len(train_set), **same).tasks
    kept, trained = fitting[: args.kept], fitting[args.kept :]
    more = more_tasks(args, kept, format_, tokenizer) if args.arm.startswith("wide") else []
    held_out_set = load_tasks(args.held_out)
    held_out = prompt_rows(held_out_set, format_, tokenizer, seed=0, n_tasks=args.eval_tasks, **same).tasks
    sets = {"trained": trained[: args.eval_tasks], "kept": kept, "held_out": held_out}
    seen_by_guard = kept if args.arm == "e" else ()
    refuse(problems(plan, [*trained, *more], seen_by_guard))
    folder = plan.output
    with Executor(plan.workers or None, plan.subject.limits) as executor:
        evaluation = evaluation_class()(args, sets, folder / "evaluation", format_, tokenizer, executor)
        report = train_grpo(plan, [*trained, *more], seen_by_guard, executor, [evaluation])
        say(args, f"{report.status} after {report.steps} steps")
        evaluation.run("end", report.steps)
        best = folder / "best"
        if args.arm == "e" and report.best and evaluation.left() > evaluation.seconds + 5:
            from arcnb.rl.trainer.callbacks import restore_adapter

            restore_adapter(evaluation.trainer.model, next(best.glob("checkpoint-*")))
            evaluation.run("best", report.best["step"])
    shutil.copy(folder / "metrics.jsonl", args.out / f"{args.arm}-s{args.seed}.metrics.jsonl")
    return outcome(args, evaluation, report.status, report.steps) | {
        "rollbacks": report.rollbacks,
        "best": report.best,
        "settings": plan.settings,
        "peak_gb": torch.cuda.max_memory_reserved() / 1e9 if on_gpu else None,
        "alarms": [page.name for page in report.pages],
        "notes": report.notes,
        "n_tasks": len(trained) + len(more),
    }


def outcome(args, evaluation, status: str, step: int) -> dict:
    """What the table needs of a run, finished or not."""
    log = args.out / f"{args.arm}-s{args.seed}" / "metrics.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    steps = [row for row in rows if "reward" in row and "step_time" in row]
    times = sorted(row["step_time"] for row in steps)
    return {
        "arm": args.arm,
        "seed": args.seed,
        "start": args.adapter,
        "status": status,
        "steps": step,
        "rollbacks": 0,
        "seconds": time.time() - args.began,
        "shared": not args.no_shared,
        "step_time_median": times[len(times) // 2] if times else None,
        "evaluations": evaluation.found,
        "curve": evaluation.curve,
        "curves": {
            name: [[row["step"], row[name]] for row in steps if row.get(name) is not None] for name in CURVES
        },
    }


def write(args, values: dict) -> None:
    path = args.out / f"{args.arm}-s{args.seed}.json"
    path.with_suffix(".tmp").write_text(json.dumps(values))
    path.with_suffix(".tmp").replace(path)


CURVES = (
    "reward",
    "kl",
    "sampling/logp_gap",
    "sampling/importance_ratio",
    "sampling/ess",
    "entropy",
    "completions/mean_length",
    "truncated_completions_ratio",
    "solved_tasks_ratio",
    "unique_outputs",
    "unique_tokens_ratio",
    "unique_3gram_ratio",
    "groups_without_spread",
    "grad_norm",
    "step_time",
    "executor_seconds",
)


def main() -> None:
    args = arguments()
    args.began = args.began or time.time()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.child:
        return child(args)
    # In a process of its own: one that fails with shared prompts frees the GPU before it starts anew without.
    words = [sys.executable, __file__, *sys.argv[1:], "--child", "--began", str(args.began)]
    environment = {
        name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    }
    code = subprocess.run(words, env=environment).returncode
    if code and not args.no_shared and args.seconds - (time.time() - args.began) > 120:
        say(args, f"ended with {code}; starts anew without shared prompts")
        environment["MASTER_PORT"] = str(int(os.environ.get("MASTER_PORT", 23000 + os.getpid() % 9000)) + 5)
        code = subprocess.run([*words, "--no-shared"], env=environment).returncode
    sys.exit(code)


def child(args) -> None:
    os.environ.setdefault("MASTER_PORT", str(20000 + os.getpid() % 20000))
    name = f"{args.arm}-s{args.seed}"
    try:
        values = train(args)
    except BaseException as error:
        text = traceback.format_exc()
        (args.out / f"{name}{'' if args.no_shared else '-shared'}.error.txt").write_text(text[-6000:])
        say(args, f"{type(error).__name__}: {str(error)[:300]}")
        sys.stdout.flush()
        os._exit(1)
    write(args, values)
    say(args, f"written; {values['step_time_median']} s a step, peak {values['peak_gb'] or 0:.1f} GB")
    sys.stdout.flush()
    os._exit(0)  # an engine in the process may take its time to end


if __name__ == "__main__":
    main()
