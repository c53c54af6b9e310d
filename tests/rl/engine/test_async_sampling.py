"""Sampling ahead: the next round is drawn by the policy that this one begins with, and resumed runs keep it.

The engine is the transformers backend in the place of vLLM's, which takes ten seconds to open."""

import importlib.util
import json
import os
from dataclasses import replace

import pytest

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.errors import ArcnbError
from arcnb.models.sampling.backends import open_backend
from arcnb.rl.engine.options import RUNNER

pytestmark = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="no vllm")
ASKED = {
    "use_vllm": True,
    "vllm_adapter_alone": True,
    "vllm_importance_sampling_mode": "token_truncate",
    "learning_rate": 3e-2,
    "beta": 0.0,
    "max_steps": 4,
}


class Engine:
    """The transformers backend with the log-probability of every token."""

    def __init__(self, model, adapter, options):
        self.backend = open_backend("transformers", model, adapter, replace(options, max_num_seqs=None))

    def __getattr__(self, name):
        return getattr(self.backend, name)

    def generate(self, requests, sampling):
        import torch

        for one in list(self.backend.generate(requests, sampling)):
            prompt = next(request.prompt_ids for request in requests if request.key == one.key)
            ids = torch.tensor([[*prompt, *one.token_ids]])
            with torch.inference_mode():
                logits = self.backend._net(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            values = logits.gather(1, ids[0, len(prompt) :, None]).squeeze(1).tolist()
            yield replace(one, token_logprobs=tuple(values))


@pytest.fixture(autouse=True)
def engine(monkeypatch):
    from arcnb.rl.engine import cpu_generation

    monkeypatch.setattr(
        cpu_generation, "open_backend", lambda name, model, adapter, options: Engine(model, adapter, options)
    )


def drawn(folder):
    rows = PredictionSet(folder / "rollouts").iter_predictions()
    return [row.completion for row in sorted(rows, key=lambda row: (row.round, row.index))]


def logged(report, name):
    return [row[name] for row in report.history if name in row]


def test_samples_are_one_round_old_from_the_second_round_on(train, tmp_path):
    ahead = train(tmp_path / "ahead", **ASKED, vllm_ahead=True)
    plain = train(tmp_path / "plain", **ASKED)
    assert logged(ahead, "sampling/staleness") == [0, 1, 1, 1]
    assert ahead.adapter_moved
    gaps = logged(ahead, "sampling/logp_gap")
    assert gaps[0] < 0.01, "both computed in float32 by the same kernels"
    assert min(gaps[1:]) > 0.05 > max(logged(plain, "sampling/logp_gap")), "of a policy that has moved on"
    group = len(drawn(tmp_path / "ahead")) // 4
    same = [a == b for a, b in zip(drawn(tmp_path / "ahead"), drawn(tmp_path / "plain"), strict=True)]
    assert all(same[:group])
    assert not all(same[group : 2 * group]), "the second round was drawn by the first one's policy"


def test_a_round_serves_several_steps_and_is_drawn_a_round_before(train, tmp_path):
    report = train(tmp_path, **ASKED, vllm_ahead=True, steps_per_generation=2)
    assert logged(report, "sampling/staleness") == [0, 1, 2, 3]


def test_a_resumed_run_trains_on_the_samples_of_an_unbroken_one(train, tmp_path):
    whole = train(tmp_path / "whole", **ASKED, vllm_ahead=True, save_steps=2)
    checkpoint = tmp_path / "whole" / "checkpoints" / "checkpoint-2"
    assert json.loads((checkpoint / "ahead.json").read_text())["drawn_at"] == 1
    rest = train(tmp_path / "rest", **ASKED, vllm_ahead=True, resume=str(checkpoint))
    assert drawn(tmp_path / "rest") == drawn(tmp_path / "whole")[-len(drawn(tmp_path / "rest")) :]
    assert logged(rest, "loss")[-2:] == pytest.approx(logged(whole, "loss")[-2:], abs=1e-6)


def test_an_evaluation_waits_for_the_engine_and_changes_no_sample(train, tasks, tmp_path):
    asked = ASKED | {"eval_steps": 2, "n_eval_tasks": 0, "num_generations_eval": 2}
    report = train(tmp_path / "ahead", eval_tasks=tasks, **asked, vllm_ahead=True)
    assert logged(report, "sampling/staleness") == [0, 1, 1, 1]
    assert len(logged(report, "held_out/pass@1")) == 3
    train(tmp_path / "without", **ASKED, vllm_ahead=True)
    assert drawn(tmp_path / "ahead") == drawn(tmp_path / "without")


def test_the_engine_is_one_that_can_sample_on_a_stream_of_a_thread(train, tmp_path, monkeypatch):
    monkeypatch.delenv(RUNNER, raising=False)
    train(tmp_path, **ASKED | {"max_steps": 1}, vllm_ahead=True)
    assert os.environ[RUNNER] == "0"
    monkeypatch.setenv(RUNNER, "1")
    with pytest.raises(ArcnbError, match=f"vllm_ahead=True needs {RUNNER}=0, not 1"):
        train(tmp_path / "other", **ASKED, vllm_ahead=True)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"use_vllm": False}, "use_vllm=False"),
        ({"turns": 2}, "turns above 1"),
        (
            {"vllm_importance_sampling_correction": False},
            "vllm_importance_sampling_correction=False, which takes samples of an older policy for the "
            "policy's own",
        ),
        ({"vllm_shared_weights": True}, "vllm_shared_weights=True, which merges the adapter into them"),
        ({"num_processes": 2, "num_generations": 4}, "num_processes=2"),
    ],
)
def test_what_it_does_not_go_with_is_named(said, options, reason):
    found = said(**{"use_vllm": True, "vllm_ahead": True} | options)
    assert f"vllm_ahead=True does not go with {reason}" in found
