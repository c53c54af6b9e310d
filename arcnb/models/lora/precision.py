"""Adapters in float32 on a model in half precision, without copies of every input in float32.

PEFT widens the input of each adapter to the adapter's dtype, and autocast narrows it again: the same values
after a round trip through memory, 76 KB a token and layer at 8B shape. Under autocast the widening can be
left out; outside of it (transformers' generation) it cannot.
"""

from __future__ import annotations

from contextlib import contextmanager


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
