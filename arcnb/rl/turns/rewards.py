"""Rewards of conversations: of a frozen later turn against its parent, and of whole episodes.

Every turn is judged and kept as a prediction record with its parent, like those of inference with turns.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from arcnb.arc.predictions.prediction import Prediction
from arcnb.errors import ArcnbError
from arcnb.rl.rewards.function import Answers, Outcome, ProgramReward
from arcnb.rl.rewards.schemes import reward_scheme
from arcnb.rl.rewards.terms import Rollout
from arcnb.rl.turns.episodes import Episode, MultiTurnRollout, episode_metrics
from arcnb.rl.turns.rows import RememberingRows

if TYPE_CHECKING:
    from arcnb.rl.rows import PromptRows
    from arcnb.rl.trainer.training import Training


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

    def _answers(self, step: int, completions, completion_ids, columns: Mapping) -> list[Answers]:
        """Each episode's answers, which were judged while it was played. ArcnbError when the trainer ignored
        the rollout function."""
        if "episode" not in columns:
            raise ArcnbError(
                "turns above 1, but the trainer did not call the rollout function; use trainer='trl'"
            )
        episodes: list[Episode] = columns["episode"]
        flat = [answer for episode in episodes for answer in episode.turns]
        found = iter(self._as_rollouts([prediction for prediction, _ in flat], [ids for _, ids in flat]))
        return [[next(found) for _ in episode.turns] for episode in episodes]

    def _chosen(self, answers: Answers) -> tuple[Prediction, Rollout]:
        """Of equally good ones the earliest."""
        if self.turn_reward != "best":
            return answers[-1]
        scheme = reward_scheme(self.plan.scheme)
        return max(answers, key=lambda one: 0.0 if one[1].cheating else scheme(one[1].scores))

    def _outcomes(self, rows: Sequence[int], chosen: Answers, answers: Sequence[Answers]) -> list[Outcome]:
        own = super()._outcomes(rows, chosen, answers)
        if self.turn_reward != "improvement":
            return own
        return [replace(one, first=of[0][1]) for one, of in zip(own, answers, strict=True)]

    def _rewards(self, everyone: Sequence[Outcome]) -> list[float]:
        rewards = super()._rewards(everyone)
        if self.turn_reward != "improvement":
            return rewards
        first = self._by_group([one.row for one in everyone], [one.first for one in everyone])
        weight = self.improvement_weight
        return [now + weight * (now - then) for now, then in zip(rewards, first, strict=True)]

    def _metrics(self, everyone, rewards, chosen: Answers, columns: Mapping) -> dict[str, float]:
        values = super()._metrics(everyone, rewards, chosen, columns)
        return values | episode_metrics(columns["episode"], self.turns)

    def _extras(self, chosen: Answers, columns: Mapping) -> dict[str, list]:
        episodes: list[Episode] = columns["episode"]
        return super()._extras(chosen, columns) | {
            "turns": [len(episode.turns) for episode in episodes],
            "end": [episode.end for episode in episodes],
        }


def conversation_parts(
    run: Training,
) -> tuple[PromptRows, MultiTurnRollout | None, Callable[..., ProgramReward]]:
    """What a run trains on: rows, TRL's rollout_func where there are turns, and the class of the reward."""
    plan = run.plan
    if plan.refine_conversations or plan.turns == 1:
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
        "detect_cheating": plan.rewards.detect_cheating,
    }
    return rows, rollout, partial(EpisodeReward, **named)
