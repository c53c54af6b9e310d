"""Rewards of conversations: of a frozen later turn against its parent, and of whole episodes.

Every turn is judged and kept as a prediction record with its parent, like those of inference with turns.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from arcnb.arc.predictions import Prediction
from arcnb.plans import PlanError
from arcnb.rl.cheating import find_cheats
from arcnb.rl.multi_turn import Episode, MultiTurnRollout, episode_metrics
from arcnb.rl.multi_turn_rows import RememberingRows
from arcnb.rl.reward_function import Outcome, ProgramReward
from arcnb.rl.reward_terms import Rollout
from arcnb.rl.rewards import Scores, reward_scheme

if TYPE_CHECKING:
    from arcnb.rl.rows import PromptRows
    from arcnb.rl.training import Training


class FrozenTurnReward(ProgramReward):
    """Rewards of answers to frozen conversations (see arcnb.rl.multi_turn_rows), with their parents."""

    _parents: dict[str, Scores]

    def __call__(self, completions, completion_ids, **arguments) -> list[float]:
        self._parents = {}
        return super().__call__(completions, completion_ids, **arguments)

    def _prediction(self, i: int, step: int, completion, ids: Sequence[int], columns: Mapping) -> Prediction:
        prediction = super()._prediction(i, step, completion, ids, columns)
        prediction.turn, prediction.parent = columns["turn"][i], columns["parent"][i]
        task = self.tasks[prediction.task_id]
        self._parents[prediction.id] = Scores(
            has_program=columns["parent_status"][i] != "no_code",
            has_outputs=columns["parent_status"][i] == "ok",
            train_correct=columns["parent_train_correct_grids"][i] or 0.0,
            test_correct=columns["parent_test_correct_grids"][i],
            train_pixel=columns["parent_train_pixel_score"][i] or 0.0,
            test_pixel=columns["parent_test_pixel_score"][i],
            n_train=len(task.train),
            n_test=len(task.test),
        )
        return prediction

    def _rollout(self, prediction: Prediction, ids: Sequence[int], cheat: str | None) -> Rollout:
        return replace(super()._rollout(prediction, ids, cheat), parent=self._parents[prediction.id])


class EpisodeReward(ProgramReward):
    """Rewards of whole episodes, each from one of its answers or from two.

    turn_reward: "last": the reward of the last answer; "best": of the answer with the highest scheme value;
    "improvement": of the last one plus improvement_weight times what it gained over the first (Kumar et al.
    2024, SCoRe). The bonus alone would pay for a bad beginning; keep the weight small. turns: answers that an
    episode may have.
    """

    def __init__(
        self, *arguments, turns: int, turn_reward: str = "last", improvement_weight: float = 0.5, **named
    ):
        super().__init__(*arguments, **named)
        self.turns, self.turn_reward, self.improvement_weight = turns, turn_reward, improvement_weight

    def __call__(
        self, completions, completion_ids, trainer_state=None, log_metric=None, log_extra=None, **columns
    ) -> list[float]:
        """One reward an episode. PlanError when the trainer ignored the rollout function."""
        if "episode" not in columns:
            raise PlanError(
                "turns above 1, but the trainer did not call the rollout function; use trainer='trl'"
            )
        started = time.monotonic()
        step = trainer_state.global_step if trainer_state else 0
        episodes: list[Episode] = columns["episode"]
        answers = self._answers(episodes)
        rows = columns["row"]
        chosen = [self._choose(of_episode) for of_episode in answers]
        judged = [of[i][0] for of, i in zip(answers, chosen, strict=True)]
        rollouts = [of[i][1] for of, i in zip(answers, chosen, strict=True)]
        own = self._outcomes(rows, judged, rollouts)
        if self.turn_reward == "improvement":
            own = [replace(one, first=of[0][1]) for one, of in zip(own, answers, strict=True)]
        everyone = self._of_all(own)
        of_all = self._rewards(everyone)
        rewards = self._own(everyone, of_all)
        self._remember(everyone, of_all)
        self.latest = list(zip(judged, rewards, strict=True))
        if log_metric:
            self._log(log_metric, everyone, of_all, time.monotonic() - started)
            for name, value in episode_metrics(episodes, self.turns).items():
                log_metric(name, value)
        if log_extra:
            log_extra("prediction", [prediction.id for prediction in judged])
            log_extra("status", [prediction.status for prediction in judged])
            log_extra("solved", [rollout.solved for rollout in rollouts])
            log_extra("cheating", [rollout.cheating or "" for rollout in rollouts])
            log_extra("turns", [len(episode.turns) for episode in episodes])
            log_extra("end", [episode.end for episode in episodes])
        if self.rollouts is not None:
            every = [prediction for of_episode in answers for prediction, _ in of_episode]
            self.rollouts.write_part(every, round=step, shard=self.process, n_shards=self.n_processes)
        return rewards

    def _rewards(self, everyone: Sequence[Outcome]) -> list[float]:
        rewards = super()._rewards(everyone)
        if self.turn_reward != "improvement":
            return rewards
        first = self._by_group([one.row for one in everyone], [one.first for one in everyone])
        weight = self.improvement_weight
        return [now + weight * (now - then) for now, then in zip(rewards, first, strict=True)]

    def _answers(self, episodes: Sequence[Episode]) -> list[list[tuple[Prediction, Rollout]]]:
        """Each episode's judged answers as rollouts; cheats are looked for in all turns together."""
        flat = [answer for episode in episodes for answer in episode.turns]
        predictions = [prediction for prediction, _ in flat]
        cheats = [None] * len(flat)
        if self.detect_cheating:
            cheats = find_cheats(predictions, self.tasks, self.executor)
        rollouts = iter(
            self._rollout(prediction, ids, cheat)
            for (prediction, ids), cheat in zip(flat, cheats, strict=True)
        )
        return [[(prediction, next(rollouts)) for prediction, _ in episode.turns] for episode in episodes]

    def _choose(self, answers: Sequence[tuple[Prediction, Rollout]]) -> int:
        """Which answer counts; of equally good ones the earliest."""
        if self.turn_reward != "best":
            return len(answers) - 1
        scheme = reward_scheme(self.plan.scheme)
        values = [0.0 if rollout.cheating else scheme(rollout.scores) for _, rollout in answers]
        return values.index(max(values))


def conversation_parts(
    run: Training,
) -> tuple[PromptRows, MultiTurnRollout | None, Callable[..., ProgramReward]]:
    """What a run trains on: rows, TRL's rollout_func where there are turns, and the class of the reward."""
    plan = run.plan
    if plan.refine_conversations:
        return run.rows, None, FrozenTurnReward
    if plan.turns == 1:
        return run.rows, None, plan.subject.reward(run.executor)
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # that the hook is called is checked by the reward
    rows = RememberingRows.of(run.rows)
    rollout = MultiTurnRollout(
        rows,
        run.executor,
        plan.turns,
        run.context,
        run.settings["max_completion_length"],
        plan.seed,
        run.model.name,
        str(run.adapter) if run.adapter else None,
    )
    named = {
        "turns": plan.turns,
        "turn_reward": plan.turn_reward,
        "improvement_weight": plan.rewards.improvement_weight,
    }
    return rows, rollout, partial(EpisodeReward, **named)
