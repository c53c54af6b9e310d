"""Encodings: write and read as the reference does, and refuse what it lets through, with line and column."""

import re

import pytest

from arcnb.arc.encodings import ENCODINGS, grid_encoding
from arcnb.arc.grids import as_grid
from arcnb.arc.seeds import rng
from arcnb.errors import ArcnbError
from tests.arc.golden_grids import cases

GOLDEN = "arc25_encoders.json"
SPECS = [
    *sorted({c["args"]["spec"] for c in cases(GOLDEN, "decode")}),
    "minimal",
    'separated(" ")',
    "separated(separator=', ')",
    "repeat",
    "repeat(2)",
    "color_names",
    "symbols(minimal)",
    "row_numbers(minimal())",
    "code_block(color_names)",
    "shape(row_numbers(minimal))",
    "row_numbers(shape(symbols(separated('|'))))",
]


@pytest.mark.parametrize("case", cases(GOLDEN, "encode"), ids=lambda case: case["id"])
def test_writing_agrees_with_the_reference(case):
    spec, grid = case["args"]["spec"], case["args"]["grid"]
    if "raises" in case["expect"]:
        with pytest.raises(ArcnbError):
            grid_encoding(spec).to_text(grid)
    else:
        assert grid_encoding(spec).to_text(grid) == case["expect"]["value"]


@pytest.mark.parametrize("case", cases(GOLDEN, "decode"), ids=lambda case: case["id"])
def test_reading_agrees_with_the_reference(case):
    encoding, text = grid_encoding(case["args"]["spec"]), case["args"]["text"]
    if "raises" in case["expect"]:
        with pytest.raises(ArcnbError):
            encoding.to_grid(text)
    else:
        assert encoding.to_grid(text).tolist() == case["expect"]["value"]


# The reference reads a grid from all of these texts.
@pytest.mark.parametrize("case", cases(GOLDEN, "decode", quirk=True), ids=lambda case: case["id"])
def test_malformed_text_is_refused(case):
    with pytest.raises(ArcnbError, match=r"^line \d+, column \d+: "):
        grid_encoding(case["args"]["spec"]).to_grid(case["args"]["text"])


@pytest.mark.parametrize("case", cases(GOLDEN, "encode", quirk=True), ids=lambda case: case["id"])
def test_values_above_nine_are_not_written(case):
    with pytest.raises(ArcnbError):
        grid_encoding(case["args"]["spec"]).to_text(case["args"]["grid"])


@pytest.mark.parametrize("spec", SPECS)
def test_what_is_written_is_read_back(spec):
    encoding = grid_encoding(spec)
    for i, shape in enumerate([(1, 1), (1, 30), (30, 1), (12, 11), (30, 30)]):
        grid = as_grid(rng(i, spec).integers(0, 10, shape))
        text = encoding.to_text(grid)
        assert encoding.to_grid(text).tolist() == grid.tolist()
        assert encoding.to_grid(f"\n\n{text}\n \n").tolist() == grid.tolist()
        assert encoding.to_grid(text.replace("\n", "\r\n")).tolist() == grid.tolist()


@pytest.mark.parametrize("spec", [s for s in SPECS if grid_encoding(s).to_text([[0]]).startswith("```")])
def test_text_around_a_fence_is_left_alone(spec):
    encoding = grid_encoding(spec)
    text = f"Here is output 1:\n{encoding.to_text([[1, 2]])}\nand `that` is all."
    assert encoding.to_grid(text).tolist() == [[1, 2]]


def test_whatever_the_text_reading_gives_a_grid_or_an_error_with_its_place():
    random = rng(0, "damaged text")
    pieces = ["0", "7", "x", " ", "\n", "\r", "```", "grid", "grid shape: ", "2x3", "Red", "ñ", "|", "٣", "²"]
    grids, errors = [], []
    for i in range(5000):
        encoding = grid_encoding(SPECS[i % len(SPECS)])
        text = list(encoding.to_text(random.integers(0, 10, (2, 3))))
        for _ in range(int(random.integers(4))):
            at = int(random.integers(len(text) + 1))
            text[at : at + int(random.integers(3))] = [pieces[random.integers(len(pieces))]]
        try:
            grids.append(as_grid(encoding.to_grid("".join(text))))
        except ArcnbError as error:
            errors.append(error)
    assert min(len(grids), len(errors)) > 1000
    assert all(re.match(r"line [1-9]\d*, column [1-9]\d*: ", str(error)) for error in errors)


