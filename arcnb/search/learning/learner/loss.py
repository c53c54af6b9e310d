"""The loss of answers, and its gradients, without the logits of a whole batch.

Only hidden states in front of an answer's token go through the head (50 to 300 of 1,500 tokens here), some at
a time: the gradient of a chunk goes back to its hidden states at once and its logits are gone before the next
chunk's, so no more than LOGITS numbers of them exist (twice that with a teacher), whatever the batch and the
vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from arcnb.models.sft.rows import IGNORED

if TYPE_CHECKING:
    import torch

LOGITS = 1 << 26  # logits at a time: about 1 GB with their float32 copies and gradients


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

    teacher: of the N labelled tokens, row by row, the hidden states (N, width) that the head would read in a
    teacher's place, and whether there is a teacher, bool (N,), on the CPU. The loss of a token that has one
    is the Kullback-Leibler divergence of the model's distribution from the teacher's, over the whole
    vocabulary: it has its least value, 0, at the teacher, whoever drew the token.
    """
    import torch
    from torch.nn.functional import cross_entropy

    with _autocast(model):
        answers, targets = _answers(model, batch)
        size = _chunk(model, logits)
        chunks = [chunk.detach().requires_grad_() for chunk in answers.split(size)]
        states, has = teacher or (None, torch.zeros(len(targets), dtype=torch.bool))
        total = torch.zeros((), device=answers.device)
        for number, (chunk, right) in enumerate(zip(chunks, targets.split(size), strict=True)):
            here = slice(number * size, number * size + len(chunk))
            scores = head_logits(model, chunk).float()
            losses = cross_entropy(scores, right, reduction="none")
            if has[here].any():
                taught = head_logits(model, states[here].to(chunk)).detach().float()
                losses = torch.where(has[here].to(losses.device), _divergence(scores, taught), losses)
            loss = losses.sum() / n_answer
            loss.backward()
            total += loss.detach()
    answers.backward(torch.cat([chunk.grad for chunk in chunks]))
    return total


def _divergence(scores: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """KL(softmax(scores) || softmax(others)) of each row, nats."""
    own, other = scores.log_softmax(-1), others.log_softmax(-1)
    return (own.exp() * (own - other)).sum(-1)


def answer_states(model, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """(N, width): the hidden states in front of the N labelled tokens, row by row, of the model of now."""
    import torch

    with torch.no_grad(), _autocast(model):
        return _answers(model, batch)[0]


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


def n_labels(row: dict) -> int:
    """Tokens of a row that are learned from."""
    return sum(label != IGNORED for label in row["labels"])


def teacher_of(rows: Sequence[dict]) -> tuple[torch.Tensor, torch.Tensor] | None:
    """`teacher` of `add_answer_gradients`, of rows of which some have "teacher": hidden states (n, width), on
    the CPU, in front of their labelled tokens. None where none has."""
    import torch

    width = next((row["teacher"].shape[1] for row in rows if "teacher" in row), None)
    if width is None:
        return None
    counts = [n_labels(row) for row in rows]
    blank = [row.get("teacher", torch.zeros(n, width)) for row, n in zip(rows, counts, strict=True)]
    has = torch.tensor(["teacher" in row for row in rows]).repeat_interleave(torch.tensor(counts))
    return torch.cat([states.to(blank[0].dtype) for states in blank]), has
