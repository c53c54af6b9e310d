"""Kinds, ranges and shapes of values, and texts that name several things."""

import math

import pytest

from arcnb.errors import ArcnbError
from arcnb.values import bare, fits, listed, misfit, range_problem, short_kind, split_unquoted


@pytest.mark.parametrize(
    ("annotation", "kind"),
    [
        ("Optional[int]", "int | None"),
        ("typing.List[str]", "list[str]"),
        ("t.Union[int, str, None]", "int | str | None"),
        ("'int'", "int"),
        ("list['Foo']", "list[Foo]"),
        ("Literal['a', 'b']", "Literal['a', 'b']"),
        ("pathlib.Path", "str"),
        ("Tuple[int, ...]", "tuple[int, ...]"),
        ("Mapping[str, Sequence[float]]", "dict[str, list[float]]"),
        ("Annotated[int, 'steps']", "int"),
        ("np.ndarray", "ndarray"),
        ("no kind at all", "no kind at all"),
    ],
)
def test_the_usual_forms_of_typing_are_understood(annotation, kind):
    assert short_kind(annotation) == kind
    assert short_kind(kind) == kind


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("int | None", [3, None], ["3", 3.0, True]),
        ("list[str]", [[], ["a"]], ["a", [1], None]),
        ("Literal['a', 1]", ["a", 1], ["b", True, None]),
        ("tuple[int, str]", [(1, "a"), [1, "a"]], [(1,), [1, 2], "a"]),
        ("tuple[int, ...]", [(), [1, 2]], [["a"], 1]),
        ("set[int]", [[1], {1}], [["a"], {}]),
        ("dict[str, list[int]]", [{}, {"a": [1]}], [{1: [1]}, {"a": 1}, []]),
        ("Any", [None, 1, "x"], []),
    ],
)
def test_values_fit_their_kind(kind, good, bad):
    assert all(fits(value, kind) for value in good)
    assert not any(fits(value, kind) for value in bad)


def test_an_annotation_that_is_not_known_lets_everything_pass_and_says_so_once(capsys):
    assert not fits(3, "Foo1")
    for value in (3, "x", [1]):
        assert fits(value, "Foo1", lenient=True)
        assert fits(value, "no kind at all", lenient=True)
    assert fits(["a"], "list[Foo1]", lenient=True)
    assert not fits("a", "list[Foo1]", lenient=True)
    error = capsys.readouterr().err
    assert error.count("arcnb: values of the annotation Foo1 are not checked\n") == 1
    assert error.count("\n") == 2


@pytest.mark.parametrize(
    ("within", "value", "wanted"),
    [
        ("[1, inf)", 0, "at least 1"),
        ("(0, 1]", 0.0, "above 0 and at most 1"),
        ("(-inf, inf)", math.nan, "a finite number"),
        ("[0, inf)", math.inf, "finite and at least 0"),
        ("(0, inf)", math.nan, "finite and above 0"),
        ("[0, 1]", math.inf, "at least 0 and at most 1"),
        ("[0, 1)", {"a": 1}, "at least 0 and below 1"),
        ("[0, inf)", [1, [-1]], "at least 0"),
        ("[0, 9]", 10**400, "at least 0 and at most 9"),
        ("[1, inf)", 1, ""),
        ("[1, inf)", None, ""),
        ("[1, inf)", False, ""),
        ("", -1, ""),
    ],
)
def test_a_range_says_what_a_number_has_to_be(within, value, wanted):
    assert range_problem(value, within) == wanted


def test_names_with_separators_stand_in_double_quotes():
    assert listed('a, "b, c" ,, d') == ["a", "b, c", "d"]
    assert listed("it's, yours") == ["it's", "yours"]
    assert split_unquoted('"a + b"*3 + c', " + ") == ['"a + b"*3', "c"]
    assert split_unquoted('"x = y" = a = b', "=", 1) == ['"x = y" ', " a = b"]
    assert split_unquoted('an "open, quote', ",") == ['an "open, quote']
    assert bare(' "a b" ') == "a b"


def test_whatever_takes_several_paths_takes_quoted_ones(tmp_path):
    from arcnb.lab.runs.named_paths import existing, pieces_that
    from arcnb.search.comparing.arms import arm_folders, parse_arms
    from arcnb.search.comparing.sets import open_sets
    from arcnb.synth.task_sets import parsed_recipe

    odd = tmp_path / "a, b + c = d; e | f"
    plain = tmp_path / "plain"
    for folder in (odd, plain):
        folder.mkdir()
    arms = f'x = "{odd}"[:3] + {plain}; y = {plain} + "{odd}"'
    assert parse_arms(arms) == {"x": [[(odd, 3), (plain, 0)]], "y": [[(plain, 0), (odd, 0)]]}
    with pytest.raises(ArcnbError, match=r"plain\[:0\] of 'b' does not exist"):  # [:0] is not the whole set
        parse_arms(f"a = {plain}; b = {plain}[:0]")
    assert list(open_sets(arm_folders(arms), 'one, "two, three"')) == ["one", "two, three"]
    assert list(parsed_recipe(f'"{odd}"*3 + dsl*2')) == [(str(odd), 3), ("dsl", 2)]
    for text in (arms, f'"{odd}", {plain}', f'"{odd}"*3 + {plain}*2'):
        assert set(pieces_that(lambda piece: existing(piece) is not None, text)) == {str(odd), str(plain)}
    with pytest.raises(ArcnbError, match="does not exist; a path with a comma stands in double quotes"):
        open_sets(f"{odd}, {plain}")


def test_a_shape_names_the_place_that_is_wrong():
    shape = {"a": "int", "b?": {"c": "str"}, "d~": ["int"]}
    assert misfit({"a": 1, "b": None}, shape) == ""
    assert misfit({"a": 1, "b": {"c": "x"}, "d": [1]}, shape) == ""
    assert misfit({"a": 1}, shape) == "it has no b"
    assert misfit({"a": 1, "b": {"c": 2}}, shape) == "c is 2"
    assert misfit({"a": 1, "b": None, "d": [1, "x"]}, shape) == "d[1] is 'x'"
    assert misfit([], shape) == "it is []"
