"""GRPO that samples by vLLM on a CPU: its engine has the policy's weights at every step."""

import importlib.util
from argparse import Namespace
from types import SimpleNamespace

import pytest

from arcnb.errors import ArcnbError
from arcnb.models.registry import load_tokenizer
from tests.random_llama import random_llama
from tests.rl.logged_keys import unknown_keys

needs_vllm = pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="no vllm")


@pytest.fixture(scope="module")
def wide_letters(tmp_path_factory, letter_model):
    """The letter model with heads of 32 features, which vLLM's attention for CPUs wants."""
    shape = {"hidden_size": 64, "initializer_range": 0.3, "bos_token_id": None}
    return random_llama(tmp_path_factory.mktemp("wide"), load_tokenizer(letter_model), **shape)


@needs_vllm
@pytest.mark.long("vLLM engines start")
def test_the_engine_samples_with_the_weights_of_every_step(train, wide_letters, tmp_path, monkeypatch):
    """At this rate the policy is another one after each step. A sampler that kept its first weights would be
    far from the learner by the last. No C++ compiler is needed."""
    monkeypatch.setenv("CXX", "/nowhere/g++")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "compiled"))
    asked = {"use_vllm": True, "learning_rate": 3e-2, "beta": 0.0, "model": str(wide_letters.folder)}
    first = []
    for adapter_alone in (False, True):
        folder = tmp_path / str(adapter_alone)
        report = train(folder, **asked, vllm_adapter_alone=adapter_alone, max_steps=4)
        gaps = [row["sampling/logp_gap"] for row in report.history if "reward" in row]
        assert len(gaps) == 4
        assert unknown_keys(folder) == []
        assert max(gaps) < 0.5  # bfloat16 makes up to 0.1; with the first weights it is 5 at the second step
        assert report.adapter_moved
        first.append([row.completion for row in rollouts(folder)][:3])
    assert first[0] == first[1], "an adapter that is still nothing, and the same seed"


def rollouts(folder):
    from arcnb.arc.predictions.prediction_set import PredictionSet

    rows = PredictionSet(folder / "rollouts").iter_predictions()
    return sorted(rows, key=lambda row: (row.round, row.index))


@pytest.fixture
def no_gpu(gpus, monkeypatch):
    gpus()
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@needs_vllm
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"num_processes": 2, "num_generations": 4}, "num_processes=2"),
        ({"trainer": "unsloth"}, "trainer='unsloth'"),
        ({"vllm_shared_weights": True}, "vllm_shared_weights=True"),
        ({"vllm_weight_dtype": "fp8"}, "vllm_weight_dtype='fp8'"),
        ({"vllm_group_attention": True}, "vllm_group_attention=True"),
    ],
)
def test_what_needs_a_gpu_beside_vllm_is_named(said, no_gpu, options, named):
    problem = f"{named} with use_vllm=True needs a GPU, and torch sees none"
    found = said(use_vllm=True, **options)
    assert [sentence for sentence in found if "needs the package unsloth" not in sentence] == [problem]


def test_without_vllm_the_way_out_is_named(said, no_gpu, monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "vllm" else there(name))
    (problem,) = said(use_vllm=True)
    assert problem.endswith("use_vllm=False samples by transformers")
    assert said(use_vllm="auto") == []


@needs_vllm
def test_folders_in_memory_of_killed_processes_are_removed_and_no_others(tmp_path, monkeypatch):
    import os
    import subprocess

    from arcnb.rl.engine import adapter_alone

    monkeypatch.setattr(adapter_alone, "_MEMORY", tmp_path)
    ended = subprocess.Popen(["true"])
    ended.wait()
    for name in (
        f"arcnb-policy-{ended.pid}-abc",
        f"arcnb-policy-{os.getpid()}-def",
        "arcnb-policy-x-y",
        "else",
    ):
        (tmp_path / name).mkdir()
    owner = Namespace()
    made = adapter_alone.policy_folder(owner)
    left = sorted(path.name for path in tmp_path.iterdir() if path != made)
    assert left == sorted([f"arcnb-policy-{os.getpid()}-def", "arcnb-policy-x-y", "else"])
    assert made.is_dir()
    del owner
    assert not made.exists()


@needs_vllm
def test_samples_derive_from_seed_step_rollbacks_and_prompt():
    from arcnb.models.sampling.backends import Completion
    from arcnb.rl.engine.cpu_generation import CpuGeneration

    class Echo:
        """Answers each request with its seed as the only token."""

        context = 64

        def generate(self, requests, sampling):
            for one in reversed(requests):  # in any order
                for index in range(one.n):
                    token = one.seed + index
                    yield Completion(one.key, index, "", [token], "stop", -1.0, 1, one.seed, (-1.0,))

    def opened(seed=0, step=0, rollbacks=0):
        generation = object.__new__(CpuGeneration)
        generation._backend, generation.max_completion_length = Echo(), 8
        arguments, state = SimpleNamespace(seed=seed), SimpleNamespace(global_step=step)
        generation.follow(SimpleNamespace(args=arguments, state=state), SimpleNamespace(rollbacks=rollbacks))
        return generation, state

    def drawn(prompts=([1, 2], [1, 2], [3], [3]), generation=None, **asked):
        generation = generation or opened(**asked)[0]
        given, made, logprobs, _ = generation.generate(list(prompts), num_generations=2)
        assert given == list(prompts)
        assert logprobs == [[[-1.0]]] * 4
        return [ids[0] for ids in made]

    first = drawn()
    assert first == drawn()
    assert first[1] == first[0] + 1, "completions of a prompt come in their order"
    others = [drawn(seed=1), drawn(step=1), drawn(rollbacks=1), drawn(prompts=([1, 2], [1, 2], [4], [4]))]
    assert len({tuple(one) for one in (first, *others)}) == 5
    assert others[-1][:2] == first[:2]

    generation, state = opened()
    assert drawn(generation=generation) == first
    assert not {*drawn(generation=generation)} & {*first}, "asked again in a step, as a tree does"
    state.global_step = 1
    assert drawn(generation=generation) == others[1], "whatever the step before asked for"


@needs_vllm
def test_a_prompt_that_leaves_no_room_is_named_with_what_to_change():
    from arcnb.rl.engine.cpu_generation import CpuGeneration

    generation = object.__new__(CpuGeneration)
    generation._backend, generation.max_completion_length = SimpleNamespace(context=16), 8
    arguments, state = SimpleNamespace(seed=0), SimpleNamespace(global_step=0)
    generation.follow(SimpleNamespace(args=arguments, state=state), SimpleNamespace(rollbacks=0))
    with pytest.raises(ArcnbError, match=r"9 tokens.*_length=8 .*of 16; lower max_prompt_length"):
        generation.generate([[1] * 9] * 2, num_generations=2)
