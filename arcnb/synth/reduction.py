"""Programs with one statement less, and the form in which two programs count as the same."""

import ast
from collections.abc import Iterator
from functools import lru_cache


@lru_cache(maxsize=2048)  # a task's program is asked for when it comes and when it is accepted
def normal_form(program: str) -> str:
    """The program without comments, docstrings and layout: equal for programs that differ in these alone."""
    tree = ast.parse(program)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef):
            is_text = [
                isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) for line in node.body
            ]
            node.body = [line for line, text in zip(node.body, is_text, strict=True) if not text] or [
                ast.Pass()
            ]
    return ast.unparse(tree)


def removals(program: str) -> Iterator[str]:
    """Programs with one statement removed; the last statement first.

    Also tried: `return f(x, ...)` as `return x`, and what stands under an `if` without the `if`.

    Left out are removals that surely break the program: of a function or a star import, of the only statement
    of a block, of the only binding of a name that is used elsewhere. Other lines stay as they are written.
    """
    nodes = list(ast.walk(ast.parse(program)))
    lines = program.splitlines(keepends=True)
    for block in reversed(_blocks(nodes)):
        for statement in reversed(block):
            before, after = lines[: statement.lineno - 1], lines[statement.end_lineno :]
            if isinstance(statement, ast.Return):
                argument = _first_argument(statement.value)
                if argument is not None:
                    yield "".join([*before, f"{' ' * statement.col_offset}return {argument}\n", *after])
                continue
            if len(block) > 1 and _has_own_lines(block, statement) and _may_go(nodes, statement):
                yield "".join([*before, *after])
            if (
                isinstance(statement, ast.If)
                and not statement.orelse
                and statement.body[0].lineno > statement.lineno
            ):
                yield "".join([*before, *_unconditional(statement, lines), *after])


def _blocks(nodes: list[ast.AST]) -> list[list[ast.stmt]]:
    """Every list of statements that follow each other, outer ones first."""
    fields = ("body", "orelse", "finalbody")
    found = [getattr(node, name, None) for node in nodes for name in fields]
    return [block for block in found if isinstance(block, list) and block]


def _first_argument(value: ast.expr | None) -> str | None:
    """`x` of `f(x, ...)` when it is a plain name."""
    if isinstance(value, ast.Call) and value.args and isinstance(value.args[0], ast.Name):
        return value.args[0].id
    return None


def _unconditional(statement: ast.If, lines: list[str]) -> list[str]:
    """The lines under the `if`, moved to its own indentation."""
    first, last = statement.body[0], statement.body[-1]
    extra = first.col_offset - statement.col_offset
    return [line[extra:] for line in lines[first.lineno - 1 : last.end_lineno]]


def _has_own_lines(block: list[ast.stmt], statement: ast.stmt) -> bool:
    others = [other for other in block if other is not statement]
    return all(o.end_lineno < statement.lineno or o.lineno > statement.end_lineno for o in others)


def _may_go(nodes: list[ast.AST], statement: ast.stmt) -> bool:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return False
    if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
        return False
    inside = {id(node): node for node in ast.walk(statement)}
    rest = [node for node in nodes if id(node) not in inside]
    bound = _bound(list(inside.values()))
    used = {node.id for node in rest if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return not (bound & used - _bound(rest))


def _bound(nodes: list[ast.AST]) -> set[str]:
    names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return names | {
        (node.asname or node.name).partition(".")[0] for node in nodes if isinstance(node, ast.alias)
    }
