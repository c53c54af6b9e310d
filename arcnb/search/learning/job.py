"""A search in this process or in several, one a GPU, which are given its plan as a file.

    plan = SearchPlan.of({"budget_tokens": 10_000, ...}).settled(Path("runs/x"))
    keep_tasks(plan, tasks)
    reports = run_shards(plan)           # in as many processes as the plan says

`python -m arcnb.search.learning.job PLAN.json SHARD END` is what each of several processes runs.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task_set import TaskSet, load_tasks, write_tasks
from arcnb.errors import ArcnbError, some
from arcnb.machine.files import write_whole
from arcnb.machine.gpus import visible_gpus
from arcnb.machine.processes import (
    death_cause,
    end_session,
    leave,
    out_of_memory_kills,
    start_session,
    usable_cores,
)
from arcnb.models.lora.compatibility import check_targets
from arcnb.models.merging import merged_model
from arcnb.models.registry import ModelPath, resolve_adapter, resolve_model
from arcnb.models.sampling.backends import open_backend
from arcnb.search.learning.budgets import Clock
from arcnb.search.learning.plan import LEARN, SearchPlan
from arcnb.search.learning.search_and_learn import SearchAndLearn
from arcnb.search.learning.submission_file import SubmissionFile

GRACE = 60  # seconds that processes get to write down what they have when the caller is stopped
# For what comes after the last completion (judging, the submission, the notebook's tables, its page).
RESERVE, RESERVE_SECONDS = 0.02, 60.0  # of the time budget; but so many seconds, or a quarter of a short one


def task_file(plan: SearchPlan) -> Path:
    """Where the tasks of a settled plan lie."""
    return Path(plan.output) / "tasks.parquet"


def keep_tasks(plan: SearchPlan, tasks: TaskSet) -> None:
    """Write the tasks of a settled plan to its `task_file`. ArcnbError where the search was begun with
    others: its groups, and with them its adapters, are known by the order of the tasks."""
    path = task_file(plan)
    if not path.exists():
        write_tasks(tasks, path)
        return
    begun = load_tasks(path)
    if [(one.task_id, one.fingerprint) for one in begun] != [(one.task_id, one.fingerprint) for one in tasks]:
        raise ArcnbError(
            f"the search in {plan.output} was begun with the tasks {some(begun.ids)}; use a new output "
            "for others"
        )


def arm_predictions(plan: SearchPlan, arm: str) -> PredictionSet:
    """The prediction set of an arm."""
    return PredictionSet(Path(plan.output) / arm / "predictions")


def last_moment(hours: float, spent: float = 0.0) -> float:
    """When a search has to end (by the monotonic clock, which the processes of a machine share and nobody
    sets) for its run to end within so many hours, of which `spent` seconds are over; infinity for 0 hours."""
    budget = 3600 * hours
    reserve = max(RESERVE * budget, min(RESERVE_SECONDS, budget / 4))
    return time.monotonic() + budget - spent - reserve if hours else float("inf")


def run_search(
    plan: SearchPlan, announce=print, shard: tuple[int, int] = (0, 1), end: float = float("inf")
) -> dict[str, dict]:
    """Do all arms of a settled plan here, on shard i of n of its tasks; {arm: outcome of its report}.

    end: its `last_moment`. Goes on where an earlier start was stopped.
    """
    started = time.monotonic()
    clock = Clock(end - time.monotonic())
    tasks, arms = load_tasks(task_file(plan)), plan.searches
    submission = open_submission(plan, tasks)  # before anything that can fail
    base = base_model(plan.model, plan.adapter)
    room = {}
    if LEARN in arms:
        check_targets(plan.lora.target_modules, base.folder, base.name)
        n_adapters = min(plan.engine.adapters_at_once, len(plan.groups(tasks)))
        room = {"max_lora_rank": plan.lora.r, "max_loras": n_adapters}
    options = plan.engine.options(log=Path(plan.output, f"engine{shard[0]}.log"), **room)
    backend = usable_backend(plan.backend)
    reports = {}
    with (
        plan.programs.executor() as executor,
        open_backend(backend, base, None, options, announce) as engine,
    ):
        opened = time.monotonic() - started
        for arm in arms:
            search = SearchAndLearn(
                tasks,
                engine,
                executor,
                Path(plan.output) / arm,
                plan,
                base=base if arm == LEARN else None,
                shard=shard,
                clock=clock,
                submission=submission if arm == arms[-1] else None,
                shared=arm_predictions(plan, arms[0]) if arm != arms[0] else None,
                announce=announce,
            )
            search.report.add_engine(opened)
            report = search.run()
            announce(f"{arm}: {report}")
            reports[arm] = report.outcome()
            opened = 0.0
    return reports


def open_submission(plan: SearchPlan, tasks: TaskSet) -> SubmissionFile | None:
    """The submission file, kept up to date with the last arm and valid from now on; None if none is asked
    for."""
    if not plan.submission:
        return None
    last = arm_predictions(plan, plan.searches[-1])
    return SubmissionFile(Path(plan.submission_file), tasks, last, plan.submission_rule)


def base_model(model: str, adapter: str) -> ModelPath:
    """The model to search with: the named one with the adapter, if any, folded into its weights."""
    resolved = resolve_model(model)
    folder = resolve_adapter(adapter, resolved)
    return merged_model(resolved, folder) if folder else resolved


def usable_backend(name: str) -> str:
    """ "auto" is transformers without a GPU: vLLM on a CPU is several times slower with an adapter."""
    return "transformers" if name == "auto" and not visible_gpus() else name


def run_shards(plan: SearchPlan, spent: float = 0.0) -> dict[str, dict]:
    """Run a settled plan in its processes, one shard each; {"arm shard": outcome}. All write into the same
    sets. spent: seconds of the time budget that are over.

    What they print goes to `process0.log` and so on in the output folder, what vLLM prints to `engine0.log`.
    When the caller is interrupted or killed, so are they, and get time to write what they have. ArcnbError,
    with a process's last words, or with the signal that ended it, when one fails (the others finish first),
    and when nothing at all was made.
    """
    processes = _processes(plan)
    end = last_moment(plan.time_budget_hours, spent)
    outcomes = run_search(plan, end=end) if processes == 1 else _in_processes(plan, processes, end)
    for arm in plan.searches:
        if not len(arm_predictions(plan, arm)):
            raise ArcnbError(f"search {arm!r} made nothing: {_why_nothing(plan, outcomes)}")
    return outcomes


def _processes(plan: SearchPlan) -> int:
    """As many as the plan says, else one a GPU; but no more than tasks, as each loads the model.

    A search that has steps of so many shards goes on in them, though some are empty: its adapters are theirs.
    """
    asked = plan.num_processes or max(1, len(visible_gpus()))
    begun = any(Path(plan.output).glob(f"*/steps-shard*-of-{asked:02d}.jsonl"))
    return asked if begun else min(asked, len(load_tasks(task_file(plan))))


def _why_nothing(plan: SearchPlan, outcomes: dict[str, dict]) -> str:
    if any(outcome["out_of_time"] for outcome in outcomes.values()):
        return f"its time, {3600 * plan.time_budget_hours:,.0f} s, was up before the first completion"
    longest = max((n for outcome in outcomes.values() for n in outcome["too_long"].values()), default=0)
    context = f"a context of {plan.engine.max_length:,}" if plan.engine.max_length else "the model's context"
    return (
        f"prompts of up to {longest:,} tokens and answers of {plan.sampling.max_completion_length:,} do not "
        f"fit {context}"
    )


def _in_processes(plan: SearchPlan, processes: int, end: float) -> dict[str, dict]:
    folder = Path(plan.output)
    open_submission(plan, load_tasks(task_file(plan)))
    base_model(plan.model, plan.adapter)  # made once, not by all of them at the same time
    path = folder / "plan.json"
    # Programs of all processes together take the workers of the plan: one a core each would slow all down.
    workers = max(1, (plan.programs.workers or usable_cores()) // processes)
    shared = replace(plan, programs=replace(plan.programs, workers=workers))
    write_whole(path, json.dumps(shared.values(), indent=1))
    running, oom_kills = [], out_of_memory_kills()
    try:
        for shard in range(processes):
            command = [sys.executable, "-P", "-m", "arcnb.search.learning.job"]
            command += [str(path), f"{shard}/{processes}", str(end)]
            running.append(start_process(command, folder / f"process{shard}.log"))
        codes = [process.wait() for process in running]
    finally:
        _end(running)
    failed = [shard for shard, code in enumerate(codes) if code]
    if failed:
        code, log = codes[failed[0]], folder / f"process{failed[0]}.log"
        words = (log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
        why = f"said: {words}" if code > 0 else f"was {death_cause(code, out_of_memory_kills() - oom_kills)}"
        raise ArcnbError(f"{len(failed)} of {processes} processes failed; the first {why} (see {log})")
    outcomes = {}
    for shard in range(processes):
        for arm, outcome in json.loads((folder / f"reports{shard}.json").read_text()).items():
            outcomes[f"{arm} {shard}"] = outcome
    return outcomes


def start_process(command: Sequence[str], log: Path) -> subprocess.Popen:
    """Start a process that prints into the log, and is interrupted when this one ends, even killed."""
    with open(log, "ab") as file:
        return start_session(command, signal.SIGINT, stdout=file, stderr=file)


def _end(running: Sequence[subprocess.Popen]) -> None:
    """Interrupt those that still run, as Ctrl-C would; kill what has not ended after GRACE seconds."""
    for process in running:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
    end = time.monotonic() + GRACE
    for process in running:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.1, end - time.monotonic()))
        end_session(process, 0)


def interrupted(number: int, frame) -> None:
    """Handler of SIGINT: raises KeyboardInterrupt, and ends the process where a library swallows that."""
    signal.alarm(GRACE)
    signal.default_int_handler(number, frame)


def _main(path: Path, shard: str, end: str) -> None:
    signal.signal(signal.SIGINT, interrupted)
    index, count = map(int, shard.split("/"))
    plan = SearchPlan.of(json.loads(path.read_text()))
    reports = run_search(plan, lambda line: print(line, flush=True), (index, count), float(end))
    write_whole(Path(plan.output) / f"reports{index}.json", json.dumps(reports, default=str))


if __name__ == "__main__":
    _main(Path(sys.argv[1]), *sys.argv[2:])
    leave()
