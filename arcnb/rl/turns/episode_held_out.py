"""Held-out evaluation of conversations: the same tasks and first prompts each time, played to their ends."""

from __future__ import annotations

from dataclasses import dataclass

from arcnb.arc.seeds import derive_seed
from arcnb.arc.tasks.task import Task
from arcnb.arc.views import View
from arcnb.rl.rewards.rollout import is_solved
from arcnb.rl.rows import PromptRows
from arcnb.rl.turns.episodes import Episode, MultiTurnRollout, solved_at, solved_by
from arcnb.rl.watching.held_out import HeldOut


@dataclass
class EpisodeHeldOut(HeldOut):
    """Like `HeldOut`, on episodes of up to `turns` answers within `context` tokens.

    pass@k and the other numbers are of the last answers; `held_out/first_turn_pass@1` is of the first ones,
    and `held_out/turns/solved_by_N` is the share of episodes that solve train by turn N.
    """

    turns: int = 2
    context: int = 0

    def evaluate(self, trainer, step: int) -> dict[str, float]:
        process, n_processes = trainer.accelerator.process_index, trainer.accelerator.num_processes
        mine = [task for i, task in enumerate(self.tasks) if i % n_processes == process]
        if getattr(trainer.args, "use_vllm", False):
            trainer.vllm_generation.sync_weights()
        rows = PromptRows(mine, self.prompt_format, self.tokenizer, self.seed)
        rollout = MultiTurnRollout(
            rows, self.executor, self.turns, self.context, self.max_completion_length, self.seed
        )
        episodes = [self._begun(task) for task in mine for _ in range(self.repeats)]
        rollout.play(trainer, episodes, step, derive_seed(self.seed, "held out"))
        answers = [prediction for episode in episodes for prediction, _ in episode.turns]
        self.predictions.write_part(answers, round=step, shard=process, n_shards=n_processes)
        found = [(self._row(one), is_solved(one.turns[0][0]), solved_at(one)) for one in episodes]
        if n_processes > 1:
            from accelerate.utils import gather_object

            found = gather_object(found)
        values = self._metrics([row for row, _, _ in found])
        values["held_out/first_turn_pass@1"] = sum(first for _, first, _ in found) / len(found)
        by_turn = solved_by([at for _, _, at in found], self.turns)
        return values | {f"held_out/{name}": value for name, value in by_turn.items()}

    def _begun(self, task: Task) -> Episode:
        view = View.plain(task)
        prompt = self.prompt_format.prompt(view.apply(task))
        row = {"row": self.seed, "task_id": task.task_id, **view.columns()}
        ids = self.prompt_format.prompt_ids(self.tokenizer, view.apply(task))
        return Episode(row, ids, prompt.prefix)

    @staticmethod
    def _row(episode: Episode) -> tuple:
        """What `HeldOut` makes its numbers of: task, solved, valid, outputs, truncated."""
        last = episode.turns[-1][0]
        truncated = last.finish_reason == "length"
        return (last.task_id, is_solved(last), last.status == "ok", last.fingerprint, truncated)
