"""Filters and draws of the sampler, against the library's own filters and against the distribution itself."""

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as reference

from arcnb.models.sampling.backends import Sampling
from arcnb.models.sampling.by_transformers import choose_tokens, uniform_numbers

VOCABULARY, ROWS = 40, 20_000


@pytest.fixture
def logits():
    return torch.from_numpy(np.random.default_rng(0).normal(0, 2, (1, VOCABULARY)).astype(np.float32))


def frequencies(logits, sampling, seen=None):
    """How often each token is drawn, over ROWS evenly spread numbers: exact up to 1/ROWS."""
    uniforms = (torch.arange(ROWS, dtype=torch.float64) + 0.5) / ROWS
    seen = None if seen is None else seen.expand(ROWS, -1)
    tokens = choose_tokens(logits.expand(ROWS, -1), sampling, uniforms, seen)
    return np.bincount(tokens.numpy(), minlength=VOCABULARY) / ROWS


CASES = {
    "plain": ({}, []),
    "temperature": ({"temperature": 0.5}, [reference.TemperatureLogitsWarper(0.5)]),
    "top_k": ({"top_k": 5}, [reference.TopKLogitsWarper(5)]),
    "top_p": ({"top_p": 0.8}, [reference.TopPLogitsWarper(0.8)]),
    "min_p": ({"min_p": 0.1}, [reference.MinPLogitsWarper(0.1)]),
    "top_k_larger_than_vocabulary": ({"top_k": 1000}, []),
    "all": (
        {"temperature": 1.5, "min_p": 0.02, "top_k": 12, "top_p": 0.9},
        [
            reference.TemperatureLogitsWarper(1.5),
            reference.MinPLogitsWarper(0.02),
            reference.TopKLogitsWarper(12),
            reference.TopPLogitsWarper(0.9),
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_draws_follow_the_filtered_distribution(logits, case):
    settings, filters = CASES[case]
    expected = logits
    for warper in filters:
        expected = warper(None, expected)
    expected = expected.softmax(-1)[0].numpy()
    drawn = frequencies(logits, Sampling(**settings))
    assert np.abs(drawn - expected).max() < 2 / ROWS
    assert not drawn[expected == 0].any()


def test_repetition_penalty_is_the_library_s(logits):
    ids = torch.tensor([[3, 7, 7, 11]])
    expected = reference.RepetitionPenaltyLogitsProcessor(1.3)(ids, logits).softmax(-1)[0].numpy()
    seen = torch.zeros((1, VOCABULARY), dtype=torch.bool)
    seen[0, ids[0]] = True
    drawn = frequencies(logits, Sampling(repetition_penalty=1.3), seen)
    assert np.abs(drawn - expected).max() < 2 / ROWS


def test_temperature_zero_takes_the_likeliest(logits):
    assert choose_tokens(logits, Sampling(temperature=0), None).item() == logits.argmax().item()


def test_a_row_is_decided_by_its_own_number_alone(logits):
    alone = choose_tokens(logits, Sampling(), torch.tensor([0.3], dtype=torch.float64))
    among = choose_tokens(
        logits.expand(3, -1), Sampling(), torch.tensor([0.9, 0.3, 0.1], dtype=torch.float64)
    )
    assert among[1] == alone[0]


@pytest.mark.parametrize("number", [0.0, np.nextafter(1.0, 0)])
def test_extreme_numbers_never_draw_an_impossible_token(number):
    logits = torch.tensor([[-torch.inf, 0.0, 1.0, -torch.inf]])
    assert choose_tokens(logits, Sampling(), torch.tensor([number], dtype=torch.float64)).item() in (1, 2)


def test_numbers_are_a_function_of_the_seed():
    assert np.array_equal(uniform_numbers(5, 10), uniform_numbers(5, 10))
    assert np.array_equal(uniform_numbers(5, 3), uniform_numbers(5, 10)[:3])
    assert not np.array_equal(uniform_numbers(5, 10), uniform_numbers(6, 10))
