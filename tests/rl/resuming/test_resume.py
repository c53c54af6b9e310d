"""Stopping and going on: complete checkpoints, the same curve after a resume, signals."""

import json
import os
import resource
import shutil
import signal

import pytest
from transformers import TrainerCallback

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.errors import ArcnbError
from arcnb.models.registry import ModelPath
from arcnb.models.sft.plan import PLAN, SftPlan, resumed_from
from arcnb.models.training.checkpoints import (
    STATE,
    checkpoint_problem,
    checkpoint_to_resume,
    newest_complete,
    step_of,
)
from arcnb.models.training.log import read_metrics
from arcnb.rl.launch import train_here
from arcnb.rl.plan.grpo import GrpoPlan
from arcnb.rl.resuming.identity import STATE_KEY, refuse_other_settings, run_identity, saved_state
from arcnb.rl.resuming.run_folder import ROLLBACKS, copy_whole, keep_best, prune, set_aside
from arcnb.rl.resuming.run_state import RunState
from arcnb.rl.rows.history import SignalHistory
from arcnb.rl.watching.guard import CollapseMonitor
from tests.rl.conftest import QUICK
from tests.rl.stop_at import StopAt


def curve(report):
    """What has to be the same in a resumed run: loss, reward and KL of every step."""
    rows = [row for row in report.history if "reward" in row]
    return [(row["step"], row["loss"], row["reward"], row["kl"]) for row in rows]


@pytest.fixture(scope="module")
def unbroken(train, tmp_path_factory):
    """The report of a run that nothing stopped."""
    return train(tmp_path_factory.mktemp("unbroken"))


def test_a_run_that_was_stopped_by_a_signal_goes_on_as_if_it_had_not_been(train, unbroken, tmp_path):
    assert unbroken.status == "done"
    assert len({row[1] for row in curve(unbroken)}) > 1, "a curve without any movement shows nothing"

    handlers = [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)]
    broken = train(tmp_path / "broken", callbacks=[StopAt(2)])
    assert broken.status == "preempted"
    assert broken.steps < 5
    assert newest_complete(tmp_path / "broken" / "checkpoints") is not None
    assert [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)] == handlers

    resumed = train(tmp_path / "broken")
    assert resumed.status == "done"
    assert unbroken.took.startswith("5 steps in ")
    assert resumed.took.startswith("5 steps, 3 of them in ")
    assert curve(resumed) == curve(unbroken)
    rollouts = list(PredictionSet(tmp_path / "broken" / "rollouts").iter_predictions())
    before = list(PredictionSet(unbroken.adapter.with_name("rollouts")).iter_predictions())
    assert [(row.id, row.completion) for row in rollouts] == [(row.id, row.completion) for row in before]


def test_shared_prompts_learn_the_same_and_go_on_as_if_never_stopped(train, unbroken, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "")  # to have it as it was afterwards
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF")
    shared = {"shared_prompt": True}
    ordinary = curve(unbroken)
    in_one = curve(train(tmp_path / "unbroken", **shared))
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    smaller = {"shared_prompt_tokens": 1, "shared_prompt_offload": True}
    small_rows = curve(train(tmp_path / "small", **shared, **smaller))
    for curve_ in (in_one, small_rows):
        for found, expected in zip(curve_, ordinary, strict=True):
            assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert in_one != ordinary, "equal to the last bit: it was computed in the ordinary way"
    assert train(tmp_path / "broken", **shared, callbacks=[StopAt(2)]).status == "preempted"
    assert curve(train(tmp_path / "broken", **shared)) == in_one


