"""Answers worth reading, as cards of a notebook."""

from __future__ import annotations

import html
from collections.abc import Sequence

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.problems.sets.problem import Problem


class Examples(list):
    """(problem, prediction) that draw themselves in a notebook."""

    def _repr_html_(self) -> str:
        cards = []
        for problem, prediction in self:
            shares = (prediction.train_correct_grids or 0, prediction.test_correct_grids or 0)
            passed = "{:.0%} of the first tests passed, {:.0%} of the others".format(*shares)
            why = "" if prediction.solved else f": {prediction.error_message or passed}"
            head = f"{'Right' if prediction.solved else 'Wrong'}, {problem.problem_id}{why}"
            cards.append(
                f'<p style="white-space:pre-wrap"><b>{html.escape(head)}</b>\n'
                f"{html.escape(problem.description[:300])}</p>"
                '<pre style="white-space:pre-wrap; overflow-wrap:anywhere">'
                f"{html.escape((prediction.program or prediction.completion)[:1500])}</pre>"
            )
        return "".join(cards)


def examples(predictions: PredictionSet, problems: Sequence[Problem], n: int = 4) -> Examples:
    """Answers to these problems after the last step that are worth reading: of right and of wrong ones the
    first, each of another problem."""
    by_id = {problem.problem_id: problem for problem in problems}
    answers = list(predictions.iter_predictions(by_id))  # a resumed run may have evaluated others before
    last = max((answer.round for answer in answers), default=0)
    right, wrong, seen = [], [], set()
    for prediction in answers:
        if prediction.round == last and prediction.task_id not in seen:
            chosen = right if prediction.solved else wrong
            if len(chosen) < n // 2:
                chosen.append((by_id[prediction.task_id], prediction))
                seen.add(prediction.task_id)
    return Examples([*right, *wrong])
