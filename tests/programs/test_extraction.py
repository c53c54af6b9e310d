"""Extraction of programs."""

import contextlib
import json
import random
import time

import pytest

from arcnb.programs.extraction import extract_program
from arcnb.programs.syntax import ProgramSyntaxError, defined_names, parse_program
from tests.paths import GOLDEN

GOLDEN = json.loads((GOLDEN / "arc25_code.json").read_text())
PARSE_CASES = {case["id"]: case for case in GOLDEN["cases"] if case["fn"] == "parse_code"}

CODE = "def transform(grid):\n    return grid"

# What the reference loses or pollutes (its quirks) and what comes out here instead.
BETTER = {
    "code-0045": ("def transform(input_grid):\n    return input_grid", "unclosed"),
    "code-0046": ("def transform(input_grid):\n    return input_grid", "fenced"),
    "code-0047": ("def transform(input_grid):\n    return input_grid", "fenced"),
    "code-0048": ("def transform(input_grid):\n    return input_grid", "fenced"),
    "code-0049": ("def transform(input_grid):\n    return input_grid", "fenced"),
    "code-0050": ("def transform(input_grid):\n    return input_grid", "fenced"),
    "code-0051": ("def transform(input_grid):\n    return input_grid", "fenced"),
    "code-0052": ("def transform(input_grid):\n    return input_grid", "fenced"),
    "code-0053": ("def transform(input_grid):\n    return input_grid", "fenced"),
    "code-0054": ("def transform(input_grid):\n    return input_grid", "fenced"),
    "code-0055": ("def transform(input_grid):\n    return input_grid", "fenced"),
    "code-0056": ("def transform(input_grid):\n    return input_grid", "fenced"),
}


@pytest.mark.parametrize("case", PARSE_CASES.values(), ids=PARSE_CASES.keys())
def test_golden_vectors_agree_and_quirks_are_improved(case):
    found = extract_program(case["args"]["text"])
    if "quirk" in case:
        assert (found.program, found.how) == BETTER[case["id"]]
    else:
        assert (found.program or "") == case["expect"]["value"]
        assert (found.how == "no_code") == (found.program is None)


def test_the_last_block_that_defines_the_entry_wins():
    text = f"```python\n{CODE}  # draft\n```\nor\n```python\n{CODE}  # final\n```\nor\n```py\nprint(1)\n```"
    assert extract_program(text).program == f"{CODE}  # final"


def test_a_block_that_imports_the_entry_does_not_define_it():
    text = f"```python\n{CODE}\n```\nTry it:\n```python\nfrom solution import transform\ntransform(1)\n```"
    assert extract_program(text).program == CODE


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_cut_or_shuffled_nothing_is_raised(seed):
    """Random pieces of completions: what comes out without a reason parses and defines the entry."""
    draw = random.Random(seed)
    pieces = [
        "```python\n",
        "```",
        "\n```\n",
        "~~~\n",
        CODE,
        "def transform(",
        "\n\n",
        "some prose",
        "    x = 1\n",
    ]
    for _ in range(50):
        text = "".join(draw.choices(pieces, k=draw.randint(1, 12)))
        text = text[: draw.randint(0, len(text))] if draw.random() < 0.5 else text
        found = extract_program(text, truncated=draw.random() < 0.5)
        assert (found.program is None) == (found.how == "no_code")
        if found.reason is None:
            assert "transform" in defined_names(parse_program(found.program))


def test_a_later_block_that_does_not_parse_does_not_hide_an_earlier_one():
    found = extract_program(f"```python\n{CODE}\n```\n```python\ndef transform(grid)\n  oops\n```")
    assert found.program == CODE
    assert "1 later block" in found.reason


@pytest.mark.parametrize(
    ("text", "how"),
    [
        (f"{CODE}\n```\n\nThis works because ...", "continued"),
        (f"\n{CODE}\n```", "continued"),
        (f"```python\n{CODE}", "unclosed"),
        (f"Sure!\n\n```py\n{CODE}\n", "unclosed"),
        (CODE, "plain"),
        (f"{CODE}\n\nThis handles every example.", "plain"),
        (f"Here is the code:\n\n{CODE}\n\nIt copies.\nThat is all.", "plain"),
        (f"1. Do this:\n\n   ```python\n   {CODE.replace(chr(10), chr(10) + '   ')}\n   ```", "fenced"),
        (f"A ```python fence opens a block, ``` closes it.\n```\n{CODE}\n```", "fenced"),
        (f"Use `transform`.\n~~~\n{CODE}\n~~~", "fenced"),
        (f"````markdown\n```python\n{CODE}\n```\n````", "fenced"),
    ],
)
def test_however_the_block_is_marked(text, how):
    found = extract_program(text)
    assert (found.program, found.how) == (CODE, how)


