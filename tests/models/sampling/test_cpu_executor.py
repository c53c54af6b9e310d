"""How vLLM draws tokens on a CPU: by the distribution asked for, and by each request's own seed alone."""

import pytest

pytest.importorskip("vllm")
import torch

from arcnb.models.sampling.cpu_executor import choose


def generators(*seeds):
    return {row: torch.Generator().manual_seed(seed) for row, seed in enumerate(seeds)}


def test_tokens_follow_the_distribution():
    probabilities = torch.tensor([0.5, 0.0, 0.3, 0.2])
    logits = probabilities.log().repeat(20_000, 1)
    drawn = choose(logits, generators(*range(20_000)))
    shares = torch.bincount(drawn, minlength=4) / len(drawn)
    assert shares[1] == 0
    assert (shares - probabilities).abs().max() < 0.015  # five standard errors


@pytest.mark.parametrize("vocabulary", [50, 256, 1000])
def test_tokens_are_those_of_the_cumulated_distribution(vocabulary):
    logits = torch.randn(500, vocabulary, generator=torch.Generator().manual_seed(0)) * 3
    logits[:, ::3] = -torch.inf
    cumulated = logits.softmax(-1, dtype=torch.double).cumsum(-1)
    numbers = torch.cat(
        [torch.rand(1, dtype=torch.double, generator=g) for g in generators(*range(500)).values()]
    )
    expected = torch.searchsorted(cumulated, numbers[:, None] * cumulated[:, -1:], right=True)[:, 0]
    assert choose(logits, generators(*range(500))).tolist() == expected.tolist()


@pytest.mark.parametrize("number", [0.0, 1 - 2**-53])
def test_no_token_of_probability_0_is_drawn_at_the_ends(number, monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda n, dtype: torch.full((n,), number, dtype=dtype))
    logits = torch.full((64, 600), -torch.inf)
    logits[:, 3:590:7] = torch.randn(64, 84, generator=torch.Generator().manual_seed(1))
    assert logits.gather(1, choose(logits, {})[:, None]).isfinite().all()


def test_a_row_draws_by_its_own_seed_whatever_its_neighbours():
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    together = generators(7, 8, 9)
    alone = generators(8)
    for _ in range(20):
        assert choose(logits, together)[1] == choose(logits[1:2], alone)[0]


def test_rows_without_a_seed_draw_too_and_disturb_no_other():
    logits = torch.zeros(2, 1000)
    one, other = ({1: torch.Generator().manual_seed(5)} for _ in range(2))
    first = [choose(logits, one).tolist() for _ in range(10)]
    second = [choose(logits, other).tolist() for _ in range(10)]
    assert [row[1] for row in first] == [row[1] for row in second]
    assert [row[0] for row in first] != [row[0] for row in second]
