"""What vLLM gets: TRL's own walk over the policy, packed for a server by vLLM's own packing.

Run: pytest tests/rl/test_rl_weight_sync.py
"""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
generation = pytest.importorskip("trl.generation.vllm_generation")
packing = pytest.importorskip("vllm.distributed.weight_transfer.packed_tensor")

from arcnb.rl.weight_sync import load_weights_at_once, send_merged_weights  # noqa: E402

GIB = 1 << 30


class Server:
    """The client of a server, whose broadcast ends up in `received`."""

    def update_named_params(self, metadata, named):
        self.received = {}
        named = iter(named)
        while (chunk := packing.pack_tensors(named, lambda pair: pair[1], self.buffer)) is not None:
            parts = (chunk.packed_tensor, chunk.names, chunk.shapes, chunk.dtypes, chunk.tensor_sizes)
            self.received |= dict(packing.unpack_tensor(*parts))

    def reset_prefix_cache(self):
        pass


@pytest.fixture
def policy():
    """A LoRA that changes its base, and the weights of both together by the base's names."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    base = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
    model = get_peft_model(
        base, LoraConfig(r=2, target_modules=["0", "1", "2", "3"], init_lora_weights=False)
    )
    model.merge_adapter()
    merged = {f"{i}.weight": model.base_model.model[i].base_layer.weight.clone() for i in range(4)}
    model.unmerge_adapter()
    return model, merged


def trainer(model, buffer: int):
    """As much of a trainer as sends weights: TRL's own `VLLMGeneration`, without a server to connect to."""
    own = object.__new__(generation.VLLMGeneration)
    own.model, own.mode, own.enable_sleep_mode, own._weight_metadata = model, "server", False, None
    own.accelerator = SimpleNamespace(is_main_process=True)
    own._dist = SimpleNamespace(gather_params=lambda parameters: nullcontext(), is_fsdp=False)
    own.vllm_client = Server()
    own.vllm_client.buffer = buffer
    return SimpleNamespace(vllm_generation=own)


def differs(received, merged) -> list[str]:
    return [name for name, weight in merged.items() if not torch.allclose(received[name], weight, atol=1e-6)]


@pytest.mark.filterwarnings("ignore:Tensor .* has size")
@pytest.mark.parametrize("buffer", [GIB, 600, 1])
def test_a_server_gets_the_adapter_with_the_weights(policy, buffer):
    model, merged = policy
    sender = trainer(model, buffer)
    send_merged_weights(sender)
    sender.vllm_generation.sync_weights()
    assert differs(sender.vllm_generation.vllm_client.received, merged) == []
    assert not any(module.merged for module in model.modules() if hasattr(module, "merged"))


def test_trl_alone_still_sends_the_base(policy):
    """When this fails, TRL or vLLM has mended it, and arcnb.rl.weight_sync can go."""
    model, merged = policy
    sender = trainer(model, GIB)
    sender.vllm_generation.sync_weights()
    assert differs(sender.vllm_generation.vllm_client.received, merged) == list(merged)
    large = trainer(model, 600)  # bytes, of two layers: the last chunk is what the walk ends in
    large.vllm_generation.sync_weights()
    assert differs(large.vllm_generation.vllm_client.received, merged) == ["3.weight"]


def test_trainers_without_a_server_are_left_alone():
    send_merged_weights(SimpleNamespace())
    send_merged_weights(SimpleNamespace(vllm_generation=SimpleNamespace(mode="colocate")))


class Engine:
    """vLLM's model in this process: copies what it is given, as long as the adapter is merged."""

    def __init__(self):
        self.calls, self.received, self.resets = 0, {}, 0

    def load_weights(self, named):
        self.calls += 1
        self.received |= {name: weight.clone() for name, weight in named}

    def reset_prefix_cache(self):
        self.resets += 1


@pytest.mark.parametrize("at_once", [True, False])
def test_an_engine_in_this_process_gets_all_weights_in_one_call(policy, at_once):
    model, merged = policy
    own = trainer(model, 0)
    engine = Engine()
    worker = SimpleNamespace(model_runner=SimpleNamespace(model=engine))
    inside = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker))
    own.vllm_generation.mode = "colocate"
    own.vllm_generation.llm = SimpleNamespace(llm_engine=inside, reset_prefix_cache=engine.reset_prefix_cache)
    if at_once:
        load_weights_at_once(own)
    for times in (1, 2):
        own.vllm_generation.sync_weights()
        assert engine.calls == times * (1 if at_once else 8)  # four layers, each with a bias
        assert engine.resets == times
    assert differs(engine.received, merged) == []
    assert not any(module.merged for module in model.modules() if hasattr(module, "merged"))


def test_weights_of_servers_and_other_samplers_go_as_they_did(policy):
    load_weights_at_once(SimpleNamespace())
    sender = trainer(policy[0], GIB)
    walk = sender.vllm_generation._iter_named_params
    load_weights_at_once(sender)
    assert sender.vllm_generation._iter_named_params == walk
