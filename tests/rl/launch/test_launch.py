"""Runs in processes of their own, as for unsloth and several GPUs."""

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import replace

import pytest

from arcnb.models.training.checkpoints import newest_complete
from arcnb.models.training.log import read_metrics
from arcnb.models.training.processes import command_line
from arcnb.rl.launch import main, run_grpo
from arcnb.rl.plan.grpo import GrpoPlan
from tests.paths import ROOT
from tests.rl.conftest import QUICK


@pytest.fixture
def plan(letter_model, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    sizes = {"num_generations": 4, "max_completion_length": 4, "rewards.terms": {}, "max_grad_norm": 0.1}
    two = {"num_processes": 2, "workers": 2}
    return GrpoPlan.of(QUICK | {"model": str(letter_model.folder)} | sizes | two, output=tmp_path)


def interrupt_when(ready):
    """Sends this process one SIGINT once ready() holds."""

    def wait():
        deadline = time.monotonic() + 120
        while not ready() and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()


@pytest.mark.long("accelerate starts two processes that import torch, several times")
def test_two_processes_share_every_group_and_save_when_they_are_interrupted(plan, tasks, tmp_path):
    plan = plan.changed({"max_steps": 400, "save_steps": 10**6})
    log = tmp_path / "metrics.jsonl"
    interrupt_when(lambda: log.is_file() and len(log.read_text().splitlines()) > 2)
    report = run_grpo(plan, tasks)
    assert report.status == "preempted"
    assert 2 < report.steps < 400
    assert newest_complete(tmp_path / "checkpoints").name == f"checkpoint-{report.steps}"
    steps = [row for row in read_metrics(log) if "reward" in row]
    assert [row["step"] for row in steps] == list(range(1, report.steps + 1))
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    counts = report.config.set_index("setting")["asked"]
    assert counts["per_device_train_batch_size"] == "2", "half of the group of 4 in each process"

    further = plan.changed({"max_steps": report.steps + 2, "accept_other_settings": True})
    resumed = run_grpo(further, tasks)
    assert (resumed.status, resumed.steps) == ("done", report.steps + 2)


@pytest.mark.long("accelerate starts two processes that import torch, several times")
def test_two_processes_go_on_inside_a_round_with_the_samples_of_each(plan, tasks, tmp_path):
    rounds = {"max_steps": 4, "save_steps": 3, "steps_per_generation": 4, "max_completion_length": 40}
    two = plan.changed(rounds | {"overlong_weight": 1.0, "overlong_buffer": 40})

    def last_step():
        run_grpo(two, tasks)
        (row,) = [
            row for row in read_metrics(tmp_path / "metrics.jsonl") if row["step"] == 4 and "loss" in row
        ]
        return [row[name] for name in ("loss", "grad_norm", "kl", "entropy")]

    unbroken = last_step()
    assert unbroken[1] > 0
    checkpoints = tmp_path / "checkpoints"
    kept = sorted(path.name for path in (checkpoints / "checkpoint-3").glob("round-*"))
    assert kept == ["round-0-of-2.pt", "round-1-of-2.pt"]
    shutil.rmtree(checkpoints / "checkpoint-4")
    assert last_step() == pytest.approx(unbroken, rel=1e-5)
    assert {part.name[:10] for part in (tmp_path / "rollouts").glob("*.parquet")} == {"round00000"}


def test_what_a_process_refuses_it_leaves_for_its_launcher(plan, tasks):
    """Only a process knows how long the prompts are."""
    path = plan.changed({"max_prompt_length": 1}).write(tasks, ())
    with pytest.raises(ValueError, match="no task of 3 has a prompt within 1 tokens"):
        main(str(path))
    assert "no task of 3 has a prompt" in json.loads(path.with_name("report.json").read_text())["error"]


@pytest.mark.long("accelerate starts two processes that import torch, several times")
def test_two_processes_share_prompts_in_unequal_numbers_of_rows(plan, tasks, tmp_path):
    """A row for each completion that is not masked: how many those are differs between the processes."""
    sizes = {"max_steps": 4, "max_completion_length": 40, "mask_truncated_completions": True}
    sizes |= {"prompts_per_step": 2, "overlong_weight": 1.0, "overlong_buffer": 40}
    curves = []
    for shared in (False, True):
        folder = tmp_path / str(shared)
        asked = sizes | {"shared_prompt": shared, "shared_prompt_tokens": 1}
        run_grpo(replace(plan.changed(asked), output=folder), tasks)
        curves.append([row for row in read_metrics(folder / "metrics.jsonl") if "grad_norm" in row])
    for expected, found in zip(*curves, strict=True):
        for name in ("loss", "grad_norm", "kl", "entropy", "reward"):
            assert found[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-5), name
    assert curves[0] != curves[1]
    assert any(row["grad_norm"] > 0 for row in curves[1])


@pytest.mark.long("accelerate starts two processes that import torch, several times")
@pytest.mark.parametrize(
    ("both", "lean"),
    [
        ({"beta": 0.0, "max_completion_length": 6, "overlong_buffer": 6}, {"learner_skip_silent": True}),
        ({"learner_trained_part": 0.5, "learner_reference_part": 0.5, "max_completion_length": 40}, {}),
    ],
    ids=["silent groups", "parts"],
)
def test_two_processes_leave_out_the_same(plan, tasks, tmp_path, both, lean):
    """What each process runs is a part of what both have chosen: in packed rows it learns what TRL learns."""
    sizes = {"max_steps": 6, "prompts_per_step": 2, "overlong_weight": 1.0, "overlong_buffer": 40} | both
    curves = []
    for asked in ({"shared_prompt": False}, {"shared_prompt": True} | lean):
        folder = tmp_path / str(asked["shared_prompt"])
        run_grpo(replace(plan.changed(sizes | asked), output=folder), tasks)
        curves.append([row for row in read_metrics(folder / "metrics.jsonl") if "grad_norm" in row])
    for expected, found in zip(*curves, strict=True):
        for name in ("loss", "grad_norm", "reward"):
            assert found[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-5), name
    shares = {row["learner/trained_share"] for row in curves[1]}
    assert shares == {0.5} or {0.0, 0.5} <= shares, "steps without a group that speaks, and others"
    assert any(row["grad_norm"] > 0 for row in curves[1])


@pytest.mark.long("accelerate starts two processes that import torch, several times")
def test_the_gap_that_is_logged_is_that_of_both_processes(tmp_path):
    command = command_line("tests.rl.logs_a_gap", [str(tmp_path)], 2)
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    logged = [json.loads((tmp_path / f"{process}.json").read_text()) for process in (0, 1)]
    assert logged[0] == logged[1]
    assert logged[0]["sampling/logp_gap"] == pytest.approx((3 * 1.0 + 1 * 2.0) / 4)
    assert logged[0]["sampling/ess"] < 1, "sequences of both are compared"
