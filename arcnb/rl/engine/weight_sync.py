"""The way of the policy's weights, adapter included, to the vLLM that samples.

TRL (1.15, 1.16) merges the adapter into the weights, hands them out one by one, and takes the adapter out
again behind the last. Here every weight is merged in a copy of its own instead, for two reasons.

- Merging and taking out both round. In bfloat16 the base that the learner computes with is another after
  every synchronisation: by 0.3% after a hundred (docs/results/log/2026-11-24_collapse_first_seeds.md).
- A server's sender (vLLM 0.23 and 0.31) collects up to 1 GiB of weights before it copies anything. Of the
  last of them, of a small policy all, the adapter was taken out before: they arrived as the base model's
  (docs/results/log/2026-11-22_server_sampled_base.md).
  Besides, the sender's CUDA streams do not wait for the policy's.

A base in four bits is handed out in its compute type: quantizing a merge again rounds it further than
adapters move it (docs/results/log/2026-11-25_low_ranks_gain.md). Engines are opened with a whole base then
(`arcnb.rl.trainer.trainer`), where TRL opens quantized ones. So sampler and learner have the same weights.

An engine in this process gets all weights in one call: TRL makes one call a weight, and in each vLLM's model
lists all its parameters anew, 272 times a synchronisation for the embedded model, 0.45 ms each on a CPU core.

An engine in eight bits rounds what it gets anew each time, one layer after the other (vLLM's
`reload_weights`, which writes into the tensors that its CUDA graphs know). Written into those by a plain load
the new weights would be rounded without their scales.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    Weights = Iterator[tuple[str, torch.Tensor]]  # by the names of a checkpoint

_AHEAD = (
    1 << 30
)  # bytes of weights that may be made before those before them are sent, as many as a sender collects


def send_merged_weights(trainer, eight_bits: bool = False) -> None:
    """Has a TRL trainer with a vLLM, in this process or in a server, send weights that are merged in copies.

    Does nothing for a trainer that samples in any other way, or whose policy has no adapter.
    eight_bits: the engine, in this process, rounds its layers' matrices to these.
    """
    import torch
    from peft import PeftModel

    generation = getattr(trainer, "vllm_generation", None)
    if not isinstance(getattr(generation, "model", None), PeftModel):
        return
    weights = generation._iter_named_params = lambda: merged_weights(generation)
    if generation.mode == "colocate":

        def loaded() -> Weights:
            runner = generation.llm.llm_engine.model_executor.driver_worker.model_runner
            if eight_bits:
                runner.reload_weights(weights_iterator=weights())
            else:
                runner.model.load_weights(weights())
            return iter(())  # none are left for TRL's loop

        generation._iter_named_params = loaded
    elif client := getattr(generation, "vllm_client", None):
        send = client.update_named_params

        def sent(metadata, named: Weights) -> None:
            send(metadata, of_this_stream(named))
            # vLLM 0.23 sends on new streams each time, and torch keeps the memory of old ones for them alone.
            torch.cuda.empty_cache()

        client.update_named_params = sent


def merged_weights(generation) -> Weights:
    """The weights of the policy of TRL's `VLLMGeneration` with its adapter; the policy stays as it is.

    Weights of layers with a LoRA are new tensors, made when they are asked for. All processes have to walk:
    under ZeRO-3 one layer after the other is gathered, and what is handed out outlives that.
    """
    model, dist = generation.model, generation._dist
    adapted = _adapted_layers(model)
    for name, parameter in list(model.named_parameters()):
        if model.prefix in name or "original_module" in name:
            continue  # the adapter's own, and what `modules_to_save` stand for
        plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
        plain = generation._fix_param_name_to_vllm(plain, extra_prefixes=["modules_to_save.default."])
        layers = adapted.get(id(parameter))
        with dist.gather_params(list(layers[-1].parameters()) if layers else [parameter]):
            if layers:
                weight = _merged(layers, name.rsplit(".", 1)[1])
            else:
                weight = _whole(parameter)
                weight = weight.clone() if dist.is_zero3 else weight
        yield plain, weight


def _adapted_layers(model) -> dict[int, list]:
    """Of every parameter (its id) of a layer with an adapter the peft layers around it, from within."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = defaultdict(list)
    for module in model.modules():
        if isinstance(module, BaseTunerLayer):
            for parameter in module.get_base_layer().parameters(recurse=False):
                layers[id(parameter)].insert(0, module)
    return layers


def _merged(layers: list, kind: str):
    """What merging changes the parameter called `kind` of these layers' base into; the base is put back."""
    import torch
    from peft.tuners.lora import Linear

    own = layers[0].get_base_layer()._parameters
    before = {name: parameter for name, parameter in own.items() if parameter is not None}
    quantized = any(map(_in_four_bits, before.values()))
    try:
        with torch.no_grad():
            for name, parameter in before.items():
                own[name] = torch.nn.Parameter(_whole(parameter).clone(), requires_grad=False)
            for layer in layers:
                if quantized:  # its own merge would quantize the sum
                    Linear.merge(layer)
                else:
                    layer.merge()
        return own[kind].data
    finally:
        own.update(before)
        for layer in layers:
            layer.merged_adapters.clear()


def _in_four_bits(parameter) -> bool:
    return getattr(parameter, "quant_state", None) is not None


def _whole(parameter):
    """The weights of a parameter, unpacked where they are in four bits."""
    if not _in_four_bits(parameter):
        return parameter.data
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(parameter.data, parameter.quant_state)


def of_this_stream(weights: Weights) -> Weights:
    """The same weights, made on the CUDA stream that is current in this call; others that ask wait.

    Weights are made faster than they are sent, and those of a 7B model took 36 GiB of the sending H100 more
    than of the other one: so this waits now and then for what was handed out.
    """
    import torch

    return _of_stream(weights, torch.cuda.current_stream()) if torch.cuda.is_available() else weights


def _of_stream(weights: Weights, own) -> Weights:
    import torch

    ahead = 0
    while True:
        if ahead > _AHEAD:
            torch.cuda.current_stream().synchronize()
            ahead = 0
        with torch.cuda.stream(own):
            pair = next(weights, None)
        if pair is None:
            return
        ahead += pair[1].nbytes
        asking = torch.cuda.current_stream()
        asking.wait_stream(own)
        pair[1].record_stream(asking)
        yield pair
