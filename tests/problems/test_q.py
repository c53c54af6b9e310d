"""q: processes, what is said and heard, values.

A scripted interpreter stands for q where processes are tested, transcripts written for the purpose where its
words are. Tests that need q itself are at the end and are skipped without one.
"""

import contextlib
import json
import platform
import time
from pathlib import Path

import pytest

from arcnb.arc.predictions.prediction import Prediction
from arcnb.errors import ArcnbError
from arcnb.problems.answers import read_answer
from arcnb.problems.grading import ProblemJudge
from arcnb.problems.languages.language import Trial
from arcnb.problems.languages.q.install import find_q, refuse_silent
from arcnb.problems.languages.q.language import QLanguage
from arcnb.problems.languages.q.process import Interpreter, run_script
from arcnb.problems.languages.q.text import answers, error_mark, quoted, same_value, status_of
from arcnb.problems.languages.registry import Languages
from arcnb.problems.sets.problem import Problem
from arcnb.problems.training.solutions import check_solutions
from arcnb.programs.executor.limits import Limits
from arcnb.programs.sandbox.landlock import abi_version
from tests.lab.watching import wait_for
from tests.problems.problem_examples import scripted

TRANSCRIPTS = json.loads(Path(__file__).with_name("q_transcripts.json").read_text())


def q_problem(**changes) -> Problem:
    row = {
        "problem_id": "double",
        "description": "Double a list.",
        "language": "q",
        "entry_point": "double",
        "tests": [{"input": "1 2", "expected": "2 4"}, {"input": "3", "expected": "6"}],
    }
    return Problem.from_row(row | changes)


RIGHT = "double:{2*x}\n/ says double[1 2] => ok 2 4\n/ says double[3] => ok 6\n"


def ask(language, program, problem=None):
    problem = problem or q_problem()
    ((first, second),) = language.run([Trial(program, problem, problem.tests)])
    return first, second


def test_a_program_stands_behind_the_preamble_of_its_problem(q):
    problem = q_problem(preamble="two:2")
    for answer_format in ("plain", "reasoning"):
        found = read_answer("```q\ndouble:{two*x}\n```", problem, q, answer_format).found
        assert found.program == "two:2\ndouble:{two*x}"


@pytest.mark.parametrize("case", TRANSCRIPTS, ids=[case["name"] for case in TRANSCRIPTS])
def test_transcripts_are_read(case):
    found = answers(case["text"], case["mark"])
    assert {str(number): list(answer) for number, answer in found.items()} == case["answers"]
    assert error_mark(case["text"]) == case.get("error")


@pytest.mark.parametrize(
    ("error", "loading", "status"),
    [
        ("type", False, "error"),
        ("length", False, "error"),
        ("nyi", False, "error"),
        ("wsfull", False, "memory"),
        ("stop", False, "timeout"),
        ("access", False, "unsafe"),
        ("5000: Permission denied", False, "unsafe"),
        ("[", True, "syntax"),
        ("parse", True, "syntax"),
        ("undefined", True, "error"),
    ],
)
def test_error_marks_become_statuses(error, loading, status):
    assert status_of(error, loading) == status


