"""What tests of problems share: an executor, and q played by a script."""

import pytest

from arcnb.problems.languages.q.language import QLanguage
from arcnb.problems.languages.registry import Languages
from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Limits
from tests.problems.problem_examples import scripted


@pytest.fixture(scope="session")
def executor():
    with Executor(2, Limits(seconds=2.0, seconds_per_input=2.0, memory_mb=256)) as executor:
        yield executor


@pytest.fixture(scope="session")
def languages(executor):
    with Languages(executor) as languages:
        yield languages


@pytest.fixture(scope="session")
def q():
    language = QLanguage(scripted(), Limits(seconds=3.0, memory_mb=256, output_mb=0.5), workers=2)
    yield language
    language.close()
