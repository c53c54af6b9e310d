"""Adapters in float32 on a base in half precision, or in four bits by bitsandbytes (NF4 in blocks of 64).

PEFT widens the input of each adapter to the adapter's dtype, and autocast narrows it again: the same values
after a round trip through memory, 76 KB a token and layer at 8B shape. Under autocast the widening can be
left out; outside of it (transformers' generation) it cannot.
"""

from __future__ import annotations

from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec


@contextmanager
def input_casting(model, enabled: bool):
    """Whether the model's adapters widen their inputs, within; as it was before, afterwards."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    before = [layer.cast_input_dtype_enabled for layer in layers]
    for layer in layers:
        layer.cast_input_dtype_enabled = enabled
    try:
        yield
    finally:
        for layer, value in zip(layers, before, strict=True):
            layer.cast_input_dtype_enabled = value


def four_bits_problem(in_vllm: bool = False) -> str | None:
    """Why no model can be loaded so here, in one sentence; None where it can.

    in_vllm: by vLLM on a GPU, too.
    """
    if find_spec("bitsandbytes") is None:
        return "load_in_4bit=True needs the package bitsandbytes, which is not installed"
    return _missing_for("load_in_4bit=True in vllm") if in_vllm else None


def eight_bits_problem() -> str | None:
    """Why vLLM cannot have its weights in eight bits here, in one sentence; None where it can."""
    return _missing_for("vllm_weight_dtype='fp8'")


def _missing_for(what: str) -> str | None:
    """Of all its quantizations vLLM 0.23 imports each with any other."""
    try:
        asked = any(one.startswith("humming-kernels") for one in requires("vllm") or ())
    except PackageNotFoundError:
        return None
    if asked and find_spec("humming") is None:
        return f"{what} needs vLLM's package humming-kernels, which is not installed"
    return None


def four_bit_config(compute_dtype):
    """The quantization that gives vLLM 0.23's weights, scales of blocks quantized, too, so that sampler
    and learner have the same. compute_dtype: of the products, after the weights are unpacked."""
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=compute_dtype,
    )
