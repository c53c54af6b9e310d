"""Reference solutions, which have to pass the tests of their own problems before a model is trained."""

from __future__ import annotations

from collections.abc import Iterable

from arcnb.errors import ArcnbError
from arcnb.problems.languages.language import Trial
from arcnb.problems.languages.registry import Languages
from arcnb.problems.plan import ProblemPlan
from arcnb.problems.sets.files import ProblemSet
from arcnb.problems.sets.generated import is_held_out
from arcnb.problems.sets.problem import Problem
from arcnb.programs.executor.executor import Executor

SHOWN = 200  # characters of a wrong value


def checked(plan: ProblemPlan, training: ProblemSet, evaluation: ProblemSet) -> str:
    """Run all reference solutions, where the plan wants that; one sentence. ArcnbError names a problem that
    stands in both sets, one of the eval split to train on, and the first problem whose solution fails."""
    trained = set(map(_question, training))
    for problem in evaluation:
        if _question(problem) in trained:
            raise ArcnbError(f"problem {problem.problem_id} is in both the training and the evaluation set")
    kept = [] if plan.train_on_held_out else [one.problem_id for one in training if is_held_out(one)]
    if kept:
        raise ArcnbError(
            f"tasks={plan.tasks}: {len(kept)} problems are of the eval split simple/held_out, first "
            f"{kept[0]}; nothing is trained on them unless train_on_held_out=True"
        )
    if not plan.tests.check_solutions:
        return "Reference solutions are not run: check_solutions is off"
    with Executor(plan.workers or None, plan.subject.limits) as executor, Languages(executor) as languages:
        n = check_solutions([*training, *evaluation], languages)
        used = sorted({problem.language for problem in [*training, *evaluation]})
        judges = "; ".join(languages[name].described for name in used)
    total = len(training) + len(evaluation)
    return f"{n} of {total} problems have a solution, and all pass. Judged by: {judges}"


def _question(problem: Problem) -> tuple[str, str, str]:
    """What makes two problems the same to who solves them, whatever their names and tests are."""
    return problem.description.strip(), problem.language, problem.entry_point


def check_solutions(problems: Iterable[Problem], languages: Languages) -> int:
    """Run every reference solution on all tests; how many there were. ArcnbError names the first problem
    whose solution fails, and the test, or whose expected values its language cannot read."""
    problems = list(problems)
    unsolved = [Trial(None, problem, ()) for problem in problems if problem.solution is None]
    languages.run(unsolved)  # nothing, but that q reads what the tests expect
    solved = [problem for problem in problems if problem.solution is not None]
    trials = [Trial(one.behind_preamble(one.solution), one, one.tests) for one in solved]
    for problem, results in zip(solved, languages.run(trials), strict=True):
        for number, (test, result) in enumerate(zip(problem.tests, results, strict=True)):
            if not result.passed:
                why = result.error_message or result.error_type
                got = result.shown[:SHOWN] if result.status == "ok" else f"{result.status}: {why}"
                raise ArcnbError(
                    f"{problem.source or 'problems'}: problem {problem.problem_id}: its own solution "
                    f"fails test {number} ({test.call or 'script'}): {got}"
                )
    return len(solved)
