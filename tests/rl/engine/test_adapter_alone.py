"""The adapter alone, on its way to an engine in the training process.

The engine is a stand-in: the real one needs a GPU (tests/rl/test_gpu.py).
"""

from argparse import Namespace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from arcnb.errors import ArcnbError  # noqa: E402
from arcnb.rl.engine.adapter_alone import send_adapter_alone  # noqa: E402


class Engine:
    """What is asked of `vllm.LLM`: the adapters that it knows, with the weights their files had."""

    def __init__(self):
        self.known, self.asked, self.resets = {}, [], 0
        self.llm_engine = SimpleNamespace(add_lora=self.add, remove_lora=self.known.pop)

    def add(self, request):
        from peft import load_peft_weights

        assert request.lora_int_id not in self.known, "vLLM would not look at the file again"
        self.known[request.lora_int_id] = load_peft_weights(request.lora_path)

    def reset_prefix_cache(self):
        self.resets += 1

    def generate(self, prompts, lora_request=None, **settings):
        self.asked.append((prompts, self.known[lora_request.lora_int_id]))
        return settings


def policy(small_model, **lora):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(small_model.path)
    return get_peft_model(
        base, LoraConfig(**{"r": 2, "target_modules": ["q_proj"], "init_lora_weights": False} | lora)
    )


def test_each_synchronisation_gives_the_engine_the_adapter_of_then_and_takes_the_one_before(small_model):
    from peft import get_peft_model_state_dict

    model, engine = policy(small_model), Engine()
    generation = Namespace(model=model, llm=engine)
    send_adapter_alone(SimpleNamespace(vllm_generation=generation))
    for count in (1, 2, 3):
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_" in name:
                    weight += count
        generation.sync_weights()
        assert generation.llm.generate(["p"], use_tqdm=False) == {"use_tqdm": False}
        assert (len(engine.known), engine.resets) == (1, count)
        prompts, weights = engine.asked[-1]
        expected = get_peft_model_state_dict(model)
        assert prompts == ["p"]
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    "lora",
    [
        {"use_dora": True},
        {"bias": "lora_only"},
        {"modules_to_save": ["lm_head"]},
        {"rank_pattern": {"q_proj": 1}},
        {"alpha_pattern": {"q_proj": 9}},
    ],
)
def test_what_vllm_could_not_apply_is_refused(small_model, lora):
    generation = Namespace(model=policy(small_model, **lora), llm=Engine())
    send_adapter_alone(SimpleNamespace(vllm_generation=generation))
    with pytest.raises(ArcnbError, match="vllm_adapter_alone=True needs a plain LoRA"):
        generation.sync_weights()
