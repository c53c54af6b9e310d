"""What the tests of the search room share: processes to be killed."""

from multiprocessing import get_context

import pytest

# What the processes need and what takes seconds to import.
IMPORTED = (
    "arcnb.models.sampling.by_transformers",
    "arcnb.search.learning.search_and_learn",
    "pandas",
    "peft",
    "transformers.models.llama.modeling_llama",
)


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
