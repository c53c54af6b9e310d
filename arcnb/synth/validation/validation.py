"""Validation of synthetic tasks: a task is as good as its program.

    report = TaskReport()
    with Executor() as executor:
        tasks = list(validated(candidates, executor, report=report))
    report  # accepted, and rejected by reason

What is asked of a task, in this order, with the reason that a rejection is counted under:

* the program parses (`syntax`), passes the static checks (`hint: <rule>`), is short enough (`too long`);
* it runs in the sandbox on every input (the executor's status: `error`, `timeout`, `invalid_output`, ...);
* recorded outputs are what it produces (`wrong output`); missing ones are filled in;
* some output differs from its input (`identity`), and not all outputs are equal (`constant`);
* lines without effect are removed, one at a time, each time judged on the program as it is by then;
* what is left passes all of this again, run twice, in processes with different hash seeds
  (`nondeterministic`);
* it is no duplicate of an accepted task: same program (`duplicate program`) or another program that does the
  same on a fixed set of grids (`duplicate behaviour`).

Tasks stream through in order, so the outcome depends on the tasks and their order alone.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np

from arcnb.arc.grids import Grid
from arcnb.arc.tasks.task import Pair, Task
from arcnb.programs.checks import static_checks
from arcnb.programs.executor.executor import Execution, Executor, Job, Limits
from arcnb.synth.validation.duplicates import (
    Duplicates,
    behaviour,
    behaviour_job,
    outputs_of,
    recorded_outputs,
    same_outputs,
)
from arcnb.synth.validation.reduction import removals
from arcnb.synth.validation.reports import TaskReport

BLOCK = 512  # tasks in flight together; larger blocks keep more workers busy at their ends


def approximate_tokens(program: str) -> int:
    """Words, digits, symbols and line ends: within about 20% of a model's tokenizer on such programs."""
    return len(re.findall(r"[A-Za-z]+|\d|[^\sA-Za-z\d]+|\n", program))


@dataclass(frozen=True)
class ValidationSettings:
    """What is asked of a task, and how hard to look.

    max_tokens: longest program, by `approximate_tokens`. max_per_program: accepted tasks that may share a
    program. check_determinism: run the final program twice. reduce: remove lines without effect. seconds:
    wall time of a program on all inputs.
    """

    max_tokens: int = 1024
    max_per_program: int = 1
    check_determinism: bool = True
    reduce: bool = True
    seconds: float = 2.0


def validated(
    tasks: Iterable[Task],
    executor: Executor,
    settings: ValidationSettings = ValidationSettings(),
    report: TaskReport | None = None,
    first_run_here: bool = False,
    block_size: int = BLOCK,
) -> Iterator[Task]:
    """The tasks that pass, reduced, with their outputs recomputed, in the order they came.

    first_run_here: recorded outputs were made by running the program in this process, whose hash seed is not
    the sandbox's; the sandbox's run is then the second one of the determinism check, at a third of the cost.
    block_size: candidates in flight together; for a few tasks a smaller one draws fewer in vain.
    """
    report = TaskReport() if report is None else report
    seen = Duplicates(settings.max_per_program)
    if first_run_here:
        settings = replace(settings, check_determinism=False)
    source = iter(tasks)
    while block := list(islice(source, block_size)):
        block = [task for task in block if _passes_reading(task, settings, report, seen)]
        if settings.reduce:
            block = _reduced(block, executor, settings, report)
        yield from _passing(block, executor, settings, report, seen)


def origin(task: Task) -> str:
    """What the report counts the task under: its generator, or its source."""
    return str(task.meta.get("generator") or task.source)


def _passes_reading(task: Task, settings: ValidationSettings, report: TaskReport, seen: Duplicates) -> bool:
    reason = _fault_of_text(task.program, settings, seen)
    if reason is not None:
        report.reject(reason, origin(task))
    return reason is None