@pytest.mark.parametrize(
    ("expected", "value", "same"),
    [
        ("1 2 3", "1 2 3", True),
        ("1 2 3", "1 2 4", False),
        ("6", "6f", False),  # 6~6f is false in q
        ("0.3333333", "0.33333331", True),
        ("0.1 0.2", "0.1 0.3", False),
        ("1 2.5 3", "1 2.5000001 3", True),
        ('"ab 1.5"', '"ab 1.50000001"', False),  # texts are not numbers
        ("(1.5;`a)", "(1.5;`b)", False),
        ("(1.5;`a)", "(1.5000001;`a)", True),
        ("`a`b!1 2.5", "`a`b!1 2.5000001", True),
        ("`a`b!1 2.5", "`a`c!1 2.5", False),
        ("`a`b!1 2.5", "`a`b!1 2.6", False),
        ("+`a`b!(1 2;3 4.5)", "+`a`b!(1 2;3 4.5000001)", True),
        ('("x 1.5";2.5)', '("x 1.5";2.5000001)', True),
        ('("x 1.5";2.5)', '("x 1.5000001";2.5)', False),
        ('("a\\" 1.5";2.5)', '("a\\" 1.5000001";2.5)', False),
        ("`1.5`x", "`1.5000001`x", False),
        ('`a"b 1.5', '`a"b 1.5000001', False),
        ('("a";`b;10000000)', '("a";`b;10000001)', False),
        ("1.5 2", "1.5 2 3", False),
        ("(10000000;2.5)", "(10000001;2.5)", False),  # a list of its own types: the first is no float
        ("(10000000;2.5)", "(10000000;2.5000001)", True),
        ("(1f;2.5)", "(1;2.5)", False),
        ("(1f;2)", "(1;2f)", False),
        ("10000000 2.5", "10000001 2.5", True),  # a vector of floats
        ("1 2 3f", "1 2 3.0000001", True),
        ("1 0n 2.5", "1.0000001 0n 2.5", True),
        ("1 0n 2.5", "1 0 2.5", False),
        ("-0w 1 0w", "-0w 1.0000001 0w", True),
        ("1 0w", "1 1e+30", False),
        ("1 0w", "1 -0w", False),
        ("1.5 2e", "1.5 2.0000001e", True),
        ("1.5 2e", "1.5 2", False),  # shorter floats are another type
        ("1e10", "10000000000f", True),
        ("1 2.5!3 4", "1 2.5000001!3 4", True),
        ("1000000 2000000!1 2.5", "1000001 2000000!1 2.5", False),
        ("0D00:00:01.000000001", "0D00:00:01.000000900", False),  # times are not floats
        ("(1.5;0D00:00:01.000000001)", "(1.5;0D00:00:01.000000900)", False),
        ("10:00:59.001 10:00:59.002", "10:00:59.001 10:00:59.003", False),
        ("2024.01.01D12:34:56.000000001", "2024.01.01D12:34:56.000000002", False),
        ("2024.01 2024.02m", "2024.01 2024.03m", False),
        ("9999.01m", "9999.02m", False),
    ],
)
def test_values_are_compared_as_q_writes_them(expected, value, same):
    assert same_value(expected, value) is same


def test_texts_are_quoted_for_q():
    assert quoted('a"b\\c\nd') == '"a\\"b\\\\c\\nd"'


def test_a_right_program_passes_and_a_wrong_one_keeps_its_share(q):
    assert [answer.passed for answer in ask(q, RIGHT)] == [True, True]
    wrong = ask(q, RIGHT.replace("ok 6", "ok 7"))
    assert [(answer.status, answer.passed, answer.shown) for answer in wrong] == [
        ("ok", True, "2 4"),
        ("ok", False, "7"),
    ]


@pytest.mark.parametrize("where", ["says double[1 2] =>", "loading"])
def test_an_error_brings_no_control_characters(q, where):
    """Nor more of them than a record is to hold."""
    error = "\x1b[31m\u202e" + "x" * 3000
    problem = q_problem()
    given = Prediction("double", "x", 0, 0, completion=f"```q\n{RIGHT}/ {where} err {error}\n```")
    (judged,) = ProblemJudge(Languages(None, q=q)).judge([given], {"double": problem})
    assert (judged.status, judged.train_correct_grids) == ("error", 0.5 if "says" in where else 0.0)
    assert judged.error_type[:8] == "'\\x1b[31"
    assert len(judged.error_type) <= 100
    assert len(judged.error_message) <= 500
    assert (judged.error_type + judged.error_message).isprintable()


def test_errors_of_one_test_leave_the_others(q):
    first, second = ask(q, RIGHT.replace("ok 6", "err type"))
    assert first.passed
    assert (second.status, second.error_type) == ("error", "'type")


def test_a_program_that_does_not_load_fails_every_test(q):
    for answer in ask(q, RIGHT + "/ loading err [\n"):
        assert (answer.status, answer.error_type) == ("syntax", "'[")


def test_a_program_that_prints_forever_is_cut(q):
    first, _ = ask(q, RIGHT + "/ does flood\n")
    assert (first.status, first.error_message) == ("output_limit", "the program wrote too much")


