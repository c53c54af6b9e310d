"""Every parameter of notebook 05 reaches the plan of its run, and its curves are of what is logged.

Run: pytest tests/rl/test_rl_notebook.py
"""

from contextlib import nullcontext
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from arcnb.lab.parameters import notebook_parameters
from arcnb.rl.sampler_gap import SamplerGap

(PATH,) = (Path(__file__).parents[2] / "notebooks").glob("05_*.ipynb")
NOTEBOOK = nbformat.read(PATH, as_version=4)
CODE = [cell for cell in NOTEBOOK.cells if cell.cell_type == "code"]
# In which every parameter has a say, and values that are not refused.
BASE = {"use_vllm": True, "solved_in": "predictions", "conversations": "refine.parquet", "turns": 2}
BASE |= {"steps_per_generation": 1, "vllm_server_base_url": "http://a", "warmup_steps": 3.0}
OTHER = {"guard_action": "stop", "guard_thresholds": "kl=0.5"}


class Planned(Exception):
    """The notebook asked for a run; holds the plan."""


def plan_of(**parameters):
    """What the cells up to training make of these parameters, with nothing loaded and nothing run."""

    def run_grpo(plan):
        raise Planned(plan)

    names: dict = {}
    for cell in CODE:
        try:
            exec(compile(cell.source, PATH.name, "exec"), names)
        except Planned as planned:
            return planned.args[0]
        if "parameters" in cell.metadata.get("tags", []):
            names |= parameters
        if cell.source.startswith("from "):
            names |= {
                "run_grpo": run_grpo,
                "open_run": lambda name: SimpleNamespace(path=Path("run")),
                "load_tasks": lambda name: (name,),
                "trainable_tasks": lambda given: ("trainable", *given),
                "PredictionSet": lambda folder: folder,
                "tasks_solved_between": lambda *given: given,
                "live_curves": lambda *given: nullcontext(),
            }
    raise AssertionError("the notebook trained nothing")


def other(name, value):
    """Another value of the same kind."""
    if name in OTHER:
        return OTHER[name]
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return f"other {value}"
    return value + 1 if isinstance(value, int) else value / 2 if value else 0.25


@pytest.mark.parametrize("name", notebook_parameters(NOTEBOOK))
def test_a_parameter_reaches_the_run(name):
    from trl import GRPOConfig

    given = {n: parameter.default for n, parameter in notebook_parameters(NOTEBOOK).items()} | BASE
    changed = other(name, given[name])
    plan, again, varied = plan_of(**given), plan_of(**given), plan_of(**given | {name: changed})
    assert plan == again
    assert plan != varied
    if name in {field.name for field in fields(GRPOConfig)} - {"seed"}:  # TRL's: as it is, and no other
        assert (plan.settings[name], varied.settings[name]) == (given[name], changed)
        others = plan.settings.keys() & varied.settings.keys() - {name}
        assert {n: varied.settings[n] for n in others} == {n: plan.settings[n] for n in others}


def cell_with(text):
    (cell,) = (cell.source for cell in CODE if text in cell.source and not cell.source.startswith("from "))
    return cell


def test_the_curves_are_of_what_a_run_logs(train, tmp_path):
    import torch

    report = train(tmp_path, {"max_steps": 1}, {"signal_visits": 1})
    report.history[0] |= {"error/NameError": 0.5}  # what no program raised is not drawn
    gap, logps = SamplerGap(), torch.zeros(1, 2)
    gap.add(logps, logps, torch.ones(1, 2), torch.ones(1, 2))
    drawn: dict = {}
    exec(
        cell_with("grouped_curves("),
        {"report": report, "grouped_curves": lambda _, g: drawn.update(g), "ENDS": ()},
    )
    logged = {name for row in report.history for name in row} | set(gap.metrics())
    for title, names in drawn.items():
        if not title.startswith("turns"):
            assert names, title
            assert set(names) <= logged, title
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


@pytest.mark.parametrize("status", ["done", "preempted", "collapsed"])
def test_a_run_that_a_signal_stopped_is_recorded_as_preempted(status):
    said = []
    run = SimpleNamespace(
        path=Path("run"),
        record=lambda outcome, artifacts: said.append((outcome, artifacts)),
        update=lambda **values: said.append(values),
    )
    page = Path("collapse-step000007.html")
    report = SimpleNamespace(
        status=status, pages=[page], outcome=lambda: {"training": status}, trained=["a", "b"]
    )
    written = []
    names = {
        "task_set": SimpleNamespace(subset=list),
        "write_tasks": lambda tasks, path: written.append((tasks, path)),
    }
    exec(cell_with("run.record("), {"run": run, "report": report} | names)
    assert written == [(["a", "b"], Path("run/trained.parquet"))]
    assert said[0][0] == {"training": status}
    assert page.name in said[0][1]
    assert said[1:] == ([{"status": "preempted"}] if status == "preempted" else [])
