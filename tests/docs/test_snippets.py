"""Python in the pages runs as it stands there, and prints what stands below it."""

import contextlib
import importlib.util
import io
import re

import pytest

from arcnb.arc import PredictionSet, load_tasks
from arcnb.arc.predictions.prediction import Prediction
from arcnb.models.memory.shape import GIB, Shape, shape_of
from arcnb.models.prompts.format import prompt_format
from arcnb.programs import Executor
from arcnb.programs.judging import judge
from arcnb.rl.rewards.schemes import SCHEMES
from tests.paths import ROOT

DOCS = ROOT / "docs"


def blocks(page):
    """(code, what is printed or None) of each Python block of a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```)?", text, flags=re.DOTALL)


def printed(code, names):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "page", "exec"), names)
    return out.getvalue()


@pytest.mark.parametrize("page", ["tutorials/one_task.md", "tutorials/your_model.md"])
def test_tutorials_print_what_they_say(page):
    names = {}
    for code, expected in blocks(page):
        assert printed(code, names) == expected


@pytest.fixture
def predictions(tmp_path):
    """A set of three judged predictions of two tasks: right, wrong, no program."""
    tasks = load_tasks("arc-agi-1/training").subset(["3c9b0459", "6150a2bd"])
    head = "def transform(grid): return "
    texts = {"3c9b0459": (head + "grid[::-1, ::-1]", head + "grid"), "6150a2bd": ("I do not know.",)}
    asked = [
        Prediction(one, tasks[one].fingerprint, 0, index, completion=text)
        for one, found in texts.items()
        for index, text in enumerate(found)
    ]  # fmt: skip
    made = PredictionSet(tmp_path / "predictions")
    with Executor(workers=1) as executor:
        made.write_part(list(judge(asked, tasks, executor)), round=0)
    return str(made.folder)


def test_predictions_are_read_as_the_page_says(predictions):
    names = {"predictions": predictions}
    first, *others = [code for code, _ in blocks("how-to/read_predictions.md")]
    assert printed(first, names).startswith("3 predictions, 1 of 2 tasks solved\ndef transform(grid)")
    for code in others:
        if "duckdb" not in code or importlib.util.find_spec("duckdb"):
            assert printed(code, names) or "outputs_from_text" in code
    read = PredictionSet(predictions).read()
    assert list(names["completion"]) == list(read.completion)
    assert names["rows"].num_rows == 3


def test_the_template_of_the_page_makes_prompts(tmp_path):
    lines = (DOCS / "tutorials/your_model.md").read_text(encoding="utf-8").splitlines()
    first = next(number for number, line in enumerate(lines) if "{% block system %}" in line)
    last = next(number for number, line in enumerate(lines) if "{% block prefix %}" in line)
    (tmp_path / "mine.jinja").write_text("\n".join(line.strip() for line in lines[first : last + 1]))
    task = load_tasks("arc-agi-1/training")["25ff71a9"]
    system, user, *_ = prompt_format(str(tmp_path / "mine.jinja")).prompt(task).messages
    assert system["content"] == "You solve grid puzzles by writing Python."
    assert user["content"].count("Input:") == len(task.train)
    assert user["content"].endswith("Write transform(grid) for a 2-D numpy array.")


def test_the_table_of_what_fits_which_gpu_is_the_estimate():
    text = (DOCS / "tutorials/your_model.md").read_text(encoding="utf-8")
    shapes = {
        "embedded, 135M": Shape(30, 576, 1536, 9, 3, 64, 49152, True),
        "Qwen2.5-Coder-1.5B": shape_of("Qwen2.5-1.5B"),
        "Qwen2.5-Coder-7B": shape_of("Qwen2.5-7B"),
        "BARC, 8B": Shape(32, 4096, 14336, 32, 8, 128, 128256, False),
    }
    for name, shape in shapes.items():
        weights, *sequences = re.search(rf"\| {name} \| ([\d.]+) GiB \|(.*)\|", text).groups()
        bytes_of = 2 * shape.parameters
        assert float(weights) == round(bytes_of / GIB, 1)
        for gpu, n in zip((24 * GIB, 48 * GIB, 80 * GIB, 141e9), sequences[0].split("|"), strict=True):
            assert int(n) == int((0.9 * 0.9 * gpu - bytes_of) / shape.cache(8192))


def test_every_reward_scheme_is_in_the_table():
    text = (DOCS / "reference/grpo.md").read_text(encoding="utf-8")
    assert {name for name in SCHEMES if f"`{name}`" not in text} == set()
