"""Experiments of search and learn on one GPU (or, with --tiny, a rehearsal on a CPU).

    python bench/experiments/search_and_learn.py --out DIR --seconds 540
    ... --arms toy,arc128,arc128task,eval128,arc512      # in this order by default
    ... --kv-gb 6 --memory-fraction 0.3                  # beside other processes on the GPU
    ... --tiny                                           # CPU, minutes

Arm after arm, seed after seed, search alone and then search and learn of each. Every one is resumable: work lies in
--work, small results (JSON) in --out; call again until it prints "all done". Results of pairs finished earlier are
read from --work and written to --out again. Exit status: 0 all done, 75 the time was up, 1 something failed.
"""

import argparse
import json
import os
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path

from one_gpu import cap_memory, small_engine

START = time.monotonic()
ARMS = ["toy", "arc128", "arc128task", "eval128", "arc512"]
FAILED, TIME_UP = 1, 75


class LearnedNothing(RuntimeError):
    """A learning side without a single adapter: no result, and to be done anew."""


def arguments(given=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--work", type=Path, default=Path("/tmp/search_learn_work"))
    p.add_argument("--seconds", type=float, default=540)
    p.add_argument("--arms", default=",".join(ARMS))
    p.add_argument("--seeds", type=int, default=3)
    p.add_argument("--lr", type=float, default=2e-4)
    p.add_argument("--toy-lr", type=float, default=5e-4)
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--per-task", type=int, default=16)
    p.add_argument("--per-round", type=int, default=32)
    p.add_argument(
        "--tag", default="", help="suffix of the learning arms, for another setting beside the first"
    )
    p.add_argument("--toy-steps", type=int, default=300)
    p.add_argument("--batch-tokens", type=int, default=16384, help="in a forward pass; 0.85 MB each")
    p.add_argument("--kv-gb", type=float, default=6.0, help="of vLLM's cache; 0: as --share says")
    p.add_argument("--share", type=float, default=0.06, help="gpu_memory_utilization")
    p.add_argument("--engine", choices=["graphs", "eager", "default"], default="graphs")
    p.add_argument(
        "--memory-fraction", type=float, default=0.0, help="of the GPU for training, at most; 0: no cap"
    )
    p.add_argument("--max-loras", type=int, default=16, help="adapters in one batch; 1 if vLLM objects")
    p.add_argument("--tiny", action="store_true")
    return p.parse_args(given)


def left(args):
    return args.seconds - (time.monotonic() - START)


def sizes(args):
    if args.tiny:
        return {
            "toy_rungs": 2,
            "toy_seeds": 1,
            "toy_budget": 12,
            "n_arc": 2,
            "arc_budget": 8,
            "round": 4,
            "prompt": 2,
        }
    return {
        "toy_rungs": 9,
        "toy_seeds": args.seeds,
        "toy_budget": 256,
        "n_arc": 80,
        "arc_budget": 128,
        "round": args.per_round,
        "prompt": 8,
    }


# ------------------------------------------------------------------ models


def toy_base(args):
    """Embedded model and shipped adapter, taught the lowest rungs: up to 4 lines, 1 and 4 squares. Returns its ModelPath."""
    from arcnb.arc.views import View
    from arcnb.models.merging import merged_model
    from arcnb.models.prompt_format import prompt_format
    from arcnb.models.registry import load_tokenizer
    from arcnb.models.sft_rows import IGNORED
    from arcnb.search.learner import LoraLearner, LoraSettings
    from arcnb.synth.ladder import ladder_task

    model = arc_base(args)
    folder = args.work / "toy_base"
    if not folder.is_dir():
        steps = 4 if args.tiny else args.toy_steps
        lora = LoraSettings(
            rank=16,
            alpha=32,
            modules=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
            learning_rate=5e-4,
            schedule="cosine",
            batch_size=2 if args.tiny else 32,
            batch_tokens=1000 if args.tiny else args.batch_tokens,
        )
        tokenizer, format_ = load_tokenizer(model), prompt_format()
        rows = []
        for i in range(steps * lora.batch_size):
            ladder, rung = [
                ("lines", 1),
                ("lines", 2),
                ("lines", 3),
                ("lines", 4),
                ("squares", 1),
                ("squares", 2),
            ][i % 6]
            task = ladder_task(ladder, rung, seed=10_000 + i)
            prompt = format_.prompt_ids(tokenizer, View.plain(task).apply(task))
            answer = format_.completion_ids(tokenizer, task.program)
            rows.append({"input_ids": prompt + answer, "labels": [IGNORED] * len(prompt) + answer})
        learner = LoraLearner(model, lora)
        args.work.mkdir(parents=True, exist_ok=True)
        report = learner.learn(rows, None, folder, 0)
        learner.close()
        print(
            f"toy base: {report.steps} steps, {report.tokens:,} tokens in {report.seconds:.0f} s "
            f"({report.tokens / report.seconds:,.0f} tokens/s), loss {report.loss_first:.3f} -> {report.loss_last:.3f}, "
            f"{report.peak_memory_gb:.1f} GB",
            *report.notes,
            sep="\n",
            flush=True,
        )
        (args.work / "toy_base.json").write_text(
            json.dumps(
                {
                    "seconds": report.seconds,
                    "tokens": report.tokens,
                    "loss_first": report.loss_first,
                    "loss_last": report.loss_last,
                }
            )
        )
    return merged_model(model, folder)


def tiny_model(args):
    """A random two-layer model with the embedded model's tokenizer: for rehearsals."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from arcnb.models.registry import load_tokenizer, resolve_model

    folder = args.work / "tiny"
    if not folder.is_dir():
        torch.manual_seed(0)
        tokenizer = load_tokenizer(resolve_model("default"))
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=4096,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=True,
        )
        LlamaForCausalLM(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return resolve_model(folder)


def arc_base(args):
    from arcnb.models.merging import merged_model
    from arcnb.models.registry import resolve_adapter, resolve_model

    if args.tiny:
        return tiny_model(args)
    model = resolve_model("default")
    return merged_model(model, resolve_adapter("default", model))


# ------------------------------------------------------------------ arms


def toy_tasks(args, seed):
    from arcnb.arc.tasksets import TaskSet
    from arcnb.synth.ladder import ladder_task

    size = sizes(args)
    tasks = [ladder_task("lines", rung, seed) for rung in range(1, size["toy_rungs"] + 1)]
    tasks += [ladder_task("squares", rung, seed) for rung in range(1, 2 if args.tiny else 5)]
    return TaskSet("ladder", tuple(tasks), f"seed {seed}")


def held_out(args):
    from arcnb.arc.tasksets import load_tasks
    from arcnb.synth.splits import HELD_OUT_TRAINING

    tasks = load_tasks("arc-agi-1/training").subset(list(HELD_OUT_TRAINING))
    if args.tiny:
        short = sorted(tasks, key=lambda t: sum(p.input.size + p.output.size for p in t.train))
        tasks = tasks.subset([t.task_id for t in short[: sizes(args)["n_arc"]]])
    return tasks


def evaluation(args):
    from arcnb.arc.tasksets import load_tasks

    tasks = load_tasks("arc-agi-1/evaluation")
    if args.tiny:
        short = sorted(tasks, key=lambda t: sum(p.input.size + p.output.size for p in t.train))
        return tasks.subset([t.task_id for t in short[:2]])
    return tasks.sample(200, 0)


def tasks_of(args, arm, seed):
    if arm == "toy":
        return toy_tasks(args, seed)
    return evaluation(args) if arm == "eval128" else held_out(args)


def plans(args, arm):
    """(plan, lora, hindsight) of an arm's learning side."""
    from arcnb.search.budgets import Budget
    from arcnb.search.hindsight import HindsightSettings
    from arcnb.search.learner import ATTENTION, LoraSettings
    from arcnb.search.learning_plan import SearchPlan

    size = sizes(args)
    everything = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
    lora = LoraSettings(
        rank=16,
        alpha=32,
        modules=everything,
        learning_rate=args.lr,
        batch_size=16,
        batch_tokens=args.batch_tokens,
    )
    hindsight = HindsightSettings(per_task=args.per_task, replay=0.5, fresh_views=1)
    plan = SearchPlan(
        Budget(size["arc_budget"]),
        size["round"],
        size["round"],
        size["prompt"],
        group_size=-1,
        stop_after=2,
        epochs=args.epochs,
        max_row_tokens=4096,
        adapter_gb=20,
    )
    if arm == "toy":
        plan = replace(plan, budget=Budget(size["toy_budget"]), augment="colors", stop_after=1)
        lora = replace(lora, learning_rate=args.toy_lr, batch_size=8)
        hindsight = replace(hindsight, augment="colors")
    if arm == "arc128task":
        plan, lora = replace(plan, group_size=1), replace(lora, batch_size=8)
    if arm == "arc512" and not args.tiny:
        plan = replace(plan, budget=Budget(512), first_round=64, per_round=64)
    if args.tiny:
        lora = replace(lora, batch_size=4, batch_tokens=1500)
        hindsight = replace(hindsight, per_task=2, fresh_views=0)
    return plan, lora, hindsight


def side_name(args, learn):
    return f"learn{args.tag}" if learn else "alone"


def report_of(args, arm, seed, learn):
    """The file that a finished side leaves."""
    return args.work / f"{arm}-seed{seed}" / side_name(args, learn) / "report.json"


def pair_is_done(args, arm, seed):
    return report_of(args, arm, seed, False).exists() and report_of(args, arm, seed, True).exists()


def run_side(args, arm, seed, learn, engine, executor, base, opened=0.0):
    """Do or finish one side of an arm; False when the time was up. LearnedNothing puts its folder aside."""
    from arcnb.models.generation import Sampling
    from arcnb.models.prompt_format import prompt_format
    from arcnb.search.budgets import Clock
    from arcnb.search.search_and_learn import SearchAndLearn

    # per-task adapters and other settings share their search alone with the arm of all tasks
    alone = alone_of(args, arm, seed)
    done = report_of(args, arm, seed, learn)
    if done.exists():
        return True
    seconds = left(args) - 25
    if seconds < 20:
        return False
    plan, lora, hindsight = plans(args, arm)
    tokens = 8 if args.tiny else 320 if arm == "toy" else 384
    search = SearchAndLearn(
        tasks_of(args, arm, seed),
        engine,
        executor,
        done.parent,
        replace(plan, learn=learn, seed=seed),
        prompt_format(),
        Sampling(max_tokens=tokens),
        hindsight,
        base=base if learn else None,
        lora=lora,
        model=base.name,
        clock=Clock(seconds),
        shared=alone if learn else None,
    )
    search.report.add_engine(opened)
    report = search.run()
    print(f"-- {arm} seed {seed} {side_name(args, learn)}\n{report}\n{seconds_table(report)}", flush=True)
    if report.out_of_time:
        return False
    learned = any(line.get("adapter") for line in search.journal.lines)
    if learn and not learned and report.failures:
        aside = done.parent.with_name(f"{done.parent.name}-failed-{time.time_ns()}")
        done.parent.rename(aside)
        raise LearnedNothing(f"every training failed; what was made is in {aside}")
    temporary = done.with_suffix(".tmp")
    temporary.write_text(json.dumps(report.outcome(), default=str))
    temporary.replace(done)
    return True


def seconds_table(report):
    """Seconds of every round."""
    rows = [f"   {'round':>5}{'sampling':>10}{'relabel':>10}{'learning':>10}{'start-up':>10}  s"]
    for row in report.by_round:
        number, *seconds = row.values()
        rows.append(f"   {number:>5}" + "".join(f"{value:>10.1f}" for value in seconds))
    return "\n".join(rows)


def compare(args, arm, seed):
    """Small results of both sides of one seed."""
    from arcnb.arc.predictions import PredictionSet
    from arcnb.search import learning_comparison as lc
    from arcnb.search.evaluation import TABLE_READ

    tasks, (plan, _, _) = tasks_of(args, arm, seed), plans(args, arm)
    root = args.work / f"{arm}-seed{seed}"
    frames = {
        side: PredictionSet(root / side / "predictions").read(columns=TABLE_READ)
        for side in ("alone", f"learn{args.tag}")
    }
    alone, learned = frames.values()
    budgets = lc.budgets_to_compare(plan, frames)
    result = {
        "arm": arm,
        "tag": args.tag,
        "seed": seed,
        "n_tasks": len(tasks),
        "settings": vars(args) | {"out": "", "work": ""},
    }
    for column in ("is_correct", "train_is_correct"):
        result[column] = lc.paired_curve(alone, learned, tasks.ids, budgets, column).to_dict("records")
    result["rounds"] = {
        side: lc.rounds_table(frame, plan).reset_index().to_dict("records") for side, frame in frames.items()
    }
    solved = {}
    for side, frame in frames.items():
        rows = lc.evolution(frame, plan)
        right = rows[(rows["train_is_correct"] == 1) & (rows["test_is_correct"].fillna(1) == 1)]
        first = right.groupby("task_id", observed=True)["completion"].min()
        solved[side] = {task_id: int(first[task_id]) if task_id in first else None for task_id in tasks.ids}
    result["first_solved_at"] = solved
    result["reports"] = {side: json.loads((root / side / "report.json").read_text()) for side in frames}
    return result


def over_seeds(results):
    """Mean over seeds per task, then over tasks; bootstrap over tasks and a sign-flip test on them."""
    import numpy as np

    budgets = [row["completions"] for row in results[0]["is_correct"]]
    table = []
    for budget in budgets:
        per_task = {}
        for result in results:
            alone, learned = result["first_solved_at"].values()
            for (task_id, a), b in zip(alone.items(), learned.values()):
                key = task_id.rsplit("_", 1)[0] if task_id.startswith("ladder") else task_id
                per_task.setdefault(key, []).append(((a or 10**9) <= budget, (b or 10**9) <= budget))
        a, b = (
            np.array([np.mean([pair[i] for pair in pairs]) for pairs in per_task.values()]) for i in (0, 1)
        )
        d, random = b - a, np.random.default_rng(0)
        boot = d[random.integers(len(d), size=(5000, len(d)))].mean(1)
        flips = (random.choice([-1, 1], size=(20000, len(d))) * d).mean(1)
        p = float((np.abs(flips) >= abs(d.mean()) - 1e-12).mean())
        table.append(
            {
                "completions": budget,
                "seeds": len(results),
                "tasks": len(d),
                "alone": a.mean(),
                "learned": b.mean(),
                "difference": d.mean(),
                "low": np.percentile(boot, 2.5),
                "high": np.percentile(boot, 97.5),
                "p_flip": p,
            }
        )
    return table


def open_engine(args, base):
    """The engine that all arms of a family share."""
    from arcnb.models.generation import EngineOptions, open_backend

    options = EngineOptions(
        max_model_len=4096,
        gpu_memory_utilization=args.share,
        max_lora_rank=None if args.tiny else 16,
        max_loras=1 if args.tiny else args.max_loras,
        max_num_seqs=None if args.tiny else 512,
    )
    if not args.tiny:
        return open_backend("vllm", base, None, options)
    from tests.search.learning_engine import Programming

    return Programming(open_backend("transformers", base, None, options))


def main(given=None):
    """Do what is left; the exit status."""
    args = arguments(given)
    args.out.mkdir(parents=True, exist_ok=True)
    args.work.mkdir(parents=True, exist_ok=True)
    if not args.tiny:
        cap_memory(args.memory_fraction)
        if args.kv_gb:
            small_engine(args.kv_gb, args.engine)  # before anyone imports vllm's LLM
    from arcnb.programs.executor import Executor

    arms, problems, finished = args.arms.split(","), [], {}
    if unknown := set(arms) - set(ARMS):
        sys.exit(f"there is no arm {', '.join(unknown)}; there are {', '.join(ARMS)}")
    n_seeds = {
        arm: sizes(args)["toy_seeds"] if arm == "toy" else (1 if args.tiny else args.seeds) for arm in arms
    }
    pairs = [(arm, seed) for arm in arms for seed in range(n_seeds[arm])]
    with Executor(1 if args.tiny else None) as executor:
        for toy in (True, False):  # two base models, so two engines
            of_family = [pair for pair in pairs if (pair[0] == "toy") is toy]
            collect(args, of_family, finished, problems)
            todo = [pair for pair in of_family if not pair_is_done(args, *pair)]
            if todo and (args.tiny or left(args) >= 90):
                run_family(args, todo, executor, toy, finished, problems)
    print_table(list(finished.values()))
    used = f"({time.monotonic() - START:.0f} s used)"
    for problem in problems:
        print(f"failed: {problem}", file=sys.stderr)
    if problems:
        print(f"NOT all done: {len(problems)} failed {used}")
        return FAILED
    if not all(pair_is_done(args, *pair) for pair in pairs):
        print(f"NOT all done: call again {used}")
        return TIME_UP
    print("all done")
    return 0


def run_family(args, todo, executor, toy, finished, problems):
    """Pair after pair on one engine. What fails is said, counted in `problems`, and left for another call."""
    engine = None
    try:
        base = toy_base(args) if toy else arc_base(args)
        since = time.monotonic()
        engine = open_engine(args, base)
        opened = time.monotonic() - since  # counted in the report of the first side that uses it
        print(f"engine opened in {opened:.0f} s", flush=True)
        for arm, seed in todo:
            try:
                for learn in (False, True):
                    if not run_side(args, arm, seed, learn, engine, executor, base, opened):
                        return
                    opened = 0.0
            except Exception as error:
                traceback.print_exc()
                problems.append(f"{arm} seed {seed}: {type(error).__name__}: {error}")
            collect(args, [(arm, seed)], finished, problems)
    except Exception as error:
        traceback.print_exc()
        which = "toy" if toy else "ARC"
        problems.append(f"engine of the {which} arms: {type(error).__name__}: {error}")
    finally:
        if engine is not None:
            engine.close()


def collect(args, pairs, finished, problems):
    """Compare the pairs that are done, and write all results so far."""
    for pair in pairs:
        if pair in finished or not pair_is_done(args, *pair):
            continue
        try:
            finished[pair] = compare(args, *pair)
        except Exception as error:
            traceback.print_exc()
            problems.append(f"{pair[0]} seed {pair[1]}: comparing: {type(error).__name__}: {error}")
    save(args, list(finished.values()))


def alone_of(args, arm, seed):
    """The set of search alone whose first round the learning side takes over; arc128task takes arc128's alone whole."""
    from arcnb.arc.predictions import PredictionSet

    folder = args.work / f"{arm}-seed{seed}" / "alone"
    other = args.work / f"arc128-seed{seed}" / "alone"
    if arm == "arc128task" and not folder.exists() and (other / "report.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(other, folder)
    return PredictionSet(folder / "predictions")


def save(args, finished):
    name = f"search_learn{args.tag}.json"
    table = {
        arm: over_seeds([r for r in finished if r["arm"] == arm])
        for arm in dict.fromkeys(r["arm"] for r in finished)
    }
    (args.out / name).write_text(json.dumps({"results": finished, "over_seeds": table}, default=float))


def print_table(finished):
    print(
        f"{'arm':<12}{'seed':>5}{'n':>5}{'compl.':>8}{'alone':>8}{'learn':>8}{'diff':>8}  95% over tasks      p   start share"
    )
    for result in finished:
        last = result["is_correct"][-1]
        share = list(result["reports"].values())[-1]["start_share"]
        print(
            f"{result['arm']:<12}{result['seed']:>5}{result['n_tasks']:>5}{last['completions']:>8}{last['alone']:>8.3f}"
            f"{last['learned']:>8.3f}{last['difference']:>+8.3f}  [{last['low']:+.3f}, {last['high']:+.3f}]  {last['p_value']:.3f}  {share:.1%}"
        )
    for arm in dict.fromkeys(r["arm"] for r in finished):
        for row in over_seeds([r for r in finished if r["arm"] == arm]):
            print(
                f"{arm:<12} all {row['tasks']:>5}{row['completions']:>8}{row['alone']:>8.3f}{row['learned']:>8.3f}"
                f"{row['difference']:>+8.3f}  [{row['low']:+.3f}, {row['high']:+.3f}]  flip p {row['p_flip']:.3f}"
            )


if __name__ == "__main__":
    sys.exit(main())
