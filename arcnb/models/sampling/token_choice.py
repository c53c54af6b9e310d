"""Drawing the next token of each row of a batch from its own stream of random numbers.

The filters act in the order of vLLM: repetition penalty, temperature, min_p, top_k, top_p. A row's token is
where the row's own uniform number falls in the cumulated probabilities, so neither the other rows nor the
number of rows decide it.
"""

import numpy as np

from arcnb.models.sampling.backends import Sampling


def uniform_numbers(seed: int, n: int) -> np.ndarray:
    """The numbers in [0, 1) that decide the tokens of the completion with this seed."""
    return np.random.default_rng(seed).random(n)


def choose_tokens(logits, sampling: Sampling, uniforms, seen=None):
    """The next token of each row.

    logits: float tensor (rows, vocabulary). uniforms: float64 tensor (rows,). seen: bool tensor like logits,
    the tokens in prompt and completion so far; needed for a repetition penalty only. Returns int64 (rows,).
    """
    import torch

    logits = logits.float()
    if sampling.repetition_penalty != 1:
        penalty = sampling.repetition_penalty
        logits = torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
    if sampling.temperature == 0:
        return logits.argmax(-1)
    logits = logits / sampling.temperature
    if sampling.min_p > 0:
        probabilities = logits.softmax(-1)
        floor = sampling.min_p * probabilities.amax(-1, keepdim=True)
        logits = logits.masked_fill(probabilities < floor, -torch.inf)
    if 0 < sampling.top_k < logits.shape[-1]:
        lowest = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    if sampling.top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)  # mass of the likelier tokens
        dropped = torch.zeros_like(logits, dtype=torch.bool).scatter(1, order, before >= sampling.top_p)
        logits = logits.masked_fill(dropped, -torch.inf)
    cumulated = logits.double().softmax(-1).cumsum(-1)
    # right=True: the first token whose cumulated probability exceeds the number; it cannot have probability 0
    return torch.searchsorted(cumulated, uniforms[:, None] * cumulated[:, -1:], right=True)[:, 0]
