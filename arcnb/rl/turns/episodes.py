"""On-policy conversations for GRPO: the model writes, the sandbox runs, feedback follows, the model revises.

`MultiTurnRollout` is TRL's `rollout_func`. An episode is one sequence: the first prompt, then in turns the
model's own tokens and what stands between them. The mask that TRL takes as `env_mask` is 1 on the model's own
tokens: nothing else is trained. Episodes of a group share the first prompt, and with it the task and view.

An episode ends ("solved") when all train pairs are right; after the last turn ("turns"); when an answer
reaches max_completion_length ("truncated"); when another turn might not fit ("context"); and when a program
fails on test inputs only ("silent"), about which nothing may be said.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.seeds import derive_seed
from arcnb.arc.views import COLUMNS
from arcnb.models.prompts.chat import ids_after_answer
from arcnb.models.prompts.conversations import Conversations
from arcnb.programs.executor.executor import Executor
from arcnb.programs.judging import judge
from arcnb.rl.rewards.rollout import answer_columns
from arcnb.rl.rows.prompt_rows import PromptRows
from arcnb.rl.watching.held_out import sample

ENDS = ("solved", "turns", "truncated", "context", "silent")


@dataclass
class Episode:
    """One conversation. prefix: how the next answer begins. ids, mask, logprobs: everything after the prompt,
    mask 1 and a log-probability where the model wrote, 0 and None elsewhere. turns: each judged answer with
    its own ids. end: one of ENDS."""

    row: dict
    prompt_ids: list[int]
    prefix: str
    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    turns: list[tuple[Prediction, list[int]]] = field(default_factory=list)
    end: str = ""

    def write(self, ids: Sequence[int], logprobs: Sequence[float | None]) -> None:
        """Tokens of the model."""
        self.ids += ids
        self.mask += [1] * len(ids)
        self.logprobs += logprobs

    def read(self, ids: Sequence[int], prefix: str) -> None:
        """Tokens of the conversation that are not the model's; they end with `prefix`."""
        self.prefix = prefix
        self.ids += ids
        self.mask += [0] * len(ids)
        self.logprobs += [None] * len(ids)

    def cut(self, n: int) -> tuple[list[int], str]:
        """Keep the first n tokens after the prompt; what is taken away, and how an answer to it begins."""
        rest = self.ids[n:], self.prefix
        self.ids, self.mask, self.logprobs = self.ids[:n], self.mask[:n], self.logprobs[:n]
        return rest

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.ids)


