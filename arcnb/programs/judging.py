"""Judging predictions: from the completion to scores on the prediction record.

    with Executor() as executor:
        for prediction in judge(predictions, tasks, executor): print(prediction.status)

The program is taken out of assistant prefix + completion, run on the inputs as the prompt showed them
(augmented), and its outputs are brought back to the original frame, where they are compared with the
expected ones. That comparison happens here: expected outputs never go near the executor. Rewards, refinement
and search judge through `judge`. Inference, whose rows must not wait for slower programs before them, judges
through the same two steps, `Asked` before a program runs and `judged` after it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from arcnb.arc.predictions.prediction import Prediction, output_fingerprint
from arcnb.arc.scores.similarity import score
from arcnb.errors import ArcnbError
from arcnb.programs.executor.limits import Execution, Job
from arcnb.programs.extraction import Extraction, extract_program
from arcnb.programs.wire import printable

if TYPE_CHECKING:
    from arcnb.arc.augmentation import Augmentation
    from arcnb.arc.grids import Grid
    from arcnb.arc.tasks.task import Task
    from arcnb.programs.executor.executor import Executor

MAX_MESSAGE = 500  # characters of an error message that are kept
AUGMENTED_INPUTS = 256  # tasks whose augmented inputs are remembered: predictions of one prompt come together


def judge(
    predictions: Iterable[Prediction], tasks: Mapping[str, Task], executor: Executor
) -> Iterator[Prediction]:
    """Yield a judged copy of each prediction, in order, as results come in.

    The copy keeps everything that was asked and answered, the completion first of all, whatever went wrong;
    program, extraction, status, error, outputs, fingerprint, scores and times are set anew. Predictions may
    be an endless iterator: a bounded number of them is under way at a time. ArcnbError: a
    prediction of a task that is not among `tasks`.
    """
    waiting: deque[tuple[Prediction, Extraction]] = deque()
    asked = Asked(tasks)

    def jobs() -> Iterator[Job]:
        for prediction in predictions:
            found, job = asked.about(prediction)
            waiting.append((prediction, found))
            yield job

    for execution in executor.run(jobs(), ordered=True):
        prediction, found = waiting.popleft()
        yield judged(prediction, found, execution, tasks[prediction.task_id])


class Asked:
    """What the executor is asked about predictions: their programs, on the inputs that prompts showed."""

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        @lru_cache(AUGMENTED_INPUTS)
        def inputs(task_id: str, augmentation: Augmentation) -> tuple[Grid, ...]:
            return tuple(augmentation.apply(grid) for grid in tasks[task_id].inputs)

        self._tasks, self._inputs = tasks, inputs

    def about(self, prediction: Prediction) -> tuple[Extraction, Job]:
        """The program as it was found, and the job. ArcnbError: the prediction's task is not at hand."""
        if prediction.task_id not in self._tasks:
            raise ArcnbError(f"prediction {prediction.id}: task {prediction.task_id} is not at hand")
        completion = prediction.completion_prefix + prediction.completion
        found = extract_program(completion, truncated=prediction.finish_reason == "length")
        inputs = self._inputs(prediction.task_id, prediction.augmentation)
        return found, Job(found.program, inputs)


def judged(prediction: Prediction, found: Extraction, execution: Execution, task: Task) -> Prediction:
    """The prediction with what became of it: extraction, verdict, outputs in the original frame, scores."""
    outputs = fingerprint = None
    if execution.status == "ok":
        augmentation = prediction.augmentation
        outputs = [augmentation.invert(grid) for grid in execution.outputs]
        fingerprint = output_fingerprint(outputs)
    message = execution.error_message if found.program is not None else found.reason
    return replace(
        prediction,
        program=found.program,
        extraction=found.how if found.reason is None else f"{found.how}: {found.reason}",
        status=execution.status,
        error_type=execution.error_type,
        error_message=None if message is None else printable(message, MAX_MESSAGE),
        error_line=execution.error_line,
        outputs=outputs,
        fingerprint=fingerprint,
        seconds=round(execution.seconds, 4),  # what is below a tenth of a millisecond is chance
        cpu_seconds=round(execution.cpu_seconds, 4),
        **score(outputs, task),
    )


def run_program(program: str | None, task: Task, executor: Executor) -> Execution:
    """The verdict on one program, run on the task's train and then test inputs."""
    return executor.submit(Job(program, tuple(task.inputs))).result()
