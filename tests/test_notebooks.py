"""What every notebook in git keeps to: stripped, thin, documented parameters, an outcome at the end."""

import ast

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from arcnb.lab.notebooks.parameters import notebook_parameters
from tests.paths import NOTEBOOKS

NOTEBOOKS = sorted((NOTEBOOKS).glob("*.ipynb"))
CELL_LINES, IMPORT_LINES, FUNCTION_LINES, NOTEBOOK_LINES = 15, 20, 5, 120


def lines_of_code(source: str) -> int:
    return sum(1 for line in source.splitlines() if line.strip() and not line.strip().startswith("#"))


def problems(notebook) -> list[str]:
    """Everything that breaks a rule, each as one sentence."""
    found = []
    cells = notebook.cells
    code = [(number, cell) for number, cell in enumerate(cells, start=1) if cell.cell_type == "code"]
    opening = cells[0].source if cells and cells[0].cell_type == "markdown" else ""
    if not opening.startswith("# ") or len(opening.strip().splitlines()) < 2:
        found.append("the first cell must be text: a title and a paragraph of purpose")
    if notebook.metadata.get("kernelspec", {}).get("name") != "python3":
        found.append("the kernel must be python3")
    if extra := set(notebook.metadata) - {"kernelspec", "language_info"}:
        found.append(f"the notebook carries metadata of a run or an editor: {sorted(extra)}")

    tagged = [number for number, cell in code if "parameters" in cell.metadata.get("tags", [])]
    if len(tagged) != 1 or tagged[0] > 4:
        found.append(f"one cell near the top must be tagged parameters, found {tagged}")
    else:
        found += parameter_problems(notebook, cells[tagged[0] - 1].source)

    imports = []
    for number, cell in code:
        if cell.outputs or cell.execution_count is not None:
            found.append(f"cell {number} has outputs: strip them")
        if extra := set(cell.metadata) - {"tags"}:
            found.append(f"cell {number} carries metadata {sorted(extra)}")
        most = IMPORT_LINES if "import " in cell.source else CELL_LINES
        if number not in tagged and (n_lines := lines_of_code(cell.source)) > most:
            found.append(f"cell {number} has {n_lines} lines of code, more than {most}")
        try:
            tree = ast.parse(cell.source)
        except SyntaxError as error:
            found.append(f"cell {number} is not plain Python: {error.msg}")
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                n_lines = node.end_lineno - node.lineno + 1
                if n_lines > FUNCTION_LINES:
                    found.append(
                        f"cell {number}: {node.name} has {n_lines} lines, more than {FUNCTION_LINES}"
                    )
        if any(isinstance(node, ast.Import | ast.ImportFrom) for node in ast.walk(tree)):
            imports.append(number)
    if len(imports) > 1:
        found.append(f"imports belong into one cell, found them in {imports}")
    # The parameters cell is as long as the stage has settings: it is a list to look things up in.
    if (n_lines := sum(lines_of_code(cell.source) for n, cell in code if n not in tagged)) > NOTEBOOK_LINES:
        found.append(f"the notebook has {n_lines} lines of code, more than {NOTEBOOK_LINES}")
    if not code or code[-1][0] != len(cells) or "run.record(" not in code[-1][1].source:
        found.append("the last cell must call run.record(...)")
    return found


