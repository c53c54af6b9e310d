"""Every option reaches the plan of notebook 05's run, and its curves are of what is logged."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from arcnb.arc.encodings import SPEC
from arcnb.lab.notebooks.parameters import notebook_parameters
from arcnb.rl.plan.grpo import GrpoPlan
from arcnb.rl.watching.sampler_gap import SamplerGap
from arcnb.values import choices
from tests.paths import NOTEBOOKS

(PATH,) = (NOTEBOOKS).glob("05_*.ipynb")
NOTEBOOK = nbformat.read(PATH, as_version=4)
CODE = [cell for cell in NOTEBOOK.cells if cell.cell_type == "code"]
LINES = notebook_parameters(NOTEBOOK)  # what has a line in the parameters cell
OPTIONS = {path: known for path, known in GrpoPlan.options().items() if known.ours}


class Planned(Exception):
    """The notebook asked for a run; holds what it is of."""


def plan_of(**parameters) -> GrpoPlan:
    """What the cells up to training make of these parameters, with nothing loaded and nothing run."""

    def run_grpo(*given):
        raise Planned(*given)

    names: dict = {}
    for cell in CODE:
        try:
            exec(compile(cell.source, PATH.name, "exec"), names)
        except Planned as planned:
            plan, *tasks = planned.args
            assert tasks == ["tasks to train on", "tasks to evaluate on"]
            return plan
        if cell.source.startswith("from "):
            names |= {
                "run_grpo": run_grpo,
                "open_run": lambda name: SimpleNamespace(path=Path("run"), parameters=parameters),
                "training_tasks": lambda plan: ("tasks to train on", "tasks to evaluate on"),
                "live_curves": lambda *given: nullcontext(),
                "display": lambda shown: None,
            }
    raise AssertionError("the notebook trained nothing")


def other(option):
    """Another value that the option can have."""
    value = option.default
    if there := choices(option.within):
        return next(one for one in there if one != value)
    if option.within is SPEC:
        return "minimal"
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return f"other {value}"
    if isinstance(value, list):
        return [*value, "other"]
    if isinstance(value, dict):
        return value | {"other": 1.0}
    if isinstance(value, float):
        return value / 2 or 0.5  # shares stay shares
    return (value or 0) + 1


@pytest.mark.parametrize("path", OPTIONS)
def test_an_option_reaches_the_run(monkeypatch, path):
    monkeypatch.setattr(GrpoPlan, "check", lambda plan: None)  # some values need others beside them
    name, changed = OPTIONS[path].flat, other(OPTIONS[path])
    plan, varied = plan_of(), plan_of(**{name: changed} if name in LINES else {"more": {name: changed}})
    assert varied.values() == plan.values() | {path: changed}
    if path.startswith("trl."):  # as it is, and no other
        assert varied.settings == plan.settings | {name: changed}


def cell_with(text):
    (cell,) = (cell.source for cell in CODE if text in cell.source and not cell.source.startswith("from "))
    return cell


def test_the_curves_are_of_what_a_run_logs(train, tmp_path):
    import torch

    report = train(tmp_path, max_steps=1, signal_visits=1)
    report.history[0] |= {"error/NameError": 0.5}  # what no program raised is not drawn
    gap, logps = SamplerGap(), torch.zeros(1, 2)
    gap.add(logps, logps, torch.ones(1, 2), torch.ones(1, 2))
    drawn: dict = {}
    plots = SimpleNamespace(grouped_curves=lambda _, groups: drawn.update(groups))
    exec(cell_with("report.curve_groups()"), {"report": report, "plots": plots})
    logged = {name for row in report.history for name in row} | set(gap.metrics())
    for title, names in drawn.items():
        if not title.startswith(("turns", "answers by parse", "solved, guided", "guidance", "tree")):
            assert names, title
            assert set(names) - {"tests_passed_ratio"} <= logged, title  # of problems, see tests/problems
    wanted = (
        "reward by quantile",
        "solved",
        "completion length",
        "truncated",
        "KL",
        "sampler against learner",
    )
    assert drawn["exceptions of programs"] == ["error/NameError"]
    for word in (*wanted, "repetition", "verdicts"):
        assert any(title.startswith(word) for title in drawn), word


@pytest.mark.parametrize(
    ("status", "keeps_tasks"), [("done", False), ("preempted", True), ("collapsed", True)]
)
def test_a_run_that_a_signal_stopped_is_recorded_as_preempted(status, keeps_tasks):
    said = []
    run = SimpleNamespace(
        path=Path("run"),
        record=lambda outcome, artifacts: said.append((outcome, artifacts)),
        update=lambda **values: said.append(values),
    )
    page = Path("collapse-step000007.html")
    report = SimpleNamespace(
        status=status, pages=[page], outcome=lambda: {"training": status}, trained=["a", "b"],
        sentences="Reward rose.", curves=list, history=[],
    )  # fmt: skip
    written, opened = [], []
    names = {
        "plan": SimpleNamespace(keeps_tasks=keeps_tasks),
        "task_set": SimpleNamespace(subset=list),
        "eval_set": ["c"],
        "write_tasks": lambda tasks, path: written.append((tasks, path)),
        "opening": lambda *shown: opened.append(shown),
    }
    exec(cell_with("run.record("), {"run": run, "report": report} | names)
    kept = [(["c"], Path("run/kept.parquet"))] if keeps_tasks else []
    assert written == [(["a", "b"], Path("run/trained.parquet")), *kept]
    assert [one for one in said[0][1] if one == "kept.parquet"] == ["kept.parquet"] * len(kept)
    assert opened == [(run, "Reward rose.", None)]
    assert said[0][0] == {"training": status}
    assert page.name in said[0][1]
    assert said[1:] == ([{"status": "preempted"}] if status == "preempted" else [])
