"""Usage statistics."""

import pytest

from arcnb.errors import ArcnbError
from arcnb.programs.syntax import ProgramSyntaxError
from arcnb.programs.usage import (
    LIBRARIES,
    library_names,
    main_library,
    program_usage,
    usage_correlation,
    usage_counts,
    usage_table,
)

CROP = "from common import *\ndef transform(g):\n    # flood_fill\n    return crop(crop(g, Color.RED))"
FILL = "import common as c\ndef transform(g):\n    c.flood_fill(g, 0, 0, c.Color.RED)\n    return g"
OWN = "def crop(g):\n    return g\ndef transform(g):\n    return crop(g)"


def test_calls_mentions_and_class_constants_are_counted():
    assert program_usage(CROP, "common") == {"crop": 2, "Color": 1, "Color.RED": 1}


def test_a_module_alias_and_a_renamed_import_are_followed():
    assert program_usage(FILL, "common") == {"flood_fill": 1, "Color": 1, "Color.RED": 1}
    renamed = "from dsl import flip_vertical as f\ndef transform(g):\n    return list(map(f, [f(g)]))"
    assert program_usage(renamed, "dsl") == {"flip_vertical": 2}


def test_what_a_program_defines_itself_is_its_own():
    assert program_usage(OWN, "common") == {}


def test_common_needs_no_import_and_the_others_do():
    program = "def transform(g):\n    return crop(g)"
    assert program_usage(program, "common") == {"crop": 1}
    assert program_usage(program, "dsl") == {}


def test_attributes_of_library_classes_are_counted_on_any_value():
    program = (
        "from dsl import *\ndef transform(g):\n    return max(find_objects(g), key=lambda o: o.area).grid.T"
    )
    assert program_usage(program, "dsl") == {"find_objects": 1, ".area": 1, ".grid": 1}


@pytest.mark.parametrize("library", LIBRARIES)
def test_convenience_names_are_no_library_names(library):
    names = library_names(library)
    assert len(names) > 40
    assert not {"np", "random", "List", "Tuple", "Any", ".T", ".shape"} & set(names)


def test_rearc_programs_use_rearc_names():
    from arcnb.synth.rearc.tasks import rearc_program

    usage = program_usage(rearc_program("007bbfb7"), "rearc_dsl")
    assert {"as_tuples", "ofcolor", "mapply"} <= set(usage)


def test_counts_table_and_correlation():
    programs = {"a": CROP, "b": FILL, "c": OWN, "broken": "def transform(", "d": CROP}
    counts = usage_counts(programs, "common")
    assert list(counts.index) == ["a", "b", "c", "d"]
    assert counts.loc["a", "crop"] == 2
    table = usage_table(counts)
    assert table.loc["crop"].tolist() == [4, 2, 0.5]
    assert table.loc["translate"].tolist() == [0, 0, 0]
    assert table.index[0] in ("Color", "Color.RED")
    correlation = usage_correlation(counts)
    assert sorted(correlation.columns) == ["Color", "Color.RED", "crop"]
    assert correlation.loc["Color", "Color.RED"] == pytest.approx(1)
    assert correlation.loc["crop", "Color"] == pytest.approx(1 / 3**0.5)


def test_no_programs_give_an_empty_table():
    counts = usage_counts([], "common")
    assert counts.shape == (0, len(library_names("common")))
    assert (usage_table(counts)["uses"] == 0).all()
    assert usage_correlation(counts).empty


def test_errors_name_what_is_wrong():
    with pytest.raises(ArcnbError, match="library 'numpy'"):
        library_names("numpy")
    with pytest.raises(ProgramSyntaxError):
        program_usage("x = ", "common")
    with pytest.raises(ProgramSyntaxError):
        program_usage("x" + ".T" * 1200, "common")


def test_the_main_library_is_the_one_most_programs_import():
    programs = ["from dsl import *\n", "import common\n", "from common import *\n", "def broken(", "x = 1\n"]
    assert main_library(programs) == "common"
    assert main_library(["x = 1\n"]) == "dsl"
