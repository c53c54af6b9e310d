"""Real tiny training runs: held-out evaluation, the guard at work, prompts without signal, settings."""

import json
import os
import signal
from pathlib import Path

import pytest

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.errors import ArcnbError
from arcnb.models.training.checkpoints import checkpoint_problem, newest_complete
from arcnb.models.training.log import read_metrics
from arcnb.rl.resuming.identity import saved_state
from arcnb.rl.rewards.terms import TERMS
from arcnb.rl.trainer import callbacks, training
from arcnb.rl.watching.guard import Alarm, CollapseMonitor
from arcnb.rl.watching.held_out import HeldOut
from tests.rl.stop_at import StopAt


def commonest_token(group, limits):
    """Share of a completion's commonest token minus 1: it rewards saying the same thing again and again."""
    return [
        max(rollout.tokens.count(t) for t in set(rollout.tokens)) / len(rollout.tokens) - 1
        for rollout in group
    ]


COLLAPSING = {
    "max_steps": 40,
    "num_generations": 8,
    "max_completion_length": 12,
    "learning_rate": 0.1,
    "beta": 0.0,
}


@pytest.fixture
def collapse(train, monkeypatch):
    """A run whose reward and learning rate drive it into repetition, under a guard with this action."""
    monkeypatch.setitem(TERMS, "commonest", commonest_token)

    def run(output, action, **options):
        guard = {"guard_action": action, "guard_window": 4, "guard_learning_rate_factor": 0.5}
        return train(output, **COLLAPSING, **guard, rewards_terms={"commonest": 5.0}, **options)

    return run


def test_a_run_that_collapses_is_seen_and_stopped_with_a_diagnosis(collapse, tmp_path):
    report = collapse(tmp_path, "stop")
    assert report.status == "collapsed"
    assert report.steps < 40
    first, *_ = steps = [row for row in report.history if "reward" in row]
    assert steps[-1]["unique_tokens_ratio"] < 0.5 * first["unique_tokens_ratio"]
    page = report.pages[0].read_text()
    assert "unique_tokens (step" in page
    assert len(report.pages) == 1
    assert checkpoint_problem(tmp_path / "checkpoints" / f"checkpoint-{report.steps}") is None

    again = collapse(tmp_path, "stop")
    assert again.status == "collapsed", "run again in its folder it is watched"
    assert report.steps + 4 <= again.steps < 40
    assert len(again.pages) == 2


def test_a_run_that_collapses_goes_back_to_its_best_state_at_a_lower_rate(
    collapse, tmp_path, tasks, monkeypatch
):
    """Its best is the start at first; after the first rollback, step 2 is better."""
    evaluate, seen = HeldOut.evaluate, []

    def scored(self, trainer, step):
        seen.append(step)
        score = {0: 0.5, 2: 0.6 if seen.count(2) == 2 else 0.0}.get(step, 0.0)
        return evaluate(self, trainer, step) | {"held_out/pass@1": score}

    monkeypatch.setattr(HeldOut, "evaluate", scored)
    report = collapse(tmp_path, "rollback", eval_steps=2, num_generations_eval=2, eval_tasks=list(tasks)[:1])
    assert report.status == "collapsed", "after two rollbacks it gives up"
    assert report.rollbacks == 2
    assert report.best == {"step": 2, "score": 0.6}
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["checkpoint-2"]
    assert len(report.pages) == 3
    assert "back to the start with a lower learning rate" in report.pages[0].read_text()
    assert "back to checkpoint-2 with a lower learning rate" in report.pages[1].read_text()
    assert "2 rollbacks were made" in report.pages[2].read_text()
    assert seen.count(0) == 1, "the start is not judged again"

    undone = [
        [row for row in read_metrics(tmp_path / "abandoned" / n / "metrics.jsonl") if "reward" in row]
        for n in "12"
    ]
    left = [row for row in report.history if "reward" in row]
    assert [row["step"] for row in left] == list(range(1, report.steps + 1)), "undone steps are not there"
    assert [rows[0]["step"] for rows in undone] == [1, 3]
    rates = [row["learning_rate"] for row in (undone[0][0], left[0], undone[1][0], left[2])]
    assert rates == pytest.approx([0.1, 0.1 * 0.5, 0.1 * 0.5, 0.1 * 0.25])
    for again, rows in ((left[0], undone[0]), (left[2], undone[1])):
        assert again["unique_tokens_ratio"] > 0.7 * rows[0]["unique_tokens_ratio"], "weights went back, too"
        assert again["unique_tokens_ratio"] > rows[-1]["unique_tokens_ratio"]
    for folder, best in (("1", 0), ("2", 2)):
        held_out = PredictionSet(tmp_path / "abandoned" / folder / "held_out")
        assert min(row.round for row in held_out.iter_predictions()) > best


EVERY_OTHER = {"max_steps": 3, "eval_steps": 2, "num_generations_eval": 1}
ROLLBACK = EVERY_OTHER | {"guard_action": "rollback"}


