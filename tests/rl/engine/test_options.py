"""Settings of the sampling engine that TRL has no name for."""

from types import SimpleNamespace

import numpy as np
import pytest

from arcnb.rl.engine.options import (
    engine_options,
    engine_seed,
    sample_numbers_alone,
    seeded_engines,
    vllm_environment,
)


@pytest.mark.parametrize(("installed", "told"), [(None, {"VLLM_USE_FLASHINFER_SAMPLER": "0"}), (True, {})])
def test_engines_are_told_what_they_do_not_find_out(monkeypatch, installed, told):
    names = ("UNSLOTH_COMPILE_DISABLE", "VLLM_USE_FLASHINFER_SAMPLER")
    for name in names:
        monkeypatch.setenv(name, "")  # to have it as it was afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr("arcnb.rl.engine.options.find_spec", lambda name: installed)
    assert vllm_environment() == {"UNSLOTH_COMPILE_DISABLE": "1"} | told
    monkeypatch.setenv(names[0], "0")
    assert vllm_environment() == told, "what is set stays"


def test_an_engine_in_this_process_makes_no_text_and_no_objects_of_tokens(monkeypatch):
    generation = pytest.importorskip("trl.generation.vllm_generation")
    monkeypatch.setattr(generation, "extract_logprobs", generation.extract_logprobs)

    def sampled(mode, **asked):
        trainer = SimpleNamespace(vllm_generation=SimpleNamespace(mode=mode, generation_kwargs=asked))
        sample_numbers_alone(trainer)
        return trainer.vllm_generation.generation_kwargs

    assert sampled("colocate") == {"detokenize": False, "flat_logprobs": True}
    assert sampled("colocate", stop=["x"]) == {"stop": ["x"], "flat_logprobs": True}
    assert sampled("colocate", detokenize=True) == {"detokenize": True, "flat_logprobs": True}
    assert sampled("server") == {}
    sample_numbers_alone(SimpleNamespace())


@pytest.mark.parametrize("others", [0, 2])
def test_trl_reads_the_same_log_probabilities_of_flat_ones(monkeypatch, others):
    """By vLLM's own containers, filled as its engine fills them; beside the sampled token's TRL's own
    function reads those of the likeliest ones."""
    generation = pytest.importorskip("trl.generation.vllm_generation")
    vllm = pytest.importorskip("vllm.logprobs")
    plain = generation.extract_logprobs

    def outputs(flat: bool):
        given = np.random.default_rng(others)
        samples = []
        for length in (5, 0, 3):
            of_tokens = vllm.create_sample_logprobs(flat)
            for _ in range(length):
                ids = given.permutation(1000)[: 1 + others].tolist()
                values = given.normal(size=1 + others).tolist()
                values[0] = float("nan") if given.random() < 0.3 else values[0]
                vllm.append_logprobs_for_next_position(of_tokens, ids, values, [None] * len(ids), 7, others)
            samples.append(SimpleNamespace(logprobs=of_tokens))
        return [SimpleNamespace(outputs=samples[:2]), SimpleNamespace(outputs=samples[2:])]

    monkeypatch.setattr(generation, "extract_logprobs", plain)
    engine = SimpleNamespace(mode="colocate", generation_kwargs={})
    for _ in range(2):  # a second trainer in this process
        sample_numbers_alone(SimpleNamespace(vllm_generation=engine))
    expected = plain(outputs(flat=False))
    assert any(None in token for sample in expected[0] for token in sample)
    for flat in (True, False):
        found = generation.extract_logprobs(outputs(flat))
        assert [[[list(token) for token in sample] for sample in part] for part in found] == list(expected)
    without = [SimpleNamespace(outputs=[SimpleNamespace(logprobs=None)])]
    assert generation.extract_logprobs(without) == (None, None)


def test_engines_draw_by_the_seed_of_the_run(monkeypatch):
    """TRL's own module opens them, and says the number of the engine alone."""
    generation = pytest.importorskip("trl.generation.vllm_generation")
    monkeypatch.setattr(generation, "LLM", lambda **settings: settings, raising=False)
    opened = []
    for seed, number in ((0, 0), (1, 0), (0, 1), (0, 0)):
        with engine_options(kv_cache_dtype="fp8"), seeded_engines(seed):
            opened.append(generation.LLM(model="m", seed=number))
    assert all(one | {"seed": 0} == {"model": "m", "kv_cache_dtype": "fp8", "seed": 0} for one in opened)
    seeds = [one["seed"] for one in opened]
    assert seeds[0] == seeds[3] == engine_seed(0, 0)
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert generation.LLM(seed=5) == {"seed": 5}