def parameter_problems(notebook, source: str) -> list[str]:
    found = []
    declared = notebook_parameters(notebook)
    for statement in ast.parse(source).body:
        try:
            ast.literal_eval(statement.value)
            literal = isinstance(statement, ast.Assign | ast.AnnAssign)
        except (AttributeError, ValueError):
            literal = False
        if not literal:
            found.append(
                f"the parameters cell may hold literal assignments only, not {ast.unparse(statement)!r}"
            )
    for parameter in declared.values():
        if not parameter.comment:
            found.append(f"parameter {parameter.name} has no comment")
        if parameter.kind == "any":
            found.append(
                f"parameter {parameter.name} needs a type, as in `{parameter.name}: str | None = None`"
            )
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_keeps_to_the_rules(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert problems(notebook) == []


def test_there_are_notebooks():
    assert NOTEBOOKS


KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def good():
    parameters = "n = 3  # how many\nname: str | None = None  # of what"
    cells = [
        new_markdown_cell("# Title\nPurpose."),
        new_code_cell(parameters, metadata={"tags": ["parameters"]}),
        new_code_cell("from arcnb.lab import open_run\nrun = open_run()"),
        new_code_cell("run.record({'n': n})"),
    ]
    return new_notebook(cells=cells, metadata={"kernelspec": KERNEL})


def test_a_good_notebook_passes():
    assert problems(good()) == []


def _replace(index, **changes):
    def change(notebook):
        notebook.cells[index].update(changes)

    return change


def _insert(index, cell):
    return lambda notebook: notebook.cells.insert(index, cell)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_replace(0, source="Title"), "the first cell must be text"),
        (_replace(0, source="# Title"), "the first cell must be text"),
        (_replace(1, metadata={}), "one cell near the top must be tagged parameters, found []"),
        (_replace(1, source="n = 3"), "parameter n has no comment"),
        (_replace(1, source="n = None  # what"), "parameter n needs a type"),
        (_replace(1, source="n = 2 * 3  # what"), "literal assignments only"),
        (_replace(1, source="n = 3  # what\nprint(n)"), "literal assignments only"),
        (_replace(2, outputs=[new_output("stream", text="x")]), "cell 3 has outputs"),
        (_replace(2, execution_count=1), "cell 3 has outputs"),
        (_replace(2, metadata={"papermill": {}}), "cell 3 carries metadata ['papermill']"),
        (_insert(3, new_code_cell("x = 1\n" * 16)), "cell 4 has 16 lines of code"),
        (_insert(3, new_code_cell("def f():\n" + "    x = 1\n" * 5)), "f has 6 lines"),
        (_insert(3, new_code_cell("!pip install x")), "cell 4 is not plain Python"),
        (_insert(3, new_code_cell("import os")), "imports belong into one cell, found them in [3, 4]"),
        (_insert(4, new_markdown_cell("The end.")), "the last cell must call run.record"),
        (lambda notebook: notebook.metadata.update(papermill={}), "metadata of a run"),
        (lambda notebook: notebook.metadata.kernelspec.update(name="mine"), "the kernel must be python3"),
        (lambda notebook: notebook.cells.extend([new_code_cell("x = 1\n" * 15)] * 8), "more than 120"),
    ],
)
def test_each_rule_is_enforced(change, problem):
    notebook = good()
    change(notebook)
    assert any(problem in sentence for sentence in problems(notebook)), problems(notebook)


PARAMETERS = {"03": 20}  # lines of a parameters cell at most, comments apart; 25 for the others with a plan
PLANNED = [path for path in NOTEBOOKS if path.name[:2] in ("02", "03", "05", "07", "09")]


@pytest.mark.parametrize("path", PLANNED, ids=lambda path: path.stem)
def test_a_parameters_cell_repeats_its_plan_and_is_short(path):
    declared = notebook_parameters(nbformat.read(path, as_version=4), path.name)
    assert declared.plan is not None
    cell = {name: known for name, known in declared.items() if name != "more"}
    assert len(cell) <= PARAMETERS.get(path.name[:2], 25)
    assert declared["more"].default == {}
    for name, known in cell.items():
        option = declared.plan.find(name)
        assert known.default == option.default, name
        if not option.of_library:
            assert known.comment == option.described, name


def test_notebook_05_is_thin():
    (path,) = (path for path in NOTEBOOKS if path.name.startswith("05"))
    code = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    assert (
        sum(lines_of_code(cell.source) for cell in code if "parameters" not in cell.metadata.get("tags", []))
        <= 45
    )