@pytest.fixture
def scored(monkeypatch):
    """scored({step: [scores]}): held-out evaluations give these, one after another where a step is repeated;
    others: values that they all give."""
    evaluate = HeldOut.evaluate

    def set_scores(scores, **others):
        left = {step: list(values) for step, values in scores.items()}

        def given(self, trainer, step):
            return evaluate(self, trainer, step) | {"held_out/pass@1": left[step].pop(0)} | others

        monkeypatch.setattr(HeldOut, "evaluate", given)

    return set_scores


@pytest.fixture
def alarm_once(monkeypatch):
    """alarm_once(step): the guard has an alarm at that step, the first time that it is made."""
    update = CollapseMonitor.update

    def set_step(at):
        steps = [at]

        def alarmed(self, step, row):
            alarms = update(self, step, row)
            if "reward" in row and step in steps:
                steps.remove(step)
                alarms = [Alarm("kl", step, 2.0, 1.0, "an alarm")]
            return alarms

        monkeypatch.setattr(CollapseMonitor, "update", alarmed)

    return set_step


def test_a_best_whose_step_is_undone_is_not_the_best_any_more(train, scored, alarm_once, tmp_path, tasks):
    """Else what the step becomes when it is made again is kept under a score that it never had."""
    scored({0: [0.3], 2: [0.6, 0.1], 3: [0.0]})
    alarm_once(2)
    report = train(tmp_path, **ROLLBACK, save_steps=2, eval_tasks=list(tasks)[:1])
    assert (report.status, report.rollbacks) == ("done", 1)
    assert report.best == {"step": 0, "score": 0.3}
    (kept,) = (tmp_path / "best").iterdir()
    assert kept.name == "checkpoint-0"
    assert saved_state(kept)["best"] == report.best


def test_a_best_that_was_saved_and_not_kept_when_the_run_was_killed_is_kept_later(
    train, scored, tmp_path, tasks, monkeypatch
):
    scored({0: [0.3], 2: [0.6], 3: [0.1]})
    eval_tasks = list(tasks)[:1]

    def killed(checkpoint, best):
        if checkpoint.name == "checkpoint-2":
            raise RuntimeError("killed")
        return keep_best(checkpoint, best)

    keep_best = callbacks.keep_best
    monkeypatch.setattr(callbacks, "keep_best", killed)
    with pytest.raises(RuntimeError, match="killed"):
        train(tmp_path, **EVERY_OTHER, eval_tasks=eval_tasks)
    monkeypatch.setattr(callbacks, "keep_best", keep_best)
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["checkpoint-0"]
    report = train(tmp_path, **EVERY_OTHER, eval_tasks=eval_tasks)
    assert report.best == {"step": 2, "score": 0.6}
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["checkpoint-2"]


def test_the_page_of_a_held_out_alarm_shows_its_curve(train, scored, tmp_path, tasks):
    scored({0: [0.8], 2: [0.8], 3: [0.1]}, **{"held_out/change_high": -0.6})
    report = train(tmp_path, **EVERY_OTHER, eval_tasks=list(tasks)[:1])
    (page,) = report.pages
    row = page.read_text().split('<td class="fired">held_out</td>')[1].split("</tr>")[0]
    assert '<td class="n">0.8</td><td class="n">0.1</td>' in row
    assert "<polyline" in row


class StopOnce(StopAt):
    """Does not stop the step again when a rollback makes it again."""

    def on_step_begin(self, args, state, control, **kwargs):
        super().on_step_begin(args, state, control, **kwargs)
        if state.global_step == self.step:
            self.step = None


@pytest.mark.parametrize("when", ["in the step", "while it goes back"])
def test_a_run_asked_to_stop_at_a_rollback_stops_there_and_loses_nothing(
    train, scored, alarm_once, tmp_path, tasks, monkeypatch, when
):
    def not_heard(number, frame):
        raise AssertionError("SIGTERM would have ended the process")

    def interrupted(output, step):
        if step == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return set_aside(output, step)

    scored({0: [0.3], 2: [0.0, 0.0], 3: [0.0]})
    alarm_once(2)
    set_aside, stopping = training.set_aside, [StopOnce(1)]
    if when == "while it goes back":
        stopping = []
        monkeypatch.setattr(training, "set_aside", interrupted)
    eval_tasks = list(tasks)[:1]
    before = signal.signal(signal.SIGTERM, not_heard)
    try:
        report = train(tmp_path, **ROLLBACK, eval_tasks=eval_tasks, callbacks=stopping)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (report.status, report.steps, report.rollbacks) == ("preempted", 0, 1)
    back = newest_complete(tmp_path / "checkpoints")
    assert back.name == "checkpoint-0"
    weights = (back / "adapter_model.safetensors").read_bytes()
    assert (report.adapter / "adapter_model.safetensors").read_bytes() == weights, "of undone steps"

    monkeypatch.setattr(training, "set_aside", set_aside)
    further = train(tmp_path, **ROLLBACK, eval_tasks=eval_tasks)
    assert (further.status, further.rollbacks) == ("done", 1)
    rows = [row for row in further.history if "reward" in row]
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[0]["learning_rate"] == pytest.approx(0.5e-2)


