"""Parameters of a notebook: what its `parameters` cell declares, and whether given values fit.

The cell tagged `parameters` holds literal assignments, each with a comment that says what it is and in what
unit:

    n_tasks = 40               # how many tasks, from the start of the task set
    adapter: str | None = None # run folder of 02_sft, or None for the bare model

A parameter's kind is its annotation, else the type of its default (a list's elements included). papermill
itself warns about an unknown name and never looks at types; here both stop a run before its kernel starts.

A notebook that makes a plan (`SomePlan.of(run.parameters)`, see arcnb.plans) also takes every option of it,
by path (`guard.window`) or flat name. Those without a line in the cell reach it in its parameter `more`.
"""

import ast
import functools
import importlib
import io
import re
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from arcnb.errors import ArcnbError
from arcnb.plans import MORE, Plan, dotted, fitting, nearest_option
from arcnb.values import Within, short_kind


@dataclass(frozen=True)
class Parameter:
    name: str
    default: Any  # None also where the default is not a literal
    kind: str  # in its short form: "int", "str | None", "list[float]", ...; "any" if nothing is known
    comment: str  # the comment behind the assignment, or the lines of comment above it
    unit: str = ""
    ours: bool = True  # not a field of a library's class that keeps the library's default

    @property
    def branch(self) -> str:
        """Of the plan, "" for its root and for what has a line in the parameters cell."""
        return self.name.rpartition(".")[0]

    @property
    def sentence(self) -> str:
        """The first sentence of the comment, and the unit."""
        first = first_sentence(self.comment)
        return f"{first} ({self.unit})" if self.unit else first


class Declared(dict[str, Parameter]):
    """The parameters of the cell, by name; `find` also knows the options of the notebook's plan."""

    def __init__(self, cell: Mapping[str, Parameter] = {}, plan: str = ""):
        super().__init__(cell)
        self.plan_name = plan

    @functools.cached_property
    def plan(self) -> type[Plan] | None:
        """The plan's class, "module:class"; imported when somebody asks for more than the cell has."""
        module, _, name = self.plan_name.partition(":")
        try:
            return getattr(importlib.import_module(module), name) if name else None
        except (ImportError, AttributeError) as error:
            raise ArcnbError(f"the notebook's plan {self.plan_name} cannot be imported: {error}") from None

    def find(self, name: str) -> Parameter:
        """The parameter of this name; ArcnbError for one that neither the cell nor the plan has."""
        if name in self and not _holds_more(name, self):
            return self[name]
        if self.plan is None:
            raise ArcnbError(f"has no parameter {name!r}{nearest_option(name, self)}")
        known = self.plan.find(name)
        in_cell = self._by_path.get(known.path)
        return in_cell or Parameter(
            known.path, known.default, known.kind, known.meaning, known.unit, known.ours
        )

    def all(self) -> tuple[dict[str, Parameter], dict[str, Parameter]]:
        """(the parameters of the cell, the plan's options without a line in it), by name."""
        cell = {name: known for name, known in self.items() if not _holds_more(name, self)}
        paths = self.plan.options() if self.plan else ()
        return cell, {path: self.find(path) for path in paths if path not in self._by_path}

    def names(self) -> list[str]:
        """Of the cell's parameters and, by path, of the plan's further options."""
        return [name for part in self.all() for name in part]

    def knows(self, name: str) -> bool:
        try:
            self.find(name)
        except ArcnbError:
            return False
        return True

    def is_free(self, name: str) -> bool:
        """Whether a run that is resumed may have another value of it, as the notebook's plan says."""
        return self.plan is not None and self.plan.knows(name) and self.plan.find(name).free

    def within(self, name: str) -> Within:
        """Range or choices of the plan's option of this name; "" of other names."""
        return self.plan.find(name).within if self.plan is not None and self.plan.knows(name) else ""

    @functools.cached_property
    def _by_path(self) -> dict[str, Parameter]:
        names = [name for name in self if not _holds_more(name, self)]
        return {self.plan.find(name).path: self[name] for name in names}

    def opened(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Flat values: `more` opened, and mappings that stand for a branch of the plan by dotted names."""
        found: dict[str, Any] = {}
        for name, value in values.items():
            if _holds_more(name, self):
                if not isinstance(value or {}, Mapping):
                    raise ArcnbError(f"{MORE} must be a mapping of further parameters, got {value!r}")
                found |= dotted(value or {}, "", self.knows)
            elif isinstance(value, Mapping) and name not in self and self.plan_name:
                found |= dotted({name: value}, "", self.knows)
            else:
                found[name] = value
        return found


def notebook_parameters(notebook: Mapping[str, Any], where: str = "notebook") -> Declared:
    """The parameters that a notebook (nbformat 4) declares, in order; empty without a cell tagged
    `parameters`."""
    for cell in notebook["cells"]:
        if "parameters" in cell["metadata"].get("tags", []):
            declared = _read_cell("".join(cell["source"]), where)
            return Declared(declared, _plan_of(notebook) if MORE in declared else "")
    return Declared()


def default_values(declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """What a run gets without being told; without defaults that only Python could work out."""
    return {
        name: known.default
        for name, known in declared.items()
        if (known.kind, known.default) != ("any", None) and not _holds_more(name, declared)
    }


def check_parameters(
    values: Mapping[str, Any], declared: Mapping[str, Parameter], where: str
) -> dict[str, Any]:
    """Return `values` flat: names of the cell, and paths of the plan's other options (those in `more`, too);
    whole numbers for float parameters made floats. ArcnbError for the first unknown name (with the
    nearest known one), ill-typed value, or parameter given by two names. `where` opens the message: a
    notebook or a file."""
    declared = declared if isinstance(declared, Declared) else Declared(declared)
    checked: dict[str, Any] = {}
    for name, value in named_once(values, declared, where).items():
        known = declared.find(name)
        try:
            within = declared.within(name)
            lenient = name in declared  # an annotation of the cell may be of any module
            checked[name] = fitting(value, known.kind, name, known.default, within, lenient)
        except ArcnbError as error:
            raise ArcnbError(f"{where}: {error}") from None
    return checked


def named_once(values: Mapping[str, Any], declared: Declared, where: str) -> dict[str, Any]:
    """The values as they are, flat and by the names of `check_parameters`, which says what is refused."""
    found: dict[str, Any] = {}
    called: dict[str, str] = {}
    try:
        opened = declared.opened(values)
    except ArcnbError as error:
        raise ArcnbError(f"{where}: {error}") from None
    for name, value in opened.items():
        known = find_parameter(name, declared, where)
        if called.setdefault(known.name, name) != name:
            raise ArcnbError(f"{where}: {called[known.name]!r} and {name!r} are the same; give one")
        found[known.name] = value
    return found


def find_parameter(name: str, declared: Declared, where: str) -> Parameter:
    """The parameter of this name; ArcnbError, opened by `where`, for one that is unknown."""
    try:
        return declared.find(name)
    except ArcnbError as error:
        joint = " " if str(error).startswith("has ") else ": "
        raise ArcnbError(f"{where}{joint}{error}") from None


def folded(values: Mapping[str, Any], declared: Mapping[str, Parameter]) -> dict[str, Any]:
    """Flat values as a notebook takes them: options without a line in its cell inside `more`."""
    more = {name: value for name, value in values.items() if name not in declared}
    own = {name: value for name, value in values.items() if name in declared}
    return own | ({MORE: more} if more else {})


def _holds_more(name: str, declared: Mapping[str, Parameter]) -> bool:
    return name == MORE and isinstance(declared, Declared) and bool(declared.plan_name)


def _plan_of(notebook: Mapping[str, Any]) -> str:
    """ "module:class" of the plan that the notebook makes: whose `of` it calls with the run's parameters."""
    imported: dict[str, str] = {}
    for cell in notebook["cells"]:
        try:
            body = ast.parse("".join(cell["source"])) if cell["cell_type"] == "code" else ast.Module([], [])
        except SyntaxError:  # a magic, say
            continue
        for node in ast.walk(body):
            match node:
                case ast.ImportFrom(module=str(module), names=names):
                    imported |= {alias.asname or alias.name: f"{module}:{alias.name}" for alias in names}
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id=name), attr="of"),
                    args=[ast.Attribute(attr="parameters"), *_],
                ) if name in imported:
                    return imported[name]
    return ""


