"""What the tests of the models room share: the embedded model, and a tiny stand-in that loads in no time."""

import pytest

from arcnb.models.registry import ModelPath, load_tokenizer, resolve_model
from tests.random_llama import random_llama


@pytest.fixture(scope="session")
def embedded() -> ModelPath:
    """The embedded model in the user's cache (built on first use, about 20 s)."""
    return resolve_model("default")


@pytest.fixture(scope="session")
def embedded_tokenizer(embedded):
    return load_tokenizer(embedded)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory, embedded_tokenizer) -> ModelPath:
    """A random two-layer Llama with the embedded model's tokenizer and a context of 256 tokens."""
    shape = {"hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 256}
    return random_llama(tmp_path_factory.mktemp("models") / "tiny", embedded_tokenizer, **shape)
