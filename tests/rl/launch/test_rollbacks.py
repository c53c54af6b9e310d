"""Rollbacks that other processes go on from: what is launched again, and when not."""

import json

import pytest

import arcnb.rl.launch as launching
from arcnb.rl.launch import run_grpo
from arcnb.rl.plan.grpo import GrpoPlan
from tests.rl.conftest import QUICK

LEFT = {"steps": 3, "seconds": 2.0, "rollbacks": 1, "best": None, "notes": [], "pages": [], "config": {}}


@pytest.fixture
def run(tasks, letter_model, tmp_path, monkeypatch):
    """run([(status, interrupted), ...]) -> (report, the `resume` of each launch): one entry a launch."""

    def carried_out(ends):
        ends, resumed = list(ends), []

        def launched(module, arguments, *others, **more):
            path = tmp_path / "launch" / "launch.json"
            resumed.append(json.loads(path.read_text())["plan"]["resume"])
            status, interrupted = ends.pop(0)
            (tmp_path / "metrics.jsonl").touch()
            path.with_name("report.json").write_text(
                json.dumps(LEFT | {"status": status, "resumed_at": len(resumed)})
            )
            return interrupted

        monkeypatch.setattr(launching, "launch", launched)
        asked = {"resume": "never", "num_processes": 2, "num_generations": 4, "rewards.terms": {}}
        plan = GrpoPlan.of(QUICK | asked | {"model": str(letter_model.folder)}, output=tmp_path)
        return run_grpo(plan, tasks), resumed

    return carried_out


def test_training_goes_on_from_a_rollback_in_other_processes(run):
    report, resumed = run([("rolled back", False), ("rolled back", False), ("done", False)])
    assert resumed == ["never", "auto", "auto"]
    assert (report.status, report.seconds, report.rollbacks) == ("done", 6.0, 1)
    assert report.resumed_at == 1, "of the first launch"


def test_an_interrupt_that_comes_after_the_rollback_ends_the_run(run):
    report, resumed = run([("rolled back", True)])
    assert (report.status, len(resumed)) == ("preempted", 1)