def test_a_run_from_an_adapter_that_was_interrupted_goes_on_with_its_own_weights(train, tmp_path):
    # KL is then taken to a frozen copy of the start, which checkpoints keep beside the trained adapter.
    start = train(tmp_path / "start", max_steps=1).adapter
    options = {"max_steps": 3, "adapter": str(start)}
    unbroken = train(tmp_path / "unbroken", **options)
    broken = train(tmp_path / "broken", **options, callbacks=[StopAt(1, signal.SIGINT)])
    assert broken.status == "preempted"
    assert newest_complete(tmp_path / "broken" / "checkpoints") is not None
    resumed = train(tmp_path / "broken", **options)
    assert curve(resumed) == curve(unbroken)
    assert curve(unbroken)[-1][3] > 0


def test_settings_of_another_run_are_named_and_refused(train, tmp_path):
    train(tmp_path, max_steps=3, callbacks=[StopAt(1)])
    with pytest.raises(ArcnbError, match=r"beta was 0\.01 and is 0\.5; learning_rate was 0\.01 and is 0\.02"):
        train(tmp_path, max_steps=3, learning_rate=0.02, beta=0.5)
    with pytest.raises(ArcnbError, match=r"encoding was '.*' and is 'color_names'"):
        train(tmp_path, max_steps=3, encoding="color_names")
    again = train(tmp_path, max_steps=3, beta=0.5, accept_other_settings=True)
    assert again.status == "done"


def test_prompts_and_start_are_settings_too(tmp_path):
    state = {"template": "arc_code", "encoding": "spaced", "adapter": "adapter", "adapter_sha256": "one"}
    written = {"stateful_callbacks": {STATE_KEY: {"attributes": {"settings": state}}}}
    (tmp_path / STATE).write_text(json.dumps(written))
    with pytest.raises(ArcnbError, match="adapter_sha256 was 'one' and is 'two'; encoding was 'spaced'"):
        refuse_other_settings(tmp_path, state | {"encoding": "compact", "adapter_sha256": "two"}, False)
    written["stateful_callbacks"][STATE_KEY]["attributes"]["settings"] = {"adapter": "adapter"}
    (tmp_path / STATE).write_text(json.dumps(written))
    with pytest.raises(ArcnbError, match=r"encoding was None and is 'spaced'; template was None and"):
        refuse_other_settings(tmp_path, state, False)  # of another version, which did not say


def test_held_out_tasks_are_settings_too(train, tasks, tmp_path):
    options = {"max_steps": 3, "num_generations": 2, "eval_steps": 1, "num_generations_eval": 1}
    train(tmp_path, **options, eval_tasks=list(tasks)[:2], callbacks=[StopAt(1)])
    again = newest_complete(tmp_path / "checkpoints")
    assert set(saved_state(again)["settings"]["eval_task_versions"]) == {"swap0", "swap1"}

    options["eval_tasks"] = list(tasks)[1:]
    with pytest.raises(ArcnbError, match="eval_task_versions now are without swap0, have besides swap2;"):
        train(tmp_path, **options)
    options["accept_other_settings"] = True
    report = train(tmp_path, **options, callbacks=[StopAt(2)])
    note = f"evaluation of the eval tasks up to step {step_of(again)} was of other tasks: do not compare"
    assert note in "\n".join(report.notes)
    assert report.best["step"] > step_of(again), "the best is still the one on other tasks"
    report = train(tmp_path, **options)
    assert note in "\n".join(report.notes), "forgotten by the second resume"


def test_adapters_of_one_name_are_told_apart(tmp_path, tasks, letter_model):
    found = []
    for name in ("a", "b", "copy of a"):
        folder = tmp_path / name / "adapter"
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text("{}")
        (folder / "adapter_model.safetensors").write_text(name[-1])
        plan = GrpoPlan.of(QUICK)
        identity = run_identity(plan, plan.settings, letter_model, folder, tasks, ())
        found.append(identity["adapter_sha256"])
    assert found[0] == found[2] != found[1]


def test_models_saved_under_one_path_are_told_apart(tmp_path, tasks):
    found, plan = [], GrpoPlan.of(QUICK)
    for content in ("a", "b", "a"):
        (tmp_path / "model.safetensors").write_text(content)
        identity = run_identity(plan, plan.settings, ModelPath("mine", tmp_path), None, tasks, ())
        found.append(identity["model_sha256"])
    assert found[0] == found[2] != found[1]


