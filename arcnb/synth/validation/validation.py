"""Validation of generated tasks: a task is as good as its program.

    report = TaskReport()
    with Executor(shared=True) as executor:
        tasks = list(validated(candidates, executor, report))
    report  # accepted, and rejected by reason

What is asked of a task, in this order, with the reason that a rejection is counted under:

* the program passes the static checks (`hint: <rule>`) and is short enough (`too long`);
* it runs in the sandbox on every input (the executor's status: `error`, `timeout`, `invalid_output`, ...),
  and in two processes with different hash seeds alike (`nondeterministic`);
* the recorded outputs are what it produces (`wrong output`);
* some output differs from its input (`identity`), and not all outputs are equal (`constant`);
* it is no duplicate of an accepted task: same program (`duplicate program`) or another program that does the
  same on a fixed set of grids (`duplicate behaviour`).

Tasks stream through in order, so the outcome depends on the tasks and their order alone.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from arcnb.arc.grids import all_equal, same_grids
from arcnb.arc.tasks.task import Task
from arcnb.programs.checks import static_checks
from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Execution, Job, Limits
from arcnb.synth.validation.duplicates import (
    Duplicates,
    behaviour,
    behaviour_job,
    recorded_outputs,
)
from arcnb.synth.validation.reports import TaskReport

BLOCK = 512  # tasks in flight together; larger blocks keep more workers busy at their ends
MAX_TOKENS = 1024  # of a program, by `approximate_tokens`
LIMITS = Limits(seconds=2.0)


def approximate_tokens(program: str) -> int:
    """Words, digits, symbols and line ends: within about 20% of a model's tokenizer on such programs."""
    return len(re.findall(r"[A-Za-z]+|\d|[^\sA-Za-z\d]+|\n", program))


def validated(
    tasks: Iterable[Task],
    executor: Executor,
    report: TaskReport,
    first_run_here: bool = False,
    block_size: int = BLOCK,
) -> Iterator[Task]:
    """The tasks that pass, in the order they came; each has a program and all outputs.

    first_run_here: the outputs were made by running the program in this process, whose hash seed is not the
    sandbox's; the sandbox's run is then the second one of the determinism check, at a third of the cost.
    block_size: candidates in flight together; for a few tasks a smaller one draws fewer in vain.
    """
    seen = Duplicates()
    limits = replace(LIMITS, check_determinism=not first_run_here)
    source = iter(tasks)
    while block := list(islice(source, block_size)):
        read = [task for task in block if _passes_reading(task, report, seen)]
        yield from _passing(read, executor, limits, report, seen)


def origin(task: Task) -> str:
    """What the report counts the task under: its generator, the file of a BARC-style row, or its source."""
    return str(task.meta.get("generator") or task.meta.get("file") or task.source)


def _passes_reading(task: Task, report: TaskReport, seen: Duplicates) -> bool:
    reason = _fault_of_text(task.program, seen)
    if reason is not None:
        report.reject(reason, origin(task))
    return reason is None


def _fault_of_text(program: str, seen: Duplicates) -> str | None:
    """What can be said without running the program."""
    if seen.has_text(program):
        return "duplicate program"
    if hints := static_checks(program):
        return f"hint: {hints[0].rule}"
    if approximate_tokens(program) > MAX_TOKENS:
        return "too long"
    return "duplicate program" if seen.has(program) else None


def _passing(
    tasks: list[Task], executor: Executor, limits: Limits, report: TaskReport, seen: Duplicates
) -> Iterator[Task]:
    jobs = (
        job
        for task in tasks
        for job in (Job(task.program, tuple(task.inputs), limits), behaviour_job(task.program, LIMITS))
    )
    executions = executor.run(jobs)
    faults: list[str | None] = []
    passed: list[tuple[Task, str | None]] = []
    for task in tasks:
        execution, probed = next(executions), next(executions)
        faults.append(_fault(task, execution))
        if faults[-1] is None:
            passed.append((task, behaviour(probed)))
    repeated = iter(seen.reasons(passed, executor, LIMITS))
    # Counted as they are taken, so that a report at any moment speaks of what was asked for by then.
    for task, fault in zip(tasks, faults, strict=True):
        if reason := fault or next(repeated):
            report.reject(reason, origin(task))
        else:
            report.accept(origin(task))
            yield task


def _fault(task: Task, execution: Execution) -> str | None:
    """What speaks against the task, by what its program did on its inputs."""
    outputs = execution.outputs
    if outputs is None:
        return execution.status
    if not same_grids(outputs, recorded_outputs(task)):
        return "wrong output"
    if same_grids(outputs, tuple(task.inputs)):
        return "identity"
    return "constant" if all_equal(outputs) else None
