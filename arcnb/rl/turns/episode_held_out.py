"""Eval tasks by conversations: the same tasks and first prompts each time, played to their ends."""

from __future__ import annotations

from dataclasses import dataclass

from arcnb.arc.seeds import derive_seed
from arcnb.arc.tasks.task import Task
from arcnb.rl.rows.prompt_rows import PromptRows
from arcnb.rl.turns.episodes import Episode, MultiTurnRollout, solved_at, solved_by
from arcnb.rl.watching.held_out import HeldOut, pass_rates, row_of


@dataclass
class EpisodeHeldOut(HeldOut):
    """Like `HeldOut`, on episodes of up to `turns` answers within `context` tokens.

    pass@k and the other numbers are of the last answers; `held_out/first_turn_pass@1` is of the first ones,
    and `held_out/turns/solved_by_N` is the share of episodes that solve train by turn N.
    """

    turns: int = 2
    context: int = 0

    def evaluate(self, trainer, step: int) -> dict[str, float]:
        from accelerate.utils import gather_object

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
        found = [(row_of(one.turns[-1][0]), one.turns[0][0].solved, solved_at(one)) for one in episodes]
        found = gather_object(found)
        values = pass_rates([row for row, _, _ in found], self.repeats)
        values["held_out/first_turn_pass@1"] = sum(first for _, first, _ in found) / len(found)
        by_turn = solved_by([at for _, _, at in found], self.turns)
        values |= {f"held_out/{name}": value for name, value in by_turn.items()}
        return values | self._changes(trainer, step)

    def _begun(self, task: Task) -> Episode:
        shown, columns = self.shown(task)
        row = {"row": self.seed, "task_id": task.task_id, **columns}
        ids = self.prompt_format.prompt_ids(self.tokenizer, shown)
        return Episode(row, ids, self.prompt_format.prompt(shown).prefix)
