"""Are packed rows blind to each other in a model? In layers that keep a state (Mamba, convolutions) they are
not, and not wherever a model makes its masks without positions (gpt-oss in transformers 5.17)."""

from __future__ import annotations

from arcnb.errors import ArcnbError
from arcnb.models.sft.rows import collator

_LENGTH = 8  # tokens of each of two rows


def check_packing(model, name: str) -> None:
    """ArcnbError where a row changes what the model (of transformers or peft) computes for the row packed
    behind it. Asked by the gradient, which is exactly 0 where it does not."""
    import torch

    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    ids = list(range(2 * _LENGTH))
    batch = collator(0)([{"input_ids": ids, "labels": ids, "seq_lengths": [_LENGTH, _LENGTH]}])
    embedding, training = inner.get_input_embeddings(), inner.training
    inner.eval()
    try:
        with torch.enable_grad():
            read = embedding(batch["input_ids"].to(embedding.weight.device)).detach().requires_grad_()
            positions = batch["position_ids"].to(read.device)
            found = inner.get_decoder()(inputs_embeds=read, position_ids=positions, use_cache=False)
            second = found[0][:, _LENGTH:].float()
            (seen,) = torch.autograd.grad(second.square().sum(), read)
    finally:
        inner.train(training)
    if seen[:, :_LENGTH].any():
        raise ArcnbError(
            f"packing=True: in model {name!r} rows that are packed together see each other; take "
            "packing=False"
        )
