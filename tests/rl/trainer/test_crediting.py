"""The trainer takes its advantages by name: TRL's own three to the bit of float32, and others."""

import pytest
import torch

from arcnb.rl.rewards.advantages import ADVANTAGES

OPTIONS = {"max_steps": 2, "num_generations": 4, "prompts_per_step": 2}


@pytest.fixture
def advantages(monkeypatch):
    """(TRL's, what the loss got), a pair a round of samples."""
    from trl import GRPOTrainer

    seen = []
    plain, loss = GRPOTrainer._generate_and_score_completions, GRPOTrainer.compute_loss

    def scoring(self, inputs):
        batch = plain(self, inputs)
        seen.append([batch["advantages"].clone()])
        return batch

    def losing(self, model, inputs, *arguments, **named):
        seen[-1].append(inputs["advantages"])
        return loss(self, model, inputs, *arguments, **named)

    monkeypatch.setattr(GRPOTrainer, "_generate_and_score_completions", scoring)
    monkeypatch.setattr(GRPOTrainer, "compute_loss", losing)
    return seen


@pytest.mark.parametrize("name", ["group", "batch", "none"])
def test_the_ways_that_trl_has_are_trls(train, tmp_path, advantages, name):
    report = train(tmp_path, **OPTIONS, advantages=name)
    assert report.config.set_index("setting").loc["scale_rewards", "effective"] == name
    assert len(advantages) == 2
    for trls, used in advantages:
        assert used.abs().max() > 0.01
        torch.testing.assert_close(used.sort().values, trls.sort().values, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", sorted(set(ADVANTAGES) - {"group", "batch", "none"}))
def test_other_ways_reach_the_loss_and_the_table_of_completions(train, tmp_path, advantages, name):
    import pandas as pd

    more = {"pass_at_k": 3, "pass_at_k_last": 2} if name == "pass_at_k" else {}
    report = train(tmp_path, **OPTIONS, **more, advantages=name, shared_prompt=name != "pass_at_k")
    assert report.status == "done"
    for step, (trls, used) in enumerate(advantages, 1):
        assert not torch.allclose(used.sort().values, trls.sort().values)
        table = pd.read_parquet(tmp_path / "checkpoints" / "completions" / f"completions_{step:05d}.parquet")
        assert sorted(table["advantage"]) == pytest.approx(used.sort().values.tolist(), rel=1e-5)
    if more:
        assert [row["pass_at_k/k"] for row in report.history if "loss" in row] == [3, 2]


def test_what_advantages_cannot_be_is_named(said):
    assert said(advantages="pass_at_k", pass_at_k=4) == [
        "pass_at_k must be within 1 and num_generations=3, not 4"
    ]
    assert said(pass_at_k_last=1) == ["pass_at_k_last=1 needs advantages='pass_at_k'; it would do nothing"]
    assert said(advantages="max_rl", multi_objective_aggregation="normalize_then_sum") == [
        "multi_objective_aggregation is of several reward functions; a run has one"
    ]
