"""One copy of the weights, in a model of vLLM's own that its own loader filled.

Its engine needs a GPU for this: tests/rl/test_gpu.py.
"""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
generation = pytest.importorskip("trl.generation.vllm_generation")
pytest.importorskip("vllm")

from peft import LoraConfig, get_peft_model  # noqa: E402

from arcnb.plans import ArcnbError  # noqa: E402
from arcnb.rl.engine.shared_weights import SharedWeights, sample_while_merged  # noqa: E402

SHAPE = {
    "vocab_size": 150,  # vLLM makes it 192
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.fixture(scope="module")
def group():
    """The process group of one in which vLLM makes its models."""
    from vllm import distributed
    from vllm.config import VllmConfig, set_current_vllm_config

    with set_current_vllm_config(VllmConfig()):
        distributed.init_distributed_environment(1, 0, "tcp://127.0.0.1:0", 0, "gloo")
        distributed.initialize_model_parallel(1)
    yield
    distributed.cleanup_dist_env_and_memory()


@pytest.fixture(params=["Llama", "Qwen2", "Llama with a head of its own"])
def saved(request, tmp_path, group):
    """Folder of a random model, whose embedding is its head where nothing else is said."""
    import transformers

    kind, *own = request.param.split(" ", 1)
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SHAPE, tie_word_embeddings=not own)
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(tmp_path)
    return tmp_path


def base_model(folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def engine_model(folder, weights=None):
    """vLLM's model of this folder, with its weights or with others, as pairs of name and tensor."""
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model

    asked = {"dtype": "float32", "enforce_eager": True, "skip_tokenizer_init": True}
    config = EngineArgs(model=str(folder), **asked).create_engine_config()
    with set_current_vllm_config(config):
        model = initialize_model(vllm_config=config)
    model.load_weights(weights or ((name, w.data) for name, w in base_model(folder).named_parameters()))
    return model


def with_lora(folder, layers=LAYERS, **lora):
    torch.manual_seed(1)
    config = LoraConfig(r=2, target_modules=layers, init_lora_weights=False, **lora)
    return get_peft_model(base_model(folder), config)


def llm(model):
    worker = SimpleNamespace(model_runner=SimpleNamespace(model=model))
    return SimpleNamespace(
        llm_engine=SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker)),
        reset_prefix_cache=lambda: None,
    )


def opened(monkeypatch, policy, model) -> SharedWeights:
    """What a trainer's engine is opened with, where `vllm.LLM` has this model."""

    def engine(**settings):
        assert settings == {"model": "folder", "dtype": "float32"}
        return llm(model)

    monkeypatch.setattr(generation, "LLM", engine)
    shared = SharedWeights(policy)
    with shared.opening():
        generation.LLM(model="folder")
    assert generation.LLM is engine
    return shared


def values(model) -> dict:
    return {name: weight.data.clone() for name, weight in model.named_parameters()}


def found(policy):
    """(logits, gradients) of some tokens."""
    policy.zero_grad()
    logits = policy(torch.arange(1, 40)[None]).logits
    logits.float().logsumexp(-1).sum().backward()
    grads = {name: w.grad.clone() for name, w in policy.named_parameters() if w.grad is not None}
    return logits.detach(), grads


def assert_same(left: dict, right: dict):
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert torch.equal(value, right[name]), name


@pytest.mark.parametrize("dora", [False, True])
def test_the_engine_samples_with_the_adapter_and_the_policy_stays_what_it_was(saved, monkeypatch, dora):
    policy, model = with_lora(saved, use_dora=dora), engine_model(saved)
    logits, gradients = found(policy)
    plain = values(model)
    shared = opened(monkeypatch, policy, model)
    theirs = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    frozen = [weight for name, weight in policy.named_parameters() if "lora_" not in name]
    assert {weight.untyped_storage().data_ptr() for weight in frozen} <= theirs
    assert_same(values(model), plain)
    for _ in range(2):
        with shared.merged(policy):
            merged = values(model)
        assert_same(values(model), plain)
    other = with_lora(saved, use_dora=dora)  # the same, by TRL's way: all merged weights to vLLM's loader
    own = object.__new__(generation.VLLMGeneration)
    own.model = other
    own._dist = SimpleNamespace(gather_params=lambda parameters: nullcontext(), is_fsdp=False, is_zero3=False)
    copied = engine_model(saved, ((name, weight.clone()) for name, weight in own._iter_named_params()))
    assert_same(merged, values(copied))
    assert any(not torch.equal(merged[name], plain[name]) for name in plain)
    assert torch.equal(found(policy)[0], logits)
    assert_same(found(policy)[1], gradients)


def test_every_sample_is_drawn_while_merged_and_nothing_is_sent(saved, monkeypatch):
    policy, model = with_lora(saved), engine_model(saved)
    shared = opened(monkeypatch, policy, model)
    plain, seen, resets = values(model), [], []
    own = object.__new__(generation.VLLMGeneration)
    own.model, own.mode, own.enable_sleep_mode, own.accelerator = policy, "colocate", False, None
    own.llm = llm(model)
    own.llm.reset_prefix_cache = lambda: resets.append(1)

    def generate(prompts, **rest):
        seen.append(values(model))
        if prompts == "broken":
            raise RuntimeError("out of memory")
        return prompts, rest

    own.generate = generate
    model.load_weights = None  # would be called for anything that is sent
    sample_while_merged(SimpleNamespace(vllm_generation=own), shared)
    own.sync_weights()
    assert resets == [1]
    assert_same(values(model), plain)
    assert own.generate("prompts", n=2) == ("prompts", {"n": 2})
    with pytest.raises(RuntimeError):
        own.generate("broken")
    changed = {name for name in plain if not torch.equal(seen[0][name], plain[name])}
    assert {name.split(".")[-2] for name in changed} == {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}
    assert_same(seen[1], seen[0])
    assert_same(values(model), plain)


def test_a_head_that_is_the_embedding_is_restored_with_it(saved, monkeypatch):
    policy, model = with_lora(saved, ["q_proj", "lm_head"]), engine_model(saved)
    plain = values(model)
    shared = opened(monkeypatch, policy, model)
    monkeypatch.setattr(policy, "unmerge_adapter", lambda: None)  # the copies alone can take it out
    with shared.merged(policy):
        heads = [name for name in plain if "embed" in name or "lm_head" in name]
        assert any(not torch.equal(model.get_parameter(name), plain[name]) for name in heads)
    assert_same(values(model), plain)


def test_weights_that_are_not_the_same_are_refused(saved, monkeypatch):
    model = engine_model(saved)
    model.model.layers[1].self_attn.qkv_proj.weight.data[33, 5] += 1  # of the keys
    with pytest.raises(ArcnbError, match=r"vLLM keeps model\.layers\.1\.self_attn\.k_proj\.weight"):
        opened(monkeypatch, with_lora(saved), model)
    del model.model.layers[0].mlp.down_proj
    with pytest.raises(ArcnbError, match=r"layers\.0\.mlp\.down_proj\.weight in another way"):
        opened(monkeypatch, with_lora(saved), model)


def test_what_trains_more_than_a_lora_is_refused(saved, monkeypatch):
    policy = with_lora(saved, modules_to_save=["norm"])
    with pytest.raises(ArcnbError, match=r"needs a LoRA alone to be trained, but .*norm.*weight is, too"):
        opened(monkeypatch, policy, None)
    whole = base_model(saved)
    with pytest.raises(ArcnbError, match="needs a LoRA alone"):
        opened(monkeypatch, whole, None)
