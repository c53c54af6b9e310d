"""Samples for TRL's trainer by vLLM on a CPU: an engine in a process of its own, with the policy's weights.

TRL (1.15, 1.16) opens vLLM inside the training process, where vLLM for CPUs cannot be: it binds the threads
that training needs, and rearranges the weights it is given, so that TRL's way of writing new ones into it
changes nothing. Here the policy, adapter merged (`arcnb.rl.engine.weight_sync`), is written to a folder in
memory, which the engine loads anew: 0.3 s for the embedded model.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path

from trl.generation.vllm_generation import VLLMGeneration

from arcnb.arc.seeds import derive_seed
from arcnb.errors import ArcnbError
from arcnb.models.memory.fitting import cache_bytes
from arcnb.models.merging import SETTINGS, TOKENIZER
from arcnb.models.sampling.backends import EngineOptions, Request, Sampling, fits, open_backend
from arcnb.rl.engine.adapter_alone import policy_folder, write_adapter
from arcnb.rl.resuming.run_state import RunState

_PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


class CpuGeneration(VLLMGeneration):
    """In the place of TRL's class (`generating_on_cpu`); `follow` gives it the trainer that it samples
    for. adapter_rank: of the adapter that goes to the engine alone; 0: merged weights do."""

    adapter_rank = 0

    def _init_vllm(self) -> None:
        for name, plain in _PLAIN.items():
            if (getattr(self, name) or 0) != plain or self.generation_kwargs:
                raise ArcnbError(
                    f"use_vllm=True on a CPU samples plainly, {name}={plain:g}; take use_vllm=False"
                )
        self.mode = "apart"  # neither of TRL's: nothing of the engine is in this process
        self._source = Path(self.model.config._name_or_path)
        options = EngineOptions(
            max_model_len=self.max_model_length,
            max_num_seqs=self.max_num_seqs,
            kv_cache_gb=_cache_gb(self._source, self.max_num_seqs, self.max_model_length),
            max_lora_rank=self.adapter_rank or None,
        )
        self._backend = open_backend("vllm", str(self._source), None, options)
        self._folder = policy_folder(self)
        for pattern in (*TOKENIZER, *SETTINGS):
            for path in self._source.glob(pattern):
                shutil.copy(path, self._folder)

    def follow(self, trainer, state: RunState) -> None:
        """Samples derive from the trainer's seed, its step, the rollbacks so far and how often the step has
        asked for the prompt: a resumed run draws what it would have, and one that was rolled back draws
        others."""
        self._trainer, self._state = trainer, state
        self._round, self._asked = (), {}

    def sync_weights(self) -> None:
        """Has the engine load the policy as it is now."""
        if self.adapter_rank:
            write_adapter(self.model, self._folder)
            self._backend.use_adapter(self._folder)
            return
        from safetensors.torch import save_file

        dtype = self._backend.dtype
        weights = {name: tensor.to(dtype).contiguous() for name, tensor in self._iter_named_params()}
        save_file(weights, self._folder / "model.safetensors", metadata={"format": "pt"})
        self._backend.load_weights(self._folder)

    def generate(
        self,
        prompts: Sequence[list[int]],
        images=None,
        num_generations: int = 1,
        profiler=None,
    ) -> tuple[list[list[int]], list[list[int]], list[list[list[float]]], None]:
        """TRL's interface. prompts: each several times in a row, unless num_generations is 1.

        Returns prompts, completions (token ids) and, in nats, the log-probability of each token in a list of
        its own.
        """
        return self.generate_at(self._trainer.state.global_step, prompts, images, num_generations)

    def generate_at(self, step: int, prompts, images=None, num_generations: int = 1) -> tuple:
        """The same for the round that this optimizer step begins."""
        args = self._trainer.args
        rollbacks = self._state.rollbacks
        kind = f"rollout after {rollbacks} rollbacks" if rollbacks else "rollout"
        # Training and the evaluation of eval tasks sample at the same step: the prompt tells them apart.
        one_by_one = ([ids] for ids in prompts)
        groups = one_by_one if num_generations == 1 else (list(own) for _, own in groupby(prompts))
        if self._round != (kind, step):
            self._round, self._asked = (kind, step), {}
        before, requests = dict(self._asked), []
        for number, own in enumerate(groups):
            prompt = tuple(own[0])
            count = self._asked[prompt] = before.get(prompt, 0) + number + 1
            seed = derive_seed(args.seed, kind, step, count - 1, *prompt)
            requests.append(Request(own[0], len(own), seed, number))
        sampling = Sampling(max_tokens=self.max_completion_length, logprob=True)
        for request in requests:
            if not fits(request, sampling, self._backend.context):
                raise ArcnbError(
                    f"a prompt has {len(request.prompt_ids)} tokens, and with max_completion_length="
                    f"{self.max_completion_length} that is more than the context of "
                    f"{self._backend.context}; lower max_prompt_length, or raise max_length"
                )
        made = {(one.key, one.index): one for one in self._backend.generate(requests, sampling)}
        rows = [made[request.key, index] for request in requests for index in range(request.n)]
        logprobs = [[[value] for value in row.token_logprobs] for row in rows]
        return list(prompts), [list(row.token_ids) for row in rows], logprobs, None

    def close(self) -> None:
        """Ends the engine and gives its memory back."""
        self._backend.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _cache_gb(model: Path, sequences: int, tokens: int) -> float:
    """GiB in which so many sequences of that length have their keys and values, in whole blocks of 128
    tokens, at 32 bit: none has to wait for another's to end."""
    bytes_ = sequences * 2 * cache_bytes(model, 1) * (tokens + 128)
    return bytes_ / 2**30  # 0, where nobody knows: the engine's default


@contextmanager
def generating_on_cpu(adapter_rank: int = 0) -> Iterator[None]:
    """A trainer that is opened inside the block samples by `CpuGeneration`."""
    from trl.trainer import grpo_trainer

    plain = grpo_trainer.VLLMGeneration
    grpo_trainer.VLLMGeneration = type("CpuGeneration", (CpuGeneration,), {"adapter_rank": adapter_rank})
    try:
        yield
    finally:
        grpo_trainer.VLLMGeneration = plain
