"""Two processes by `accelerate launch`, the command that GPUs get, here on a CPU with gloo.

One pair is started by run_grpo and interrupted. Another one, on two nodes, carries out all other plans in
turn: to start a pair takes longer than ten of them."""

import json
import sys
from types import SimpleNamespace

import pytest

from arcnb.models.training import processes
from arcnb.models.training.checkpoints import newest_complete
from arcnb.models.training.log import read_metrics
from arcnb.rl.launch import main, run_grpo
from arcnb.rl.plan.grpo import GrpoPlan
from tests.lab.watching import interrupted_when
from tests.models.training.test_nodes import second_node
from tests.paths import ROOT
from tests.rl.conftest import QUICK

pytestmark = pytest.mark.long("two pairs of processes import TRL, and one trains by eleven plans")
SIZES = {"num_generations": 4, "max_completion_length": 4, "rewards.terms": {}, "max_grad_norm": 0.1}
# Lengths differ, so that there is something to learn.
SPREAD = {"max_completion_length": 40, "overlong_weight": 1.0, "overlong_buffer": 40}
# Any share of distinct tokens is taken for a collapse, once there is a first window to compare with; after a
# rollback there is.
ALWAYS = {"guard.action": "rollback", "guard.window": 2, "guard.max_rollbacks": 1}
ALWAYS |= {"guard.thresholds.unique_tokens": 100.0, "guard.thresholds.kl": 1e9}
ROUNDS = SPREAD | {"max_steps": 4, "save_steps": 3, "steps_per_generation": 4}
TWO_PROMPTS = SPREAD | {"prompts_per_step": 2}
MASKED = TWO_PROMPTS | {"max_steps": 4, "mask_truncated_completions": True}
SHORT = {"beta": 0.0, "max_completion_length": 6, "overlong_buffer": 6}
SILENT = TWO_PROMPTS | SHORT | {"max_steps": 6}
PARTS = TWO_PROMPTS | {"max_steps": 4, "learner_trained_part": 0.5, "learner_reference_part": 0.5}
LONG = SPREAD | {"lr_scheduler_type": "constant"}
# folder of a run -> its options
PLANS = {
    "two nodes": LONG | {"max_steps": 3},
    "rolls back": SPREAD | ALWAYS | {"max_steps": 9, "eval_steps": 100, "num_generations_eval": 1},
    "unbroken": ROUNDS,
    "goes on": ROUNDS,
    "masked": MASKED,
    "masked, shared": MASKED | {"shared_prompt": True, "shared_prompt_tokens": 1},
    "silent": SILENT,
    "silent, shared": SILENT | {"shared_prompt": True, "learner_skip_silent": True},
    "parts": PARTS,
    "parts, shared": PARTS | {"shared_prompt": True},
}