@pytest.mark.parametrize(
    ("spec", "text", "line", "column", "message"),
    [
        ("minimal", "12\n3x", 2, 2, "'x' is not a color"),
        ("minimal", "\n\n  12\n345", 4, 1, "ragged"),
        ("minimal", "1２", 1, 2, "not a color"),
        ("minimal", "12\n\n34", 2, 1, "without cells"),
        ("separated(' ')", "1 2\n3  4", 2, 3, "not a color"),
        ("separated('|')", "1|12", 1, 3, "'12'"),
        ("repeat", "111222\n333434", 2, 4, "not one digit 3 times"),
        ("color_names", "Red Blue\nRed blue", 2, 5, "'blue'"),
        ("symbols(minimal)", "ñò\nñ1", 2, 2, "not a color"),
        ("row_numbers(minimal)", "0 12\n2 34", 2, 1, "'2' instead of 1"),
        ("row_numbers(minimal)", "0 12\n1 3x", 2, 4, "'x'"),
        ("code_block(minimal)", "so\n```grid\n12\n3x\n```", 4, 2, "'x'"),
        ("code_block(minimal)", "```grid\n```", 1, 1, "empty"),
        ("code_block(minimal)", "```grid shape: 1x1\n1\n```", 1, 1, "no fence"),
        ("shape(minimal)", "so\n```grid shape: 2x2\n12\n```", 2, 16, "stated shape is 2x2, the grid has 1x2"),
        ("shape(row_numbers(separated('|')))", "```grid shape: 1x2\n0 1|a\n```", 2, 5, "'a'"),
        ("minimal", "1" * 31, 1, 1, "larger than 30x30"),
    ],
)
def test_errors_name_line_and_column(spec, text, line, column, message):
    with pytest.raises(ArcnbError, match=f"^line {line}, column {column}: ") as caught:
        grid_encoding(spec).to_grid(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("shap(minimal)", "did you mean 'shape'?"),
        ("MinimalGridEncode()", "did you mean 'MinimalGridEncoder'?"),
        ("nothing_like_it", "there are "),
        ("shape", "needs its parameter inner"),
        ("separated", "needs its parameter separator"),
        ("minimal(2)", "takes no parameters"),
        ("repeat(1, 2)", "takes 1 parameter"),
        ("repeat('a')", "n of repeat is int, not 'a'"),
        ("repeat(True)", "n of repeat is int, not True"),
        ("repeat(0)", "1 or more times"),
        ("separated('')", "without digits"),
        ("separated('1')", "without digits"),
        ("shape(3)", "not a name"),
        ("repeat(m=2)", "no parameter m"),
        ("minimal(", "name(parameter)"),
        ("", "name(parameter)"),
        ("minimal; shape", "name(parameter)"),
        ("minimal + minimal", "not a name"),
        ("code_block(shape(minimal))", "cannot read what it writes"),
        ("shape(code_block(minimal))", "cannot read what it writes"),
        ("code_block(code_block(minimal))", "cannot read what it writes"),
        ("symbols(symbols(minimal))", "cannot read what it writes"),
        ("symbols(separated('ñ'))", "cannot read what it writes"),
        ("shape(separated('```'))", "cannot read what it writes"),
    ],
)
def test_a_wrong_spec_is_refused_with_a_hint(spec, message):
    with pytest.raises(ArcnbError, match=r"^encoding ") as caught:
        grid_encoding(spec)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "spec",
    [
        "__import__('os').remove('{file}')",
        "minimal if __import__('os').remove('{file}') else minimal",
        "separated(open('{file}', 'w').name)",
        'separated(f\'{{open("{file}", "w")}}\')',
    ],
)
def test_a_spec_is_never_run_as_code(spec, tmp_path):
    file = tmp_path / "precious"
    file.write_text("still here")
    with pytest.raises(ArcnbError):
        grid_encoding(spec.format(file=file))
    assert file.read_text() == "still here"


def test_every_registered_encoding_says_its_name_in_the_manual():
    import arcnb.arc.encodings as module

    assert all(f"\n    {name}" in module.__doc__ for name in ENCODINGS)