def test_held_out_tasks_are_evaluated_by_the_trainers_own_generation(train, tmp_path, tasks):
    held_out = list(tasks)[:2]
    options = {"eval_steps": 2, "num_generations_eval": 3, "eval_tasks": held_out}
    report = train(tmp_path, max_steps=3, **options)
    table = report.held_out_table()
    assert list(table.index) == [0, 2, 3]
    assert {"pass@1", "pass@3", "unique_outputs"} <= set(table.columns)
    assert {"pass@1", "pass@3"} <= report.outcome().keys()
    rows = list(PredictionSet(tmp_path / "held_out").iter_predictions())
    assert len(rows) == 3 * 2 * 3
    assert {row.task_id for row in rows} == {task.task_id for task in held_out}
    assert all(row.n_tokens <= 8 for row in rows)
    assert [path.name for path in (tmp_path / "best").iterdir()] == ["checkpoint-0"], "none was better"
    options |= {"resume": str(tmp_path), "accept_other_settings": True}
    further = train(tmp_path / "further", max_steps=4, **options)
    assert further.best == {"step": 4, "score": 0.0}, "the best of another run is not kept here"
    assert [path.name for path in (tmp_path / "further" / "best").iterdir()] == ["checkpoint-4"]
    alone = train(tmp_path / "alone", max_steps=3)
    with_it = [(row["loss"], row["reward"]) for row in report.history if "reward" in row]
    assert with_it == [(row["loss"], row["reward"]) for row in alone.history if "reward" in row]


def test_metrics_completions_and_notes_are_in_the_run_folder(train, tmp_path, tasks):
    without = [
        type(task)(task.task_id, task.train, tuple(type(p)(p.input, None) for p in task.test))
        for task in tasks
    ]
    report = train(tmp_path, max_steps=2, gradient_accumulation_steps=3, tasks=without)
    assert "3 of 3 tasks have no known test outputs" in report.notes[0]
    step = next(row for row in report.history if "reward" in row)
    for name in (
        "reward_q10",
        "reward_q90",
        "status/no_code",
        "status/timeout",
        "unique_3gram_ratio",
        "entropy",
    ):
        assert name in step, name
    assert sum(value for name, value in step.items() if name.startswith("status/")) == pytest.approx(1)
    import pandas as pd

    tables = sorted((tmp_path / "checkpoints" / "completions").glob("*.parquet"))
    assert len(tables) == 2
    table = pd.read_parquet(tables[0])
    assert len(table) == 3
    assert {"prompt", "completion", "advantage", "prediction", "status", "solved", "cheating"} <= set(table)
    ids = {row.id for row in PredictionSet(tmp_path / "rollouts").iter_predictions()}
    assert set(table["prediction"]) <= ids
    assert (report.config["reason"] == "UNEXPLAINED").sum() == 0
    assert json.dumps(report.outcome())


def test_prompts_without_signal_are_shown_less(train, tmp_path):
    # Without the extra term a random model earns 0 everywhere: every task falls silent after one visit.
    report = train(tmp_path, max_steps=5, rewards_terms={}, signal_visits=1, signal_weight=0.0)
    shares = [row["silent_prompts_ratio"] for row in report.history if "reward" in row]
    assert shares[0] == pytest.approx(1 / 3)
    assert shares[-1] == 1.0


def test_one_round_of_sampling_can_serve_several_steps(train, tmp_path):
    parts = {"gradient_accumulation_steps": 2, "steps_per_generation": 4}
    report = train(tmp_path, max_steps=5, num_generations=4, **parts)
    assert [row["step"] for row in report.history if "loss" in row] == [1, 2, 3, 4, 5]
    rollouts = list(PredictionSet(tmp_path / "rollouts").iter_predictions())
    rounds = [row.round for row in rollouts]
    assert {step: rounds.count(step) for step in rounds} == {0: 8, 2: 8, 4: 8}
    assert len({row.seed for row in rollouts}) == 6, "every group is of a row of its own"


def test_a_run_whose_weights_are_no_numbers_says_so_and_keeps_the_checkpoint_before(train, tmp_path):
    with pytest.raises(ArcnbError, match=r"a trained weight of step 2 is no finite number, .* learning_rate"):
        train(tmp_path, max_steps=3, num_iterations=2, learning_rate=1e30, save_steps=1)
    assert newest_complete(tmp_path / "checkpoints").name == "checkpoint-1"


def test_a_policy_that_overflows_cannot_be_sampled_and_says_so(train, tmp_path):
    with pytest.raises(ArcnbError, match=r"a probability of step 1 is no number, .* learning_rate"):
        train(tmp_path, max_steps=3, learning_rate=1e30)
    assert not (tmp_path / "adapter").exists()


def test_the_best_checkpoint_cannot_be_gone_back_to_without_evaluation(train, tmp_path):
    with pytest.raises(ArcnbError, match="set eval_steps to more than 0"):
        train(tmp_path, guard_action="rollback")
    with pytest.raises(ArcnbError, match="eval_steps=5, but there are no evaluation tasks"):
        train(tmp_path, eval_steps=5)
    assert not Path(tmp_path / "checkpoints").exists()
