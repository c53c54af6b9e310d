"""Numbers of an evaluation as means over tokens: the same whatever rows are put into one batch."""

from __future__ import annotations

from arcnb.models.sft.rows import IGNORED

OTHERS = {"entropy", "mean_token_accuracy"}  # beside the loss; TRL has a value of each batch


def with_token_means(trainer_class: type) -> type:
    """A subclass of TRL's SFTTrainer whose evaluations are means over the tokens that count.

    Within a batch the trainer's are so; over batches transformers takes the mean by rows, TRL plainly.
    """
    import torch

    class TokenMeans(trainer_class):
        def prediction_step(self, model, inputs, *args, **kwargs):
            counted = (inputs["labels"][:, 1:] != IGNORED).sum(dim=1)
            found = super().prediction_step(model, inputs, *args, **kwargs)
            loss = found[0].detach()
            both = (loss.repeat(len(counted)), counted.to(loss))  # a row's; those that fill up a batch go
            losses, n = self.accelerator.gather_for_metrics(both)
            self._batches.append(torch.stack([(losses * n).sum(), n.sum()]))
            return found

        def evaluation_loop(self, *args, metric_key_prefix="eval", **kwargs):
            self._batches: list[torch.Tensor] = []
            output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **kwargs)
            losses, tokens = torch.stack(self._batches).double().cpu().T
            output.metrics[f"{metric_key_prefix}_loss"] = float(losses.sum() / tokens.sum())
            logged = self._metrics["eval"]
            for name in logged.keys() & OTHERS:
                values = torch.tensor(logged[name]).double()
                logged[name] = [float((values * tokens).sum() / tokens.sum())]
            return output

    TokenMeans.__name__ = trainer_class.__name__
    return TokenMeans
