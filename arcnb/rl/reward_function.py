"""The reward function that TRL calls: completions in, programs run, one number a completion out.

Every rollout becomes a prediction record, judged by the same code as inference, and is kept: the
rollouts of a training run are a prediction set like any other (round = optimizer step before which they were
sampled). Numbers about the batch go to TRL's `log_metric`, columns to its completions table by `log_extra`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from arcnb.arc.predictions import Prediction, PredictionSet
from arcnb.arc.tasks import Task
from arcnb.arc.views import COLUMNS
from arcnb.programs.executor import Executor
from arcnb.programs.judging import judge
from arcnb.rl.cheating import find_cheats
from arcnb.rl.error_classes import error_classes
from arcnb.rl.reward_terms import RewardPlan, Rollout
from arcnb.rl.rewards import Scores, is_solved
from arcnb.rl.rollout_metrics import batch_metrics
from arcnb.rl.signal_history import SignalHistory


@dataclass(frozen=True)
class Outcome:
    """What all processes know of one completion. row: which row, hence group, it belongs to. status,
    fingerprint, error_type: the executor's verdict. first: the rollout of an episode's first answer, where
    its reward needs that one, too."""

    process: int
    row: int
    task_id: str
    status: str
    fingerprint: str | None
    rollout: Rollout
    first: Rollout | None = None
    error_type: str | None = None


class ProgramReward:
    """Callable with TRL's signature for reward functions; see arcnb.rl.rows for the columns it reads.

    history: learns which groups had signal. latest: the judged predictions of the last call with their
    rewards, for whoever wants to show them. process, n_processes: this process among those that train
    together; each judges and writes its own share, and groups may be spread over several.
    """

    def __init__(
        self,
        plan: RewardPlan,
        tasks: Sequence[Task],
        executor: Executor,
        rollouts: PredictionSet | None = None,
        history: SignalHistory | None = None,
        model: str = "",
        adapter: str | None = None,
        detect_cheating: bool = True,
        process: int = 0,
        n_processes: int = 1,
    ):
        self.plan = plan
        self.tasks: Mapping[str, Task] = {task.task_id: task for task in tasks}
        self.executor = executor
        self.rollouts = rollouts
        self.history = history
        self.model, self.adapter = model, adapter
        self.detect_cheating = detect_cheating
        self.process, self.n_processes = process, n_processes
        self.latest: list[tuple[Prediction, float]] = []
        self.__name__ = plan.scheme  # TRL names the metric after it

    def __call__(
        self, completions, completion_ids, trainer_state=None, log_metric=None, log_extra=None, **columns
    ) -> list[float]:
        """Judge the completions and return their rewards, in order."""
        started = time.monotonic()
        step = trainer_state.global_step if trainer_state else 0
        predictions = [
            self._prediction(i, step, completions[i], completion_ids[i], columns)
            for i in range(len(completions))
        ]
        judged = self._judge(predictions)
        cheats = (
            find_cheats(judged, self.tasks, self.executor) if self.detect_cheating else [None] * len(judged)
        )
        seconds = time.monotonic() - started
        rollouts = [
            self._rollout(prediction, ids, cheat)
            for prediction, ids, cheat in zip(judged, completion_ids, cheats, strict=True)
        ]
        everyone = self._of_all(self._outcomes(columns["row"], judged, rollouts))
        of_all = self._rewards(everyone)
        rewards = self._own(everyone, of_all)
        self._remember(everyone, of_all)
        self.latest = list(zip(judged, rewards, strict=True))
        if log_metric:
            self._log(log_metric, everyone, of_all, seconds)
        if log_extra:
            log_extra("prediction", [prediction.id for prediction in judged])
            log_extra("status", [prediction.status for prediction in judged])
            log_extra("solved", [rollout.solved for rollout in rollouts])
            log_extra("cheating", [rollout.cheating or "" for rollout in rollouts])
        if self.rollouts is not None:
            self.rollouts.write_part(judged, round=step, shard=self.process, n_shards=self.n_processes)
        return rewards

    def _judge(self, predictions: Sequence[Prediction]) -> list[Prediction]:
        return list(judge(predictions, self.tasks, self.executor))

    def _prediction(self, i: int, step: int, completion, ids: Sequence[int], columns: Mapping) -> Prediction:
        task = self.tasks[columns["task_id"][i]]
        text = completion if isinstance(completion, str) else completion[-1]["content"]
        truncated = len(ids) >= self.plan.limits.max_completion_length
        return Prediction(
            task_id=task.task_id,
            task_fingerprint=task.fingerprint,
            round=step,
            index=self.process * len(columns["row"]) + i,
            seed=columns["row"][i],
            **{name: columns[name][i] for name in COLUMNS},
            model=self.model,
            adapter=self.adapter,
            completion=text,
            completion_prefix=columns["prefix"][i],
            n_tokens=len(ids),
            finish_reason="length" if truncated else "stop",
        )

    def _rollout(self, prediction: Prediction, ids: Sequence[int], cheat: str | None) -> Rollout:
        task = self.tasks[prediction.task_id]
        scores = Scores.of(prediction, len(task.train), len(task.test))
        return Rollout(scores, ids, is_solved(prediction) and not cheat, cheat)

    def _outcomes(self, rows: Sequence[int], judged, rollouts: Sequence[Rollout]) -> list[Outcome]:
        return [
            Outcome(
                self.process,
                row,
                one.task_id,
                one.status,
                one.fingerprint,
                rollout,
                error_type=one.error_type,
            )
            for row, one, rollout in zip(rows, judged, rollouts, strict=True)
        ]

    def _of_all(self, own: list[Outcome]) -> list[Outcome]:
        """The outcomes of all processes, one after another: the one exchange of a step, which all make
        together. Completions are most of it, so rewards, history and metrics are computed from it alone, by
        every process."""
        if self.n_processes == 1:
            return own
        from accelerate.utils import gather_object

        return gather_object(own)

    def _own(self, everyone: Sequence[Outcome], values: Sequence[float]) -> list[float]:
        """This process's share of one value an outcome."""
        return [value for one, value in zip(everyone, values, strict=True) if one.process == self.process]

    def _rewards(self, everyone: Sequence[Outcome]) -> list[float]:
        """Of all outcomes, group by group; a group that is spread over processes is one."""
        return self._by_group([one.row for one in everyone], [one.rollout for one in everyone])

    def _by_group(self, rows: Sequence[int], rollouts: Sequence[Rollout]) -> list[float]:
        rewards = [0.0] * len(rows)
        for members in _groups(rows).values():
            of_group = self.plan.rewards([rollouts[i] for i in members])
            for i, reward in zip(members, of_group, strict=True):
                rewards[i] = reward
        return rewards

    def _remember(self, everyone: Sequence[Outcome], rewards: Sequence[float]) -> None:
        """Tell the history, which has to be the same in all processes, about every group of all of them."""
        if self.history is None:
            return
        for row, members in _groups([one.row for one in everyone]).items():
            solved = [everyone[i].rollout.solved for i in members]
            task_id = everyone[members[0]].task_id
            self.history.record(row, task_id, [rewards[i] for i in members], solved)

    def _log(self, log_metric, everyone: Sequence[Outcome], rewards: Sequence[float], seconds: float) -> None:
        rows = [one.row for one in everyone]
        values = batch_metrics(
            [(one.status, one.fingerprint) for one in everyone],
            [one.rollout for one in everyone],
            rewards,
            rows,
            self.plan.limits.max_completion_length,
        )
        values |= error_classes([(one.status, one.error_type) for one in everyone])
        values["executor_seconds"] = seconds
        if self.history is not None and self.history.visits:
            silent = self.history.silent(max(rows) + 1)
            values["silent_prompts_ratio"] = len(silent) / len(self.tasks)
        for name, value in values.items():
            log_metric(name, value)


def _groups(rows: Sequence[int]) -> dict[int, list[int]]:
    """row -> places of its completions, in the order in which rows first appear."""
    groups: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(row, []).append(i)
    return groups
