"""Rewards of whole episodes. Every turn is judged and kept as a prediction record with its parent, like those
of inference with turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from arcnb.arc.predictions.prediction import Prediction
from arcnb.errors import ArcnbError
from arcnb.rl.rewards.function import Answers, Outcome, ProgramReward
from arcnb.rl.rewards.rollout import Rollout
from arcnb.rl.turns.episodes import Episode, episode_metrics


@dataclass(eq=False)
class EpisodeReward(ProgramReward):
    """Rewards of whole episodes, each from one of its answers or from two.

    turn_reward: "last": the reward of the last answer; "best": of the answer with the highest scheme value;
    "improvement": of the last one plus improvement_weight times what it gained over the first (Kumar et al.
    2024, SCoRe). The bonus alone would pay for a bad beginning; keep the weight small. turns: answers that an
    episode may have.
    """

    turns: int = field(kw_only=True)
    turn_reward: str = field(default="last", kw_only=True)
    improvement_weight: float = field(default=0.5, kw_only=True)

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
        scheme = self.plan.of_scores
        return max(answers, key=lambda one: 0.0 if one[1].cheating else scheme(one[1].scores))

    def _outcomes(self, columns: Mapping, chosen: Answers, answers: Sequence[Answers]) -> list[Outcome]:
        own = super()._outcomes(columns, chosen, answers)
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
