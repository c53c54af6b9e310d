"""What vLLM gets: TRL's own walk over the policy, packed for a server by vLLM's own packing."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
generation = pytest.importorskip("trl.generation.vllm_generation")
packing = pytest.importorskip("vllm.distributed.weight_transfer.packed_tensor")

from arcnb.rl.engine.weight_sync import send_merged_weights  # noqa: E402

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
    own._dist = SimpleNamespace(gather_params=lambda parameters: nullcontext(), is_fsdp=False, is_zero3=False)
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
    """When this fails, TRL or vLLM has mended it, and arcnb.rl.engine.weight_sync can go."""
    model, merged = policy
    sender = trainer(model, GIB)
    sender.vllm_generation.sync_weights()
    assert differs(sender.vllm_generation.vllm_client.received, merged) == list(merged)
    large = trainer(model, 600)  # bytes, of two layers: the last chunk is what the walk ends in
    large.vllm_generation.sync_weights()
    assert differs(large.vllm_generation.vllm_client.received, merged) == ["3.weight"]


def test_trainers_without_vllm_or_adapter_are_left_alone():
    send_merged_weights(SimpleNamespace())
    sender = trainer(torch.nn.Linear(8, 8), GIB)
    walk = sender.vllm_generation._iter_named_params
    send_merged_weights(sender)
    assert sender.vllm_generation._iter_named_params == walk


class Engine:
    """vLLM's model in this process: copies what it is given."""

    def __init__(self):
        self.calls, self.received, self.resets = 0, {}, 0

    def load_weights(self, named):
        self.calls += 1
        self.received |= {name: weight.clone() for name, weight in named}

    def reset_prefix_cache(self):
        self.resets += 1


def colocated(model):
    """(trainer, engine), the engine in this process."""
    own, engine = trainer(model, 0), Engine()
    worker = SimpleNamespace(model_runner=SimpleNamespace(model=engine))
    inside = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker))
    own.vllm_generation.mode = "colocate"
    own.vllm_generation.llm = SimpleNamespace(llm_engine=inside, reset_prefix_cache=engine.reset_prefix_cache)
    return own, engine


@pytest.mark.parametrize("ours", [True, False])
def test_an_engine_in_this_process_gets_all_weights_in_one_call(policy, ours):
    model, merged = policy
    own, engine = colocated(model)
    if ours:
        send_merged_weights(own)
    for times in (1, 2):
        own.vllm_generation.sync_weights()
        assert engine.calls == times * (1 if ours else 8)  # four layers, each with a bias
        assert engine.resets == times
    assert sorted(engine.received) == sorted([*merged, *(f"{i}.bias" for i in range(4))])
    assert differs(engine.received, merged) == []
    assert not any(module.merged for module in model.modules() if hasattr(module, "merged"))


def test_an_engine_in_eight_bits_gets_them_as_weights_to_round(policy):
    """By vLLM's way for weights that are rounded when they are loaded, never into the rounded ones."""
    model, merged = policy
    own, engine = colocated(model)
    runner, rounded = own.vllm_generation.llm.llm_engine.model_executor.driver_worker.model_runner, {}
    runner.reload_weights = lambda weights_iterator: rounded.update(weights_iterator)
    send_merged_weights(own, eight_bits=True)
    own.vllm_generation.sync_weights()
    assert differs(rounded, merged) == []
    assert (engine.calls, engine.resets) == (0, 1)


def moved_and_sent(own, model, times: int) -> tuple[dict, dict]:
    """(weights of the base before, after `times` synchronisations of an adapter that moves)."""
    base = {name: w for name, w in model.named_parameters() if ".base_layer." in name}
    before = {name: w.detach().clone() for name, w in base.items()}
    for _ in range(times):
        own.vllm_generation.sync_weights()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_" in name:
                    weight += 0.01 * torch.randn_like(weight)
    return before, {name: w for name, w in model.named_parameters() if ".base_layer." in name}


def halved(model):
    """The policy as on a GPU: base in bfloat16, adapter in float32."""
    for name, weight in model.named_parameters():
        if ".base_layer." in name:
            weight.data = weight.data.bfloat16()
    return model


@pytest.mark.filterwarnings("ignore:Tensor .* has size")
@pytest.mark.parametrize("mode", ["colocate", "server"])
@pytest.mark.parametrize("lora", [{}, {"use_dora": True}, {"lora_bias": True}], ids=str)
def test_the_base_stays_to_the_bit(mode, lora):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4)))
    config = LoraConfig(r=2, target_modules=["0", "2"], init_lora_weights=False, **lora)
    model = halved(get_peft_model(layers, config))
    own = colocated(model)[0] if mode == "colocate" else trainer(model, GIB)
    send_merged_weights(own)
    before, after = moved_and_sent(own, model, 10)
    assert len(after) == 4
    assert all(torch.equal(before[name], weight) for name, weight in after.items())