def _fault_of_text(program: str | None, settings: ValidationSettings, seen: Duplicates) -> str | None:
    """What can be said without running the program."""
    if program is None:
        return "no program"
    if seen.is_known_full(program):
        return "duplicate program"
    hints = [hint.rule for hint in static_checks(program)]
    if hints:
        return "syntax" if "syntax" in hints else f"hint: {hints[0]}"
    if approximate_tokens(program) > settings.max_tokens:
        return "too long"
    # Known before running it; the reduced program is checked again.
    return "duplicate program" if seen.is_full(program) else None


def _reduced(
    tasks: list[Task], executor: Executor, settings: ValidationSettings, report: TaskReport
) -> list[Task]:
    """Each task with the lines removed that change no output; a task that fails is left for `_passing`."""
    limits = Limits(seconds=settings.seconds)
    current = list(tasks)
    waiting = {i: removals(task.program) for i, task in enumerate(tasks)}
    wanted = _recorded_or_run(tasks, executor, limits)
    while waiting:
        trials = {i: next(candidates, None) for i, candidates in waiting.items()}
        waiting = {
            i: waiting[i] for i, program in trials.items() if program is not None and wanted[i] is not None
        }
        jobs = [replace(current[i], program=trials[i]) for i in waiting]
        for i, outputs in zip(list(waiting), outputs_of(jobs, executor, limits), strict=True):
            if outputs is not None and same_outputs(outputs, wanted[i]):
                current[i] = replace(current[i], program=trials[i])
                waiting[i] = removals(trials[i])
                report.lines_removed += 1
    return current


def _recorded_or_run(tasks: list[Task], executor: Executor, limits: Limits) -> list[tuple[Grid, ...] | None]:
    """The outputs that a task's program should keep: the recorded ones where there are all of them."""
    recorded = [recorded_outputs(task) for task in tasks]
    missing = [i for i, outputs in enumerate(recorded) if any(output is None for output in outputs)]
    for i, outputs in zip(missing, outputs_of([tasks[i] for i in missing], executor, limits), strict=True):
        recorded[i] = outputs
    return recorded


def _passing(
    tasks: list[Task],
    executor: Executor,
    settings: ValidationSettings,
    report: TaskReport,
    seen: Duplicates,
) -> Iterator[Task]:
    once = Limits(seconds=settings.seconds)
    twice = replace(once, check_determinism=settings.check_determinism)
    jobs = (
        job
        for task in tasks
        for job in (Job(task.program, tuple(task.inputs), twice), behaviour_job(task.program, once))
    )
    executions = executor.run(jobs)
    outcomes: list[Task | str] = []
    passed: list[tuple[Task, str | None]] = []
    for task in tasks:
        execution, probed = next(executions), next(executions)
        outcomes.append(_checked(task, execution))
        if isinstance(outcomes[-1], Task):
            passed.append((outcomes[-1], behaviour(probed)))
    reasons = iter(seen.reasons(passed, executor, once))
    # Counted as they are taken, so that a report at any moment speaks of what was asked for by then.
    for task, outcome in zip(tasks, outcomes, strict=True):
        reason = outcome if isinstance(outcome, str) else next(reasons)
        if reason is not None:
            report.reject(reason, origin(task))
        else:
            report.accept(origin(task))
            yield outcome


def _checked(task: Task, execution: Execution) -> Task | str:
    """The task with the outputs that its program produced, or the reason against it."""
    if execution.outputs is None:
        return execution.status
    pairs = [*task.train, *task.test]
    filled = [Pair(pair.input, output) for pair, output in zip(pairs, execution.outputs, strict=True)]
    for pair, output in zip(pairs, execution.outputs, strict=True):
        if pair.output is not None and not np.array_equal(pair.output, output):
            return "wrong output"
    if all(np.array_equal(pair.input, pair.output) for pair in filled):
        return "identity"
    if all(np.array_equal(output, execution.outputs[0]) for output in execution.outputs):
        return "constant"
    n = len(task.train)
    return replace(task, train=tuple(filled[:n]), test=tuple(filled[n:]))
