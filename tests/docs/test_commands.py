"""Every `arcnb` command in README and docs is one that the command line takes, with parameters that exist."""

import re
import shlex

import pytest

from arcnb.errors import ArcnbError
from arcnb.lab.cli import parser
from arcnb.lab.notebooks.files import declared_beside, find_notebook
from arcnb.lab.notebooks.profiles import find_profile, profile_values
from tests.paths import NOTEBOOKS, ROOT

WRITTEN = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# commands.md has the beginnings of commands.
PAGES = [
    page for page in WRITTEN if page.parent.name not in ("log", "results") and page.name != "commands.md"
]
COMMAND = re.compile(
    r"(?:^|\s)(arcnb (?:run|params|sweep|submit|pipeline|report|rm|status|cancel|ls|show|bundle|init)\b.*)"
)


def commands(page):
    """The command lines of a page, joined where a line ends with a backslash, without comments and `...`."""
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        code = (
            [line.strip()]
            if line.startswith(("    ", "\t"))
            else re.findall(r"`(arcnb \w+ [^`]*\d\d [^`]+)`", line)
        )
        for part in code:
            for one in re.split(r";\s+(?=arcnb)|&&| \| (?=jq)|\)\s*#|\)$", re.sub(r"^\w+=\$\(", "", part)):
                if match := COMMAND.search(one):
                    yield match[1]


def parsed(command):
    words = [word for word in shlex.split(command, comments=True) if word not in ("...", "&")]
    return parser().parse_args(words[1:])


def refusal(command):
    """Why a command would be refused; None if it would not, as far as its words tell."""
    try:
        options = parsed(command)
        reference = getattr(options, "notebook", None)
        if not reference or reference.endswith((".yaml", ".ipynb")) or not hasattr(options, "parameter"):
            return None
        stem = find_notebook(reference).stem
        declared = declared_beside(NOTEBOOKS / f"{stem}.ipynb", profile=True)
        for profile in options.profile or []:
            profile_values(find_profile(str(profile), NOTEBOOKS), stem, declared)
    except SystemExit:
        return "the command line does not take it"
    except ArcnbError as error:
        return str(error)
    unknown = [name for name, _ in options.parameter if name != "NAME" and not declared[stem].knows(name)]
    return f"no parameter {', '.join(unknown)}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_commands_are_ones_that_arcnb_takes(page):
    assert {line: said for line in commands(page) if (said := refusal(line))} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_parameters_by_themselves_are_some_notebooks(page):
    names = set(re.findall(r"`-p ([a-z][\w.]*)", page.read_text(encoding="utf-8")))
    declared = declared_beside(NOTEBOOKS / "03_inference.ipynb", profile=True).values()
    assert {name for name in names if not any(one.knows(name) for one in declared)} == set()


def test_a_wrong_parameter_and_a_wrong_command_are_seen():
    assert refusal("arcnb run 03 -p n_task 4") == "no parameter n_task"
    assert refusal("arcnb run --shards 2 03") == "the command line does not take it"
    assert sum(1 for page in PAGES for _ in commands(page)) > 60


def evaluated(page):
    """(prediction set, its task set, the task set that it is evaluated on) of each set of a page that one of
    its commands samples and a later one evaluates."""
    sampled = {}
    for line in (line for line in commands(page) if " ... " not in line):
        options = parsed(line)
        given = dict(getattr(options, "parameter", ()))
        tasks = given.get("tasks", "arc-agi-1/training")
        if getattr(options, "notebook", None) == "03":
            sampled[options.name] = sampled[f"runs/sweeps/{options.name}/predictions"] = tasks
        elif getattr(options, "notebook", None) == "06":
            for one in given.get("predictions", "").split(","):
                if one in sampled:
                    yield one, sampled[one], tasks


def test_predictions_are_evaluated_on_the_tasks_that_were_sampled():
    found = [one for page in PAGES for one in evaluated(page)]
    assert [one for one in found if one[1] != one[2]] == []
    assert len(found) > 8


SHELL = re.compile(
    r"(?:arcnb|make|python[\d.]*|pip|git|export|cp|cd|docker|podman|apptainer|hf|kaggle|VLLM\w+=\S+|"
    r"(?:\S*/)?bin/python) "
)
TABLE = ROOT / "docs/reference/commands.md"


def shell_commands(page):
    """Commands that stand in blocks of a page, one a `&&` and without what catches their output."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for line in re.findall(r"^    +(\S.*)", text.replace("\\\n", " "), flags=re.MULTILINE):
        for one in re.split(r"&& |;\s+(?=arcnb)", re.sub(r"^\w+=\$\(", "", line)):
            if SHELL.match(one.strip()):
                yield one.strip()


def test_the_page_of_commands_says_of_each_what_runs_it():
    rows = re.findall(r"^\| `([^`]+)` \| (.+) \|$", TABLE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    written = [
        one
        for page in [ROOT / "tests/README.md", ROOT / "CONTRIBUTING.md", *PAGES]
        for one in shell_commands(page)
    ]
    begun = {command: [first for first, _ in rows if command.startswith(first)] for command in written}
    assert [command for command, firsts in begun.items() if not firsts] == []
    longest = {max(firsts, key=len) for firsts in begun.values()}
    assert [first for first, _ in rows if first not in longest] == [], "no page has these any more"
    tests = {path for _, told in rows for path in re.findall(r"`(tests/[\w/]+\.py)`", told)}
    assert [path for path in tests if not (ROOT / path).is_file()] == []
