"""Experiments of search and learn on one or several GPUs (or, with --tiny, a rehearsal on a CPU).

    python bench/experiments/search_and_learn.py --out DIR --seconds 540
    ... --arms toy:3,arc128,arc512,eval128,eval512,arc128task    # in this order by default; ARM:3 is three seeds of it
    ... --part 0/4                                       # a share of the pairs, beside 1/4, 2/4 and 3/4
    ... --kv-gb 6 --memory-fraction 0.3                  # beside other processes on the GPU
    ... --table                                          # of whatever DIR holds, also of a copy
    ... --tiny                                           # CPU, minutes

Pair after pair of an arm and a seed, search alone and then search and learn of each. Every one is resumable: work lies in
--work, small results (JSON) in --out; call again until it prints "all done". Exit status: 0 all done, 75
the time was up, 1 something failed.

--part i/n takes a share of the pairs, so that n processes, each with its GPU, do the whole with the same --out and --work:
    for i in 0 1 2 3; do CUDA_VISIBLE_DEVICES=$i python .../search_and_learn.py --out DIR --part $i/4 & done; wait
Several may share a GPU (engine and trainer of a process take turns): planned for four: --kv-gb 6 --memory-fraction 0.16.
--out gets counts-ARM-seedN-SIDE.json after every round, pair-ARM-seedN.json when both sides are
done, and the table, made anew by whichever process has finished something.

Minutes on one H200 with 22 cores, six processes at a time, alone and learning (docs/log.md, one run; in brackets what did not come
to its end, counted on from its rounds); alone on a GPU sampling is about three times as fast, and a training too:
  engine, base         0.5 an engine and family; the toy base 2.5 once, cold start included
  toy                  0.8 and 1.9 a seed: 13 tasks x 192 completions, 8 rounds of learning
  arc128               2.8 and 7.6 a seed: 80 x 128 completions, three trainings of up to 1,920 rows of 1,330 tokens
  arc512               10 and (17); eval128 5 and (15), 200 tasks; eval512 6 and (14), 60 tasks
GPU memory (estimates): engine 16 GB of cache and 4 more; learning 14 GB for 16,384 tokens in a forward pass and 2 for
logits and weights; rows of up to 4,096 tokens. A step that does not fit is done again in halves.
"""

import argparse
import fcntl
import json
import os
import sys
import time
import traceback
from contextlib import contextmanager
from pathlib import Path

from one_gpu import cap_memory, small_engine
from search_arms import ARMS, arc_base, plan_of, tasks_of, toy_base
from search_table import table
from solved_counts import READ, cells_of, write_json

START = time.monotonic()
MINUTES = {
    "toy": 2.7,
    "arc128": 10.4,
    "arc512": 27.0,
    "eval128": 20.0,
    "eval512": 20.0,
    "arc128task": 15.0,
}  # of a pair, for shares
OPENING = {True: 1.5, False: 0.8}  # of an engine, with the toy base or not
FAILED, TIME_UP = 1, 75


class LearnedNothing(RuntimeError):
    """A learning side without a single adapter: no result, and to be done anew."""


def arguments(given=None):
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--work", type=Path, default=Path("/tmp/search_learn_work"))
    p.add_argument("--seconds", type=float, default=540)
    p.add_argument("--arms", default=",".join(f"{arm}:{seeds}" for arm, seeds in ARMS.items()))
    p.add_argument("--part", default="0/1", help="i/n: the i-th of n shares of the pairs")
    p.add_argument("--table", action="store_true", help="print the table of what DIR holds, no more")
    p.add_argument("--lr", type=float, default=2e-4)
    p.add_argument("--toy-lr", type=float, default=3e-4)
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--per-task", type=int, default=12, help="programs learned from, a round")
    p.add_argument("--per-round", type=int, default=32)
    p.add_argument(
        "--tag", default="", help="suffix of the learning arms, for another setting beside the first"
    )
    p.add_argument("--toy-steps", type=int, default=200)
    p.add_argument("--batch-tokens", type=int, default=16384, help="in a forward pass; 0.7 MB each")
    p.add_argument("--kv-gb", type=float, default=16.0, help="of vLLM's cache; 0: as --share says")
    p.add_argument("--share", type=float, default=0.06, help="gpu_memory_utilization")
    p.add_argument("--engine", choices=["graphs", "eager", "default"], default="graphs")
    p.add_argument(
        "--memory-fraction", type=float, default=0.0, help="of the GPU for training, at most; 0: no cap"
    )
    p.add_argument("--max-loras", type=int, default=16, help="adapters in one batch; 1 if vLLM objects")
    p.add_argument("--tiny", action="store_true")
    p.add_argument(
        "--workers", type=int, default=0, help="programs at the same time; 0: the part's share of the cores"
    )
    args = p.parse_args(given)
    args.part = tuple(map(int, args.part.split("/")))
    if len(args.part) != 2 or not 0 <= args.part[0] < args.part[1]:
        p.error("--part is i/n with 0 <= i < n")
    named = dict(arm.partition(":")[::2] for arm in args.arms.split(","))
    if unknown := set(named) - set(ARMS):
        p.error(f"there is no arm {', '.join(sorted(unknown))}; there are {', '.join(ARMS)}")
    try:
        args.arms = {arm: int(seeds or ARMS[arm]) for arm, seeds in named.items()}
    except ValueError:
        p.error(f"--arms {args.arms}: after a colon stands a number of seeds")
    return args


