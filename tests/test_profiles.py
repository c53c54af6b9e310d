"""Every profile fits the notebooks' parameters."""

import pytest

from arcnb.lab.notebooks.files import declared_beside
from arcnb.lab.notebooks.profiles import profile_values
from tests.paths import NOTEBOOKS

PROFILES = sorted((NOTEBOOKS / "profiles").glob("*.yaml"))


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.stem)
def test_every_name_and_value_of_a_profile_fits(profile):
    declared = declared_beside(NOTEBOOKS / "03_inference.ipynb", profile)
    assert {stem for stem in declared if profile_values(profile, stem, declared)}


def test_there_are_the_profiles_that_the_readme_names():
    assert {"demo", "h200"} <= {path.stem for path in PROFILES}
