"""Notebook 05 by `arcnb run`, as a user goes it: what it refuses, how it is stopped, how it goes on.

(about a minute). A random model over letters trains.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from arcnb.arc.tasks.task import Task
from arcnb.arc.tasks.task_set import TaskSet, write_tasks
from arcnb.errors import ArcnbError
from arcnb.models.training.checkpoints import newest_complete, step_of
from arcnb.models.training.log import read_metrics
from tests.in_process import carried_out
from tests.lab.watching import wait_for
from tests.rl.conftest import gpus, letter_model  # noqa: F401  fixtures

pytestmark = pytest.mark.slow

STEPS = 20  # of the run that is stopped, each a fraction of a second


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """start("run", "05", ...): an `arcnb` process, killed at the end where it still runs."""
    runs = tmp_path_factory.mktemp("runs")
    processes = []

    def launch(*arguments):
        process = subprocess.Popen(
            [sys.executable, "-m", "arcnb.lab.cli", *map(str, arguments)],
            env=os.environ | {"ARCNB_RUNS": str(runs), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        processes.append(process)
        return process

    launch.runs = runs
    yield launch
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.communicate()


def notebook_05(**parameters):
    """The words that run it with these parameters."""
    return ["run", "05", "--quiet", *(w for name, value in parameters.items() for w in ("-p", name, value))]


def ended(process, seconds=240):
    """(exit code, standard output, last line of standard error) of a process; no traceback is in either."""
    output, errors = process.communicate(timeout=seconds)
    assert "Traceback" not in output + errors
    return process.returncode, output, errors.strip().splitlines()[-1]


def manifest(run):
    return json.loads((run / "manifest.json").read_text())


@pytest.fixture(scope="module")
def small(letter_model, tmp_path_factory):  # noqa: F811
    """Parameters of a small run, on tasks of which one does not tell its test output."""
    tasks = []
    for number, output in enumerate(({"output": [[0, 1]]}, {})):
        train = [{"input": [[1, 2]], "output": [[2, 1]]}, {"input": [[3, 4]], "output": [[4, 3]]}]
        raw = {"train": train, "test": [{"input": [[1, number]]} | output]}
        tasks.append(Task.from_dict(f"swap{number}", raw))
    path = tmp_path_factory.mktemp("tasks") / "tasks.parquet"
    write_tasks(TaskSet("swaps", tuple(tasks), "1"), path)
    sizes = {"num_generations": 2, "max_completion_length": 8, "max_prompt_length": 0, "workers": 1}
    other = {"adapter": "", "lora_r": 2, "eval_steps": 0, "max_steps": STEPS, "save_steps": 10**6}
    return {"tasks": path, "model": letter_model.folder} | sizes | other


def stopped_at_a_step(process, runs):
    """(folder, exit code, standard error) of the run called stopped, which gets SIGTERM when it has logged a
    step."""

    def made_a_step():
        assert process.poll() is None, process.communicate()[1]
        return any(log.stat().st_size for log in runs.glob("*-stopped/metrics.jsonl"))

    wait_for(made_a_step, 180)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=90)
    (run,) = runs.glob("*-stopped")
    return run, process.returncode, errors


@pytest.fixture(scope="module")
def stopped(start, small):
    return stopped_at_a_step(start(*notebook_05(**small), "--name", "stopped"), start.runs)


def steps_logged(run):
    return [row["step"] for row in read_metrics(run / "metrics.jsonl") if "reward" in row]


def test_a_run_that_is_stopped_saves_and_is_preempted(stopped):
    run, code, errors = stopped
    assert code == 128 + signal.SIGTERM
    assert f"arcnb run --resume {run}" in errors
    assert (manifest(run)["status"], manifest(run)["stop"]["signal"]) == ("preempted", "SIGTERM")
    saved = step_of(newest_complete(run / "checkpoints"))
    assert 0 < saved < STEPS
    # The step in which the signal came may be logged after the saving; a resumed run makes it once more.
    assert steps_logged(run) in (list(range(1, saved + 1)), list(range(1, saved + 2)))


OTHER = {"beta": 0.5, "temperature": 0.9}  # than the stopped run had
BAD = [
    ({"num_generations": 5, "gradient_accumulation_steps": 2}, "num_generations=5 is not divisible by"),
    ({"max_completion_length": 2048}, "max_completion_length=2048 leaves no room for a prompt in a context"),
    ({"use_vllm": True}, "vllm_gpu_memory_utilization 0.3 asks for 24.0 of 80.0 GiB on GPU 0, but only 16.0"),
]


def ends_in_one_sentence(process, sentence):
    """The folder of a run that failed in its training cell with this sentence."""
    code, output, said = ended(process)
    run = Path(output.strip())
    assert code == 1
    assert f'("2 · Train"): {manifest(run)["error"]["type"]}: ' in said
    assert sentence in said
    assert manifest(run)["status"] == "failed"
    return run


def test_a_checkpoint_of_other_settings_is_refused_and_the_settings_named(start, small, stopped):
    run, *_ = stopped
    sentence = "is of other settings: beta was 0.01 and is 0.5; temperature was 1.0 and is 0.9; set accept_o"
    with pytest.raises(ArcnbError, match=re.escape(sentence)):
        carried_out(start.runs, "05", **small | OTHER, resume=str(run))
    assert list(start.runs.glob("*/metrics.jsonl")) == [run / "metrics.jsonl"]


@pytest.mark.repetition  # tests/test_early_refusals.py asks for these sentences without a kernel
@pytest.mark.long("whole notebooks, each in a kernel of its own")
def test_bad_input_ends_in_one_sentence(start, small, gpus):  # noqa: F811
    gpus("0, GPU-1, 81920, 16384")
    processes = [start(*notebook_05(**small | wrong)) for wrong, _ in BAD]
    for (_, sentence), process in zip(BAD, processes, strict=True):
        run = ends_in_one_sentence(process, f": {sentence}")
        assert not (run / "checkpoints").exists()


@pytest.mark.long("whole notebooks, each in a kernel of its own")
def test_resumed_it_goes_on_to_its_end_and_says_what_its_reward_rests_on(start, stopped):
    run, *_ = stopped
    saved = newest_complete(run / "checkpoints")
    code, output, _ = ended(start("run", "--quiet", "--resume", run))
    assert (code, Path(output.strip())) == (0, run)
    assert manifest(run)["status"] == "done"
    assert [attempt["status"] for attempt in manifest(run)["attempts"]] == ["preempted"]
    outcome = manifest(run)["outcome"]
    assert outcome["steps"] == STEPS
    assert {"reward", "kl"} <= outcome.keys()
    assert (run / "adapter" / "adapter_model.safetensors").is_file()
    assert steps_logged(run) == list(range(1, STEPS + 1))
    redone = [row["step"] for log in run.glob("abandoned/*/metrics.jsonl") for row in read_metrics(log)]
    assert all(step > step_of(saved) for step in redone), "it began anew"
    said = "1 of 2 tasks have no known test outputs: their reward and `solved` rest on train pairs"
    for page in ("05_grpo.ipynb", "05_grpo.html"):
        assert said in (run / page).read_text(), page
