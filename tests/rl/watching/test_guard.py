"""The collapse guard on synthetic streams of metrics, and its page."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from arcnb.arc.predictions.prediction import Prediction
from arcnb.errors import ArcnbError
from arcnb.rl.plan.grpo import GrpoPlan
from arcnb.rl.plan.guard import GuardOptions, Thresholds
from arcnb.rl.resuming.run_folder import set_aside
from arcnb.rl.resuming.run_state import RunState
from arcnb.rl.rewards.metrics import batch_metrics
from arcnb.rl.rewards.rollout import Rollout, Scores
from arcnb.rl.rows.history import SignalHistory
from arcnb.rl.watching.diagnosis import sparkline, write_diagnosis
from arcnb.rl.watching.guard import CollapseMonitor

WINDOW = 10
HEALTHY = {
    "truncated_completions_ratio": 0.1,
    "unique_3gram_ratio": 0.8,
    "unique_tokens_ratio": 0.4,
    "unique_wrong_outputs": 0.8,
    "kl": 0.02,
    "sampling/logp_gap": 0.015,
    "sampling/importance_sampling_ratio/mean": 1.0,
    "reward": 3.0,
}


def stream(n, seed=0, **changes):
    """n noisy healthy rows; changes: name -> function of the step that gives its mean instead."""
    random = np.random.default_rng(seed)
    for step in range(1, n + 1):
        row = {}
        for name, value in HEALTHY.items():
            mean = changes[name](step) if name in changes else value
            noise = 0.8 if name == "reward" else 0.1 * value
            row[name] = mean + noise * random.standard_normal()
        yield step, row


def alarms_of(rows, options=GuardOptions(window=WINDOW)):
    monitor = CollapseMonitor(options)
    return [alarm for step, row in rows for alarm in monitor.update(step, row)], monitor


@pytest.mark.parametrize("seed", range(20))
def test_a_healthy_run_raises_no_alarm(seed):
    assert alarms_of(stream(400, seed))[0] == []


def test_a_run_that_learns_raises_no_alarm():
    learning = stream(400, reward=lambda step: 2 + step / 80, kl=lambda step: step / 5000)
    assert alarms_of(learning)[0] == []


def solving(share_solved, kinds_of_wrong, n=60):
    """n steps as their metrics show them, each of 16 groups of 8. share_solved, kinds_of_wrong: functions of
    the step; a wrong completion gives one of so many outputs, and 3 in 10 give none."""
    random = np.random.default_rng(0)
    scores = Scores(True, True, 1.0, 1.0, 1.0, 1.0, 3, 1)
    for step in range(1, n + 1):
        chance = np.repeat(random.beta(5 * share_solved(step), 5 * (1 - share_solved(step)), 16), 8)
        solved = random.random(128) < chance
        wrong = [f"wrong {kind}" for kind in random.integers(kinds_of_wrong(step), size=128)]
        without = random.random(128) < 0.3
        outputs = ["right" if solved[i] else None if without[i] else wrong[i] for i in range(128)]
        verdicts = [("ok", output) for output in outputs]
        rollouts = [Rollout(scores, [1, 2, 3, 4], bool(is_right), None) for is_right in solved]
        rewards = [float(is_right) for is_right in solved]
        yield step, batch_metrics(verdicts, rollouts, rewards, np.repeat(range(16), 8).tolist())


def test_a_run_that_comes_to_solve_its_tasks_raises_no_alarm():
    """Right completions of a group have the same outputs, and more and more are right."""
    rows = list(solving(lambda step: min(0.95, 0.3 + step / 60), lambda step: 5))
    assert rows[-1][1]["unique_outputs"] < 0.5 * rows[0][1]["unique_outputs"]
    assert rows[-1][1]["solved_tasks_ratio"] > 0.9
    assert alarms_of(rows)[0] == []


@pytest.mark.parametrize("learns", [True, False])
def test_a_run_whose_wrong_programs_become_one_is_seen_whether_more_are_right_or_fewer(learns):
    rows = solving(
        lambda step: min(0.5, 0.3 + step / 200) if learns else max(0.02, 0.3 - step / 100),
        lambda step: 20 if step < 30 else 1,
    )
    assert [alarm.signal for alarm in alarms_of(rows)[0]] == ["unique_outputs"]


def after(step_of_change, before, then):
    return lambda step: before if step < step_of_change else then


COLLAPSES = {
    "truncation": {"truncated_completions_ratio": after(100, 0.1, 0.95)},
    "repetition": {"unique_3gram_ratio": after(100, 0.8, 0.1)},
    "unique_tokens": {"unique_tokens_ratio": after(100, 0.4, 0.05)},
    "unique_outputs": {"unique_wrong_outputs": after(100, 0.8, 0.2)},
    "kl": {"kl": after(100, 0.02, 5.0)},
    "gap": {"sampling/logp_gap": after(100, 0.015, 0.4)},
    "ratio": {"sampling/importance_sampling_ratio/mean": after(100, 1.0, 0.2)},
    "reward": {"reward": after(100, 3.0, 0.2)},
}


@pytest.mark.parametrize("signal", COLLAPSES)
def test_each_signal_is_seen_within_a_window(signal):
    alarms, monitor = alarms_of(stream(130, **COLLAPSES[signal]))
    assert [alarm.signal for alarm in alarms] == [signal], "once, however long it lasts"
    assert 100 <= alarms[0].step <= 100 + WINDOW
    assert monitor.crossed == {signal: alarms[0].step}


RECORDED = json.loads((Path(__file__).parent / "collapsed_runs.json").read_text())["runs"]


@pytest.mark.parametrize("name", RECORDED)
def test_recorded_collapses_are_seen_by_their_outputs(name):
    """Real runs that settled on short programs: nothing truncated, nothing repeated, no fall of reward. They
    were recorded before outputs of wrong completions were counted alone; few of theirs are right."""
    columns = dict(RECORDED[name])
    columns["unique_wrong_outputs"] = columns.pop("unique_outputs")
    rows = enumerate(
        (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)), 1
    )
    seen = {alarm.signal for alarm in alarms_of(rows)[0]}
    if name in ("a-s0", "e-s0"):  # outputs stayed diverse enough: only held-out evaluation shows these
        assert seen == set()
    else:
        assert seen == {"unique_outputs"}


def evaluations(*rates, half_width=0.02):
    """Rows of evaluations, whose changes from the best before are known so well."""
    rows = [{"held_out/pass@1": rates[0]}]
    for i, rate in enumerate(rates[1:], 1):
        change = rate - max(rates[:i])
        rows.append({"held_out/pass@1": rate, "held_out/change_high": change + half_width})
    return [(25 * i, row) for i, row in enumerate(rows)]


def test_a_held_out_rate_that_falls_by_no_chance_is_an_alarm():
    alarms, monitor = alarms_of(evaluations(0.08, 0.10, 0.078, 0.03, 0.02))
    assert [(alarm.signal, alarm.step) for alarm in alarms] == [("held_out", 75)], "once"
    assert monitor.best["held_out"] == (0.10, 0.0)
    assert alarms_of(evaluations(0.10, 0.076, 0.09))[0] == [], "not yet three quarters"
    assert alarms_of(evaluations(0.02, 0.005))[0] == [], "half, but it may be chance"
    unknown = {"held_out/pass@1": 0.0}
    assert alarms_of([*evaluations(1.0), (25, unknown)])[0] == [], "nothing to compare it with"


def test_a_restored_state_replaces_what_was_there():
    _, before = alarms_of(list(stream(WINDOW // 2)))
    state = json.loads(json.dumps(before.as_dict()))
    _, other = alarms_of(list(stream(WINDOW, seed=1)))
    other.restore(state)
    assert other.as_dict() == before.as_dict()


@pytest.mark.parametrize("signal", ["truncation", "repetition", "unique_tokens", "unique_outputs"])
def test_relative_signals_live_on_after_a_rollback_before_the_first_window(signal):
    """Windows begin anew there, and the first full one is what the run is compared with."""
    rows = list(stream(130, **COLLAPSES[signal]))
    _, monitor = alarms_of(rows[: WINDOW // 2])
    monitor.forget()
    alarms = [alarm for step, row in rows[WINDOW // 2 :] for alarm in monitor.update(step, row)]
    assert [alarm.signal for alarm in alarms] == [signal]


def test_relative_signals_live_on_after_a_resume_with_a_smaller_window():
    rows = list(stream(130, **COLLAPSES["repetition"]))
    _, before = alarms_of(rows[: WINDOW - 1])
    smaller = CollapseMonitor(GuardOptions(window=WINDOW // 2))
    smaller.restore(json.loads(json.dumps(before.as_dict())))
    alarms = [alarm for step, row in rows[WINDOW - 1 :] for alarm in smaller.update(step, row)]
    assert [alarm.signal for alarm in alarms] == ["repetition"]


def test_a_ratio_above_two_is_an_alarm_as_well():
    rows = stream(40, **{"sampling/importance_sampling_ratio/mean": lambda step: 3.0})
    assert alarms_of(rows)[0][0].limit == 2.0


@pytest.mark.parametrize(
    ("token", "weight"), [(0.97, 0.001), (0.97, 0.0), (5.0, 2.0), (math.nan, 1.0), (0.97, math.nan)]
)
def test_the_ratio_is_watched_by_token_and_as_the_loss_uses_it(token, weight):
    """A sequence's ratio may be next to 0 where a token's is not; weights never exceed their cap."""
    names = ("sampling/importance_ratio", "sampling/importance_sampling_ratio/mean")
    rows = [(step, dict(zip(names, (token, weight), strict=True))) for step in range(1, WINDOW + 1)]
    assert [alarm.signal for alarm in alarms_of(rows)[0]] == ["ratio"]
    assert alarms_of([(step, row | dict.fromkeys(names, 0.99)) for step, row in rows])[0] == []


def test_a_step_whose_completions_are_all_masked_says_nothing_of_the_ratio():
    """TRL then logs 0 as the mean of no weights, and no ratio by token is measured."""
    token, weight = "sampling/importance_ratio", "sampling/importance_sampling_ratio/mean"
    masked = [(step, {weight: 0.0}) for step in range(1, 3 * WINDOW)]
    assert alarms_of(masked)[0] == []
    between = [(step, {weight: 0.0} if step % 3 else {token: 1.0, weight: 1.0}) for step in range(1, 100)]
    assert alarms_of(between)[0] == []


def test_a_run_that_starts_truncated_and_repetitive_is_measured_against_itself():
    start = {
        "truncated_completions_ratio": lambda step: 0.9,
        "unique_3gram_ratio": lambda step: 0.2,
        "unique_tokens_ratio": lambda step: 0.1,
    }
    assert alarms_of(stream(200, **start))[0] == []


def test_a_signal_that_recovers_can_alarm_again():
    spike = {"kl": lambda step: 5.0 if 50 <= step < 70 or step >= 120 else 0.02}
    assert [alarm.signal for alarm in alarms_of(stream(150, **spike))[0]] == ["kl", "kl"]


def test_a_value_that_is_no_number_is_an_alarm():
    rows = stream(60, kl=after(30, 0.02, math.nan))
    assert [alarm.sentence for alarm in alarms_of(rows)[0]] == ["kl is no number"]


def test_state_survives_a_checkpoint():
    rows = list(stream(130, **COLLAPSES["repetition"])) + evaluations(0.2, 0.01)
    _, before = alarms_of(rows[:60])
    after_resume = CollapseMonitor(GuardOptions(window=WINDOW))
    after_resume.restore(json.loads(json.dumps(before.as_dict())))
    alarms = [alarm for step, row in rows[60:] for alarm in after_resume.update(step, row)]
    assert alarms == alarms_of(rows)[0]


def test_a_checkpoint_keeps_windows_best_and_which_prompts_are_silent(tmp_path):
    def state():
        return RunState(tmp_path, {}, SignalHistory(visits=1), CollapseMonitor(GuardOptions(window=WINDOW)))

    before, resumed = state(), state()
    for step, row in [*stream(WINDOW + 3), *evaluations(0.2)]:
        before.monitor.update(step, row)
    before.history.record(0, "flat", [0.0, 0.0], [False, False])
    before.best, before.notes = {"step": 4, "score": 0.2}, ["a note"]
    resumed.restore(json.loads(json.dumps(before.as_dict())))
    assert resumed.as_dict() == before.as_dict()
    assert resumed.history.silent(1) == {"flat"}
    assert resumed.monitor.best["held_out"] == (0.2, 0.0)


@pytest.mark.parametrize(("action", "alarms"), [("stop", 1), ("rollback", 1), ("warn", 0)])
def test_a_run_that_the_guard_stopped_is_watched_afresh_when_it_is_run_again(tmp_path, action, alarms):
    """A warning is given once; a run that was stopped is stopped again, unless the collapse has gone."""
    rows = list(stream(130, **COLLAPSES["kl"]))

    def state():
        options = GuardOptions(action=action, window=WINDOW)
        return RunState(tmp_path, {}, SignalHistory(), CollapseMonitor(options))

    stopped, resumed, healed = state(), state(), state()
    at = next(i for i, (step, row) in enumerate(rows) if stopped.monitor.update(step, row)) + 1
    kept = json.loads(json.dumps(stopped.as_dict()))
    resumed.restore(kept)
    again = [alarm for step, row in rows[at : at + WINDOW] for alarm in resumed.monitor.update(step, row)]
    assert [alarm.signal for alarm in again] == ["kl"] * alarms
    healed.restore(kept)
    assert [alarm for step, row in rows[:50] for alarm in healed.monitor.update(step, row)] == []


def test_thresholds_are_changed_by_name():
    assert GrpoPlan.of().guard.thresholds == Thresholds()
    given = {"guard_thresholds_kl": 0.3, "more": {"guard": {"thresholds": {"held_out": 0.7}}}}
    assert GrpoPlan.of(given).guard.thresholds == Thresholds(kl=0.3, held_out=0.7)
    with pytest.raises(ArcnbError, match=r"no parameter 'guard\.thresholds\.klx'; did you mean 'guard"):
        GrpoPlan.of({"more": {"guard": {"thresholds": {"klx": 1}}}})
    with pytest.raises(ArcnbError, match=r"'guard_thresholds_kl' must be float \(default 1.0\), got 'high'"):
        GrpoPlan.of({"guard_thresholds_kl": "high"})


def test_the_page_says_what_came_first_and_shows_completions(tmp_path):
    collapse = {"unique_3gram_ratio": after(60, 0.8, 0.1), "kl": after(80, 0.02, 5.0)}
    rows = list(stream(95, **collapse))
    alarms, monitor = alarms_of(rows)
    latest = [
        (Prediction("t", "f", 0, 0, completion="<b>short</b>", n_tokens=5, status="ok"), 3.0),
        (
            Prediction(
                "t", "f", 0, 1, completion="x x x", n_tokens=9, finish_reason="length", status="error"
            ),
            0.0,
        ),
    ]
    history = [row | {"step": step} for step, row in rows]
    path = tmp_path / "a" / "page.html"
    write_diagnosis(path, alarms[-1:], monitor, history, latest, "stopped", {"beta": 0.01})
    page = path.read_text()
    assert page.index("repetition (step") < page.index("kl (step")
    for text in ("&lt;b&gt;short&lt;/b&gt;", "x x x", "<b>stopped</b>"):
        assert text in page
    assert page.count("<polyline") == len(HEALTHY)
    assert "beta" in page


def test_a_sparkline_leaves_out_what_is_no_number():
    assert sparkline([1.0, math.nan, 3.0]).count(",") == 2
    assert sparkline([math.nan, 1.0]) == ""


def test_no_page_is_written_over_and_a_resumed_run_knows_those_before(tmp_path):
    def state():
        return RunState(tmp_path, {}, SignalHistory(), CollapseMonitor())

    one = state()
    for expected in ("collapse-step000012.html", "collapse-step000012-2.html", "collapse-step000012-3.html"):
        page = one.new_page(12)
        assert page.name == expected
        page.write_text("")
        one.pages.append(page)
    resumed = state()
    resumed.find_pages()
    assert resumed.pages == one.pages
    assert resumed.new_page(12).name == "collapse-step000012-4.html"
    aside = set_aside(tmp_path, 12)
    assert aside is None, "a resumed run keeps them"
    assert len(list(set_aside(tmp_path, -1).glob("*.html"))) == 3, "one that starts anew does not"
