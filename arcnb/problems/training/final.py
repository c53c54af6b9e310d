"""What notebook 09 does around the training: check the problems, evaluate the trained model, show answers."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.errors import ArcnbError
from arcnb.models.sampling.backends import EngineOptions, Sampling, open_backend
from arcnb.problems.grading import check_solutions
from arcnb.problems.languages.registry import Languages
from arcnb.problems.plan import ProblemPlan
from arcnb.problems.sets.files import ProblemSet
from arcnb.problems.sets.problem import Problem
from arcnb.problems.training.sample_evaluation import Evaluation, evaluate
from arcnb.programs.executor.executor import Executor

if TYPE_CHECKING:
    import pandas as pd


def checked(plan: ProblemPlan, training: ProblemSet, evaluation: ProblemSet) -> str:
    """Run all reference solutions; one sentence. ArcnbError names the first problem whose solution fails,
    and a problem that stands in both sets."""
    shared = {problem.fingerprint for problem in training} & {problem.fingerprint for problem in evaluation}
    for problem in evaluation:
        if problem.fingerprint in shared:
            raise ArcnbError(f"problem {problem.problem_id} is in both the training and the evaluation set")
    with Executor(plan.workers or None, plan.subject.limits) as executor, Languages(executor) as languages:
        n = check_solutions([*training, *evaluation], languages)
        used = sorted({problem.language for problem in [*training, *evaluation]})
        judges = "; ".join(languages[name].described for name in used)
    total = len(training) + len(evaluation)
    return f"{n} of {total} problems have a solution, and all pass. Judged by: {judges}"


def summary(**sets: ProblemSet) -> pd.DataFrame:
    """One row a set: problems by language, tests, assertions left out, problems passed over, difficulties."""
    import pandas as pd

    rows = {
        name: {
            "problems": len(problems),
            "languages": ", ".join(sorted({problem.language for problem in problems})),
            "tests": sum(len(problem.tests) for problem in problems),
            "assertions left out": sum(problem.left_out for problem in problems),
            "passed over": len(problems.passed_over),
            "difficulty": ", ".join(f"{k or '-'}: {n}" for k, n in sorted(_levels(problems).items())),
        }
        for name, problems in sets.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def _levels(problems: Sequence[Problem]) -> Counter:
    return Counter(problem.difficulty for problem in problems)


def evaluate_model(
    plan: ProblemPlan, problems: Sequence[Problem], adapter: Path | None, step: int = 0
) -> Evaluation:
    """The plan's number of samples of every problem; leaves `evaluation/` and `evaluation.json`.

    step: of the training, after which this adapter was saved.
    """
    sampling = Sampling(temperature=plan.trl["temperature"], max_tokens=plan.trl["max_completion_length"])
    options = EngineOptions(max_model_len=plan.max_length or None)
    with (
        Executor(plan.workers or None, plan.subject.limits) as executor,
        open_backend(plan.backend, plan.model, adapter, options) as engine,
    ):
        result = evaluate(
            problems,
            engine,
            plan.subject.prompt_format,
            plan.subject.judge(executor),
            Path(plan.output) / "evaluation",
            plan.n_predictions,
            sampling,
            plan.seed,
            {"model": plan.model, "adapter": str(adapter or "")},
            step,
        )
    result.write(Path(plan.output) / "evaluation.json")
    return result


class Examples(list):
    """(problem, prediction) that draw themselves in a notebook."""

    def _repr_html_(self) -> str:
        cards = []
        for problem, prediction in self:
            said = (
                prediction.error_message
                or f"{prediction.train_correct_grids or 0:.0%} of the first tests passed"
            )
            head = f"{prediction.id} · {prediction.status} · {prediction.extraction} · {said}"
            cards.append(
                f"<p><b>{html.escape(head)}</b><br>{html.escape(problem.description[:300])}</p>"
                f"<pre>{html.escape(prediction.completion[:1500])}</pre>"
            )
        return "".join(cards)


def examples(predictions: PredictionSet, problems: Sequence[Problem], n: int = 4) -> Examples:
    """Answers worth reading: of right and of wrong ones the first, each of another problem."""
    by_id = {problem.problem_id: problem for problem in problems}
    right, wrong, seen = [], [], set()
    for prediction in predictions.iter_predictions():
        if prediction.task_id not in seen:
            solved = prediction.train_is_correct and prediction.test_is_correct
            chosen = right if solved else wrong
            if len(chosen) < n // 2:
                chosen.append((by_id[prediction.task_id], prediction))
                seen.add(prediction.task_id)
    return Examples([*right, *wrong])
