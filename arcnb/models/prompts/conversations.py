"""Conversations of several turns, rebuilt from prediction records: what the model read before each answer.

    book = Conversations(tasks, prompt_format("arc_code"), executor)
    book.look_at(parents)                        # what failed programs do on the train pairs alone
    prompt = book.refining(parent, ancestors)    # the prompt of the next turn

The first turn is rebuilt exactly from the recorded view (augmentation, pair order, test input). Feedback is
in the frame that the model saw. It speaks of train pairs only: a program runs on train and test inputs
together, so a recorded failure may be one on a test input; programs that failed are therefore run again on
the shown train inputs, in the order shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from arcnb.arc.grids import Grid
from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.tasks.task import Task
from arcnb.errors import ArcnbError
from arcnb.models.prompts.feedback import ProgramError, build_refinement
from arcnb.models.prompts.format import PromptFormat
from arcnb.models.prompts.rendering import Prompt
from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Execution, Job
from arcnb.programs.syntax import lines_of


@dataclass(frozen=True)
class TrainOutcome:
    """What a program did on the train inputs, in the order and frame shown: outputs, or how it failed."""

    outputs: tuple[Grid, ...] | None = None
    error: ProgramError | None = None


class Conversations:
    """Prompts of second and later turns for predictions of `tasks`. Outcomes are computed once a program."""

    def __init__(self, tasks: Mapping[str, Task], prompt_format: PromptFormat, executor: Executor):
        self.tasks, self.prompt_format, self.executor = tasks, prompt_format, executor
        self._outcomes: dict[tuple, TrainOutcome] = {}

    def look_at(self, predictions: Iterable[Prediction]) -> None:
        """Run what failed among the predictions on the train inputs alone, all of it together."""
        missing = {_program_key(p): p for p in predictions if p.status != "ok" and p.program is not None}
        waiting = [(key, p) for key, p in missing.items() if key not in self._outcomes]
        jobs = (Job(p.program, self._train_inputs(p)) for _, p in waiting)
        for (key, prediction), execution in zip(waiting, self.executor.run(jobs, ordered=True), strict=True):
            self._outcomes[key] = _outcome(prediction, execution)

    def outcome(self, prediction: Prediction) -> TrainOutcome:
        """What the prediction's program did on the train pairs."""
        if prediction.status == "ok":
            view = prediction.view
            return TrainOutcome(
                tuple(view.augmentation.apply(prediction.outputs[i]) for i in view.pair_order)
            )
        if prediction.program is None:
            why = prediction.error_message or "there was no Python block"
            return TrainOutcome(error=ProgramError("no_code", why, status="no_code"))
        key = _program_key(prediction)
        if key not in self._outcomes:
            self.look_at([prediction])
        return self._outcomes[key]

    def right_on_train(self, prediction: Prediction) -> bool:
        """Whether every train pair comes out right, so that there is nothing to say."""
        outputs = self.outcome(prediction).outputs
        shown = prediction.view.apply(self.tasks[prediction.task_id])
        return outputs is not None and all(
            output.shape == pair.output.shape and (output == pair.output).all()
            for output, pair in zip(outputs, shown.train, strict=True)
        )

    def nothing_to_tell(self, prediction: Prediction) -> str:
        """Why feedback on the answer has nothing to say: right on the train pairs, or cut off; else ""."""
        if prediction.finish_reason == "length":
            return "cut off"
        right = prediction.train_is_correct or self.right_on_train(prediction)
        return "right on the train pairs" if right else ""

    def asked(self, prediction: Prediction, ancestors: Mapping[str, Prediction]) -> Prompt:
        """The prompt that the prediction answered. ancestors: id -> prediction, for turns above 0.

        ArcnbError when a parent is not among them.
        """
        if prediction.parent is None:
            return self.prompt_format.prompt(prediction.view.apply(self.tasks[prediction.task_id]))
        if prediction.parent not in ancestors:
            raise ArcnbError(
                f"prediction {prediction.id} refines {prediction.parent}, which no prediction set holds"
            )
        return self.refining(ancestors[prediction.parent], ancestors)

    def refining(self, prediction: Prediction, ancestors: Mapping[str, Prediction]) -> Prompt:
        """The prompt that asks to improve the prediction: all turns before it, its answer, and feedback."""
        outcome = self.outcome(prediction)
        return build_refinement(
            prediction.view.apply(self.tasks[prediction.task_id]),
            self.asked(prediction, ancestors),
            prediction.completion,
            outcome.outputs,
            outcome.error,
            template=self.prompt_format.refine_template,
            encoding=self.prompt_format.encoding,
        )

    def told(self, prediction: Prediction) -> Prompt:
        """What a teacher reads before the same first answer: its prompt, and feedback on it below.

        The answer itself is not there, or its own words would be likelier for being there to copy.
        """
        asked = self.asked(prediction, {})
        *before, question = asked.messages
        said = self.refining(prediction, {}).messages[-1]["content"]
        told = f"{question['content'].rstrip()}\n\nAn answer was tried before. {said.lstrip()}"
        return replace(asked, messages=(*before, question | {"content": told}))

    def _train_inputs(self, prediction: Prediction) -> tuple[Grid, ...]:
        shown = prediction.view.apply(self.tasks[prediction.task_id])
        return tuple(pair.input for pair in shown.train)


def _program_key(prediction: Prediction) -> tuple:
    order: Sequence[int] = prediction.pair_order
    return (prediction.task_id, prediction.augmentation, tuple(order), prediction.program)


def _outcome(prediction: Prediction, execution: Execution) -> TrainOutcome:
    if execution.status == "ok":
        return TrainOutcome(tuple(execution.outputs))
    lines = lines_of(prediction.program)
    line = execution.error_line
    source = lines[line - 1] if line and line <= len(lines) else ""
    return TrainOutcome(
        error=ProgramError(
            execution.error_type or execution.status,
            execution.error_message or "",
            line,
            source,
            execution.status,
        )
    )
