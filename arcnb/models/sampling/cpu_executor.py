"""vLLM on a CPU with all of its cores: scheduler and model in one process, one random number a token.

vLLM (0.31) runs the model in a process beside the scheduler's, binds its threads to all cores but one, and
leaves that one to the scheduler, which waits for the model by looking without a pause: half of a machine of
two cores. Here both live in the engine's process and take turns: the model has every core, and one process
less starts.

vLLM draws a seeded token by an exponential number for every entry of the vocabulary, on one core: 1 to 2 ms
for 49,152 entries, half of the embedded model's time. Here it is one uniform number, looked up in the
cumulated probabilities, as `arcnb.models.sampling.by_transformers` does: the same distribution, and a small
change of the model changes few of the tokens that a seed gives. `bench/cpu_engine.py` sets both beside vLLM's
own ways.

vLLM imports this module by name in the engine's process.
"""

import os

import torch
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler, apply_top_k_top_p


class CpuExecutor(UniProcExecutor):
    """Given to vLLM by name, as `distributed_executor_backend`."""

    def _init_executor(self) -> None:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))))
        TopKTopPSampler.forward_cpu = _forward
        super()._init_executor()


def _forward(_sampler, logits, generators, k, p):
    """vLLM's interface: token ids, int64 (rows,), and no changed logits."""
    return choose(apply_top_k_top_p(logits, k, p), generators), None


def choose(logits: torch.Tensor, generators: dict[int, torch.Generator]) -> torch.Tensor:
    """A token for each row, int64 (rows,), of logits (rows, vocabulary). generators: of rows with a seed."""
    numbers = torch.rand(len(logits), dtype=torch.double)
    for row, generator in generators.items():
        torch.rand(1, dtype=torch.double, generator=generator, out=numbers[row : row + 1])
    cumulated = logits.softmax(-1, dtype=torch.double).cumsum(-1)
    # right=True: the first token whose cumulated probability exceeds the number; it cannot have probability 0
    return torch.searchsorted(cumulated, numbers[:, None] * cumulated[:, -1:], right=True)[:, 0]
