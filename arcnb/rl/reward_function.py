"""The reward function that TRL calls: completions in, programs run, one number a completion out.

Every rollout becomes a prediction record, judged by the same code as inference, and is kept: the
rollouts of a training run are a prediction set like any other (round = optimizer step).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

from arcnb.arc.predictions import Prediction, PredictionSet
from arcnb.arc.tasks import Task
from arcnb.programs.executor import Executor
from arcnb.programs.judging import judge
from arcnb.rl.rewards import Scores, is_solved, reward_scheme
from arcnb.rl.rollout_metrics import rollout_metrics


class ProgramReward:
    """Callable with TRL's signature for reward functions; see arcnb.rl.rows for the columns it reads."""

    def __init__(
        self,
        scheme: str,
        tasks: Sequence[Task],
        executor: Executor,
        max_completion_length: int,
        rollouts: PredictionSet | None = None,
    ):
        self.scheme = reward_scheme(scheme)
        self.tasks: Mapping[str, Task] = {task.task_id: task for task in tasks}
        self.executor = executor
        self.max_completion_length = max_completion_length
        self.rollouts = rollouts
        self.calls = 0
        self.__name__ = scheme  # TRL names the metric after it

    def __call__(
        self, completions, completion_ids, trainer_state=None, log_metric=None, **columns
    ) -> list[float]:
        """Judge the completions and return their rewards, in order."""
        started = time.monotonic()
        step = trainer_state.global_step if trainer_state else self.calls
        predictions = [
            self._prediction(i, step, completions[i], completion_ids[i], columns)
            for i in range(len(completions))
        ]
        judged = list(judge(predictions, self.tasks, self.executor))
        rewards = [self._reward(prediction) for prediction in judged]
        if log_metric:
            for name, value in self._metrics(
                judged, rewards, completion_ids, time.monotonic() - started
            ).items():
                log_metric(name, value)
        if self.rollouts is not None:
            self.rollouts.write_part(judged, round=step)
        self.calls += 1
        return rewards

    def _prediction(self, i: int, step: int, completion, ids: Sequence[int], columns: Mapping) -> Prediction:
        task = self.tasks[columns["task_id"][i]]
        text = completion if isinstance(completion, str) else completion[-1]["content"]
        return Prediction(
            task_id=task.task_id,
            task_fingerprint=task.fingerprint,
            round=step,
            index=i,
            seed=columns["row"][i],
            hflip=columns["hflip"][i],
            n_rot90=columns["n_rot90"][i],
            color_map=columns["color_map"][i],
            pair_order=columns["pair_order"][i],
            test_index=columns["test_index"][i],
            completion=text,
            completion_prefix=columns["prefix"][i],
            n_tokens=len(ids),
            finish_reason="length" if len(ids) >= self.max_completion_length else "stop",
        )

    def _reward(self, prediction: Prediction) -> float:
        task = self.tasks[prediction.task_id]
        return self.scheme(Scores.of(prediction, len(task.train), len(task.test)))

    def _metrics(self, judged, rewards, completion_ids, seconds: float) -> dict[str, float]:
        values = rollout_metrics(
            rewards,
            completion_ids,
            [is_solved(prediction) for prediction in judged],
            [prediction.status == "memory" for prediction in judged],
            self.max_completion_length,
        )
        means = {name: sum(numbers) / len(numbers) for name, numbers in values.items()}
        statuses = Counter(prediction.status for prediction in judged)
        shares = {f"status/{status}": count / len(judged) for status, count in statuses.items()}
        groups: dict[int, set[float]] = {}
        for prediction, reward in zip(judged, rewards, strict=True):
            groups.setdefault(prediction.seed, set()).add(reward)
        flat = sum(len(distinct) == 1 for distinct in groups.values()) / len(groups)
        return means | shares | {"groups_without_spread": flat, "executor_seconds": seconds}
