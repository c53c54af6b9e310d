"""Assertion code into tests: what is called stays code, what is expected becomes a value kept outside.

`assert f(2) == 4` becomes the call `f(2)` and the value 4. Understood are ==, `is` (equal, of the same type),
bare and negated calls of the entry point, abs(call - constant) < tolerance and isclose, at module level or in
`def check(candidate)`. Anything else (a loop, a comparison of two calls, `all(f(x) == y ...)`) would have to
run inside the program's process, where a program could read or fake it: it is left out and counted. So is a
call that needs names of the test code, parameters of its functions included, since only its imports and the
problem's `setup` go along, and what asks nothing of the program. Imports of the entry point do not: the
program defines it.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import sys

from arcnb.errors import ArcnbError
from arcnb.problems.sets.test_case import TestCase
from arcnb.programs.syntax import (
    ProgramSyntaxError,
    bound_names,
    defined_names,
    lines_of,
    parse_shallow,
    source_of,
)


class _NotConstant(ValueError):
    pass


def python_tests(code: str, entry: str, setup: str = "") -> tuple[list[TestCase], int]:
    """(tests, number of assertions left out). ArcnbError where the code does not parse.

    setup: code that the calls need, which goes along with them; its names may be used.
    """
    try:
        return _read_tests(parse_shallow(code), entry, setup, defined_names(parse_shallow(setup)))
    except ProgramSyntaxError as error:
        raise ArcnbError(f"line {error.line}: {error}" if error.line else str(error)) from None


def _read_tests(tree: ast.Module, entry: str, setup: str, known: set[str]) -> tuple[list[TestCase], int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id == "candidate":
            node.id = entry or node.id  # what HumanEval calls the program
    nodes = list(ast.walk(tree))
    imports = [one for one in nodes if isinstance(one, ast.Import | ast.ImportFrom)]
    usable = [one for one in imports if not _imports_program(one, entry, nodes)]
    setup = "\n".join(filter(None, [setup, *map(source_of, usable)]))
    defined = bound_names(nodes) - bound_names(usable) - {entry} - known
    tests, left_out = [], 0
    for statement in _statements(tree, entry):
        test = None
        if isinstance(statement, ast.Assert):
            if isinstance(statement.test, ast.Constant):
                continue  # `assert True` of HumanEval asks nothing
            test = _test(statement.test, setup)
        if test is not None and _separable(test, entry, defined):
            tests.append(test)
        elif any(isinstance(node, ast.Assert) for node in ast.walk(statement)):
            left_out += 1
    return tests, left_out


def _statements(tree: ast.Module, entry: str) -> list[ast.stmt]:
    """The statements of the module and of its functions `check(candidate)` and `test_...()`."""
    found = []
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef) and statement.name != entry:
            found += statement.body
        else:
            found.append(statement)
    return found


def _imports_program(node: ast.Import | ast.ImportFrom, entry: str, nodes: list[ast.AST]) -> bool:
    """`from solution import f`, of whatever module, or `import solution` where `solution.f` is called."""
    if isinstance(node, ast.ImportFrom):
        names = {name for alias in node.names for name in (alias.name, alias.asname)}
        return bool(node.level) or not names.isdisjoint({entry, "candidate"})
    modules = [alias.asname or alias.name for alias in node.names]
    called = [one.value for one in nodes if isinstance(one, ast.Attribute) and one.attr == entry]
    return any(source_of(module) in modules for module in called)


def _separable(test: TestCase, entry: str, defined: set[str]) -> bool:
    """Whether what is asked can run beside the program: it holds no answer, and its names are there."""
    asked = ast.parse(test.call, mode="eval")
    if entry and entry not in {node.id for node in ast.walk(asked) if isinstance(node, ast.Name)}:
        return False  # `len('abc') == 3`: it does not ask the program, so that anything passes
    truth = test.compare in ("true", "false") or isinstance(test.expected, bool)
    if truth and entry and _name(getattr(asked.body, "func", asked)) != entry:
        return False  # `isinstance(f(2), int)`: a program can define that itself
    if any(isinstance(node, ast.Compare) and _calls(node) for node in ast.walk(asked)):
        return False
    used = {node.id for node in ast.walk(asked) if isinstance(node, ast.Name)} - bound_names(ast.walk(asked))
    return not used & defined


def _test(node: ast.expr, setup: str) -> TestCase | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return _asking(node.operand, setup, None, "false") if _calls(node.operand) else None
    if isinstance(node, ast.Call) and _name(node.func) in ("isclose", "allclose"):
        return _isclose(node, setup)
    if isinstance(node, ast.Compare):
        return _comparison(node, setup) if len(node.ops) == 1 else None
    return _asking(node, setup, None, "true") if isinstance(node, ast.Call) else None


def _comparison(node: ast.Compare, setup: str) -> TestCase | None:
    left, operator, right = node.left, node.ops[0], node.comparators[0]
    if isinstance(operator, ast.Eq | ast.Is):
        for asked, expected in ((left, right), (right, left)):
            value = _constant_or(expected)
            if value is not _UNKNOWN and _calls(asked):
                return _asking(asked, setup, value, "is" if isinstance(operator, ast.Is) else "equal")
    if isinstance(operator, ast.Lt | ast.LtE) and isinstance(left, ast.Call) and _name(left.func) == "abs":
        difference, tolerance = left.args[0] if left.args else None, _constant_or(right)
        if isinstance(difference, ast.BinOp) and isinstance(difference.op, ast.Sub):
            for asked, expected in ((difference.left, difference.right), (difference.right, difference.left)):
                value = _constant_or(expected)
                if _is_number(value) and _is_number(tolerance) and _calls(asked):
                    tolerance = float(tolerance)
                    if isinstance(operator, ast.Lt):  # "close" includes its bound
                        tolerance = math.nextafter(tolerance, -math.inf)
                    return _asking(asked, setup, value, "close", tolerance)
    return None


def _isclose(node: ast.Call, setup: str) -> TestCase | None:
    """math.isclose, or numpy's isclose and allclose of numbers, by their own tolerances."""
    of_math = isinstance(node.func, ast.Name) or _name(node.func.value) == "math"
    given = {"rel_tol": 1e-9, "abs_tol": 0.0} if of_math else {"rtol": 1e-5, "atol": 1e-8}
    names = list(given)
    given |= {word.arg: _constant_or(word.value) for word in node.keywords}
    if len(node.args) != 2 or list(given) != names or not all(map(_is_number, given.values())):
        return None
    relative, absolute = map(float, given.values())
    for asked, expected in (node.args, node.args[::-1]):
        value = _constant_or(expected)
        if _is_number(value) and _calls(asked):
            if not of_math:  # numpy adds them
                relative, absolute = 0.0, absolute + relative * abs(value)
            return _asking(asked, setup, value, "close", absolute, relative)
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)


