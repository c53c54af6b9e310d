"""Programs with one statement less."""

import ast
from collections.abc import Iterator


def removals(program: str) -> Iterator[str]:
    """Programs with one statement removed; the last statement first.

    Also tried: `return f(x, ...)` as `return x`, and what stands under an `if` without the `if`.

    Left out are removals that surely break the program: of a function or a star import, of the only statement
    of a block, of the only binding of a name that is used elsewhere. Other lines stay as they are written.
    """
    nodes = list(ast.walk(ast.parse(program)))
    names = _Names(nodes)
    lines = program.splitlines(keepends=True)
    for block in reversed(_blocks(nodes)):
        for statement in reversed(block):
            before, after = lines[: statement.lineno - 1], lines[statement.end_lineno :]
            if isinstance(statement, ast.Return):
                argument = _first_argument(statement.value)
                if argument is not None:
                    yield "".join([*before, f"{' ' * statement.col_offset}return {argument}\n", *after])
                continue
            if len(block) > 1 and _has_own_lines(block, statement) and names.can_spare(statement):
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


class _Names:
    """Where a program binds names and reads them: what may go without leaving a name unbound."""

    def __init__(self, nodes: list[ast.AST]):
        # By line and not by node: statements that may go have lines of their own, and this is asked of each.
        self._bound: list[tuple[int, str]] = []
        self._used: list[tuple[int, str]] = []
        for node in nodes:
            if isinstance(node, ast.Name):
                if isinstance(node.ctx, ast.Load):
                    self._used.append((node.lineno, node.id))
                elif isinstance(node.ctx, ast.Store):
                    self._bound.append((node.lineno, node.id))
            elif isinstance(node, ast.arg):
                self._bound.append((node.lineno, node.arg))
            elif isinstance(node, ast.alias):
                self._bound.append((node.lineno, (node.asname or node.name).partition(".")[0]))

    def can_spare(self, statement: ast.stmt) -> bool:
        """Whether no name that is read elsewhere is bound in the statement, and on its lines, alone."""
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            return False
        if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
            return False
        lines = range(statement.lineno, statement.end_lineno + 1)
        bound = {name for line, name in self._bound if line in lines}
        bound -= {name for line, name in self._bound if line not in lines}
        return not any(name in bound and line not in lines for line, name in self._used)
