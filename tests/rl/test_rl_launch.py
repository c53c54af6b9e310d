"""A run in a process of its own, as for unsloth and several GPUs. Run: pytest tests/rl/test_rl_launch.py"""

import json
import os
import signal
import subprocess
import time

import pytest

from arcnb.models.training_log import read_metrics
from arcnb.rl.checkpoints import newest_complete
from arcnb.rl.launch import GrpoPlan, command


@pytest.fixture
def plan(letter_model, tasks, tmp_path):
    settings = {"max_steps": 400, "num_generations": 2, "max_completion_length": 4, "save_steps": 10**6}
    return GrpoPlan(
        tasks, tmp_path, model=str(letter_model.folder), settings=settings, lora={"r": 2}, workers=1
    )


def test_a_process_of_its_own_saves_and_ends_when_it_is_told_to(plan, tmp_path):
    path = plan.write()
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with open(tmp_path / "said.txt", "w") as said:
        child = subprocess.Popen(
            command(plan, path), stdout=said, stderr=said, env=environment, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 120
        while not (tmp_path / "metrics.jsonl").is_file() and time.monotonic() < deadline:
            assert child.poll() is None, (tmp_path / "said.txt").read_text()[-2000:]
            time.sleep(0.2)
        os.kill(int((path.parent / "0.pid").read_text()), signal.SIGTERM)
        assert child.wait(60) == 0, (tmp_path / "said.txt").read_text()[-2000:]
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
    report = json.loads((path.parent / "report.json").read_text())
    assert report["status"] == "preempted"
    assert 0 < report["steps"] < 400
    assert newest_complete(tmp_path / "checkpoints") is not None
    assert any("reward" in row for row in read_metrics(tmp_path / "metrics.jsonl"))
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
