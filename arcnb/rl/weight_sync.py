"""The way of the policy's weights, adapter included, to the vLLM that samples.

A server. TRL (1.15, 1.16) merges the adapter into the weights, hands them to vLLM's sender one by one, and
takes the adapter out again behind the last one. The sender (vLLM 0.23 and 0.31) collects up to 1 GiB of them
before it copies anything: where that ends with the last weight, what it copies has already lost the adapter.
So the last GiB of a large policy, and a small policy whole, arrived as the base model, from which the server
went on sampling (docs/log.md, 22 November 2026). Besides, the sender works on CUDA streams of its own, which
do not wait for the merging.

An engine in this process. TRL gives its model one weight a call, and in each call the model lists all its
parameters anew, 272 times a synchronisation for the embedded model. Listing took 0.45 ms on one CPU core
(transformers' Llama of 30 layers, once); what a step gains on a GPU is not measured.
"""

from __future__ import annotations

from collections.abc import Iterator


def send_merged_weights(trainer) -> None:
    """Has a trainer that samples from a vLLM server send copies, each made while the adapter is merged.

    Does nothing for a trainer that samples in any other way, or in a process that sends no weights.
    """
    client = getattr(getattr(trainer, "vllm_generation", None), "vllm_client", None)
    if client is None:
        return
    send = client.update_named_params
    client.update_named_params = lambda metadata, named: send(metadata, copies(named))


def load_weights_at_once(trainer) -> None:
    """Has a trainer whose vLLM engine is in this process give it all weights in one call.

    Does nothing for a trainer that samples in any other way.
    """
    generation = getattr(trainer, "vllm_generation", None)
    if getattr(generation, "mode", None) != "colocate":
        return
    weights = generation._iter_named_params

    def loaded() -> Iterator[tuple[str, object]]:
        engine = generation.llm.llm_engine
        engine.model_executor.driver_worker.model_runner.model.load_weights(weights())
        return iter(())  # none are left for TRL's loop

    generation._iter_named_params = loaded


def copies(named: Iterator[tuple[str, object]]) -> Iterator[tuple[str, object]]:
    """The same (name, tensor) pairs, tensors copied at once, on the stream that is current in this call.

    Streams on which the pairs are then asked for wait for their copies.
    """
    import torch

    if not torch.cuda.is_available():
        return ((name, tensor.clone()) for name, tensor in named)
    return _copies_of_stream(named, torch.cuda.current_stream())


def _copies_of_stream(named, own):
    import torch

    while True:
        with torch.cuda.stream(own):
            pair = next(named, None)
            copy = None if pair is None else pair[1].clone()
        if pair is None:
            return
        asking = torch.cuda.current_stream()
        asking.wait_stream(own)
        copy.record_stream(asking)
        yield pair[0], copy