def test_rewards_of_one_name_are_told_apart(tmp_path, letter_model, tasks):
    found, file = [], tmp_path / "mine.py"
    for points in (1, 2, 1):
        file.write_text(f"def brave(scores):\n    return {points} * scores.train_correct\n")
        plan = GrpoPlan.of(QUICK | {"reward": f"{file}:brave"})
        found.append(run_identity(plan, plan.settings, letter_model, None, tasks, ()))
    assert found[0] == found[2] != found[1]


def test_the_guard_may_be_another_one_in_a_resumed_run(letter_model, tasks):
    """It watches; what is learnt does not depend on it."""
    other = {
        path: value / 2
        for path, value in GrpoPlan.of().values().items()
        if path.startswith("guard.thresholds.")
    }
    plans = GrpoPlan.of(QUICK), GrpoPlan.of(QUICK | other | {"guard_action": "stop", "guard_window": 5})
    found = [run_identity(plan, plan.settings, letter_model, None, tasks, ()) for plan in plans]
    assert found[0] == found[1]


class FullFrom(TrainerCallback):
    """From the end of this step on no file grows beyond so many bytes, as if the disk were full."""

    def __init__(self, step, bytes_):
        self.step, self.bytes = step, bytes_

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.bytes, self.hard))

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)


@pytest.mark.parametrize("bytes_", [500, 6000])
def test_a_disk_that_fills_up_ends_in_one_sentence_with_the_checkpoint_that_is_left(train, tmp_path, bytes_):
    full = FullFrom(2, bytes_)
    try:
        with pytest.raises(ArcnbError, match=r"ended at step 2: .*File too large; checkpoint-1 is complete"):
            train(tmp_path, max_steps=3, save_steps=1, callbacks=[full])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (full.soft, full.hard))
    assert train(tmp_path, max_steps=3, save_steps=1).steps == 3


def test_without_resuming_a_run_starts_anew_and_keeps_what_was_there(train, tmp_path):
    train(tmp_path, max_steps=2)
    keep_best(tmp_path / "checkpoints" / "checkpoint-2", tmp_path / "best")
    (tmp_path / "checkpoints" / ROLLBACKS).write_text('{"rollbacks": 2}')
    report = train(tmp_path, max_steps=1, resume="never")
    assert report.rollbacks == 0
    assert report.history[0]["learning_rate"] == pytest.approx(1e-2)
    assert not list((tmp_path / "best").iterdir())
    assert (tmp_path / "abandoned" / "1" / "best" / "checkpoint-2").is_dir()
    assert [row["step"] for row in report.history if "reward" in row] == [1]
    assert len((tmp_path / "abandoned" / "1" / "metrics.jsonl").read_text().splitlines()) >= 2
    assert len(PredictionSet(tmp_path / "abandoned" / "1" / "rollouts")) == 6


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory, letter_model, tasks):
    """A checkpoint as the trainer writes it."""
    folder = tmp_path_factory.mktemp("run")
    small = {"max_steps": 2, "num_generations": 2, "max_completion_length": 4, "save_steps": 1, "terms": {}}
    own = {"model": str(letter_model.folder), "workers": 1}
    train_here(GrpoPlan.of(QUICK, output=folder).changed(small | own), tasks, ())
    return folder / "checkpoints" / "checkpoint-2"


def _cut(name):
    def damage(folder):
        path = folder / name
        path.write_bytes(path.read_bytes()[:-7])

    return damage


