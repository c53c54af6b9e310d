"""Fixtures that several rooms use."""

import signal

import pytest

from arcnb.models.registry import ModelPath, load_tokenizer, resolve_model
from tests.random_llama import random_llama

# A shell starts background jobs with SIGINT ignored, and what they start inherits that; tests of interrupts
# start processes as a terminal would.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def small_model(tmp_path_factory) -> ModelPath:
    """A random two-layer Llama with the embedded model's tokenizer and a context of 2,048 tokens."""
    tokenizer = load_tokenizer(resolve_model("default"))
    return random_llama(tmp_path_factory.mktemp("small_model"), tokenizer)
