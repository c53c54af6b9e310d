"""Simple Python problems, generated: enough of them for a small model to be right sometimes and to improve.

    simple_problems("simple*200", seed=0)           # for training
    simple_problems("simple/held_out*50", seed=0)   # never among those for training, whatever the seeds

A problem is a kind of `KINDS` with numbers or words put in; its reference solution makes the expected values.
Its first two tests expect different values, and not both their inputs: no constant and no `return x` passes,
though a reward sees few tests.
One in five (kind, values) belongs to the eval split, by a hash: the splits share kinds, not problems.
"""

from __future__ import annotations

import re
from functools import cache

from arcnb.arc.seeds import derive_seed, rng
from arcnb.errors import ArcnbError
from arcnb.problems.sets.problem import Problem
from arcnb.problems.sets.simple_kinds import KINDS, WORDS

N_TESTS = 8
MAX_DRAWS = 2000  # of inputs, a hundred times of what a kind's rarest answer takes


def simple_problems(name: str, seed: int = 0) -> list[Problem]:
    """`simple*N` or `simple/held_out*N`. ArcnbError for another name, or for more than there are."""
    choices, wanted = asked_for(name)
    order = rng(seed, "simple problems").permutation(len(choices))
    return [_problem(*choices[int(i)], seed) for i in order[:wanted]]


def asked_for(name: str) -> tuple[list[tuple[int, int, str]], int]:
    """(what its split has, how many of it). ArcnbError as `simple_problems`."""
    match = re.fullmatch(r"simple(/held_out)?(?:\*(\d+))?", name)
    if not match:
        raise ArcnbError(f"{name!r}: generated problems are simple*N and simple/held_out*N")
    choices = [choice for choice in _choices() if held_out(*choice) == bool(match[1])]
    wanted = int(match[2] or len(choices))
    if not 0 < wanted <= len(choices):
        raise ArcnbError(f"{name!r}: there are 1 to {len(choices)} problems in this split")
    return choices, wanted


def held_out(number: int, k: int, word: str) -> bool:
    """Whether a kind with these values belongs to the eval split, which no training set has."""
    return derive_seed(0, "held out problem", number, k, word) % 5 == 0


def is_held_out(problem: Problem) -> bool:
    """Whether a problem is one of the eval split, by its description, wherever it comes from."""
    return problem.description in _held_out_descriptions()


@cache
def _held_out_descriptions() -> frozenset[str]:
    return frozenset(_asked(*choice)[1] for choice in _choices() if held_out(*choice))


def _choices() -> list[tuple[int, int, str]]:
    found = []
    for number, kind in enumerate(KINDS):
        words = WORDS if "{w}" in kind.text else [""]
        found += [(number, k, word) for k in kind.k or (0,) for word in words]
    return found


def _asked(number: int, k: int, word: str) -> tuple[str, str]:
    """The function's head, and the description."""
    kind = KINDS[number]
    # A name of numbers below zero has to stay a name.
    head = kind.signature.format(k=str(k).replace("-", "_minus_"), w=word)
    return head, f"Write a Python function {head}. {kind.text.format(k=k, w=word)}"


def _problem(number: int, k: int, word: str, seed: int) -> Problem:
    kind, (head, description) = KINDS[number], _asked(number, k, word)
    entry = head.split("(")[0]
    solution = f"def {head}:\n    {kind.body.format(k=k, w=word)}\n"
    stream = rng(seed, "simple tests", number, k, word)
    namespace: dict = {}
    exec(solution, namespace)  # text of this module
    tests: list[dict] = []
    for _ in range(MAX_DRAWS):
        arguments = [sample(stream) for sample in kind.inputs]
        if all(test["input"] != arguments for test in tests):
            tests.append({"input": arguments, "expected": namespace[entry](*arguments)})
        if len(tests) >= N_TESTS and (second := _second(tests)):
            tests.insert(1, tests.pop(second))
            break
    tests = tests[:N_TESTS]
    return Problem.from_row(
        {
            "problem_id": f"{entry}-{number}",
            "description": description,
            "language": "python",
            "entry_point": entry,
            "tests": tests,
            "difficulty": str(kind.difficulty),
            "solution": solution,
            "source": "simple",
        }
    )


def _second(tests: list[dict]) -> int:
    """The first test that, beside test 0, a constant or the input fails; 0 for none."""
    first, *others = tests
    for place, test in enumerate(others, 1):
        changed = any(one["input"] != [one["expected"]] for one in (first, test))
        if changed and test["expected"] != first["expected"]:
            return place
    return 0
