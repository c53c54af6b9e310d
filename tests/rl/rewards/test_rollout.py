"""Whether a completion was cut off is said in one way, also at the limit."""

from types import SimpleNamespace

import pytest

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.models.prompts.format import prompt_format
from arcnb.models.registry import load_tokenizer
from arcnb.programs.executor.executor import Executor
from arcnb.rl.rewards.function import ProgramReward
from arcnb.rl.rewards.terms import RewardPlan, TermLimits
from arcnb.rl.rows.prompt_rows import prompt_rows
from arcnb.rl.turns.episodes import Episode, MultiTurnRollout
from arcnb.rl.watching import held_out

LIMIT, END = 4, 9


@pytest.mark.parametrize(
    ("ids", "truncated"),
    [([5] * LIMIT, True), ([5, 5, 5, END], False), ([5, END], False), ([END], False), ([], True)],
    ids=["cut", "ends at the limit", "ends before", "says nothing", "empty"],
)
def test_reward_evaluation_and_episodes_agree(ids, truncated, letter_model, tasks, tmp_path, monkeypatch):
    """The overlong term, the batch's numbers, held-out evaluation and conversations, of one completion of at
    most LIMIT tokens."""
    tokenizer = load_tokenizer(letter_model)
    trainer = SimpleNamespace(
        args=SimpleNamespace(use_vllm=False),
        accelerator=SimpleNamespace(process_index=0, num_processes=1, is_main_process=True),
        eos_token_ids=[END],
    )
    logged = {}
    with Executor(1) as executor:
        plan = RewardPlan("solved", TermLimits(LIMIT), {"overlong": 1.0})
        reward = ProgramReward(plan, tasks, executor, PredictionSet(tmp_path / "rollouts"), ends={END})
        rows = prompt_rows(tasks, prompt_format(), tokenizer, seed=0, max_prompt_tokens=10_000)
        columns = {name: [value] for name, value in rows[0].items() if name != "prompt"}
        assert reward(["x"], [ids], log_metric=logged.__setitem__, **columns) == [-1.0 if truncated else 0.0]
        assert logged["truncated_completions_ratio"] == truncated

        monkeypatch.setattr(held_out, "sample", lambda trainer, prompts, n, seed: [[ids]] * len(prompts))
        evaluation = held_out.HeldOut(
            tasks[:1], 1, 1, prompt_format(), tokenizer, executor, PredictionSet(tmp_path / "held_out")
        )
        assert evaluation.evaluate(trainer, 0)["held_out/truncated"] == truncated

        if ids:
            rollout = MultiTurnRollout(rows, executor, 1, 10_000, LIMIT)
            monkeypatch.setattr(rollout, "answers", lambda *given: [(ids, [None] * len(ids))])
            episode = Episode(rows[0], [1], "")
            rollout.play(trainer, [episode], 0, 0)
            assert (episode.end == "truncated") is truncated