def test_a_program_that_waits_for_input_finds_none(q):
    assert [answer.passed for answer in ask(q, RIGHT + "/ does wait\n")] == [True, True]


def test_a_program_that_never_ends_is_stopped_and_keeps_what_it_answered(q):
    first, second = ask(q, RIGHT + "/ does never at double[3]\n")
    assert first.passed
    assert (second.status, second.error_message) == ("timeout", "the program took too long")


def test_a_program_that_waits_for_a_processor_keeps_its_time(q):
    napping = RIGHT + "/ does nap at double[3]\n"  # longer than its limit, on no processor
    assert [answer.passed for answer in ask(q, napping)] == [True, True]


@pytest.mark.skipif(abi_version() < 4, reason="this kernel's Landlock does not know about ports")
def test_a_port_cannot_be_opened_where_it_may_connect():
    language = QLanguage(scripted(may_connect=True), Limits(seconds=20.0), workers=1)
    first, _ = ask(language, RIGHT + "/ does port\n")
    assert first.status == "unsafe"
    assert "Permission denied" in first.error_message


def test_a_port_that_was_opened_all_the_same_ends_the_program(tmp_path):
    interpreter = scripted(confine=False, environment={"SEEN": str(tmp_path / "seen")})
    language = QLanguage(interpreter, Limits(seconds=200.0), workers=1)
    began = time.monotonic()
    first, _ = ask(language, RIGHT + "/ does port\n")
    assert (tmp_path / "seen").exists()
    assert (first.status, first.error_message) == ("unsafe", "the program opened a port")
    assert time.monotonic() - began < 50, "the program waits for 60 s"


def test_what_a_program_started_ends_with_it(tmp_path):
    seen = tmp_path / "seen"
    language = QLanguage(
        scripted(confine=False, environment={"SEEN": str(seen)}), Limits(seconds=2.0), workers=1
    )
    ask(language, RIGHT + "/ does child\n/ does never at double[3]\n")
    (made,) = tmp_path.glob("seen-*")
    command = Path(f"/proc/{made.name.split('-')[1]}/cmdline")

    def ended():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            return b"sleep" not in command.read_bytes()
        return True

    wait_for(ended)


