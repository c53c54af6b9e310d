"""The loss of answers, and its gradients, without the logits of a whole batch.

Only hidden states in front of an answer's token go through the head (50 to 300 of 1,500 tokens here), some at
a time: the gradient of a chunk goes back to its hidden states at once and its logits are gone before the next
chunk's, so no more than LOGITS numbers of them exist, whatever the batch and the vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from arcnb.models.sft.rows import IGNORED

if TYPE_CHECKING:
    import torch

LOGITS = 1 << 26  # logits at a time: about 1 GB with their float32 copies and gradients
MOST = 5.0  # nats a token that a teacher counts, either way


def add_answer_gradients(
    model,
    batch: dict[str, torch.Tensor],
    n_answer: int,
    teacher: tuple[torch.Tensor, torch.Tensor] | None = None,
    logits: int = LOGITS,
):
    """Add to `model` the gradients of a part's share of the mean loss a token; the share, a detached scalar.

    model: a decoder of transformers with a head (of a PEFT model, its base). batch: as the collator of
    `arcnb.models.sft.rows` makes it, on any device, labels (B, T) included. n_answer: labelled tokens of the
    whole optimizer step. It is what the mean of `cross_entropy` over the model's own logits would give.

    teacher: of the N labelled tokens, row by row, the log-probabilities that a teacher gives them, float32
    (N,), and whether they have one, bool (N,). The gradient of a token that has, and that the model of now
    would draw, is that of the reverse Kullback-Leibler divergence to the teacher: its log-probability times
    how much likelier the teacher finds it, within MOST. Its share of the loss is the estimate of that
    divergence, which can be below 0.
    """
    import torch
    from torch.nn.functional import cross_entropy

    with _autocast(model):
        answers, targets = _answers(model, batch)
        if teacher is None:
            teacher = (torch.zeros_like(targets, dtype=torch.float32), torch.zeros_like(targets, dtype=bool))
        size = _chunk(model, logits)
        chunks = [chunk.detach().requires_grad_() for chunk in answers.split(size)]
        total = torch.zeros((), device=answers.device)
        parts = (one.to(answers.device).split(size) for one in (targets, *teacher))
        for chunk, right, log_probs, told in zip(chunks, *parts, strict=True):
            surprise = cross_entropy(head_logits(model, chunk).float(), right, reduction="none")
            gap = (log_probs + surprise.detach()).clamp(-MOST, MOST)
            ((surprise * torch.where(told, gap, 1.0)).sum() / n_answer).backward()
            total += torch.where(told, -gap, surprise.detach()).sum() / n_answer
    answers.backward(torch.cat([chunk.grad for chunk in chunks]))
    return total


def answer_log_probs(model, batch: dict[str, torch.Tensor], logits: int = LOGITS) -> torch.Tensor:
    """float32 (N,): the log-probabilities of the N labelled tokens, row by row. Arguments: as above."""
    import torch
    from torch.nn.functional import cross_entropy

    with torch.no_grad(), _autocast(model):
        answers, targets = _answers(model, batch)
        size = _chunk(model, logits)
        return -torch.cat(
            [
                cross_entropy(head_logits(model, chunk).float(), right, reduction="none")
                for chunk, right in zip(answers.split(size), targets.split(size), strict=True)
            ]
        )


def _answers(model, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The hidden states (N, width) in front of the labelled tokens, and these (N,), row by row."""
    device = next(model.parameters()).device
    targets = batch["labels"][:, 1:].flatten()
    places = (targets != IGNORED).nonzero().flatten()
    targets, places = targets[places].to(device), places.to(device)
    shown = {name: tensor.to(device) for name, tensor in batch.items() if name != "labels"}
    hidden = model.base_model(**shown, use_cache=False).last_hidden_state
    return hidden[:, :-1].flatten(0, 1)[places], targets


def _chunk(model, logits: int) -> int:
    return max(1, logits // model.config.get_text_config().vocab_size)


def _autocast(model):
    import torch

    kind = next(model.parameters()).device.type
    return torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda")


def head_logits(model, hidden: torch.Tensor) -> torch.Tensor:
    """The model's logits (N, vocabulary) of hidden states (N, width), scaled and capped as its config says.

    The names in the config are transformers' names (and what TRL's fused head reads).
    """
    import torch

    config = model.config.get_text_config()
    logits = model.get_output_embeddings()(hidden)
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):  # Cohere, Muse Glimmer, Falcon-H1
        if (factor := getattr(config, name, None)) is not None:
            logits = logits * factor
            break
    else:
        if (divisor := getattr(config, "logits_scaling", None)) is not None:  # Granite, MiniCPM3
            logits = logits * divisor if config.model_type == "hyperclovax" else logits / divisor
    if (cap := getattr(config, "final_logit_softcapping", None)) is not None:  # Gemma
        logits = torch.tanh(logits / cap) * cap
    return logits
