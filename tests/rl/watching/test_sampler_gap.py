"""How far the sampler is from the learner, as a run logs it."""

import math
from types import SimpleNamespace

import pytest

from arcnb.rl.watching.sampler_gap import SamplerGap, effective_sample_size, measuring


def tensors(*rows):
    import torch

    return torch.tensor(rows, dtype=torch.float32)


def test_equal_sampler_and_learner_have_no_gap():
    logps = tensors([-1.0, -2.0], [-0.5, 0.0])
    gap = SamplerGap()
    gap.add(logps, logps, tensors([1, 1], [1, 0]), weights=tensors([1.0, 1.0], [1.0, 1.0]), clip_max=2.0)
    assert gap.metrics() == {
        "sampling/logp_gap": 0,
        "sampling/kl": 0,
        "sampling/importance_ratio": 1,
        "sampling/ess": 1,
        "sampling/clipped_share": 0,
    }
    assert gap.metrics() == {}, "a step's numbers are given once"


def test_gap_ratio_and_clipped_share_count_only_real_tokens():
    sampler = tensors([math.log(0.5), math.log(0.25), -50.0], [math.log(0.5), math.nan, -50.0])
    learner = tensors([math.log(0.25), math.log(0.5), 0.0], [math.log(0.5), -1.0, 0.0])
    mask = tensors([1, 1, 0], [1, 1, 0])
    gap = SamplerGap()
    gap.add(sampler[:1], learner[:1], mask[:1], weights=tensors([0.5, 2.0, 9.0]), clip_max=2.0)
    gap.add(sampler[1:], learner[1:], mask[1:], weights=tensors([1.0]).reshape(1, 1), clip_max=2.0)
    values = gap.metrics()
    assert values["sampling/logp_gap"] == pytest.approx(2 * math.log(2) / 3)
    assert values["sampling/kl"] == pytest.approx(0, abs=1e-6)
    assert values["sampling/importance_ratio"] == pytest.approx((0.5 + 2 + 1) / 3)
    assert values["sampling/clipped_share"] == pytest.approx(1 / 3)
    assert values["sampling/ess"] == pytest.approx(1)


@pytest.mark.parametrize(("weights", "share"), [([0.0, 1.0], 1 / 2), ([2.0, 0.0], 1), ([1.9, 0.1], 0)])
def test_what_a_mask_took_to_nothing_is_clipped_too(weights, share):
    logps, gap = tensors([-1.0, -1.0]), SamplerGap()
    gap.add(logps, logps, tensors([1, 1]), tensors(weights), clip_max=2.0)
    assert gap.metrics()["sampling/clipped_share"] == share


def test_effective_sample_size_falls_as_weights_differ():
    assert effective_sample_size([0.0, 0.0, 0.0, 0.0]) == pytest.approx(1)
    assert effective_sample_size([700.0, 0.0, 0.0, 0.0]) == pytest.approx(1 / 4)
    assert effective_sample_size([math.log(3), 0.0]) == pytest.approx(16 / 20)


def test_the_gap_is_that_of_all_processes_together():
    """Two with two tokens and one with none: means are over tokens, not over processes."""
    gaps = [SamplerGap(), SamplerGap(), SamplerGap()]
    gaps[0].add(tensors([-1.0, -1.0]), tensors([-1.5, -1.0]), tensors([1, 1]), tensors([3.0, 1.0]), 3.0)
    gaps[1].add(tensors([-1.0, -1.0]), tensors([-1.0, -3.0]), tensors([1, 1]), tensors([1.0, 1.0]), 3.0)
    values = gaps[2].metrics(lambda own: [*gaps[:2], *own])
    assert values["sampling/logp_gap"] == pytest.approx((0.5 + 2) / 4)
    assert values["sampling/kl"] == pytest.approx((0.5 + 2) / 4)
    assert values["sampling/importance_ratio"] == pytest.approx((math.exp(-0.5) + 2 + math.exp(-2)) / 4)
    assert values["sampling/ess"] == pytest.approx(effective_sample_size([-0.5, -2.0]))
    assert values["sampling/clipped_share"] == 1 / 4
    assert gaps[2].metrics() == {}


class _Base:
    """The two public methods of a trainer that are extended."""

    def __init__(self):
        self.model = SimpleNamespace(training=True)
        self.args = SimpleNamespace(vllm_importance_sampling_clip_max=3.0)
        self.accelerator = SimpleNamespace(num_processes=1)
        self.logged = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return 7.0

    def log(self, logs, start_time=None):
        self.logged.append(logs)


def test_a_measuring_trainer_logs_the_gap_with_the_losses():
    trainer = measuring(_Base)()
    batch = {
        "sampling_per_token_logps": tensors([-1.0, -1.0]),
        "old_per_token_logps": tensors([-1.5, -1.0]),
        "completion_mask": tensors([1, 1]),
    }
    assert trainer.compute_loss(None, batch) == 7.0
    trainer.log({"loss": 0.5})
    trainer.log({"loss": 0.5})
    assert trainer.logged[0]["sampling/logp_gap"] == pytest.approx(0.25)
    assert trainer.logged[1] == {"loss": 0.5}
