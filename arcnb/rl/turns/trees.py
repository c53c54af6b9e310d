"""Refinement as a tree: several refinements of one failed answer, and credit to it by the best of them.

A group's completions are the nodes: first answers, and refinements of those that failed (Murphy, arXiv
2511.07833). Each is a completion of its own, with everything before it as its prompt, so that what is trained
are answers as often as they were written; a line (`arcnb.rl.turns.episodes`) trains first answers as often as
they were refined. Advantages compare first answers of a row, which are worth as much as the best of their
refinements, and refinements of one answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from arcnb.arc.seeds import derive_seed
from arcnb.rl.rewards.function import Answers, Outcome, ProgramReward
from arcnb.rl.rewards.metrics import groups_of
from arcnb.rl.turns.episode_reward import EpisodeReward
from arcnb.rl.turns.episodes import Episode, MultiTurnRollout


@dataclass
class TreeRollout(MultiTurnRollout):
    """MultiTurnRollout that gives one answer a completion. tree: refinements of each first answer, where all
    of them fail: of n completions n / (1 + tree) are first answers. Where fewer fail the refinements are
    spread over these, and where none does, all completions are first answers."""

    tree: int = field(default=1, kw_only=True)

    def play(self, trainer, episodes: list[Episode], step: int, seed: int) -> None:
        """Fill the episodes, begun with their rows' prompts, with one answer each."""
        trees = groups_of([episode.row["row"] for episode in episodes]).values()
        roots = [i for own in trees for i in own[: max(1, len(own) // (1 + self.tree))]]
        begun = self._answered(trainer, episodes, roots, 0, step, seed)
        first = set(roots)
        later, again = [], []
        for own in trees:
            failed = [i for i in own if i in begun]
            for number, i in enumerate(i for i in own if i not in first):
                if failed:
                    episodes[i] = begun[failed[number % len(failed)]].refined()
                (later if failed else again).append(i)
        self._answered(trainer, episodes, again, 0, step, derive_seed(seed, "again"))
        self._answered(trainer, episodes, later, 1, step, derive_seed(seed, "later"))

    def _answered(
        self, trainer, episodes: list[Episode], going: Sequence[int], turn: int, step: int, seed: int
    ) -> dict[int, _Failure]:
        """Write an answer to each of these; those that can be refined, with what to read before that."""
        if not going:
            return {}
        self.begin_book()
        self._answer(trainer, episodes, going, turn, step, seed)
        failed = {}
        for i in going:
            if not episodes[i].end:
                failed[i] = _Failure(episodes[i], episodes[i].cut(len(episodes[i].turns[-1][1])))
                episodes[i].end = "turns"
        return failed


@dataclass(frozen=True)
class _Failure:
    """A first answer and the ids and prefix that ask for a better one."""

    root: Episode
    between: tuple[list[int], str]

    def refined(self) -> Episode:
        root, (ids, prefix) = self.root, self.between
        return Episode(root.row, [*root.prompt_ids, *root.ids, *ids], prefix, turns=list(root.turns))


@dataclass(frozen=True)
class Node(Outcome):
    """id: of the answer. parent: of the one that it refines."""

    id: str = ""
    parent: str | None = None


@dataclass(eq=False)
class TreeReward(EpisodeReward):
    """Each answer's own reward; `credit` counts a first answer as its best refinement, if that is better."""

    def _answers(self, step: int, completions, completion_ids, columns: Mapping) -> list[Answers]:
        return [[answers[-1]] for answers in super()._answers(step, completions, completion_ids, columns)]

    def _outcomes(self, columns: Mapping, chosen: Answers, answers: Sequence[Answers]) -> list[Outcome]:
        own = super()._outcomes(columns, chosen, answers)
        made = [prediction for prediction, _ in chosen]
        return [Node(**vars(one), id=p.id, parent=p.parent) for one, p in zip(own, made, strict=True)]

    def _credit(self, everyone: Sequence[Node], rewards: Sequence[float]) -> tuple[list[float], list]:
        best: dict[str, float] = {}
        for one, reward in zip(everyone, rewards, strict=True):
            if one.parent:
                best[one.parent] = max(reward, best.get(one.parent, reward))
        values = [max(r, best.get(one.id, r)) for one, r in zip(everyone, rewards, strict=True)]
        return values, [one.parent or f"row {one.row}" for one in everyone]

    def _metrics(self, everyone: Sequence[Node], rewards, chosen: Answers, columns: Mapping) -> dict:
        """The usual ones of all answers, and {"tree/...": value}: share of first answers, and shares of these
        and of the refinements that solve their task, absent where there are none."""
        values = ProgramReward._metrics(self, everyone, rewards, chosen, columns)
        for name, part in (
            ("roots", [one for one in everyone if not one.parent]),
            ("refined", [one for one in everyone if one.parent]),
        ):
            values[f"tree/{name}"] = len(part) / len(everyone)
            if part:
                values[f"tree/{name}_solved"] = sum(one.rollout.solved for one in part) / len(part)
        return values
