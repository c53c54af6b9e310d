"""Evaluating a model on problems: samples of each, all tests, unbiased pass@k with intervals.

result = evaluate_model(plan, problems, adapter, step)
result.table()
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.predictions.tables import other_versions
from arcnb.arc.scores.intervals import rate_text
from arcnb.arc.scores.pass_rates import pass_at_k_curve
from arcnb.arc.seeds import derive_seed
from arcnb.errors import ArcnbError, some
from arcnb.machine.files import make_folder, write_whole
from arcnb.machine.reading import read_object
from arcnb.models.lora.compatibility import WEIGHTS, weights_digest
from arcnb.models.registry import resolve_adapter, resolve_model
from arcnb.models.sampling.backends import EngineOptions, Request, Sampling, open_backend
from arcnb.problems.grading import ProblemJudge
from arcnb.problems.languages.registry import Languages
from arcnb.problems.plan import ProblemPlan
from arcnb.problems.sets.problem import Problem
from arcnb.problems.training.reward import parse_counts
from arcnb.programs.executor.executor import Executor
from arcnb.search.comparing.outcomes import outcomes

if TYPE_CHECKING:
    import pandas as pd

BLOCK = 64  # problems whose predictions are judged and written together
_MADE_WITH = "_conditions-round{:05d}.json"  # of a step; a run that goes back before it sets it aside, too


@dataclass
class Evaluation:
    """predictions: a prediction set, one prediction a sample, judged on all tests. problems: in order."""

    problems: Sequence[Problem]
    predictions: PredictionSet
    described: dict[str, str]
    step: int = 0

    def pass_at_k(self, difficulty: str | None = None) -> pd.DataFrame:
        """Columns k, mean, low, high (95%, bootstrap over problems), n_tasks, n_short."""
        ids = [p.problem_id for p in self.problems if difficulty is None or p.difficulty == difficulty]
        frame = self._frame()
        frame = frame[frame["task_id"].isin(ids)]
        return pass_at_k_curve(frame, task_ids=ids)

    def table(self) -> pd.DataFrame:
        """pass@1 by difficulty, one row each, and over all."""
        import pandas as pd

        levels = sorted({problem.difficulty for problem in self.problems})
        rows = []
        for level in [*(levels if len(levels) > 1 else []), None]:
            curve = self.pass_at_k(level)
            first, last = curve.iloc[0], curve.iloc[-1]
            rows.append(
                (level or "all", int(first.n_tasks), first["mean"], first.low, first.high, last["mean"])
            )
        names = ["difficulty", "problems", "pass@1", "low", "high", f"pass@{int(last.k)}"]
        return pd.DataFrame(rows, columns=names).set_index("difficulty")

    @property
    def headline(self) -> str:
        """pass@1 and pass@k of the most samples k, in one sentence."""
        curve = self.pass_at_k()
        rates = {
            f"pass@{row.k:g} {rate_text(row['mean'], row.low, row.high, '95% interval ')}": None
            for row in (curve.iloc[0], curve.iloc[-1])
        }
        return f"On all tests of {len(self.problems)} problems: {', '.join(rates)}."

    def _frame(self) -> pd.DataFrame:
        ids = [problem.problem_id for problem in self.problems]
        return self.predictions.read(task_ids=ids)[lambda rows: rows["round"] == self.step]

    def outcome(self, training: Mapping[str, Any] | None = None) -> dict:
        """Plain values for the run's manifest: solved `of` all problems, pass@1, pass@k, tokens, judges; and
        the values of the training before it, but for the pass@k of its few eval tasks."""
        frame = self._frame().assign(round=0)  # it says after which step, and all samples are alike
        ids = [problem.problem_id for problem in self.problems]
        table = {"pass_at_k": self.pass_at_k(), "judged_by": "; ".join(self.described.values())}
        kept = {name: value for name, value in (training or {}).items() if not name.startswith("pass@")}
        return kept | outcomes({"": frame}, ids)[""] | table

    def as_dict(self) -> dict:
        """Plain values, as they stand in evaluation.json."""
        ids = [problem.problem_id for problem in self.problems]
        judged = [one for one in self.predictions.iter_predictions(ids) if one.round == self.step]
        statuses = [prediction.status for prediction in judged]
        return {
            "step": self.step,
            "n_problems": len(self.problems),
            "n_predictions": len(judged),
            "prompts_too_long": len({one.task_id for one in judged if one.finish_reason == "skipped"}),
            "judged_by": self.described,
            "pass_at_k": self.pass_at_k().to_dict("records"),
            "by_difficulty": self.table().reset_index().to_dict("records"),
            "parse": parse_counts(judged) if judged else {},
            "status": {status: statuses.count(status) for status in sorted(set(statuses))},
        }


def evaluate_model(
    plan: ProblemPlan, problems: Sequence[Problem], adapter: Path | None = None, step: int = 0
) -> Evaluation:
    """The plan's number of samples of every problem; leaves `evaluation/` and `evaluation.json`.

    adapter: None for the one that the plan names, if any. step: of the training, after which it was saved.
    """
    adapter = adapter or resolve_adapter(plan.adapter, resolve_model(plan.model))
    options = EngineOptions(max_model_len=plan.max_length or None, log=Path(plan.output, "engine.log"))
    with (
        Executor(plan.workers or None, plan.subject.limits) as executor,
        Languages(executor) as languages,
        open_backend(plan.backend, plan.model, adapter, options) as engine,
    ):
        result = evaluate(plan, problems, engine, plan.subject.judge(languages), adapter, step)
    write_whole(Path(plan.output, "evaluation.json"), json.dumps(result.as_dict(), indent=1))
    return result


def evaluate(
    plan: ProblemPlan,
    problems: Sequence[Problem],
    backend,
    judge: ProblemJudge,
    adapter: Path | None = None,
    step: int = 0,
) -> Evaluation:
    """The samples of an open backend, judged on all tests, as a prediction set in `evaluation/`.

    What the folder holds of this step already is not done again. ArcnbError where that is of another version
    of a problem, or was made otherwise: readers would take the old answers for the new.
    """
    n, prompt_format = plan.n_predictions, plan.subject.prompt_format
    sampling = Sampling(temperature=plan.trl["temperature"], max_tokens=plan.trl["max_completion_length"])
    predictions = PredictionSet(Path(plan.output) / "evaluation")
    held = predictions.read(columns=["task_id", "task_fingerprint", "round"])
    held = held[held["round"] == step]
    versions = {problem.problem_id: problem.fingerprint for problem in problems}
    if changed := other_versions(held, versions):
        raise ArcnbError(
            f"{predictions.folder} holds answers to another version of {some(changed)}; evaluate the "
            "changed problems in a new run"
        )
    _hold_to_conditions(predictions, step, _conditions(plan, sampling, adapter))
    done = Counter(held["task_id"])
    left = [problem for problem in problems if done[problem.problem_id] < n]
    for start in range(0, len(left), BLOCK):
        block = {problem.problem_id: problem for problem in left[start : start + BLOCK]}
        prompts = {key: prompt_format.prompt(problem) for key, problem in block.items()}
        requests = [
            Request(
                prompt_format.prompt_ids(backend.tokenizer, problem),
                n,
                derive_seed(plan.seed, "evaluation", key),
                key,
            )
            for key, problem in block.items()
        ]
        made = [
            Prediction(
                task_id=one.key,
                task_fingerprint=block[one.key].fingerprint,
                round=step,
                seed=one.seed,
                **one.columns,
                completion_prefix=prompts[one.key].prefix,
                model=plan.model,
                adapter=str(adapter or ""),
            )
            for one in backend.generate(requests, sampling)
        ]
        made.sort(key=lambda one: (one.task_id, one.index))
        predictions.write_part(list(judge.judge(made, block, all_tests=True)), round=step)
    described = {name: judge.languages[name].described for name in sorted({p.language for p in problems})}
    return Evaluation(problems, predictions, described, step)


def _conditions(plan: ProblemPlan, sampling: Sampling, adapter: Path | None) -> dict:
    """What decides the answers to a problem, by name. Of the adapter the weights alone: a training that is
    resumed at its end saves the names of its modules in another order."""
    prompt_format = plan.subject.prompt_format
    weights = Path(adapter, WEIGHTS).read_bytes() if adapter else b""
    return {
        "model": plan.model,
        "model_sha256": weights_digest(resolve_model(plan.model).folder),
        "adapter_sha256": sha256(weights).hexdigest()[:16] if adapter else "",
        "template_sha256": sha256(Path(prompt_format.template).read_bytes()).hexdigest(),
        "shown_tests": prompt_format.shown_tests,
        "seed": plan.seed,
        "temperature": sampling.temperature,
        "max_completion_length": sampling.max_tokens,
    }


def _hold_to_conditions(predictions: PredictionSet, step: int, wanted: dict) -> None:
    """Begin the answers of a step with these conditions, or compare. ArcnbError names what is another one."""
    path = predictions.folder / _MADE_WITH.format(step)
    if not path.exists():
        make_folder(predictions.folder)
        return write_whole(path, json.dumps(wanted, indent=1))
    begun = read_object(path)
    for name, value in wanted.items():
        if begun.get(name) != value:
            raise ArcnbError(
                f"{predictions.folder} holds answers of step {step} made with {name} {begun.get(name)!r}, "
                f"not {value!r}; evaluate with the changed one in a new run"
            )
