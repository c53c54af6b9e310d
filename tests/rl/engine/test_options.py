"""Settings of the sampling engine that TRL has no name for."""

from types import SimpleNamespace

import pytest

from arcnb.rl.engine.options import engine_options, engine_seed, seeded_engines, vllm_environment


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


def test_an_engine_in_this_process_samples_ids_alone_unless_text_ends_a_sample():

    from arcnb.rl.engine.options import sample_ids_alone

    def sampled(mode, **asked):
        trainer = SimpleNamespace(vllm_generation=SimpleNamespace(mode=mode, generation_kwargs=asked))
        sample_ids_alone(trainer)
        return trainer.vllm_generation.generation_kwargs

    assert sampled("colocate") == {"detokenize": False}
    assert sampled("colocate", stop=["x"]) == {"stop": ["x"]}
    assert sampled("colocate", detokenize=True) == {"detokenize": True}
    assert sampled("server") == {}
    sample_ids_alone(SimpleNamespace())


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