DAMAGES = {
    "cut weights": (_cut("adapter_model.safetensors"), "adapter_model.safetensors is cut off"),
    "no weights": (lambda f: (f / "adapter_model.safetensors").unlink(), "the weights are missing"),
    "cut optimizer": (_cut("optimizer.pt"), "optimizer.pt is cut off"),
    "no scheduler": (lambda f: (f / "scheduler.pt").unlink(), "scheduler.pt is missing"),
    "cut state": (_cut("trainer_state.json"), "trainer_state.json is damaged"),
    "other state": (lambda f: (f / "trainer_state.json").write_text("[]"), "trainer_state.json is damaged"),
    "no state": (lambda f: (f / "trainer_state.json").unlink(), "trainer_state.json is missing"),
    "no random state": (lambda f: (f / "rng_state.pth").unlink(), "the random state is missing"),
    "cut random state": (_cut("rng_state.pth"), "rng_state.pth is cut off"),
    "cut samples": (lambda f: (f / "round-0-of-1.pt").write_bytes(b"PK"), "round-0-of-1.pt is cut off"),
    "sentinel": (lambda f: (f / "checkpoint-is-incomplete.txt").write_text(""), "its saving was interrupted"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_not_resumed_from(checkpoint, tmp_path, name):
    damage, sentence = DAMAGES[name]
    shutil.copytree(checkpoint, tmp_path / "checkpoint-2")
    shutil.copytree(checkpoint.with_name("checkpoint-1"), tmp_path / "checkpoint-1")
    assert newest_complete(tmp_path).name == "checkpoint-2"
    damage(tmp_path / "checkpoint-2")
    assert checkpoint_problem(tmp_path / "checkpoint-2") == sentence
    said = []
    assert newest_complete(tmp_path, said.append).name == "checkpoint-1"
    assert said == [f"checkpoint-2 cannot be resumed from: {sentence}"]


def test_a_copied_checkpoint_under_a_wrong_name_is_no_checkpoint(checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path / "checkpoint-9")
    assert checkpoint_problem(tmp_path / "checkpoint-9") == "trainer_state.json is of step 2"


def test_a_run_that_began_at_another_ones_checkpoint_goes_on_from_its_own(checkpoint, tmp_path):
    shutil.copytree(checkpoint, tmp_path / "checkpoints" / "checkpoint-2")
    other, own = checkpoint.with_name("checkpoint-1"), tmp_path / "checkpoints"
    said = []
    assert checkpoint_to_resume(str(other), own, said.append) == own / "checkpoint-2"
    assert said == [f"goes on from {own / 'checkpoint-2'}, not from {other}, where this run began"]
    assert checkpoint_to_resume(str(other), checkpoint.parent) == other, "of its own it may choose any"


def test_what_resume_may_say(checkpoint, tmp_path):
    run = checkpoint.parent.parent
    assert checkpoint_to_resume("never", run / "checkpoints") is None
    assert checkpoint_to_resume("auto", tmp_path) is None
    assert checkpoint_to_resume("auto", run / "checkpoints") == checkpoint
    assert checkpoint_to_resume(str(run), tmp_path) == checkpoint
    assert checkpoint_to_resume(str(checkpoint), tmp_path) == checkpoint
    with pytest.raises(ArcnbError, match="there is no complete checkpoint"):
        checkpoint_to_resume(str(tmp_path), tmp_path)
    with pytest.raises(ArcnbError, match="does not exist"):
        checkpoint_to_resume(str(tmp_path / "checkpoint-5"), tmp_path)


def test_the_best_is_kept_apart_and_the_rest_pruned_by_a_budget(checkpoint, tmp_path):
    for step in (1, 2, 3, 4):
        folder = tmp_path / "checkpoints" / f"checkpoint-{step}"
        shutil.copytree(checkpoint, folder)
        state = json.loads((folder / "trainer_state.json").read_text()) | {"global_step": step}
        (folder / "trainer_state.json").write_text(json.dumps(state))
    folder = tmp_path / "checkpoints"
    keep_best(folder / "checkpoint-1", tmp_path / "best")
    keep_best(folder / "checkpoint-2", tmp_path / "best")
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["checkpoint-2"]
    copy_whole(tmp_path / "best" / "checkpoint-2", folder / "checkpoint-2-again")
    sizes = [
        sum(file.stat().st_size for file in (folder / name).rglob("*") if file.is_file())
        for name in ("checkpoint-2-again", "checkpoint-2")
    ]
    assert sizes[0] == sizes[1]
    shutil.rmtree(folder / "checkpoint-2-again")
    budget = 2.5 * sizes[0] / 2**30
    assert prune(folder, 0) == []
    assert [path.name for path in prune(folder, budget)] == ["checkpoint-1", "checkpoint-2"]
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoint-3", "checkpoint-4"]
    assert checkpoint_problem(tmp_path / "best" / "checkpoint-2") is None
    assert [path.name for path in prune(folder, 1e-9)] == ["checkpoint-3"], "the newest always stays"


@pytest.mark.parametrize(
    ("recorded", "tasks_now", "recalled"),
    [
        ({"step": 2, "score": 0.4}, {"a": "1"}, {"step": 2, "score": 0.4}),
        ({"step": 4, "score": 0.9}, {"a": "1"}, {"step": 2, "score": 0.4}),
        ({"step": 4, "score": 0.9}, {"b": "1"}, None),  # the score of what is kept is of other tasks
        (None, {"b": "1"}, None),
    ],
)
def test_the_best_is_what_is_kept_as_the_best(checkpoint, tmp_path, recorded, tasks_now, recalled):
    kept = keep_best(checkpoint, tmp_path / "best") / STATE
    state = json.loads(kept.read_text())
    attributes = state["stateful_callbacks"][STATE_KEY]["attributes"]
    attributes["best"] = {"step": 2, "score": 0.4}
    attributes["settings"] |= {"eval_steps": 1, "eval_task_versions": {"a": "1"}}
    kept.write_text(json.dumps(state))
    run = RunState(tmp_path, {"eval_task_versions": tasks_now}, SignalHistory(), CollapseMonitor())
    run.best = recorded
    run.recall_best()
    assert run.best == recalled


def test_a_long_log_is_set_aside_line_by_line(tmp_path):
    lines = [json.dumps({"step": step, "reward": 0.0}) for step in range(1, 20001)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    aside = set_aside(tmp_path, 1000)
    assert (tmp_path / "metrics.jsonl").read_text().splitlines() == lines[:1000]
    assert (aside / "metrics.jsonl").read_text().splitlines() == lines[1000:]


def test_damaged_lines_of_a_log_are_set_aside(tmp_path):
    log = tmp_path / "metrics.jsonl"
    damaged = [b"3", b"\x00\x00", b"\xff", b'{"step": "x"}', b'{"step": 2, "rew']
    log.write_bytes(b"\n".join([b'{"step": 1}', *damaged, b'{"step": 2}']) + b"\n")
    aside = set_aside(tmp_path, 2)
    assert [row["step"] for row in read_metrics(log)] == [1, 2]
    assert (aside / "metrics.jsonl").read_bytes().splitlines() == damaged


def test_damaged_notes_of_a_run_are_named(checkpoint, tmp_path):
    for name in (ROLLBACKS, PLAN):
        (tmp_path / "checkpoints").mkdir(exist_ok=True)
        (tmp_path / "checkpoints" / name).write_text("")
    run = RunState(tmp_path, {}, SignalHistory(), CollapseMonitor())
    with pytest.raises(ArcnbError, match=f"^{tmp_path}/checkpoints/{ROLLBACKS}: .* damaged or cut short"):
        assert run.rollbacks
    shutil.copytree(checkpoint, tmp_path / "checkpoints" / "checkpoint-2")
    with pytest.raises(ArcnbError, match=f"^{tmp_path}/checkpoints/{PLAN}: .* damaged or cut short"):
        resumed_from(SftPlan.of(), tmp_path)