def _read_cell(source: str, where: str) -> dict[str, Parameter]:
    try:
        source = _without_magics(source)
        body = ast.parse(source).body
    except SyntaxError as error:
        raise ArcnbError(
            f"{where}: the parameters cell is not Python: line {error.lineno}: {error.msg}"
        ) from None
    comments = _comments(source)
    parameters = {}
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                kind = None
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=ast.expr() as value):
                kind = short_kind(ast.unparse(annotation))
            case _:
                continue
        try:
            default = ast.literal_eval(value)
            kind = kind or _kind_of(default)
        except ValueError:  # an expression: only Python can tell its value
            default, kind = None, kind or "any"
        parameters[name] = Parameter(name, default, kind, _comment_of(statement, comments))
    return parameters


def first_sentence(text: str) -> str:
    """The text up to the first full stop that a capital or a name in backquotes follows."""
    return re.split(r"(?<=\.)(?<!e\.g\.)\s+(?=[A-Z`])", text, maxsplit=1)[0]


def _without_magics(source: str) -> str:
    """The cell as Python has it: calls in place of `%matplotlib inline` and the like."""
    try:
        ast.parse(source)
        return source
    except SyntaxError:
        from IPython.core.inputtransformer2 import TransformerManager

        return TransformerManager().transform_cell(re.sub(r"\A\s*%%.*", "", source))


def _kind_of(default: Any) -> str:
    if default is None:
        return "any"
    if isinstance(default, list):
        kinds = sorted({_kind_of(item) for item in default})
        return f"list[{' | '.join(kinds)}]" if kinds and "any" not in kinds else "list"
    return type(default).__name__


def _comments(source: str) -> dict[int, tuple[str, bool]]:
    """line -> (comment, does it stand alone on its line)"""
    comments = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = (
                token.string.lstrip("# ").rstrip(),
                not token.line[: token.start[1]].strip(),
            )
    return comments


def _comment_of(statement: ast.stmt, comments: dict[int, tuple[str, bool]]) -> str:
    for line in (statement.end_lineno, statement.lineno):
        if line in comments:
            return comments[line][0]
    above: list[str] = []
    line = statement.lineno - 1
    while line in comments and comments[line][1]:
        above.insert(0, comments[line][0])
        line -= 1
    return " ".join(above)
