"""A search as one object that a notebook fills in and that processes, one a GPU, can be given as a file.

    job = SearchJob(tasks="tasks.parquet", output="runs/x", plan=SearchPlan(...), ...)
    reports = job.run()                  # in this process
    reports = run_shards(job, 4)         # in four, each with a quarter of the tasks

`python -m arcnb.search.search_job JOB.json SHARD` is what each of several processes runs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from arcnb.arc.predictions import PredictionSet
from arcnb.arc.tasksets import TaskSet, load_tasks
from arcnb.models.generation import EngineOptions, Sampling, open_backend
from arcnb.models.gpu_memory import visible_gpus
from arcnb.models.merging import merged_model
from arcnb.models.prompt_format import prompt_format
from arcnb.models.registry import ModelPath, resolve_adapter, resolve_model
from arcnb.plans import PlanError
from arcnb.programs.executor import Executor, Limits
from arcnb.programs.service import usable_processors
from arcnb.search.budgets import Budget, Clock
from arcnb.search.hindsight import HindsightSettings
from arcnb.search.learner import LoraSettings, check_modules
from arcnb.search.learning_plan import SearchPlan
from arcnb.search.search_and_learn import SearchAndLearn
from arcnb.search.submission_file import SubmissionFile

__all__ = [
    "Budget", "EngineOptions", "HindsightSettings", "LoraSettings", "Sampling", "SearchJob", "SearchPlan",
    "base_model", "default_processes", "named_tasks", "run_shards",
]  # fmt: skip

ALONE, LEARN = "alone", "learn"  # arms: search alone, and search and learn
GRACE = 60  # seconds that processes get to write down what they have when the caller is stopped
RESERVE = 0.02  # of the time budget, for what comes after the last completion


@dataclass(frozen=True)
class SearchJob:
    """tasks: a file or source. output: folder that everything goes to, each arm in a folder of its own.

    adapter: LoRA that is folded into the model before anything else; what is learned comes on top. arms:
    which searches to run; the second begins with the first round of the first. submission: file to keep up to
    date with the last arm's attempts, "" for none. seconds: time budget of this start, all arms, 0 for none.
    """

    tasks: str
    output: str
    model: str = "default"
    adapter: str = "default"
    backend: str = "auto"
    template: str = "arc_code"
    encoding: str = ""
    arms: tuple[str, ...] = (ALONE, LEARN)
    submission: str = ""
    submission_rule: str = "train-score"
    seconds: float = 0.0
    workers: int = 0
    seconds_per_input: float = 1.0
    plan: SearchPlan = field(default_factory=SearchPlan)
    hindsight: HindsightSettings = field(default_factory=HindsightSettings)
    lora: LoraSettings = field(default_factory=LoraSettings)
    sampling: Sampling = field(default_factory=Sampling)
    engine: EngineOptions = field(default_factory=EngineOptions)

    def __post_init__(self):
        if not self.arms or not set(self.arms) <= {ALONE, LEARN}:
            raise PlanError(f"arms are {ALONE} and {LEARN}, not {', '.join(self.arms) or 'none'}")
        if self.seconds < 0:
            raise PlanError(f"the time budget must not be negative, it is {self.seconds} seconds")

    def predictions(self, arm: str) -> PredictionSet:
        """The prediction set of an arm."""
        return PredictionSet(Path(self.output) / arm / "predictions")

    def run(self, announce=print) -> dict[str, dict]:
        """Do all arms here; {arm: outcome of its report}. Goes on where an earlier start was stopped."""
        started = time.monotonic()
        clock, tasks = Clock(self.seconds * (1 - RESERVE)), load_tasks(self.tasks)
        submission = self.open_submission(tasks)  # before anything that can fail
        base = base_model(self.model, self.adapter)
        if LEARN in self.arms:
            check_modules(base, self.lora.modules)
        executor = Executor(self.workers or None, Limits(seconds_per_input=self.seconds_per_input))
        options = self.engine
        if LEARN in self.arms:
            n_groups = len(self.plan.groups(tasks))
            options = replace(
                options, max_lora_rank=self.lora.rank, max_loras=min(options.max_loras, n_groups)
            )
        reports = {}
        with executor, open_backend(usable_backend(self.backend), base, None, options, announce) as engine:
            opened = time.monotonic() - started
            for arm in self.arms:
                search = SearchAndLearn(
                    tasks,
                    engine,
                    executor,
                    Path(self.output) / arm,
                    replace(self.plan, learn=arm == LEARN),
                    prompt_format(self.template, self.encoding),
                    self.sampling,
                    self.hindsight,
                    base=base,
                    lora=self.lora,
                    model=self.model,
                    adapter=self.adapter,
                    clock=clock,
                    submission=submission if arm == self.arms[-1] else None,
                    shared=self.predictions(self.arms[0]) if arm != self.arms[0] else None,
                    announce=announce,
                )
                search.report.add_engine(opened)
                report = search.run()
                announce(f"{arm}: {report}")
                reports[arm] = report.outcome()
                opened = 0.0
        return reports

    def open_submission(self, tasks: TaskSet) -> SubmissionFile | None:
        """The submission file, valid from now on; None if none was asked for."""
        if not self.submission:
            return None
        return SubmissionFile(
            Path(self.submission), tasks, self.predictions(self.arms[-1]), self.submission_rule
        )


def named_tasks(tasks: TaskSet, task_ids: str, n_tasks: int = 0) -> TaskSet:
    """The tasks of these ids, separated by commas; without ids all of them. PlanError for an id that is not
    among them, and for ids beside a number of tasks, of which one would have no say."""
    ids = [name.strip() for name in task_ids.split(",") if name.strip()]
    if ids and n_tasks:
        raise PlanError(
            f'n_tasks is {n_tasks} and task_ids is "{task_ids}"; give task_ids "" to take n_tasks'
        )
    if unknown := [id_ for id_ in ids if id_ not in tasks.ids]:
        raise PlanError(f'{tasks.name} has no task {unknown[0]!r}; give task_ids "" to take all, or n_tasks')
    return tasks.subset(ids) if ids else tasks


def base_model(model: str, adapter: str) -> ModelPath:
    """The model to search with: the named one with the adapter, if any, folded into its weights."""
    resolved = resolve_model(model)
    folder = resolve_adapter(adapter, resolved)
    return merged_model(resolved, folder) if folder else resolved


def usable_backend(name: str) -> str:
    """ "auto" is transformers without a GPU: vLLM on a CPU is several times slower with an adapter."""
    return "transformers" if name == "auto" and not _n_gpus() else name


def default_processes(processes: int = 0) -> int:
    """As many processes as asked for; 0: one a GPU, or one. PlanError for less."""
    if processes < 0:
        raise PlanError(f"processes must not be negative, it is {processes}")
    return processes or max(1, _n_gpus())


def run_shards(job: SearchJob, processes: int, announce=print) -> dict[str, dict]:
    """Run the job in so many processes, one shard each; {"arm shard": outcome}. All write into the same sets.

    What they print goes to `process0.log` and so on in the output folder. When the caller is interrupted they
    are, too, and get time to write what they have; when it is killed they notice. PlanError, with a process's
    last words, when one fails (the others finish first), and when nothing at all was made.
    """
    outcomes = job.run(announce) if processes == 1 else _in_processes(job, processes)
    for arm in job.arms:
        if not len(job.predictions(arm)):
            raise PlanError(f"search {arm!r} made nothing: {_why_nothing(job, outcomes)}")
    return outcomes


def _why_nothing(job: SearchJob, outcomes: dict[str, dict]) -> str:
    if any(outcome["out_of_time"] for outcome in outcomes.values()):
        return f"its time, {job.seconds:,.0f} s, was up before the first completion"
    longest = max((n for outcome in outcomes.values() for n in outcome["too_long"].values()), default=0)
    context = (
        f"a context of {job.engine.max_model_len:,}" if job.engine.max_model_len else "the model's context"
    )
    return (
        f"prompts of up to {longest:,} tokens and answers of {job.sampling.max_tokens:,} do not fit {context}"
    )


def _in_processes(job: SearchJob, processes: int) -> dict[str, dict]:
    folder = Path(job.output)
    job.open_submission(load_tasks(job.tasks))
    base_model(job.model, job.adapter)  # made once, not by all of them at the same time
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "job.json"
    # Programs of all processes together take the workers of the job: one a core each would slow all down.
    job = replace(job, workers=max(1, (job.workers or usable_processors()) // processes))
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(job), indent=1))
    temporary.replace(path)
    running = []
    for shard in range(processes):
        log = open(folder / f"process{shard}.log", "ab")  # noqa: SIM115
        command = [sys.executable, "-m", "arcnb.search.search_job", str(path), f"{shard}/{processes}"]
        running.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
        log.close()
    try:
        codes = [process.wait() for process in running]
    except BaseException:
        _interrupt(running)
        raise
    failed = [shard for shard, code in enumerate(codes) if code]
    if failed:
        log = folder / f"process{failed[0]}.log"
        words = (log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"])[-1]
        raise PlanError(f"{len(failed)} of {processes} processes failed; the first said: {words} (see {log})")
    outcomes = {}
    for shard in range(processes):
        for arm, outcome in json.loads((folder / f"reports{shard}.json").read_text()).items():
            outcomes[f"{arm} {shard}"] = outcome
    return outcomes


def read_job(path: Path) -> SearchJob:
    """The job that `run_shards` wrote."""
    values = json.loads(path.read_text())
    kinds = {
        "hindsight": HindsightSettings,
        "lora": LoraSettings,
        "sampling": Sampling,
        "engine": EngineOptions,
    }
    parts = {name: kind(**_tuples(values.pop(name))) for name, kind in kinds.items()}
    plan = values.pop("plan")
    parts["plan"] = SearchPlan(Budget(**plan.pop("budget")), **_tuples(plan))
    return SearchJob(**_tuples(values), **parts)


def _tuples(values: dict) -> dict:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _n_gpus() -> int:
    return len(visible_gpus(os.environ.get("CUDA_VISIBLE_DEVICES")))


def _interrupt(running: Sequence[subprocess.Popen]) -> None:
    """As Ctrl-C would, to each; whoever has not ended after GRACE seconds is killed."""
    for process in running:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
    end = time.monotonic() + GRACE
    for process in running:
        try:
            process.wait(max(0.1, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _end_with(parent: int) -> None:
    """Interrupt this process when its parent is gone: two searches in one folder would do all twice."""
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(GRACE)
    os.kill(os.getpid(), signal.SIGKILL)


def _main(path: Path, shard: str) -> None:
    index, count = map(int, shard.split("/"))
    job = read_job(path)
    job = replace(job, plan=replace(job.plan, shard=(index, count)))
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    reports = job.run(lambda line: print(line, flush=True))
    target = Path(job.output) / f"reports{index}.json"
    temporary = target.with_suffix(".tmp")
    temporary.write_text(json.dumps(reports, default=str))
    temporary.replace(target)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), sys.argv[2])