def left(args):
    return args.seconds - (time.monotonic() - START)


def side_name(args, learn):
    return f"learn{args.tag}" if learn else "alone"


def report_of(args, arm, seed, learn):
    """The file that a finished side leaves."""
    return args.work / f"{arm}-seed{seed}" / side_name(args, learn) / "report.json"


def pair_is_done(args, arm, seed):
    return report_of(args, arm, seed, False).exists() and report_of(args, arm, seed, True).exists()


def run_side(args, arm, seed, learn, engine, executor, base, opened=0.0):
    """Do or finish one side of an arm; False when the time was up. LearnedNothing puts its folder aside."""
    from arcnb.search.learning.budgets import Clock
    from arcnb.search.learning.search_and_learn import SearchAndLearn

    # per-task adapters and other settings share their search alone with the arm of all tasks
    alone = alone_of(args, arm, seed)
    done = report_of(args, arm, seed, learn)
    if done.exists():
        return True
    print(
        f"-- {arm} seed {seed} {side_name(args, learn)} begins at {time.monotonic() - START:.0f} s",
        flush=True,
    )
    seconds = left(args) - 25
    if seconds < 20:
        return False
    search = SearchAndLearn(
        tasks_of(args, arm, seed),
        engine,
        executor,
        done.parent,
        plan_of(args, arm, seed, base.name),
        base=base if learn else None,
        clock=Clock(seconds),
        shared=alone if learn else None,
        after_round=lambda round_: count(args, arm, seed, learn, search),
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
    write_json(done, report.outcome())
    count(args, arm, seed, learn, search)
    return True


def count(args, arm, seed, learn, search):
    """Write down what a side has so far, as a small file."""
    cells = cells_of(search.predictions.read(columns=READ), search.tasks)
    plan = search.plan
    facts = {
        "arm": f"{arm}/{side_name(args, learn)}",
        "seed": seed,
        "first": plan.rounds.first_round,
        "per_round": plan.rounds.per_round,
        "budget": plan.budget.n_predictions,
        "finished": report_of(args, arm, seed, learn).exists(),
        "ended": search.solved_tasks(),
        "cells": cells,
        "seconds_by_round": search.journal.seconds_by_round(),
        "start_share": search.report.start_share if report_of(args, arm, seed, learn).exists() else None,
        "learned": [line for line in search.journal.lines if line["step"] == "learn"][-8:],
    }
    write_json(args.out / f"counts-{arm}-seed{seed}-{side_name(args, learn)}.json", facts)


def seconds_table(report):
    """Seconds of every round."""
    rows = [f"   {'round':>5}{'sampling':>10}{'relabel':>10}{'learning':>10}{'start-up':>10}  s"]
    for row in report.by_round:
        number, *seconds = row.values()
        rows.append(f"   {number:>5}" + "".join(f"{value:>10.1f}" for value in seconds))
    return "\n".join(rows)


def compare(args, arm, seed):
    """Small results of both sides of one seed."""
    from arcnb.arc.predictions.prediction_set import PredictionSet
    from arcnb.search.comparing import searches as lc
    from arcnb.search.comparing.evaluation import TABLE_READ

    tasks, plan = tasks_of(args, arm, seed), plan_of(args, arm, seed)
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


def open_engine(args, base):
    """The engine that all arms of a family share."""
    from arcnb.models.sampling.backends import EngineOptions, open_backend

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


def pairs_of(args) -> list[tuple[str, int]]:
    """All (arm, seed), arm after arm."""
    return [(arm, seed) for arm, n in args.arms.items() for seed in range(1 if args.tiny else n)]


def share_of(pairs, part: tuple[int, int]) -> list[tuple[str, int]]:
    """The pairs of process i of n, in their order: the longest first, each to who would be done with it first. A pair
    of arc128task goes with that of arc128, whose search alone it takes over."""
    index, n = part
    riding = {pair for pair in pairs if pair[0] == "arc128task" and ("arc128", pair[1]) in pairs}
    minutes = {
        pair: MINUTES[pair[0]]
        + (MINUTES["arc128task"] if ("arc128task", pair[1]) in riding and pair[0] == "arc128" else 0)
        for pair in pairs
        if pair not in riding
    }
    work, families, owner = [0.0] * n, [set() for _ in range(n)], {}
    for pair in sorted(minutes, key=lambda pair: -minutes[pair]):
        toy = pair[0] == "toy"
        costs = [work[i] + minutes[pair] + (0 if toy in families[i] else OPENING[toy]) for i in range(n)]
        owner[pair] = chosen = costs.index(min(costs))
        work[chosen] = costs[chosen]
        families[chosen].add(toy)
    owner |= {pair: owner["arc128", pair[1]] for pair in riding}
    return [pair for pair in pairs if owner[pair] == index]


def main(given=None):
    """Do what is left; the exit status."""
    args = arguments(given)
    if args.table:
        print(table(args.out, args.tag))
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    args.work.mkdir(parents=True, exist_ok=True)
    if not args.tiny:
        cap_memory(args.memory_fraction)
        if args.kv_gb:
            small_engine(args.kv_gb, args.engine, max_num_seqs=512)  # before anyone imports vllm's LLM
    from arcnb.programs.executor.executor import Executor, Limits

    problems, pairs = [], share_of(pairs_of(args), args.part)
    cores = max(1, len(os.sched_getaffinity(0)) // args.part[1])
    with Executor(1 if args.tiny else args.workers or cores, Limits(seconds_per_input=1.0)) as executor:
        for toy in (True, False):  # two base models, so two engines
            of_family = [pair for pair in pairs if (pair[0] == "toy") is toy]
            collect(args, of_family, problems)
            todo = [pair for pair in of_family if not pair_is_done(args, *pair)]
            if todo and (args.tiny or left(args) >= 90):
                run_family(args, todo, executor, toy, problems)
    print(table(args.out, args.tag))
    used = f"({time.monotonic() - START:.0f} s used)"
    for problem in problems:
        print(f"failed: {problem}", file=sys.stderr)
    if problems:
        print(f"NOT all done: {len(problems)} failed {used}")
        return FAILED
    if not all(pair_is_done(args, *pair) for pair in pairs):
        print(f"NOT all done: call again {used}")
        return TIME_UP
    print("all done" if args.part[1] == 1 else f"all done of part {args.part[0]}/{args.part[1]}")
    return 0


@contextmanager
def one_at_a_time(args, family: str):
    """Parts begin at the same time and need the same base model: one makes it, the others wait and find it."""
    with open(args.work / f"{family}_base.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run_family(args, todo, executor, toy, problems):
    """Pair after pair on one engine. What fails is said, counted in `problems`, and left for another call."""
    engine = None
    try:
        with one_at_a_time(args, "toy" if toy else "arc"):
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
            collect(args, [(arm, seed)], problems)
    except Exception as error:
        traceback.print_exc()
        which = "toy" if toy else "ARC"
        problems.append(f"engine of the {which} arms: {type(error).__name__}: {error}")
    finally:
        if engine is not None:
            engine.close()


def collect(args, pairs, problems):
    """Compare the pairs that are done, each once, and make the table of all results so far."""
    for arm, seed in pairs:
        path = args.out / f"pair-{arm}-seed{seed}{args.tag}.json"
        if path.exists() or not pair_is_done(args, arm, seed):
            continue
        try:
            write_json(path, compare(args, arm, seed))
        except Exception as error:
            traceback.print_exc()
            problems.append(f"{arm} seed {seed}: comparing: {type(error).__name__}: {error}")
    table(args.out, args.tag)


def alone_of(args, arm, seed):
    """The set of search alone whose first round the learning side takes over; arc128task takes arc128's alone whole."""
    from arcnb.arc.predictions.prediction_set import PredictionSet

    folder = args.work / f"{arm}-seed{seed}" / "alone"
    other = args.work / f"arc128-seed{seed}" / "alone"
    if arm == "arc128task" and not folder.exists() and (other / "report.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(other, folder)
        counts = json.loads((args.out / f"counts-arc128-seed{seed}-alone.json").read_text())
        write_json(args.out / f"counts-{arm}-seed{seed}-alone.json", counts | {"arm": f"{arm}/alone"})
    return PredictionSet(folder / "predictions")


if __name__ == "__main__":
    sys.exit(main())
