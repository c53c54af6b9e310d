"""Judging predictions of problems: from the completion to shares of tests passed on the prediction record.

The record is the one of ARC (arcnb.arc.predictions.prediction), so tables, pass@k and reports are the same.
Its columns mean: train_*: the first `max_tests` tests, which the reward sees; test_*: all others (None where
they were not run; in an evaluation of all tests the same as train_* where there are no others). correct_grids
and pixel_score are shares of tests passed, is_correct all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from arcnb.arc.predictions.prediction import Prediction
from arcnb.errors import ArcnbError
from arcnb.problems.answers import Reading, read_answer
from arcnb.problems.languages.language import TestResult, Trial
from arcnb.problems.languages.registry import Languages
from arcnb.problems.sets.problem import Problem
from arcnb.programs.judging import MAX_MESSAGE
from arcnb.programs.wire import MAX_TYPE, printable


@dataclass
class ProblemJudge:
    """languages: who runs programs. max_tests: of the reward, per problem. answer_format: see answers."""

    languages: Languages
    max_tests: int = 3
    answer_format: str = "plain"

    def judge(
        self, predictions: Iterable[Prediction], problems: Mapping[str, Problem], all_tests: bool = False
    ) -> Iterator[Prediction]:
        """A judged copy of each prediction, in order. all_tests: also those that the reward does not see."""
        predictions = list(predictions)
        readings = [self._read(prediction, problems) for prediction in predictions]
        n_tests = None if all_tests else self.max_tests
        asked = [problems[prediction.task_id] for prediction in predictions]
        trials = [
            Trial(reading.found.program, problem, problem.tests[:n_tests])
            for reading, problem in zip(readings, asked, strict=True)
        ]
        for prediction, reading, results in zip(
            predictions, readings, self.languages.run(trials), strict=True
        ):
            yield self._judged(prediction, reading, results, all_tests)

    def _judged(
        self, prediction: Prediction, reading: Reading, answers: Sequence[TestResult], all_tests: bool
    ) -> Prediction:
        """The prediction with what became of it."""
        bad = next((answer for answer in answers if answer.status != "ok"), None)
        seen, others = answers[: self.max_tests], answers[self.max_tests :]
        others = others or (seen if all_tests else ())
        fingerprint = None
        if bad is None:
            fingerprint = hashlib.sha256("\0".join(answer.shown for answer in answers).encode()).hexdigest()
        message = bad and (bad.error_message if reading.found.program is not None else reading.found.reason)
        return replace(
            prediction,
            program=reading.found.program,
            extraction=reading.note,
            status=bad.status if bad else "ok",
            error_type=bad and bad.error_type and printable(bad.error_type, MAX_TYPE),
            error_message=message and printable(message, MAX_MESSAGE),
            error_line=bad and bad.line,
            fingerprint=fingerprint,
            seconds=sum(answer.seconds for answer in answers),
            **_shares("train", seen),
            **_shares("test", others),
        )

    def _read(self, prediction: Prediction, problems: Mapping[str, Problem]) -> Reading:
        if prediction.task_id not in problems:
            raise ArcnbError(f"prediction {prediction.id}: problem {prediction.task_id} is not at hand")
        problem = problems[prediction.task_id]
        return read_answer(
            prediction.completion_prefix + prediction.completion,
            problem,
            self.languages[problem.language],
            self.answer_format,
            prediction.finish_reason == "length",
        )


def _shares(part: str, answers: Sequence[TestResult]) -> dict:
    if not answers:
        return dict.fromkeys((f"{part}_pixel_score", f"{part}_correct_grids", f"{part}_is_correct"))
    share = sum(answer.passed for answer in answers) / len(answers)
    values = {f"{part}_pixel_score": share, f"{part}_correct_grids": share}
    return values | {f"{part}_is_correct": int(share == 1)}
