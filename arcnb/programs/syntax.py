"""Parsing of programs that nobody vouches for, in our own process.

`ast.parse` itself can be attacked: a megabyte of brackets, a chain of a hundred thousand minus signs or a
null byte ends in MemoryError, RecursionError, ValueError or, on a small thread stack, in a crash of the
interpreter. `parse_program` looks at length and nesting first and turns every refusal into one exception.
Nothing is compiled or executed here. With these limits the parser needs less than 1 MB of stack.
"""

import ast
import re
import warnings
from collections.abc import Iterable
from typing import NamedTuple

MAX_SOURCE = 100_000  # characters; the longest honest program seen has about 15,000
MAX_NESTING = 100  # open brackets; CPython itself stops at 200
MAX_CHAIN = 100  # prefix operators in a row: each is one level of recursion in the parser
MAX_DEPTH = (
    150  # levels of a tree for code that follows it by recursion: three to six frames a level, of 1,000
)

FILE_NAME = "<program>"

_BRACKET = re.compile(r"[()\[\]{}]")
_LINE_END = re.compile(r"\r\n|\r|\n")
_CHAIN = re.compile(rf"(?:(?:[-+~]|not\b|await\b|lambda\b[^:\n]{{0,40}}:)\s*){{{MAX_CHAIN}}}")

# The parser warns about "\d" and the like. Those are the program's business and must neither reach our
# stderr nor, under -W error, become syntax errors; `catch_warnings` would not be safe in threads.
for _category in (SyntaxWarning, DeprecationWarning):
    warnings.filterwarnings("ignore", category=_category, module=re.escape(FILE_NAME))


class ProgramSyntaxError(ValueError):
    """The text is no Python program; `line` is 1-based, 0 when it concerns the whole text."""

    def __init__(self, message: str, line: int = 0):
        super().__init__(message)
        self.line = line


def parse_program(source: str) -> ast.Module:
    """Syntax tree of `source`, or ProgramSyntaxError whatever is wrong with it."""
    if len(source) > MAX_SOURCE:
        raise ProgramSyntaxError(f"source too long: {len(source)} characters, at most {MAX_SOURCE}")
    nesting = _nesting(source)
    if nesting > MAX_NESTING:
        raise ProgramSyntaxError(f"brackets nested too deeply: {nesting}, at most {MAX_NESTING}")
    if _CHAIN.search(source):
        raise ProgramSyntaxError(f"more than {MAX_CHAIN} prefix operators in a row")
    try:
        return ast.parse(source, filename=FILE_NAME)
    except SyntaxError as error:
        raise ProgramSyntaxError(error.msg or "invalid syntax", error.lineno or 0) from None
    except RecursionError:
        raise ProgramSyntaxError("expression nested too deeply") from None
    except MemoryError:
        raise ProgramSyntaxError("too complex for the parser") from None
    except ValueError as error:  # null bytes (Python 3.11), lone surrogates, huge integer literals
        raise ProgramSyntaxError(str(error)) from None


def parse_shallow(source: str) -> ast.Module:
    """As `parse_program`, MAX_DEPTH levels at most: for what follows the tree by recursion (`ast.unparse`).

    What is refused does not depend on the interpreter's recursion limit, which notebooks' libraries raise.
    """
    tree = parse_program(source)
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [below for node in level for below in ast.iter_child_nodes(node)]
        if not level:
            return tree
    raise ProgramSyntaxError("an expression is nested too deeply")


def source_of(node: ast.AST) -> str:
    """Source of a tree of `parse_shallow`, or ProgramSyntaxError: Python cannot write all that it reads."""
    try:
        return ast.unparse(node)
    except ValueError as error:  # an integer of more than 4,300 digits; before Python 3.12 some f-strings
        raise ProgramSyntaxError(f"it cannot be written again: {error}") from None


def lines_of(source: str) -> list[str]:
    """Lines as Python counts them; `str.splitlines` also ends one at a form feed, U+2028 and others."""
    return _LINE_END.split(source)


def _nesting(source: str) -> int:
    """Largest number of brackets open at once; those in strings and comments count too."""
    depth = deepest = 0
    for match in _BRACKET.finditer(source):
        if match[0] in "([{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth = max(0, depth - 1)
    return deepest


def defined_names(tree: ast.Module) -> set[str]:
    """Names that the module body defines: functions, classes, assignments.

    Looks into `if`, `try`, `with` and loops at module level, not into functions. Imported names are not
    counted: `from solution import transform` uses a program and is none.
    """
    names: set[str] = set()
    todo: list[ast.AST] = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif not isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            todo.extend(ast.iter_child_nodes(node))
    return names


class Import(NamedTuple):
    """One imported name. `name`: None for a whole module, "*" for a star; `bound`: what it is called here."""

    line: int
    module: str
    name: str | None
    bound: str


def imports_of(nodes: Iterable[ast.AST]) -> list[Import]:
    """Every import among the nodes, one entry for each name; relative modules keep their leading dots."""
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                found.append(
                    Import(node.lineno, alias.name, None, alias.asname or alias.name.partition(".")[0])
                )
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found += [Import(node.lineno, module, a.name, a.asname or a.name) for a in node.names]
    return found


def bound_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Names that the nodes bind in any scope: imported, assigned, defined, parameters, caught, matched."""
    nodes = list(nodes)
    names = {found.bound for found in imports_of(nodes)}
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            names.add(node.name)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            names.add(node.rest)
    return names