@dataclass
class MultiTurnRollout:
    """Callable as TRL's rollout_func.

    rows: RememberingRows, or any rows where only `play` is used. context: tokens that a whole conversation
    may have. seed, rollbacks: transformers' samples derive from them, the step, the process and the turn, so
    that a run that was rolled back draws others; vLLM draws its own.
    """

    rows: PromptRows
    executor: Executor
    turns: int
    context: int
    max_completion_length: int
    seed: int = 0
    model: str = ""
    adapter: str | None = None
    rollbacks: Callable[[], int] = lambda: 0

    def __post_init__(self):
        tasks = {task.task_id: task for task in self.rows.tasks}
        self.book = Conversations(tasks, self.rows.prompt_format, self.executor)

    def __call__(self, prompts: list[str], trainer) -> dict:
        """One episode a prompt. Of the extra fields TRL takes env_mask, and the reward takes episode."""
        episodes = []
        for text in prompts:
            row = self.rows.made(text)
            episodes.append(Episode(row, self.rows.tokenizer(text=text)["input_ids"], row["prefix"]))
        step = trainer.state.global_step
        kind = ("episodes", *([back] if (back := self.rollbacks()) else []))
        self.play(trainer, episodes, step, derive_seed(self.seed, *kind, step))
        sampled = getattr(trainer.args, "use_vllm", False)
        return {
            "prompt_ids": [episode.prompt_ids for episode in episodes],
            "completion_ids": [episode.ids for episode in episodes],
            "logprobs": [episode.logprobs for episode in episodes] if sampled else None,
            "env_mask": [episode.mask for episode in episodes],
            "episode": episodes,
        }

    def play(self, trainer, episodes: Sequence[Episode], step: int, seed: int) -> None:
        """Take the episodes, begun with their prompts, to their ends."""
        self.begin_book()
        for turn in range(self.turns):
            going = [i for i, episode in enumerate(episodes) if not episode.end]
            if not going:
                break
            self._answer(trainer, episodes, going, turn, step, seed)

    def begin_book(self) -> None:
        """Outcomes are remembered for one batch: a long run would hold the outcomes of every program."""
        self.book = Conversations(self.book.tasks, self.book.prompt_format, self.executor)

    def answers(
        self, trainer, prompts: list[list[int]], seed: int
    ) -> list[tuple[list[int], list[float | None]]]:
        """One sampled answer to each prompt, as ids and log-probabilities (None where they are not known)."""
        if not getattr(trainer.args, "use_vllm", False):
            return [(ids, [None] * len(ids)) for (ids,) in sample(trainer, prompts, 1, seed)]
        # TRL brought vLLM's weights up to date before it called us.
        _, ids, logprobs, *_ = trainer.vllm_generation.generate(
            prompts=prompts, images=None, num_generations=1
        )
        return [
            (list(own), [values[0] for values in of_ids]) for own, of_ids in zip(ids, logprobs, strict=True)
        ]

    def _answer(self, trainer, episodes, going: Sequence[int], turn: int, step: int, seed: int) -> None:
        """Sample and judge an answer in each of the going episodes, and let it end or read feedback."""
        process, ends = trainer.accelerator.process_index, set(trainer.eos_token_ids)
        asked = [[*episodes[i].prompt_ids, *episodes[i].ids] for i in going]
        answers = self.answers(trainer, asked, derive_seed(seed, process, turn))
        made = []
        for i, (ids, logprobs) in zip(going, answers, strict=True):
            episodes[i].write(ids, logprobs)
            index = process * len(episodes) + i
            made.append(self._prediction(episodes[i], ids, index, turn, step, ends))
        tasks = self.book.tasks
        judged = list(judge(made, tasks, self.executor))
        self.book.look_at(judged)
        for i, prediction, (ids, _) in zip(going, judged, answers, strict=True):
            episodes[i].turns.append((prediction, ids))
            self._go_on(episodes[i], prediction, ids, turn)

    def _go_on(self, episode: Episode, prediction: Prediction, ids: list[int], turn: int) -> None:
        if prediction.train_is_correct:
            episode.end = "solved"
        elif prediction.finish_reason == "length":
            episode.end = "truncated"
        elif turn + 1 == self.turns:
            episode.end = "turns"
        elif prediction.status != "ok" and self.book.right_on_train(prediction):
            episode.end = "silent"
        else:
            ancestors = {earlier.id: earlier for earlier, _ in episode.turns}
            prompt = self.book.refining(prediction, ancestors)
            between = ids_after_answer(self.rows.tokenizer, prompt, ids)
            if episode.length + len(between) + self.max_completion_length > self.context:
                episode.end = "context"
            else:
                episode.read(between, prompt.prefix)

    def _prediction(
        self, episode: Episode, ids: list[int], index: int, turn: int, step: int, ends: set[int]
    ) -> Prediction:
        row = episode.row
        return Prediction(
            **answer_columns(self.book.tasks[row["task_id"]], ids, ends),
            round=step,
            index=index,
            turn=turn,
            parent=episode.turns[-1][0].id if episode.turns else None,
            seed=row["row"],
            **{name: row[name] for name in COLUMNS},
            completion=self.rows.tokenizer.decode(ids, skip_special_tokens=True),
            completion_prefix=episode.prefix,
            n_prompt_tokens=episode.length - len(ids),
            model=self.model,
            adapter=self.adapter,
        )


def episode_metrics(episodes: Sequence[Episode], turns: int) -> dict[str, float]:
    """{"turns/...": value}: how long conversations are, how they ended, what later turns were worth.

    turns: answers that an episode may have. solved_by_N: share of episodes that solve their train pairs in
    turn N or before, counted from 1. improved, worse, copied: of the later answers, against the one before,
    by right train grids and then similarity; absent where there is no later answer.
    """
    n = len(episodes)
    ends = Counter(episode.end for episode in episodes)
    values = {f"turns/end_{end}": ends[end] / n for end in ENDS}
    values["turns/mean"] = sum(len(episode.turns) for episode in episodes) / n
    values["turns/read_tokens"] = sum(m == 0 for episode in episodes for m in episode.mask) / n
    values |= solved_by([solved_at(episode) for episode in episodes], turns)
    pairs = [(before, later) for episode in episodes for (before, _), (later, _) in pairwise(episode.turns)]
    if pairs:
        copied = [
            later.fingerprint is not None and later.fingerprint == before.fingerprint
            for before, later in pairs
        ]
        values["turns/improved"] = sum(a.closeness < b.closeness for a, b in pairs) / len(pairs)
        values["turns/worse"] = sum(a.closeness > b.closeness for a, b in pairs) / len(pairs)
        values["turns/copied"] = sum(copied) / len(pairs)
    return values


def solved_at(episode: Episode) -> int | None:
    """The turn, counted from 0, whose answer was the first to solve the train pairs; None for none."""
    return next((turn for turn, (p, _) in enumerate(episode.turns) if p.train_is_correct), None)


def solved_by(solved: Sequence[int | None], turns: int) -> dict[str, float]:
    """{"turns/solved_by_N": share} of every N up to `turns`, also of turns that no episode reached: a mean
    over steps or evaluations would else be over those with the most later answers."""
    return {
        f"turns/solved_by_{turn + 1}": sum(at is not None and at <= turn for at in solved) / len(solved)
        for turn in range(turns)
    }