def test_trl_alone_still_rounds_the_base(policy):
    """When this fails, TRL has mended it."""
    model = halved(policy[0])
    own, _ = colocated(model)
    before, after = moved_and_sent(own, model, 10)
    assert not any(torch.equal(before[name], w) for name, w in after.items() if name.endswith("weight"))


def test_what_is_sent_is_rounded_once(policy):
    """In bfloat16 an engine has the bits of the sum: learner and sampler differ as little as can be."""
    model = halved(policy[0])
    own, engine = colocated(model)
    send_merged_weights(own)
    own.vllm_generation.sync_weights()
    for i in range(4):
        layer = model.base_model.model[i]
        whole = layer.base_layer.weight.float() + layer.get_delta_weight("default")
        assert torch.equal(engine.received[f"{i}.weight"], whole.bfloat16())


def test_a_frozen_part_and_one_trained_whole_are_sent_as_they_are():
    from peft import LoraConfig, get_peft_model

    layers = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
    config = LoraConfig(r=2, target_modules=["0"], modules_to_save=["1"], init_lora_weights=False)
    model = get_peft_model(layers, config)
    trained = model.base_model.model[1].modules_to_save["default"]
    with torch.no_grad():
        trained.weight += 1
    own, engine = colocated(model)
    send_merged_weights(own)
    own.vllm_generation.sync_weights()
    assert sorted(engine.received) == [f"{i}.{kind}" for i in range(3) for kind in ("bias", "weight")]
    assert torch.equal(engine.received["1.weight"], trained.weight)
    assert torch.equal(engine.received["2.weight"], model.base_model.model[2].weight)


def test_a_merge_that_fails_leaves_the_policy_as_it_was(policy, monkeypatch):
    model, _ = policy
    own, _ = colocated(model)
    send_merged_weights(own)
    broken = model.base_model.model[2]

    def merge():
        broken.base_layer.weight.data += 1
        raise RuntimeError("no memory")

    monkeypatch.setattr(broken, "merge", merge)
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    with pytest.raises(RuntimeError, match="no memory"):
        own.vllm_generation.sync_weights()
    assert all(torch.equal(before[name], weight) for name, weight in model.named_parameters())
    assert not any(module.merged for module in model.modules() if hasattr(module, "merged"))


@pytest.fixture
def in_four_bits(letter_model, monkeypatch):
    """(policy, its plain model): a base in four bits with an adapter that changes it a little."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from arcnb.rl.trainer.policies import load_policy

    # On AVX-512 BF16 bitsandbytes repacks layers for inference, which fails for such narrow ones.
    monkeypatch.setattr("bitsandbytes.nn.modules.has_avx512bf16", lambda: False)
    torch.manual_seed(0)
    base, _ = load_policy(letter_model, None, {}, load_in_4bit=True, on_gpu=False)
    config = LoraConfig(r=2, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    policy = get_peft_model(base, config)
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                weight *= 0.1
    return policy.eval(), AutoModelForCausalLM.from_pretrained(letter_model.path).eval()


@pytest.mark.filterwarnings("ignore:Tensor .* has size")
@pytest.mark.parametrize("mode", ["colocate", "server"])
def test_a_base_in_four_bits_is_sent_whole_with_its_adapter(in_four_bits, mode):
    policy, plain = in_four_bits
    own, engine = colocated(policy) if mode == "colocate" else (trainer(policy, GIB), None)
    send_merged_weights(own)
    before = {name: weight.clone() for name, weight in policy.named_parameters()}
    own.vllm_generation.sync_weights()
    received = engine.received if engine else own.vllm_generation.vllm_client.received
    missing = plain.load_state_dict(received, strict=False).missing_keys
    assert all(key == "lm_head.weight" for key in missing)  # tied to the embedding
    tokens = torch.arange(4, 40)[None]
    with torch.no_grad():
        learner, sampler = policy(tokens).logits, plain(tokens).logits
        with policy.disable_adapter():
            base = policy(tokens).logits
    assert torch.allclose(learner, sampler, atol=1e-4)
    assert (learner - base).abs().max() > 0.01
    after = dict(policy.named_parameters())
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not any(module.merged for module in policy.modules() if hasattr(module, "merged"))


@pytest.mark.filterwarnings("ignore:Merge lora module", "ignore:Unmerge lora module")
def test_trl_alone_sends_packed_codes_of_a_base_in_four_bits(in_four_bits):
    """When this fails, TRL has mended it."""
    own, engine = colocated(in_four_bits[0])
    own.vllm_generation.sync_weights()
    assert engine.received["model.layers.0.self_attn.q_proj.weight"].dtype == torch.uint8
