"""Refuses prompt templates that ask for what no prompt may show: the outputs of test pairs.

Templates are never given test outputs, so such a template would fail anyway, but only where the line that
asks is reached. Here the whole template is read, before anything else is done.
"""

from __future__ import annotations

import re
from pathlib import Path

from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

from arcnb.errors import ArcnbError
from arcnb.models.prompts.rendering import render_blocks, template_path

_TEST_OUTPUT = re.compile(
    r"(?i)solution|(?<![a-z])tests?_?\w*(output|expected|answer|target)|(output|expected|answer)\w*test"
)
_TEST = re.compile(r"(?i)^tests?(_pairs?|_samples?)?$")


def refuse_test_outputs(template: str | Path) -> None:
    """ArcnbError, naming file and line, when the template's code mentions test pairs' outputs."""
    path = template_path(template)
    try:
        tree = ImmutableSandboxedEnvironment().parse(path.read_text())
    except Exception:
        render_blocks(template, {})  # says which line is no Jinja
        raise
    for node in tree.find_all((nodes.Name, nodes.Getattr, nodes.Getitem)):
        name = _name(node)
        if name and (_TEST_OUTPUT.search(name) or _TEST.search(name)):
            raise ArcnbError(
                f"template {path}, line {node.lineno}: it mentions {name!r}; prompts never show test outputs"
            )


def _name(node: nodes.Node) -> str:
    if isinstance(node, nodes.Name):
        return node.name
    if isinstance(node, nodes.Getattr):
        return node.attr
    key = node.arg
    return key.value if isinstance(key, nodes.Const) and isinstance(key.value, str) else ""