@pytest.mark.skipif(not abi_version(), reason="no Landlock on this kernel")
def test_programs_read_no_files_of_ours_and_run_no_other(q, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("42")
    first, _ = ask(q, RIGHT + f"/ does read {secret}\n")
    assert first.status == "unsafe"
    first, _ = ask(q, RIGHT + "/ does child\n")
    assert first.status == "unsafe"


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no filter on this architecture")
@pytest.mark.parametrize("action", ["fork", "send", "mode"])
def test_programs_start_no_process_send_nothing_and_change_no_mode(q, tmp_path, action):
    asked = f"mode {tmp_path}" if action == "mode" else action
    before = tmp_path.stat().st_mode
    first, _ = ask(q, RIGHT + f"/ does {asked}\n")
    assert first.status == "unsafe"
    assert tmp_path.stat().st_mode == before


def test_an_interpreter_may_have_threads(q):
    first, _ = ask(q, RIGHT + "/ does thread\n")
    assert first.passed


def test_memory_and_death_have_their_words(q):
    assert ask(q, RIGHT + "/ does memory\n")[0].status == "memory"
    first, second = ask(q, RIGHT + "/ does die at double[3]\n")
    assert first.passed
    assert (second.status, second.error_type) == ("crashed", "Exit")
    first, second = ask(q, RIGHT + "/ does mark at double[3]\n")
    assert (second.status, second.error_type) == ("error", "'type")


def test_expected_values_do_not_reach_the_program(q, monkeypatch):
    given = []

    def run(interpreter, files, *more):
        given.append(files)
        return run_script(interpreter, files, *more)

    monkeypatch.setattr("arcnb.problems.languages.q.language.run_script", run)
    problem = q_problem(tests=[{"input": "1", "expected": "424242"}] * 2)
    assert not ask(q, "double:{x}\n/ says double[1] => ok 1\n", problem)[0].passed
    with_program = [files for files in given if "program.q" in files]
    assert with_program
    assert not any("424242" in text for files in with_program for text in files.values())
    assert any("424242" in text for files in given for text in files.values()), "it is asked elsewhere"


def test_expected_values_that_are_no_q_are_refused(q):
    problem = q_problem(tests=[{"input": "1", "expected": "(2;"}] * 2)
    with pytest.raises(
        ArcnbError, match=r"problem double: its tests cannot be parsed: test 0 expects '\(2;'"
    ):
        ask(q, RIGHT, problem)


def test_expected_values_that_are_no_q_are_refused_before_a_run_also_without_a_solution(executor, q):
    bad = q_problem(problem_id="bad", tests=[{"input": "1", "expected": "(2;"}])
    with pytest.raises(ArcnbError, match=r"problem bad: .* test 0 expects '\(2;', which is no value of q"):
        check_solutions([q_problem(), bad], Languages(executor, q=q))
    assert check_solutions([q_problem()], Languages(executor, q=q)) == 0


def test_assertion_lines_of_q():
    problem = q_problem(tests='/ twice\ndouble[1 2]~2 4\ndouble["~"]~"x"\ndouble["\u2028"]~1\n')
    assert [(test.call, test.expected) for test in problem.tests] == [
        ("double[1 2]", "2 4"),
        ('double["~"]', '"x"'),
        ('double["\u2028"]', "1"),
    ]
    with pytest.raises(ArcnbError, match="line 1 is not of the form expression~expected"):
        q_problem(tests="double[1]=2")


def test_the_program_of_an_answer_is_the_last_block_that_assigns_the_entry_point(q):
    text = "Use til.\n```q\nhelper:{x}\n```\n```q\ndouble:{2*x}\n```\n```\ndouble[2]\n```"
    assert q.extract(text, q_problem(), False).program == "double:{2*x}"
    assert q.extract("no code here", q_problem(), False).program is None
    assert q.extract("```q\ntriple:{3*x}\n```", q_problem(), False).reason == "no code block assigns double"


# ---------------------------------------------------------------- finding q


def test_without_q_the_sentence_says_what_to_install_and_where_the_licence_goes(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(
        ArcnbError, match=r"install kdb\+ .*pip install pykx.*kc\.lic or k4\.lic into the folder \$QLIC"
    ):
        find_q({"PATH": "/nowhere"})


def test_without_a_licence_the_sentence_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    binary = tmp_path / "l64" / "q"
    binary.parent.mkdir()
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(ArcnbError, match="but no licence file"):
        find_q({"QHOME": str(tmp_path)})
    (tmp_path / "k4.lic").write_bytes(b"x")
    found = find_q({"QHOME": str(tmp_path)}, check=False)
    assert found.command == (str(binary),)
    assert found.environment == {"QHOME": str(tmp_path), "QLIC": str(tmp_path)}
    assert not found.may_connect
    with pytest.raises(ArcnbError, match="does not evaluate 1"):
        find_q({"QHOME": str(tmp_path)})


def test_an_interpreter_that_refuses_its_licence_is_quoted():
    shell = Interpreter(("/bin/sh", "-c", 'echo "\'k4.lic"'), described="q at x", confine=False)
    with pytest.raises(ArcnbError, match=r"q at x does not evaluate 1\+1, it says 'k4.lic'"):
        refuse_silent(shell)


def _licensed_q() -> str:
    try:
        find_q()
    except ArcnbError as error:
        return str(error)
    return ""


NO_Q = _licensed_q()


@pytest.mark.skipif(bool(NO_Q), reason=NO_Q or "q is here")
def test_q_itself_judges(executor):
    with Languages(executor) as languages:
        assert [a.passed for a in ask(languages["q"], "double:{2*x}")] == [True, True]
        assert ask(languages["q"], "double:{x+`a}")[0].error_type == "'type"
        assert ask(languages["q"], "double:{while[1b;()]}")[0].status == "timeout"
        assert ask(languages["q"], "double:{[")[0].status == "syntax"
        assert ask(languages["q"], 'double:{system "p 5123";x}')[0].status == "unsafe"


def test_nothing_of_a_program_stays_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    language = QLanguage(scripted(), Limits(seconds=1.0), workers=1)
    assert ask(language, RIGHT + "/ does never\n")[0].status == "timeout"
    assert list(tmp_path.iterdir()) == []
