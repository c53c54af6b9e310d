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

from arcnb.machine.processes import usable_cores

_BLOCK = 256  # tokens of the vocabulary


class CpuExecutor(UniProcExecutor):
    """Given to vLLM by name, as `distributed_executor_backend`."""

    def _init_executor(self) -> None:
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or usable_cores()))
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
    # A block of the vocabulary first, then a token of it: an eighth of the time of cumulating all in one row.
    shares = logits.softmax(-1)
    if missing := -logits.shape[-1] % _BLOCK:
        shares = torch.nn.functional.pad(shares, (0, missing))
    shares = shares.view(len(logits), -1, _BLOCK)
    blocks = shares.sum(-1).cumsum(-1, dtype=torch.double)
    block, rest = _first_beyond(blocks, numbers[:, None] * blocks[:, -1:])
    token, _ = _first_beyond(shares[torch.arange(len(logits)), block].cumsum(-1, dtype=torch.double), rest)
    return block * _BLOCK + token


def _first_beyond(cumulated: torch.Tensor, number: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The first place (rows,) whose cumulated share, of (rows, places), exceeds the number (rows, 1), and
    what the number is beyond the place before: (rows, 1). A share of 0 is never chosen: a number that
    rounding made too large is taken for the largest that there is."""
    number = torch.minimum(number, cumulated[:, -1:].nextafter(cumulated.new_zeros(1)))
    place = torch.searchsorted(cumulated, number, right=True)
    before = torch.nn.functional.pad(cumulated, (1, 0)).gather(1, place)
    return place[:, 0], number - before
