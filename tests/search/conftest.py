"""What the tests of the search room share: tasks, an executor, engines, processes to be killed."""

from multiprocessing import get_context

import pytest

from arcnb.models.registry import load_tokenizer
from arcnb.models.sampling.backends import EngineOptions, open_backend
from arcnb.programs.executor.executor import Executor
from tests.arc_tasks import short_tasks

# What the processes need and what takes seconds to import.
IMPORTED = (
    "arcnb.models.sampling.by_transformers",
    "arcnb.search.learning.search_and_learn",
    "pandas",
    "peft",
    "transformers.models.llama.modeling_llama",
)


@pytest.fixture(scope="module")
def tasks():
    return short_tasks()


@pytest.fixture(scope="module")
def executor():
    with Executor(1) as pool:
        yield pool


@pytest.fixture(scope="module")
def tokenizer(small_model):
    return load_tokenizer(small_model)


@pytest.fixture(scope="module")
def engine(small_model):
    with open_backend("transformers", small_model, None, EngineOptions(max_model_len=2048)) as backend:
        yield backend


@pytest.fixture
def forked():
    """forked(function, *arguments): a process at work, a fork of one that has imported IMPORTED. What is left
    of them at the end of the test is killed."""
    context, begun = get_context("forkserver"), []
    context.set_forkserver_preload(list(IMPORTED))

    def start(function, *arguments):
        process = context.Process(target=function, args=arguments)
        process.start()
        begun.append(process)
        return process

    yield start
    for process in begun:
        process.kill()
        process.join()