def _asking(
    node: ast.expr, setup: str, value: object, compare: str, tolerance: float = 1e-6, relative: float = 0.0
) -> TestCase:
    return TestCase(source_of(node), value, compare, tolerance, setup=setup, relative=relative)


_UNKNOWN = object()
_ARITHMETIC = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_MAKERS = {kind.__name__: kind for kind in (set, list, tuple, frozenset, dict, float)}
_MAKERS["sys.getsizeof"] = sys.getsizeof  # the program's interpreter is of this kind, too


def _constant_or(node: ast.expr) -> object:
    try:
        return _constant(node)
    except (_NotConstant, TypeError, ValueError, RecursionError, OverflowError, ZeroDivisionError, KeyError):
        return _UNKNOWN


def _constant(node: ast.expr) -> object:
    """The value of an expression of constants; nothing of the test code is executed."""
    if isinstance(node, ast.Call) and not node.keywords and len(node.args) < 2:
        if (maker := _MAKERS.get(source_of(node.func))) is None:
            raise _NotConstant
        return maker(*map(_constant, node.args))
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        a, b = _constant(node.left), _constant(node.right)
        if all(isinstance(number, int | float | complex) and abs(number) < 1e15 for number in (a, b)):
            return _ARITHMETIC[type(node.op)](a, b)
        raise _NotConstant
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        kind = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
        return kind([_constant(part) for part in node.elts])
    if isinstance(node, ast.Dict) and all(key is not None for key in node.keys):
        return {_constant(k): _constant(v) for k, v in zip(node.keys, node.values, strict=True)}
    try:
        value = ast.literal_eval(node)
    except ValueError:
        raise _NotConstant from None
    if isinstance(value, bytes) or value is ...:  # no program's result arrives as such
        raise _NotConstant
    return value


def _calls(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Call) for part in ast.walk(node))


def _name(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def q_tests(code: str) -> list[TestCase]:
    """Lines `expression~expected` of q, empty ones and comments apart. ArcnbError without a `~`."""
    tests = []
    for number, line in enumerate(lines_of(code), 1):
        text = line.strip()
        if not text or text.startswith("/"):
            continue
        at = _match_sign(text)
        if at is None:
            raise ArcnbError(f"line {number} is not of the form expression~expected: {text!r}")
        tests.append(TestCase(text[:at].strip(), text[at + 1 :].strip()))
    return tests


def _match_sign(text: str) -> int | None:
    """Where the first `~` outside of brackets and strings is."""
    depth = 0
    for token in re.finditer(r'"(?:\\.|[^"\\])*\\?"?|.', text):  # a string, or one sign
        depth += (token[0] in "([{") - (token[0] in ")]}")
        if token[0] == "~" and depth == 0 and 0 < token.start() < len(text) - 1:
            return token.start()
    return None
