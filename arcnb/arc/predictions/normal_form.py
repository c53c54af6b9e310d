"""The form in which two programs count as the same."""

import ast
from functools import lru_cache


@lru_cache(maxsize=2048)  # a task's program is asked for when it comes and when it is accepted
def normal_form(program: str) -> str:
    """The program without comments, docstrings and layout: equal for programs that differ in these alone. One
    that cannot be read or written (nested too deeply, a number of thousands of digits) is equal to itself."""
    try:
        return _normal_form(program)
    except (RecursionError, MemoryError, ValueError):
        return program


def _normal_form(program: str) -> str:
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
