"""Where a plan is carried out: processes, their workers, and how they are started."""

import sys
from dataclasses import replace

import pytest

from arcnb.errors import ArcnbError
from arcnb.models.training.processes import LostError, command_line, launch
from arcnb.rl.launch import main, one_launch, run_grpo, workers_of
from arcnb.rl.plan.grpo import GrpoPlan


@pytest.fixture
def plan(tmp_path):
    asked = {"max_steps": 2, "overlong_weight": 0.5, "guard_action": "stop", "guard_window": 7}
    return GrpoPlan.of(asked | {"guard.thresholds.kl": 0.3, "beta": 0.02, "use_vllm": False}, output=tmp_path)


def test_processes_share_the_processors_that_they_may_use(plan, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(6)))
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert workers_of(plan) is None
    assert workers_of(replace(plan, num_processes=2)) == 3
    assert workers_of(replace(plan, num_processes=2, workers=10)) == 5
    assert workers_of(replace(plan, num_processes=8)) == 1


def test_programs_get_the_workers_and_the_memory_asked_for(plan, tasks, monkeypatch):
    class Asked(Exception):
        pass

    def executor(workers, limits):
        raise Asked(workers, limits.memory_mb)

    monkeypatch.setattr("arcnb.rl.launch.Executor", executor)
    with pytest.raises(Asked, match=r"\(3, 700\)"):
        run_grpo(plan.changed({"workers": 3, "program_memory_mb": 700}), tasks, tasks)


def test_several_processes_are_started_by_accelerate():
    assert command_line("m", ["x"], 1)[1:] == ["-P", "-m", "m", "x"]
    several = command_line("m", ["x"], 4)
    assert several[several.index("--num_processes") + 1] == "4"
    assert "--multi_gpu" in several
    assert several[several.index("--mixed_precision") + 1] == "no"
    zero = command_line("m", ["x"], 4, "zero3", 8)
    assert zero[zero.index("--zero_stage") + 1] == "3"
    assert zero[zero.index("--gradient_accumulation_steps") + 1] == "8"


@pytest.mark.parametrize(("on_gpu", "precision"), [(True, "bf16"), (False, "no")])
def test_zero3_is_told_the_precision_that_the_trainer_has(monkeypatch, on_gpu, precision):
    monkeypatch.setattr("torch.cuda.is_available", lambda: on_gpu)
    zero = command_line("m", ["x"], 4, "zero3", 8)
    assert zero[zero.index("--mixed_precision") + 1] == precision


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_processes": 0}, "parameter 'num_processes' must be at least 1"),
        ({"workers": -1}, "parameter 'workers' must be at least 0"),
        ({"parallel": "fsdp"}, "'fsdp' does not exist; there are ddp, zero3"),
        ({"num_processes": 2, "parallel": "zero3"}, "needs the package deepspeed"),
    ],
)
def test_processes_that_cannot_be_started_are_refused(plan, tasks, changes, message):
    with pytest.raises(ArcnbError, match=message):
        run_grpo(plan.changed(changes), tasks, tasks)


def test_each_process_takes_its_gpu_before_it_loads(plan, tasks, monkeypatch):
    """In four bits transformers loads on the current GPU; with all on the first, accelerate would refuse."""
    taken = []

    def loads(*plan):
        raise ValueError(f"loads with {taken} taken")

    monkeypatch.setitem(sys.modules, "vllm", None)  # which main leaves behind, as a process of its own may
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.set_device", taken.append)
    monkeypatch.setattr("arcnb.rl.launch.train_here", loads)
    with pytest.raises(ValueError, match=r"loads with \[1\] taken"):
        main(str(plan.write(tasks, ())))


SAVES = """
import json, pathlib, signal, sys, time
folder = pathlib.Path({folder!r})
def save(*_):
    (folder / 'report.json').write_text(json.dumps({{'status': {status!r}}}))
    sys.exit()
signal.signal(signal.SIGTERM, save)
(folder / 'ready').touch()
time.sleep(600)
"""


@pytest.mark.parametrize("status", ["preempted", "done"])
def test_a_training_that_lost_its_server_has_failed_though_it_saved(plan, tmp_path, monkeypatch, status):
    """Its process says that it was stopped; by what, and that nobody asked for it, is known here alone."""

    def started(module, arguments, *settings, **others):
        statement = SAVES.format(folder=str(tmp_path), status=status)
        return launch("timeit", ["-n1", "-r1", statement], *settings, **others)

    def lost():
        return "copy 2 of 2 died" if (tmp_path / "ready").exists() else None

    monkeypatch.setattr("arcnb.rl.launch.launch", started)
    path = tmp_path / "launch.json"
    if status == "done":  # it had come to its end
        assert one_launch(plan, path, None, lost)["status"] == "done"
    else:
        with pytest.raises(LostError, match="copy 2 of 2 died"):
            one_launch(plan, path, None, lost)