def test_a_docstring_may_hold_fences():
    program = 'def transform(grid):\n    """Example:\n    ```\n    1 2\n    ```\n    """\n    return grid'
    found = extract_program(f"Text\n```python\n{program}\n```\nmore")
    assert (found.program, found.how) == (program, "fenced")


def test_a_cut_completion_keeps_a_finished_program():
    text = f"```python\n{CODE}\n\n# Example usage\nprint(transform([[1, 2"
    found = extract_program(text, truncated=True)
    assert found.program.startswith(CODE)
    assert found.how == "unclosed"
    parse_program(found.program)


def test_a_finished_program_in_a_cut_block_is_preferred_to_a_draft():
    draft = CODE.replace("grid", "g")
    text = f"```python\n{draft}\n```\nBetter:\n```python\n{CODE}\n\nassert transform([["
    assert extract_program(text, truncated=True).program == CODE


def test_a_draft_is_preferred_to_a_program_cut_in_the_middle():
    text = f"```python\n{CODE}\n```\nBetter:\n```python\ndef transform(grid):\n    return ["
    found = extract_program(text, truncated=True)
    assert found.program == CODE
    assert "do not parse" in found.reason


def test_a_closed_block_is_taken_as_it_is():
    """Mending the model's syntax errors would count programs as valid that nobody else counts."""
    found = extract_program(f"```python\n{CODE}\n\nThis is prose.\n```")
    assert found.program.endswith("This is prose.")
    assert "does not parse" in found.reason


def test_a_program_cut_in_the_middle_is_no_code():
    found = extract_program("```python\ndef transform(grid):\n    return np.array([[", truncated=True)
    assert found.program is None
    assert found.how == "no_code"
    assert "cut off" in found.reason


def test_code_with_a_syntax_error_is_kept_for_the_record():
    found = extract_program("```python\ndef transform(grid)\n    return grid\n```")
    assert found.program == "def transform(grid)\n    return grid"
    assert "line 1" in found.reason


def test_code_without_entry_is_kept_for_the_record():
    found = extract_program("```python\ndef solve(grid):\n    return grid\n```")
    assert found.program.startswith("def solve")
    assert found.reason == "does not define transform"


@pytest.mark.parametrize("holder", ["class Solution:", "def outer():"])
def test_an_entry_inside_of_something_else_is_said_to_be_there(holder):
    program = f"{holder}\n    def transform(self, grid):\n        return grid"
    found = extract_program(f"```python\n{program}\n```")
    assert (found.program, found.reason) == (program, "does not define transform at module level")


@pytest.mark.parametrize("program", ["transform = lambda g: g", "if True:\n    def transform(g): return g"])
def test_the_entry_may_be_bound_in_other_ways(program):
    assert extract_program(f"```python\n{program}\n```").program == program


def test_another_entry_name():
    assert extract_program("```\ndef task(img):\n    return img\n```", entry="task").program.startswith(
        "def task"
    )


@pytest.mark.parametrize(
    "text", ["", " \n", "```", "``````", "no code", "\0", "def transform", "```python\n\0\n```"]
)
def test_texts_without_program(text):
    found = extract_program(text)
    assert found.program is None or found.program == "\0"


@pytest.mark.parametrize(
    "body",
    [
        "(" * 50_000,
        "[" * 99 + "]" * 99,
        "-" * 90_000 + "1",
        "not " * 20_000 + "1",
        "a" + ".a" * 40_000,
        "x = 1\0",
        "x = '\ud800'",
        "'''" + "y" * 200_000,
        "x" * 1_000_000,
        "if 1:\n" * 10_000,
        "\n" * 99_000 + "transform = 1 +",
        "a:" + " " * 90_000,
    ],
    ids=lambda body: body[:6],
)
def test_hostile_text_costs_little_and_raises_nothing_else(body):
    began = time.process_time()
    text = f"def transform(g):\n    return g\n{body}"
    for completion in (f"```python\n{text}\n```", text, f"```python\n{text}", f"```\n{text}\n```\n" * 3):
        extract_program(completion, truncated=True)
    with contextlib.suppress(ProgramSyntaxError):
        parse_program(text)
    assert time.process_time() - began < 5


@pytest.mark.parametrize("opening", ["", "```python\n", "```python\ndef transform(g): return g\n```\n"])
def test_blanks_without_end_cost_little(opening):
    began = time.process_time()
    extract_program(opening + " " * 90_000)
    assert time.process_time() - began < 1


def test_thousands_of_fences_cost_little():
    began = time.process_time()
    extract_program("```python\ndef transform(g)\n```\n" * 5_000)
    extract_program("```" * 20_000)
    extract_program("````~~~pythoné" * 20_000)  # on one line
    assert time.process_time() - began < 5
