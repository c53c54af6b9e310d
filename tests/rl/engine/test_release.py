"""The memory of an engine in the training process, after the training. On a GPU: tests/rl/test_gpu.py."""

import gc
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from arcnb.rl.engine.release import release_engine  # noqa: E402


def test_an_engines_storages_are_empty_although_something_refers_to_them():
    model = torch.nn.Linear(8, 8)
    model.register_buffer("table", torch.ones(8))
    model.kv_cache = torch.zeros(2, 64)  # as vLLM's layers of attention refer to their part of the cache
    caches = [model.kv_cache.view(-1), [torch.zeros(3)]]
    runner = SimpleNamespace(kv_caches=caches, model=model)
    engine = SimpleNamespace(driver_worker=SimpleNamespace(model_runner=runner))
    llm = SimpleNamespace(llm_engine=SimpleNamespace(model_executor=engine))
    policy = torch.nn.Linear(8, 8)
    trainer = SimpleNamespace(vllm_generation=SimpleNamespace(llm=llm), model=policy)
    gc.freeze()  # as vLLM does when an engine opens
    release_engine(trainer)
    held = [*model.parameters(), model.kv_cache, *caches[1]]
    assert [tensor.untyped_storage().nbytes() for tensor in held] == [0] * 4
    assert model.table.untyped_storage().nbytes() == 8 * 4, (
        "vLLM gives tables of positions to the next engine"
    )
    assert gc.get_freeze_count() == 0
    assert trainer.vllm_generation.llm is None
    assert policy.weight.untyped_storage().nbytes() == 8 * 8 * 4


@pytest.mark.parametrize("sampler", [{}, {"vllm_generation": SimpleNamespace(mode="server")}])
def test_a_trainer_without_an_engine_in_its_process_has_nothing_to_release(sampler):
    release_engine(SimpleNamespace(**sampler))
