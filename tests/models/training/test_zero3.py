"""Which checkpoints of activations a training under ZeRO-3 has, by the version of DeepSpeed."""

from types import SimpleNamespace

import pytest

from arcnb.models.training import zero3


def trainer(deepspeed: bool, **kwargs):
    args = SimpleNamespace(gradient_checkpointing=True, gradient_checkpointing_kwargs=kwargs or None)
    return SimpleNamespace(args=args, is_deepspeed_enabled=deepspeed)


@pytest.mark.parametrize(
    ("installed", "deepspeed", "reentrant"),
    [("0.19.8", True, False), ("0.20.0", True, False), ("0.19.2", True, True), ("0.19.8", False, True)],
)
def test_reentrant_only_where_the_other_would_fail(monkeypatch, installed, deepspeed, reentrant):
    monkeypatch.setattr(zero3, "version", lambda name: installed)
    one = trainer(deepspeed, use_reentrant=True, preserve_rng_state=True)
    zero3.release_recomputed_layers(one)
    expected = {"use_reentrant": reentrant, "preserve_rng_state": True}
    assert one.args.gradient_checkpointing_kwargs == expected


def test_what_nobody_asked_for_stays(monkeypatch):
    monkeypatch.setattr(zero3, "version", lambda name: "0.19.8")
    one = trainer(True)
    zero3.release_recomputed_layers(one)
    assert one.args.gradient_checkpointing_kwargs is None
