"""What the learner leaves out, against the whole computation: TRL's trainer, or a few lines on it."""

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from arcnb.arc.seeds import rng
from arcnb.rl.plan.settings import Learner
from arcnb.rl.trainer.choice import drawn_evenly, most_spread
from arcnb.rl.trainer.crediting import crediting
from arcnb.rl.trainer.lean import lean_trainer
from arcnb.rl.trainer.ratios import share_of_sampler
from tests.rl.whole_runs import COMPARED, STEPS, by_vllm, share_of_letter_e, train

STALE = {"steps_per_generation": 4}  # rounds of four prompts, samples up to three steps old


def lean(**options):
    return lambda base: lean_trainer(base, Learner(**options))


def assert_equal(ours, theirs, names=COMPARED, rel=2e-4):
    assert len(ours) == len(theirs) == STEPS
    for step, (found, expected) in enumerate(zip(ours, theirs, strict=True)):
        for name in names & expected.keys():
            assert found[name] == pytest.approx(expected[name], rel=rel, abs=2e-6), (step, name)


# name -> (settings, which of sharing and not is tried; the other one is in `make test-all`)
PASSES = {
    "plain": ({}, (True, False)),
    "tokens": (
        {"vllm_importance_sampling_mode": "token_mask", "vllm_importance_sampling_clip_max": 1.04},
        (True,),
    ),
    "truncated": (
        {"vllm_importance_sampling_mode": "sequence_truncate", "vllm_importance_sampling_clip_max": 1.01},
        (False,),
    ),
    "accumulation": ({"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}, (True,)),
    "sequence ratios, whole model": (
        {"importance_sampling_level": "sequence", "loss_type": "grpo", "lora": False},
        (False,),
    ),
    "vespo": (
        {"loss_type": "vespo", "vllm_importance_sampling_mode": "token_truncate", "beta": 0.0},
        (True,),
    ),
}


@pytest.mark.long("TRL and vLLM are imported")
@pytest.mark.parametrize(
    ("share", "settings"),
    [
        pytest.param(
            share,
            settings,
            id=f"{name}, {'shared prompts' if share else 'trl'}",
            marks=[] if share in first else pytest.mark.repetition,
        )
        for name, (settings, first) in PASSES.items()
        for share in (True, False)
    ],
)
def test_samples_of_the_policy_itself_need_no_pass_of_old_log_probabilities(
    small_model, tmp_path, share, settings
):
    """TRL makes one for vLLM's samples, whose numbers are those that the loss computes."""
    asked = {"samples": by_vllm, "share": share} | settings
    theirs, their_tokens = train(small_model, tmp_path, **asked)
    ours, our_tokens = train(small_model, tmp_path, wrap=lean(), **asked)
    assert_equal(ours, theirs)
    assert our_tokens < their_tokens
    assert not any("sampling/sampling_logp_difference/mean" in row for row in ours)


@pytest.fixture(scope="module")
def older(small_model, tmp_path_factory):
    """(logged steps, tokens) of the lean trainer on older samples."""
    folder = tmp_path_factory.mktemp("older")
    return train(small_model, folder, share=True, samples=by_vllm, wrap=lean(), **STALE)


def test_older_samples_get_trls_own_pass_unless_something_else_is_asked_for(small_model, tmp_path, older):
    theirs, their_tokens = train(small_model, tmp_path, share=True, samples=by_vllm, **STALE)
    ours, our_tokens = older
    assert_equal(ours, theirs)
    assert our_tokens == their_tokens
    assert [row["sampling/staleness"] for row in ours] == [0, 1, 2, 3]


def with_the_samplers(base):
    """TRL's trainer with the sampler's log-probabilities for old ones: then there is nothing to correct."""

    class WithTheSamplers(base):
        def _generate_and_score_completions(self, inputs):
            batch = super()._generate_and_score_completions(inputs)
            sampler, old = batch["sampling_per_token_logps"], batch["old_per_token_logps"]
            # A token that vLLM could not score has the ratio 1: here that of the policy at the first step.
            batch["old_per_token_logps"] = torch.where(sampler.isnan(), old, sampler)
            batch["importance_sampling_ratio"] = torch.ones_like(batch["importance_sampling_ratio"])
            return batch

    return WithTheSamplers


@pytest.mark.parametrize("share", [True, False], ids=["shared prompts", "trl"])
def test_the_samplers_own_log_probabilities_are_the_denominator(small_model, tmp_path, share, monkeypatch):
    monkeypatch.setattr("tests.rl.whole_runs.UNKNOWN", ())
    asked = {"share": share, "samples": by_vllm, "ordered": True, "epsilon": 0.02} | STALE
    theirs, their_tokens = train(small_model, tmp_path, wrap=with_the_samplers, **asked)
    ours, our_tokens = train(small_model, tmp_path, wrap=lean(old_log_probs="sampler"), **asked)
    assert_equal(ours, theirs)
    assert our_tokens < their_tokens
    assert max(row["clip_ratio/region_mean"] for row in ours) > 0, "the ratio is clipped somewhere"


def test_a_mixture_is_the_policy_at_first_and_the_sampler_a_step_later(small_model, tmp_path, older):
    asked = {"share": True, "samples": by_vllm} | STALE
    passed, with_pass = older
    mixed, tokens = train(small_model, tmp_path, wrap=lean(old_log_probs="interpolated"), **asked)
    assert tokens < with_pass
    assert mixed[0]["loss"] == pytest.approx(passed[0]["loss"], rel=1e-4)
    assert [share_of_sampler("interpolated", stale) for stale in range(5)] == [0, 1, 1 / 2, 1 / 3, 1 / 4]
    assert all(math.isfinite(row["loss"]) for row in mixed), "also where the sampler's are unknown"


def test_tokens_that_the_sampler_could_not_score_do_not_spoil_the_loss(small_model, tmp_path):
    asked = {"share": True, "samples": by_vllm} | STALE
    rows, _ = train(small_model, tmp_path, wrap=lean(old_log_probs="sampler"), **asked)
    assert all(math.isfinite(row["loss"]) for row in rows)


def spread_enough(completions, **_):
    """Of two groups in three no completion differs from the others."""
    values = share_of_letter_e(completions)
    return [value if place // 4 % 3 == 0 else 0.5 for place, value in enumerate(values)]


@pytest.mark.parametrize(
    ("share", "loss_type", "split"),
    [
        (True, "dapo", {"per_device_train_batch_size": 16}),
        (False, "dr_grpo", {"per_device_train_batch_size": 16}),
        (True, "grpo", {"gradient_accumulation_steps": 4}),
        (False, "dapo", {"gradient_accumulation_steps": 4}),
        (True, "dr_grpo", {"steps_per_generation": 4}),
        (False, "grpo", {"steps_per_generation": 4}),
    ],
)
def test_silent_groups_are_not_run_and_nothing_else_is_learnt(small_model, tmp_path, share, loss_type, split):
    asked = {"share": share, "ordered": True, "loss_type": loss_type, "beta": 0.0, "reward": spread_enough}
    theirs, their_tokens = train(small_model, tmp_path, **asked | split)
    ours, our_tokens = train(small_model, tmp_path, wrap=lean(skip_silent=True), **asked | split)
    assert_equal(ours, theirs, names={"loss", "grad_norm", "reward", "reward_std"})
    assert our_tokens < their_tokens
    assert any(row["grad_norm"] > 0 for row in ours)


def only(part):
    """TRL's trainer on a batch that has only the most spread part of each group: rows are taken out,
    the others' rewards are unknown to its advantages."""

    def wrapped(base):
        class Only(base):
            def _calculate_rewards(self, *given):
                rewards = super()._calculate_rewards(*given)
                draw = rng(0, "trained part", self.state.global_step)
                groups = np.arange(len(rewards)) // self.num_generations
                self.chosen = torch.tensor(most_spread(rewards[:, 0].double().numpy(), groups, part, draw))
                return torch.where(self.chosen.unsqueeze(1), rewards, torch.nan)

            def _generate_and_score_completions(self, inputs):
                batch = super()._generate_and_score_completions(inputs)
                rows = {name: v[self.chosen] for name, v in batch.items() if v is not None and v.ndim}
                return batch | rows | {"num_items_in_batch": rows["completion_mask"].sum()}

        return Only

    return wrapped


class Credited:
    """A reward that says what it gave, as ProgramReward does."""

    __name__ = "credited"

    def __call__(self, completions, **_):
        values = np.float32(share_of_letter_e(completions)).tolist()
        self.credit = values, [place // 4 for place in range(len(values))]
        return values


def credited_half(reward, scale):
    """The trainer as `make_trainer` builds it, which trains the most spread half."""
    plan = SimpleNamespace(advantages=scale, pass_at_k=1, pass_at_k_last=0, self_teacher=0.0)
    return lambda base: crediting(lean(trained_part=0.5)(base), plan, reward, 0)


@pytest.mark.parametrize(
    ("loss_type", "scale"),
    [("dapo", "group"), ("grpo", "batch"), ("dr_grpo", "none"), ("cispo", "batch"), ("sapo", "group")],
)
def test_the_most_spread_half_is_trained_as_if_there_were_no_other(small_model, tmp_path, loss_type, scale):
    asked = {"loss_type": loss_type, "scale_rewards": scale, "per_device_train_batch_size": 8}
    theirs, _ = train(small_model, tmp_path, share=False, samples=only(0.5), **asked)
    reward = Credited()
    wrap = credited_half(reward, scale)
    ours, our_tokens = train(small_model, tmp_path, share=True, wrap=wrap, reward=reward, **asked)
    assert_equal(ours, theirs, names={"loss", "grad_norm", "kl", "entropy"}, rel=1e-3)
    if loss_type == "dapo":
        _, all_tokens = train(small_model, tmp_path, share=True, **asked)
        assert our_tokens < all_tokens


def test_a_reference_that_runs_on_a_part_has_the_whole_losss_expectation(small_model, tmp_path, monkeypatch):
    """The mean over all draws of one completion of four, of losses and of what is logged as KL."""
    asked = {"share": True, "beta": 0.5, "num_iterations": 2, "learning_rate": 0.1}
    whole, whole_tokens = train(small_model, tmp_path, **asked)
    found = []
    for place in range(4):
        drawn = np.eye(4, dtype=bool)[place]
        monkeypatch.setattr("arcnb.rl.trainer.lean.drawn_evenly", lambda *_, drawn=drawn: drawn)
        rows, tokens = train(small_model, tmp_path, wrap=lean(reference_part=0.25), **asked)
        found.append(rows)
        assert tokens < whole_tokens
    for name in ("loss", "kl"):
        of_draws = [rows[1][name] for rows in found]
        assert np.mean(of_draws) == pytest.approx(whole[1][name], rel=1e-3, abs=1e-6)
        assert np.std(of_draws) > 0
    assert whole[1]["kl"] > 1e-4


class Tokenising:
    """As much of TRL's trainer as makes ids of prompts; notes what it is asked for."""

    def __init__(self):
        self.asked = []

    def _tokenize_prompts(self, prompts):
        self.asked.append(prompts)
        return [[len(prompt), n] for n, prompt in enumerate(prompts)], None, {}


def test_a_prompt_is_tokenised_once_for_all_its_completions():
    trainer = lean()(Tokenising)()
    ids, images, fields = trainer._tokenize_prompts(["long", "long", "a", "long"])
    assert trainer.asked == [["long", "a"]]
    assert (ids, images, fields) == ([[4, 0], [4, 0], [1, 1], [4, 0]], None, {})
    ids[0].append(9)  # a completion may follow
    assert ids[1] == [4, 0]
    conversations = [[{"role": "user", "content": "a"}]] * 2
    assert len(trainer._tokenize_prompts(conversations)[0]) == 2
    assert trainer.asked[-1] == conversations


def test_every_completion_has_the_same_chance_to_be_drawn_and_groups_get_their_shares():
    groups = np.array([0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 3, 3])
    of = np.array([1, 1, 0, 1, 1, 1, 1, 0, 0, 0, 1, 1], bool)
    draws = np.stack([drawn_evenly(of, groups, 0.5, rng(seed, "draw")) for seed in range(4000)])
    assert not draws[:, ~of].any()
    assert (draws.sum(axis=1) == 4).all()
    assert np.abs(draws[:, of].mean(axis=0) - 0.5).max() < 0.04
    assert (draws[:, groups == 1].sum(axis=1) == 2).all()
    assert np.array_equal(drawn_evenly(of, groups, 0.5, rng(7)), drawn_evenly(of, groups, 0.5, rng(7)))
    assert drawn_evenly(of, groups, 0.01, rng(7)).sum() == 1
    assert not drawn_evenly(~of & of, groups, 0.5, rng(7)).any()


def test_the_most_spread_completions_are_those_of_the_largest_variance():
    random = np.random.default_rng(0)
    groups = np.repeat(np.arange(20), 7)
    rewards = np.round(random.random(140), 1)
    chosen = most_spread(rewards, groups, 3 / 7, rng(0, "any"))
    for group in range(20):
        own, mask = rewards[groups == group], chosen[groups == group]
        assert mask.sum() == 3
        best = max(np.var(some) for some in itertools.combinations(own, 3))
        assert np.var(own[mask]) == pytest.approx(best)


def test_a_round_in_which_no_group_speaks_costs_nothing_and_has_no_numbers_of_a_loss(small_model, tmp_path):
    def flat(completions, **_):
        return [0.5] * len(completions)

    rows, _ = train(small_model, tmp_path, share=False, reward=flat, wrap=lean(skip_silent=True))
    assert len(rows) == STEPS
    for row in rows:
        assert (row["loss"], row["grad_norm"], row["learner/trained_share"]) == (0, 0, 0)
        assert row.keys().isdisjoint({"kl", "entropy", "clip_ratio/region_mean"})


def test_groups_that_are_left_out_do_not_count_in_the_means_of_a_step(small_model, tmp_path):
    """One of four groups speaks; its numbers are those of the step, in one part or in four."""

    def one_speaks(completions, **_):
        values = [sum(map(ord, text)) / 1000 for text in completions]
        return [value if place // 4 % 4 == 0 else 0.5 for place, value in enumerate(values)]

    asked = {"share": False, "ordered": True, "reward": one_speaks, "wrap": lean(skip_silent=True)}
    parts, whole = (
        train(
            small_model,
            tmp_path / str(n),
            per_device_train_batch_size=16 // n,
            gradient_accumulation_steps=n,
            **asked,
        )[0]
        for n in (4, 1)
    )
    assert_equal(parts, whole, {"entropy", "kl"}, rel=1e-3)
    assert min(row["entropy"] for row in whole) > 0.5


def test_parts_of_a_step_in_which_nothing_is_trained_do_not_count_in_its_means(train, tmp_path):
    asked = {"max_steps": 1, "num_generations": 4, "learner_trained_part": 0.5}
    whole, parts = (
        train(tmp_path / str(n), gradient_accumulation_steps=n, **asked).history[0] for n in (1, 4)
    )
    assert parts["entropy"] == pytest.approx(whole["entropy"], rel=1e-3)


def test_tokens_that_vllm_cannot_score_leave_the_loss_a_number_where_completions_are_left_out(
    small_model, tmp_path
):
    rows, _ = train(small_model, tmp_path, share=False, samples=by_vllm, wrap=lean(trained_part=0.5), **STALE)
    assert all(math.isfinite(row["kl"]) and row["loss"] != 0 for row in rows)


def test_what_is_said_of_the_correction_is_of_what_is_trained(small_model, tmp_path):
    """Sampler and learner differ alike in all completions."""
    asked = {"share": False, "samples": by_vllm} | STALE
    (whole, *_), (half, *_) = (
        train(small_model, tmp_path / str(part), wrap=lean(trained_part=part), **asked)[0]
        for part in (1, 0.5)
    )
    for name in ("sampling_logp_difference/mean", "importance_sampling_ratio/mean"):
        assert half[f"sampling/{name}"] == pytest.approx(whole[f"sampling/{name}"], rel=0.1)
    assert half["sampling/importance_sampling_ratio/max"] != 1.0


def test_of_right_and_wrong_ones_as_many_of_each_are_taken_and_equal_ones_by_chance():
    rewards = np.array([1.0, 0, 0, 0, 0, 0, 1, 0])
    picked = np.stack([most_spread(rewards, np.zeros(8), 0.5, rng(seed, "any")) for seed in range(300)])
    assert (picked[:, [0, 6]]).all()
    assert (picked.sum(axis=1) == 4).all()
    assert (picked[:, 1:6].sum(axis=0) > 50).all(), "no place is left out always"


def test_a_run_leaves_out_what_its_plan_says(train, tmp_path):
    """In conversations of two answers, whose feedback is masked, with the guard on."""
    options = {
        "max_steps": 3,
        "num_generations": 4,
        "turns": 2,
        "guard_window": 2,
        "max_completion_length": 6,
    }
    asked = {"trained_part": 0.5, "reference_part": 0.5, "skip_silent": True}
    report = train(tmp_path, **options, **{f"learner_{name}": value for name, value in asked.items()})
    rows = [row for row in report.history if "reward" in row]
    assert len(rows) == 3
    assert all(math.isfinite(row["loss"]) for row in rows)
    assert {row["learner/trained_share"] for row in rows} <= {0.0, 0.5}


def test_advantages_by_name_are_those_among_the_trained(train, tmp_path):
    """Of two of four completions pass@2 is earned by the better one alone; those left out have none."""
    import pandas as pd

    asked = {"max_steps": 2, "num_generations": 4, "advantages": "pass_at_k", "pass_at_k": 2}
    train(tmp_path, **asked, learner_trained_part=0.5)
    tables = [pd.read_parquet(path) for path in sorted(tmp_path.rglob("completions_*.parquet"))]
    for table in tables:
        assert (table["advantage"] == 0).sum() >= 2
        assert table["advantage"].abs().sum() > 0
