"""Known harmless warnings stay out of pages; all others come through."""

import logging
import warnings

import pytest

from arcnb.lab.execution.known_warnings import silence


@pytest.fixture
def silenced():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        silence()
        yield caught


def test_what_peft_says_about_local_folders_is_left_out_and_other_warnings_are_not(silenced):
    warnings.warn("Could not find a config file in default - will assume ...", UserWarning, stacklevel=1)
    warnings.warn("Unable to fetch remote file due to the following error x", UserWarning, stacklevel=1)
    warnings.warn("Could not find something else", UserWarning, stacklevel=1)
    assert [str(one.message) for one in silenced] == ["Could not find something else"]


def test_a_logger_loses_the_known_line_alone(caplog):
    silence()
    silence()
    logger = logging.getLogger("vllm.triton_utils.importing")
    assert len(logger.filters) == 1
    with caplog.at_level(logging.WARNING, logger.name):
        logger.propagate = True
        logger.warning("Triton is installed, but %s", "could not be imported")
        logger.warning("Triton is missing")
    assert [record.getMessage() for record in caplog.records] == ["Triton is missing"]
