"""Reference pages made from the code: command line, names that rooms offer, file formats, what is asked for.

python docs/tooling/reference.py            # write them
python docs/tooling/reference.py --check    # say which is stale, end with 1
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import yaml

from arcnb.arc.predictions.tables import PREDICTION_SCHEMA
from arcnb.lab.cli import parser

ROOT = Path(__file__).parents[2]
MADE = "Made by `make docs` from the code; a test says when it is stale."
FORMATS = [
    ("Run folder", "arcnb/lab/runs/run.py"),
    ("manifest.json", "arcnb/lab/runs/manifest.py"),
    ("Task set: Parquet", "arcnb/arc/tasks/parquet_files.py"),
    ("Task set: ARC JSON", "arcnb/arc/tasks/json_files.py"),
    ("Tasks in BARC's form", "arcnb/synth/barc_tasks.py"),
    ("Prediction set", "arcnb/arc/predictions/prediction_set.py"),
    ("Prediction set: columns of a part", "arcnb/arc/predictions/layout.py"),
    ("Submission", "arcnb/arc/scores/submission.py"),
    ("Conversations of several turns: refine.parquet", "arcnb/search/refinement/rows.py"),
    ("Rows for supervised fine-tuning", "arcnb/models/sft/rows.py"),
    ("Coding problems", "arcnb/problems/sets/problem.py"),
    ("GRPO run", "arcnb/rl/trainer/training.py"),
]
_TASKS = """## Tasks

| notebook | its parameter `tasks` takes |
|---|---|
| 01, 02, 07 | a task set, a path, a source, or a recipe of several |
| 03, 05 | a task set or a path |
| 04, 06 | the task set or path that the predictions are of |
| 09 | coding problems ([how to](../how-to/problems.md)) |

A task set is a name of the first line below, a `tasks.parquet` of notebook 01, a file or a folder of ARC
JSON, or the name of a run of notebook 01. So a recipe reaches notebook 03 by way of 01:

    arcnb run 01 -p tasks "rearc*100 + dsl*100" -p n_tasks 0 --name mixed
    arcnb run 03 -p tasks mixed
"""
_PROFILES = """A profile of yours is a file in `notebooks/profiles/`, which `-f` takes by its name, or a file
anywhere, by its path. Of several (`-f grpo -f dapo`) the later wins, and `-p` over all. `arcnb params 05 -f
grpo` shows what it gives.
"""
VARIABLES = {
    "ARCNB_RUNS": "where run folders are made and looked for; else `runs/` of the work tree",
    "ARCNB_CACHE": "where the embedded model is unpacked to, once (about half a gigabyte)",
    "ARCNB_PALETTE": "colors of grids: arc, colorblind, lightness",
    "ARCNB_ENVIRONMENTS": "where `--packed` environments of cluster jobs are kept",
    "ARCNB_SCRATCH": "local disk of a cluster node, for a packed environment",
    "ARCNB_RUN_DIR": "set by `arcnb run` for the kernel: the run folder",
    "ARCNB_NODES": "set by the script of a job of several nodes: how many of them train",
    "ARCNB_NODES_FOLDER": "set by it as well: where the nodes of this job meet",
    "ARCNB_SERVER_NODE": "set by it as well, with `--serve`: the number of the node that serves, from 0",
    "ARCNB_JOB": "set by a job's script: the scheduler's name and number of the job",
    "ARCNB_ENGINE_MARK": "set by arcnb for its own engine processes",
}


def cli_page() -> str:
    """docs/reference/cli.md: every command, its arguments and options."""
    arcnb = parser()
    parts = [f"# Command line\n\n{MADE} `arcnb COMMAND --help` says the same.\n"]
    parts.append(f"```text\n{arcnb.description}\n\n{arcnb.epilog or ''}\n```\n")
    (commands,) = (one for one in arcnb._actions if isinstance(one, argparse._SubParsersAction))
    sentences = {one.dest: one.help for one in commands._choices_actions}
    for name, command in commands.choices.items():
        parts.append(f"## arcnb {name}\n\n{(sentences.get(name) or '').strip()}\n")
        if command.epilog:
            parts.append(f"```text\n{command.epilog.strip()}\n```\n")
        rows = [_option(one) for one in command._actions if one.dest != "help"]
        parts.append("| argument | default | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _option(action: argparse.Action) -> str:
    value = action.metavar or action.dest.upper()
    value = " ".join(value) if isinstance(value, tuple) else value
    names = ", ".join(action.option_strings)
    written = names if action.nargs == 0 or not names else f"{names} {value}"
    shown = action.default not in (None, False, [], argparse.SUPPRESS)
    return f"| `{written or value}` | {f'`{action.default}`' if shown else ''} | {_cell(action.help or '')} |"


def api_page() -> str:
    """docs/reference/api.md: the names that rooms offer, with their whole docstrings on the site."""
    parts = [
        f"# Python: the names that rooms offer\n\n{MADE} Import a name from its room "
        "(`from arcnb.arc import load_tasks`). All other names may change.\n"
    ]
    for stub in sorted(ROOT.glob("arcnb/**/__init__.pyi")):
        room = ".".join(stub.parent.relative_to(ROOT).parts)
        names = list(_names(stub))
        rows = [f"| `{name}` | {_cell(text)} | `{file}` |" for name, text, file, _ in names]
        about = ast.get_docstring(ast.parse((stub.parent / "__init__.py").read_text())) or ""
        parts.append(f"## {room}\n\n{about.partition(chr(10))[0]}\n")
        parts.append("| name | what it is | where |\n|---|---|---|\n" + "\n".join(rows) + "\n")
        parts += [f"<!-- api: {path} -->\n" for *_, path in names if path]
    return "\n".join(parts)


def _names(stub: Path) -> Iterator[tuple[str, str, str, str]]:
    """(name, first sentence, file, dotted path for the site) of a room's names; modules have no path."""
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            folder = stub.parent.joinpath(*(node.module or "").split(".")) if node.module else stub.parent
            for alias in node.names:
                yield _described(folder, alias.name)


