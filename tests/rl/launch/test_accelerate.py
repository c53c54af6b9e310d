"""Several processes by `accelerate launch`, the command that GPUs get, here on a CPU with gloo.

(about a minute)
"""

import json

import pytest

import arcnb.rl.launch as launch_module
from arcnb.models.training import processes
from arcnb.models.training.log import read_metrics
from arcnb.rl.launch import main, run_grpo
from arcnb.rl.plan.grpo import GrpoPlan
from tests.rl.conftest import QUICK

SIZES = {"num_generations": 8, "max_completion_length": 24, "max_grad_norm": 0.1, "rewards.terms": {}}
# Lengths differ, so that there is something to learn. Any share of distinct tokens is taken for a collapse,
# once there is a first window to compare with; after a rollback there is.
SPREAD = {"overlong_weight": 1.0, "overlong_buffer": 24}
ALWAYS = {"guard.action": "rollback", "guard.window": 2, "guard.max_rollbacks": 1}
ALWAYS |= {"guard.thresholds.unique_tokens": 100.0, "guard.thresholds.kl": 1e9}

pytestmark = pytest.mark.timeout(240)  # one process that waits for the other would do so for ever


@pytest.fixture
def plan(letter_model, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    two = {"model": str(letter_model.folder), "workers": 2, "num_processes": 2}
    return GrpoPlan.of(QUICK | SIZES | two, output=tmp_path)


@pytest.fixture
def commands(monkeypatch):
    """The commands that were started."""
    plain, started = processes.command_line, []

    def remembered(*arguments):
        started.append(plain(*arguments))
        return started[-1]

    monkeypatch.setattr(processes, "command_line", remembered)
    return started


def steps(folder):
    return [row for row in read_metrics(folder / "metrics.jsonl") if "reward" in row]


@pytest.mark.long("two processes train, roll back and stop together")
def test_two_processes_roll_back_together_and_stop_together(plan, commands, tasks, tmp_path):
    steps_of = {"max_steps": 9, "save_steps": 100, "eval_steps": 100, "num_generations_eval": 1}
    report = run_grpo(plan.changed(SPREAD | ALWAYS | steps_of), tasks, tasks)
    (command,) = commands
    assert {"accelerate.commands.accelerate_cli", "launch", "--multi_gpu"} <= set(command)
    counts = report.config.set_index("setting")["asked"]
    assert counts["per_device_train_batch_size"] == "4", "half of the group of 8 in each process"

    assert (report.status, report.rollbacks, len(report.pages)) == ("collapsed", 1, 2)
    first, again = steps(tmp_path / "abandoned" / "1"), steps(tmp_path)
    assert [row["step"] for row in first] in ([1, 2, 3], [1, 2, 3, 4])
    assert [row["step"] for row in again] == [1, 2]
    assert first[-1]["kl"] > 1e-4 > again[0]["kl"], "a process went on with weights of before"
    assert {row["learning_rate"] for row in first} == {1e-2}
    assert {row["learning_rate"] for row in again} == {5e-3}
    assert again[-1]["kl"] > 1e-4, "it learns again"
    assert json.loads((tmp_path / "checkpoints" / "rollbacks.json").read_text()) == {"rollbacks": 1}
    assert (tmp_path / "checkpoints" / "checkpoint-2" / "rng_state_1.pth").is_file(), "of both processes"
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()


def test_each_process_takes_its_gpu_before_it_loads(plan, tasks, monkeypatch):
    """In four bits transformers loads on the current GPU; with all on the first, accelerate would refuse."""
    taken = []

    def loads(*plan):
        raise ValueError(f"loads with {taken} taken")

    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.set_device", taken.append)
    monkeypatch.setattr(launch_module, "train_here", loads)
    with pytest.raises(ValueError, match=r"loads with \[1\] taken"):
        main(str(plan.write(tasks, ())))