@pytest.fixture(scope="module")
def temporary(tmp_path_factory):
    """The temporary folder of all processes that are started here."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def plan(letter_model, temporary):
    """plan(folder, **options)"""
    two = {"model": str(letter_model.folder), "num_processes": 2, "workers": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("TMPDIR", str(temporary))
        yield lambda folder, **options: GrpoPlan.of(QUICK | two | SIZES | options, output=folder)


@pytest.fixture(scope="module")
def interrupted(plan, tasks, tmp_path_factory):
    """(report, folder, command) of a run that was interrupted after some steps."""
    folder = tmp_path_factory.mktemp("interrupted")
    plain, commands = processes.launcher, []

    def remembered(*arguments):
        commands.append(plain(*arguments))
        return commands[-1]

    log = folder / "metrics.jsonl"
    own = folder / "mine.py"
    own.write_text("def brave(scores):\n    return 9 * scores.train_correct\n")
    options = LONG | {"max_steps": 400, "save_steps": 10**6, "reward": f"{own}:brave"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "launcher", remembered)
        with interrupted_when(lambda: log.is_file() and len(log.read_text().splitlines()) > 2):
            report = run_grpo(plan(folder, **options), tasks)
    (command,) = commands
    return SimpleNamespace(report=report, folder=folder, command=command)


@pytest.fixture(scope="module")
def carried_out(plan, tasks, interrupted, tmp_path_factory):
    """The folder in which the runs of PLANS lie and the gap that each process logged."""
    runs = tmp_path_factory.mktemp("runs")
    written = []
    for name, options in PLANS.items():
        if name == "goes on":
            options = options | {"resume": str(runs / "unbroken" / "checkpoints" / "checkpoint-3")}
        held_out = tasks if "eval_steps" in options else ()
        written.append(plan(runs / name, **options).write(tasks, held_out))
    further = {"max_steps": interrupted.report.steps + 2, "accept_other_settings": True}
    written.append(plan(interrupted.folder, **LONG | further).write(tasks, ()))
    environment = {"PYTHONPATH": str(ROOT)}
    arguments = [str(runs), *map(str, written)]
    with second_node(runs):
        processes.launch("tests.rl.launch.in_turn", arguments, 2, runs / "log.txt", environment=environment)
    return runs


def left(folder):
    """What the first process said of the run, as run_grpo reads it."""
    return SimpleNamespace(**json.loads((folder / "launch" / "report.json").read_text()))


def steps(folder):
    return [row for row in read_metrics(folder / "metrics.jsonl") if "reward" in row]


def test_two_processes_share_every_group_and_save_when_they_are_interrupted(interrupted):
    report, folder = interrupted.report, interrupted.folder
    assert {"arcnb.models.training.launcher", "--multi_gpu"} <= set(interrupted.command)
    assert report.status == "preempted"
    assert 2 < report.steps < 400
    assert newest_complete(folder / "checkpoints").name == f"checkpoint-{report.steps}"
    assert [row["step"] for row in steps(folder)][: report.steps] == list(range(1, report.steps + 1))
    assert (folder / "adapter" / "adapter_model.safetensors").is_file()
    counts = report.config.set_index("setting")["asked"]
    assert counts["per_device_train_batch_size"] == "2", "half of the group of 4 in each process"


def test_a_reward_of_a_file_is_every_process_s_and_stays_with_the_run(interrupted):
    assert "rewards/brave/mean" in steps(interrupted.folder)[0]
    assert (interrupted.folder / "reward.py").read_bytes() == (interrupted.folder / "mine.py").read_bytes()


def test_two_processes_go_on_where_two_others_were_interrupted(interrupted, carried_out):
    report, stopped = left(interrupted.folder), interrupted.report.steps
    assert (report.status, report.steps) == ("done", stopped + 2)
    assert [row["step"] for row in steps(interrupted.folder)] == list(range(1, stopped + 3))
    assert not (interrupted.folder / "abandoned").exists(), "they began anew"


def test_launchers_leave_no_folder_behind(interrupted, carried_out, temporary):
    """The one that torch starts makes a folder for logs, and removes none."""
    assert not list(temporary.glob("torchelastic_*"))


def test_two_processes_roll_back_together_and_stop_together(carried_out):
    folder = carried_out / "rolls back"
    report = left(folder)
    assert (report.status, report.rollbacks, len(report.pages)) == ("collapsed", 1, 2)
    first, again = steps(folder / "abandoned" / "1"), steps(folder)
    assert [row["step"] for row in first] in ([1, 2, 3], [1, 2, 3, 4])
    assert [row["step"] for row in again] == [1, 2]
    assert first[-1]["kl"] > 1e-4 > again[0]["kl"], "a process went on with weights of before"
    assert {row["learning_rate"] for row in first} == {1e-2}
    assert {row["learning_rate"] for row in again} == {5e-3}
    assert again[-1]["kl"] > 1e-4, "it learns again"
    assert json.loads((folder / "checkpoints" / "rollbacks.json").read_text()) == {"rollbacks": 1}
    assert (folder / "checkpoints" / "checkpoint-2" / "rng_state_1.pth").is_file(), "of both processes"
    assert (folder / "adapter" / "adapter_model.safetensors").is_file()


def test_two_nodes_learn_what_two_processes_of_one_do(interrupted, carried_out):
    assert left(carried_out / "two nodes").status == "done"
    folders = interrupted.folder, carried_out / "two nodes"
    on_one, on_two = ([row["loss"] for row in steps(folder)[:3]] for folder in folders)
    assert on_two == pytest.approx(on_one, rel=1e-4)
    assert len(set(on_one)) == 3
    assert len(list((carried_out / "nodes" / "job").glob("launch-*.ended"))) == 1


def test_two_processes_go_on_inside_a_round_with_the_samples_of_each(carried_out):
    def last_step(name):
        rows = read_metrics(carried_out / name / "metrics.jsonl")
        (row,) = [row for row in rows if row["step"] == 4 and "loss" in row]  # it samples at the first alone
        return [row[value] for value in ("loss", "grad_norm", "kl", "entropy")]

    unbroken = last_step("unbroken")
    assert unbroken[1] > 0
    kept = (carried_out / "unbroken" / "checkpoints" / "checkpoint-3").glob("round-*")
    assert sorted(path.name for path in kept) == ["round-0-of-2.pt", "round-1-of-2.pt"]
    assert last_step("goes on") == pytest.approx(unbroken, rel=1e-5)
    sampled = (carried_out / "unbroken" / "rollouts").glob("*.parquet")
    assert {part.name[:10] for part in sampled} == {"round00000"}
    assert not list((carried_out / "goes on").glob("rollouts/*.parquet")), "it sampled anew"


def test_what_a_process_refuses_it_leaves_for_its_launcher(plan, tasks, tmp_path, monkeypatch):
    """Only a process knows how long the prompts are."""
    monkeypatch.setitem(sys.modules, "vllm", None)  # which main leaves behind, as a process of its own may
    path = plan(tmp_path, max_prompt_length=1).write(tasks, ())
    with pytest.raises(ValueError, match=r"no task of 3 has a prompt within 1 tokens \(max_prompt_length, "):
        main(str(path))
    assert "no task of 3 has a prompt" in json.loads(path.with_name("report.json").read_text())["error"]


@pytest.mark.parametrize(
    ("name", "compared"),
    [
        # A row for each completion that is not masked: how many those are differs between the processes.
        ("masked", ("loss", "grad_norm", "kl", "entropy", "reward")),
        # What each process runs is a part of what both have chosen.
        ("silent", ("loss", "grad_norm", "reward")),
        ("parts", ("loss", "grad_norm", "reward")),
    ],
)
def test_two_processes_learn_in_packed_rows_what_trl_learns(carried_out, name, compared):
    expected, found = (steps(carried_out / folder) for folder in (name, f"{name}, shared"))
    assert len(expected) == len(found) == PLANS[name]["max_steps"]
    for one, other in zip(expected, found, strict=True):
        for value in compared:
            assert other[value] == pytest.approx(one[value], rel=1e-3, abs=1e-5), value
    assert expected != found
    assert any(row["grad_norm"] > 0 for row in found)
    if name != "masked":
        shares = {row["learner/trained_share"] for row in found}
        assert shares == {0.5} or {0.0, 0.5} <= shares, "steps without a group that speaks, and others"


def test_the_gap_that_is_logged_is_that_of_both_processes(carried_out):
    logged = [json.loads((carried_out / f"{process}.json").read_text()) for process in (0, 1)]
    assert logged[0] == logged[1]
    assert logged[0]["sampling/logp_gap"] == pytest.approx((3 * 1.0 + 1 * 2.0) / 4)
    assert logged[0]["sampling/ess"] < 1, "sequences of both are compared"
