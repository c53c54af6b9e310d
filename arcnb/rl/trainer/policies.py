"""The model that is trained: a base with a LoRA, loaded by transformers and peft or by unsloth."""

from __future__ import annotations

from pathlib import Path

from arcnb.models.lora.compatibility import WEIGHTS
from arcnb.models.lora.precision import four_bit_config
from arcnb.models.registry import ModelPath, load_network
from arcnb.rl.resuming.identity import adapter_shape


def load_policy(
    model: ModelPath,
    adapter: Path | None,
    lora: dict,
    *,
    load_in_4bit: bool = False,
    on_gpu: bool = True,
    half: bool = False,
):
    """(model, peft_config) for TRL's trainer: an adapter to go on with, or a base and a fresh one's shape.

    load_in_4bit: the base by bitsandbytes. half: the base in float16 on a GPU, in place of bfloat16.
    """
    import torch
    from peft import LoraConfig, PeftModel

    dtype = torch.float16 if half else torch.bfloat16
    options = {"dtype": dtype if on_gpu else torch.float32}
    if load_in_4bit:
        options["quantization_config"] = four_bit_config(options["dtype"])
    base = load_network(model, **options)
    if adapter:
        return PeftModel.from_pretrained(base, str(adapter), is_trainable=True), None
    return base, LoraConfig(task_type="CAUSAL_LM", **lora)


def load_unsloth_policy(
    model: ModelPath,
    adapter: Path | None,
    lora: dict,
    *,
    context: int,
    use_vllm: bool,
    gpu_memory_utilization: float,
    load_in_4bit: bool = False,
    gradient_checkpointing: bool = True,
    seed: int = 0,
):
    """A model by unsloth's FastLanguageModel with its LoRA; with use_vllm its engine shares the weights.

    unsloth has to be imported before transformers, peft and trl, and takes as KL reference the base without
    any adapter, where TRL takes the starting adapter.
    """
    from unsloth import FastLanguageModel

    shape = adapter_shape(adapter) if adapter else lora
    policy, _ = FastLanguageModel.from_pretrained(
        model_name=model.path,
        max_seq_length=context,
        load_in_4bit=load_in_4bit,
        fast_inference=use_vllm,
        max_lora_rank=shape["r"],
        gpu_memory_utilization=gpu_memory_utilization,
    )
    policy = FastLanguageModel.get_peft_model(
        policy,
        r=shape["r"],
        lora_alpha=shape["lora_alpha"],
        use_rslora=shape["use_rslora"],
        target_modules=list(shape["target_modules"]),
        use_gradient_checkpointing="unsloth" if gradient_checkpointing else False,
        random_state=seed,
    )
    if adapter:
        from peft import load_peft_weights, set_peft_model_state_dict

        set_peft_model_state_dict(
            policy, load_peft_weights(str(adapter), device="cpu"), adapter_name="default"
        )
    return policy


def has_moved(adapter: Path, start: Path | None) -> bool:
    """Whether a trained adapter is another than the one it started from; None: a fresh one, whose B is 0.

    Both are compared in float32, since they may be saved in different types.
    """
    from safetensors.torch import load_file

    now = load_file(adapter / WEIGHTS)
    if start is None:
        return any(bool(tensor.any()) for name, tensor in now.items() if "lora_B" in name)
    before = load_file(start / WEIGHTS)
    return now.keys() != before.keys() or any(
        not tensor.float().equal(before[name].float()) for name, tensor in now.items()
    )
