"""One copy of a policy's frozen weights, for the trainer and for the vLLM engine in its process.

Each would hold a whole model: eight billion parameters in bfloat16 are 16 GB twice. vLLM's copy stays, since
its CUDA graphs know where it lies, and the parameters of the policy become views of it. Samples are drawn
while the adapter is merged into it; afterwards the merged layers are written anew from a copy in the host's
memory, so that no rounding of a merge stays behind. The engine opens while the policy's own weights are on
the host: at no time are both copies on the GPU.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from arcnb.errors import ArcnbError
from arcnb.rl.engine.options import engines_opened_by

if TYPE_CHECKING:
    import torch

_WRAPPED = "base_model.model."  # what peft puts in front of the names of a model's parameters


class SharedWeights:
    """The weights of one policy, a peft model or what it wraps, beside a LoRA that is not among them."""

    def __init__(self, policy: torch.nn.Module):
        self._policy = policy
        # Of the layers with a LoRA: parameter, its place in the engine, its copy on the host.
        self._adapted: list[tuple[torch.nn.Parameter, torch.Tensor, torch.Tensor]] = []

    @contextmanager
    def opening(self) -> Iterator[None]:
        """The engine that a TRL trainer opens inside the block has the only copy of the weights.

        Raises ArcnbError where the engine keeps them in another way than the policy, or where more than
        a LoRA is trained.
        """

        def opened(engine, **settings):
            frozen, adapted = self._frozen()
            originals = _on_host(frozen, adapted)
            dtype = str(next(iter(originals.values())).dtype).removeprefix("torch.")
            llm = engine(dtype=dtype, **settings)
            runner = llm.llm_engine.model_executor.driver_worker.model_runner
            self._take(runner.model, frozen, originals, adapted)
            return llm

        with engines_opened_by(opened):
            yield

    def _take(self, engine_model, frozen: Mapping, originals: Mapping, adapted: Container[str]) -> None:
        """Makes the frozen parameters views of the engine's, which hold the same as `originals` by name."""
        places = weight_places(engine_model, {name: len(weight) for name, weight in originals.items()})
        for name, parameter in frozen.items():
            place, original = places.get(name), originals[name]
            if place is None or not _equal(place, original):
                raise ArcnbError(
                    f"vllm_shared_weights=True is not for this model: vLLM keeps {name} in another way"
                )
            parameter.data = place
            if name in adapted:
                self._adapted.append((parameter, place, original))

    @contextmanager
    def merged(self, policy) -> Iterator[None]:
        """Inside the block the adapter is merged into the shared weights; then they are the base's again."""
        try:
            policy.merge_adapter()
            for parameter, place, _ in self._adapted:
                if parameter.data_ptr() != place.data_ptr():  # peft merges a DoRA into a weight of its own
                    place.copy_(parameter.data)
            yield
        finally:
            policy.unmerge_adapter()
            for parameter, place, original in self._adapted:
                parameter.data = place.copy_(original, non_blocking=True)

    def _frozen(self) -> tuple[dict[str, torch.nn.Parameter], set[str]]:
        """The base's parameters by the names that a checkpoint has; the names in layers with a LoRA."""
        # Of tied weights only one name comes otherwise, and it need not name the layer with the LoRA.
        every = self._policy.named_parameters(remove_duplicate=False)
        changed = {id(parameter) for name, parameter in every if ".base_layer." in name}
        found, adapted = {}, set()
        for name, parameter in self._policy.named_parameters():
            if "lora_" in name:
                continue
            if parameter.requires_grad:
                raise ArcnbError(
                    f"vllm_shared_weights=True needs a LoRA alone to be trained, but {name} is, too"
                )
            plain = name.removeprefix(_WRAPPED).replace(".base_layer", "")
            found[plain] = parameter
            if id(parameter) in changed:
                adapted.add(plain)
        return found, adapted


def _on_host(parameters: Mapping, to_return: Container[str]) -> dict[str, torch.Tensor]:
    """The parameters' values, which they have on the host from now on; some come back again and again."""
    import torch

    values = {}
    for name, parameter in parameters.items():
        pinned = parameter.is_cuda and name in to_return  # which makes it as fast as the bus
        value = torch.empty(parameter.shape, dtype=parameter.dtype, pin_memory=pinned)
        value.copy_(parameter.data)
        values[name] = parameter.data = value
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return values


def _equal(place: torch.Tensor, original: torch.Tensor) -> bool:
    import torch

    return place.dtype == original.dtype and torch.equal(place, original.to(place.device))


def weight_places(engine_model, rows: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Where a vLLM model keeps the weights of a checkpoint, by the checkpoint's names: views.

    rows: of each weight of the checkpoint its length. vLLM keeps some one above the other in a weight of its
    own (`packed_modules_mapping`), and adds rows to a vocabulary. What is nowhere is left out.
    """
    theirs = {name: parameter.data for name, parameter in engine_model.named_parameters()}
    whole = {
        part: (fused, parts[:i])
        for fused, parts in getattr(engine_model, "packed_modules_mapping", {}).items()
        for i, part in enumerate(parts)
    }
    places = {}
    for name, length in rows.items():
        *path, module, kind = name.rsplit(".", 2)
        fused, before = whole.get(module, (module, ()))
        start = sum(rows.get(".".join([*path, part, kind]), 0) for part in before)
        weight = theirs.get(".".join([*path, fused, kind]))
        if weight is not None and start + length <= len(weight):
            places[name] = weight[start : start + length]
    return places


def sample_while_merged(trainer, shared: SharedWeights) -> None:
    """Has a trainer whose engine shares its weights draw every sample while the adapter is merged."""
    generation = trainer.vllm_generation
    generate = generation.generate

    def generated(*args, **kwargs):
        with shared.merged(generation.model):
            return generate(*args, **kwargs)

    generation.generate = generated
    generation._iter_named_params = lambda: iter(())  # nothing to send: the engine has them