def _described(place: Path, name: str) -> tuple[str, str, str, str]:
    for module in (place / f"{name}.py", place / name / "__init__.py"):
        if module.is_file():
            return name, _sentence(ast.parse(module.read_text())), str(module.relative_to(ROOT)), ""
    files = (place.with_suffix(".py"), place / "__init__.pyi", place / "__init__.py")
    file = next(one for one in files if one.is_file())
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            path = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            return name, _sentence(node), str(file.relative_to(ROOT)), f"{path}.{name}"
        if isinstance(node, ast.ImportFrom) and node.module and name in {one.name for one in node.names}:
            return _described((place if node.level else ROOT).joinpath(*node.module.split(".")), name)
    raise SystemExit(f"{name} is not defined in {file}")


def _sentence(node: ast.Module | ast.FunctionDef | ast.ClassDef) -> str:
    text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
    return re.split(r"(?<=[.:])\s+(?=[A-Z`])", text, maxsplit=1)[0]


def files_page() -> str:
    """docs/reference/files.md: what is on disk, from the docstrings of the modules that write it."""
    parts = [f"# Files\n\n{MADE} Other programs may read all of it; `arcnb` reads it back.\n"]
    for title, file in FORMATS:
        text = ast.get_docstring(ast.parse((ROOT / file).read_text())) or ""
        parts.append(f"## {title}\n\n```text\n{text}\n```\n\nFrom `{file}`.\n")
    rows = [f"| `{one.name}` | {one.type} | {'yes' if one.nullable else ''} |" for one in PREDICTION_SCHEMA]
    record = ast.parse((ROOT / "arcnb/arc/predictions/prediction.py").read_text())
    (one,) = (node for node in record.body if isinstance(node, ast.ClassDef) and node.name == "Prediction")
    parts.append(f"## Prediction: the record\n\n```text\n{ast.get_docstring(one)}\n```\n")
    parts.append("| field | type | may be unknown |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    rows = [f"| `{name}` | {text} |" for name, text in VARIABLES.items()]
    parts.append("## Environment variables\n\n| name | meaning |\n|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def inputs_page() -> str:
    """docs/reference/inputs.md: what stands for tasks, and profiles, from the modules that read them."""
    parts = [f"# Tasks by name, and profiles\n\n{MADE}\n", _TASKS]
    for title, file in (("Sources", "arcnb/synth/sources.py"), ("Recipes", "arcnb/synth/task_sets.py")):
        text = ast.get_docstring(ast.parse((ROOT / file).read_text())) or ""
        parts.append(f"### {title}\n\n```text\n{text}\n```\n")
    text = ast.get_docstring(ast.parse((ROOT / "arcnb/lab/notebooks/profiles.py").read_text())) or ""
    parts.append(f"## Profiles\n\n{_PROFILES}\n```text\n{text}\n```\n")
    rows = [_profile(path) for path in sorted((ROOT / "notebooks" / "profiles").glob("*.yaml"))]
    parts.append("| profile | for | what it is |\n|---|---|---|\n" + "\n".join(rows) + "\n")
    return "\n".join(parts)


def _profile(path: Path) -> str:
    text = path.read_text()
    comment = takewhile(lambda line: line.startswith("#"), text.splitlines())
    words = " ".join(line.lstrip("# ") for line in comment)
    about = re.split(r"(?<=\.)(?<!Dr\.)\s+(?=[A-Z`])", words, maxsplit=1)[0]
    sections = ["all" if name == "all" else name.partition("_")[0] for name in yaml.safe_load(text)]
    place = f"../../notebooks/profiles/{path.name}"
    return f"| [`{path.stem}`]({place}) | {', '.join(sections)} | {_cell(about)} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("%%", "%")


PAGES = {"cli.md": cli_page, "api.md": api_page, "files.md": files_page, "inputs.md": inputs_page}


def stale(write: bool = False) -> list[Path]:
    """The pages that differ from what the code says; with `write` they are written."""
    found = []
    for name, page in PAGES.items():
        path, text = ROOT / "docs" / "reference" / name, page()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            found.append(path)
            if write:
                path.write_text(text, encoding="utf-8")
    return found


if __name__ == "__main__":
    check = sys.argv[1:] == ["--check"]
    for page in (found := stale(write=not check)):
        print(f"{page} is stale: run `make docs`" if check else f"wrote {page}")
    sys.exit(1 if found and check else 0)
