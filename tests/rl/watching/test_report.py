"""What a run tells of itself: report and example rollouts."""

import re
import shutil

import pandas as pd

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.rl.watching.report import TrainingReport, example_rollouts


def test_the_best_and_the_first_truncated_completion_are_shown(tasks, tmp_path):
    task = tasks[0]
    rows = [
        Prediction(
            task.task_id,
            task.fingerprint,
            0,
            0,
            completion="<x>" * 3000,
            status="error",
            finish_reason="length",
        ),
        Prediction(
            task.task_id,
            task.fingerprint,
            1,
            0,
            completion="def transform(grid): ...",
            status="ok",
            outputs=[pair.input for pair in (*task.train, *task.test)],
            train_correct_grids=0.5,
            train_is_correct=0,
            test_is_correct=0,
            test_correct_grids=0.0,
            finish_reason="stop",
        ),
    ]
    rollouts = PredictionSet(tmp_path / "rollouts")
    rollouts.write_part(rows, round=0)
    shown = example_rollouts(rollouts, tasks)
    assert [name for name, _ in shown.chosen] == ["best", "first truncated"]
    page = shown._repr_html_()
    for text in ("<svg", "&lt;x&gt;", "more characters"):
        assert text in page
    assert example_rollouts(PredictionSet(tmp_path / "none"), tasks)._repr_html_() == ""


def test_a_report_has_tables_of_whatever_was_logged(tmp_path):
    empty = TrainingReport(tmp_path, 0, 0.0, [], status="preempted")
    assert empty.table().empty
    assert empty.held_out_table().empty
    assert empty.outcome()["training"] == "preempted"
    rows = [{"step": 0, "held_out/pass@1": 0.0}, {"step": 1, "reward": 2.0, "loss": 0.1}]
    rows.append({"step": 1, "held_out/pass@1": 0.5, "held_out/turns/solved_by_2": 0.5})
    report = TrainingReport(tmp_path, 1, 1.0, rows)
    assert report.table()["reward"].tolist() == [2.0]
    assert report.held_out_table()["turns/solved_by_2"].tolist()[1:] == [0.5]
    solved, _, turns = report.held_out_groups().values()
    assert (solved, turns) == (["held_out/pass@1"], ["held_out/turns/solved_by_2"])


def test_a_report_says_when_nothing_was_learnt_and_where_reward_went(tmp_path):
    def headline(without, rewards, moved=True, steps=None, more=0):
        rows = [
            {"step": n, "loss": 0.0, "reward": reward, "groups_without_spread": share}
            for n, (share, reward) in enumerate(zip(without, rewards, strict=True))
        ]
        rows += [{"step": n, "loss": 0.0} for n in range(more)]
        return TrainingReport(tmp_path, steps or len(rows), 1.0, rows, adapter_moved=moved).headline

    silent = headline([1.0] * 4, [10, 0, 0, 0], moved=False)
    assert silent == "no group differed in 4 of 4 steps; the adapter is unchanged"
    assert headline([1.0] * 4, [10, 0, 0, 0]) == "no group differed in 4 of 4 steps"
    assert headline([1.0] * 3, [0] * 3, steps=12, more=9) == "no group differed in 3 of 3 rounds of samples"
    assert headline([1.0] * 3, [0] * 3, steps=12) == "no group differed in 3 of 3 logged means of steps"
    assert headline([0.5] * 4, [1, 2, 3, 4], moved=False).endswith("; the adapter is unchanged")
    learnt = headline([0.0, 1.0, 0.5, 0.0] * 2, [1, 2, 3, 4, 5, 6, 7, 8])
    assert learnt.startswith(
        "reward 1.50 in the first quarter of the steps, 7.50 in the last; groups differed in 6 of 8"
    )
    assert headline([], [], moved=False) == "the adapter is unchanged"


def test_sentences_say_where_held_out_samples_went_and_whether_that_is_more_than_chance(tmp_path):
    def sentences(*solved, error=0.05, best=None):
        """solved: of each evaluation, every four steps, the samples of four that solve each of its tasks."""
        shutil.rmtree(tmp_path / "held_out", ignore_errors=True)
        rows = [{"step": 1, "reward": 2.0, "groups_without_spread": 0.0}]
        for step, counts in zip(range(0, 4 * len(solved), 4), solved, strict=True):
            rate = sum(counts) / 4 / len(counts)
            rows.append({"step": step, "held_out/pass@1": rate, "held_out/pass@1_error": error})
            samples = [
                Prediction(f"task{place}", "", step, index, train_is_correct=int(index < right))
                for place, right in enumerate(counts)
                for index in range(4)
            ]
            PredictionSet(tmp_path / "held_out").write_part(samples, step)
        found = None if best is None else {"step": best, "score": 0.9}
        return TrainingReport(tmp_path / "adapter", 1, 1.0, rows, best=found).sentences

    start = (
        "Reward 2.00 in the first quarter of the steps, 2.00 in the last; groups differed in 1 of 1 steps."
    )
    assert sentences() == f"{start} No eval tasks were sampled while it trained."
    assert sentences([1, 0]) == (
        f"{start} Of the samples for eval tasks 12% (95% interval 2.7 to 22%) after 0 steps solve their task."
    )
    # Tasks apart as far as can be: what one of them gains is plain beside itself, not beside the others.
    up = sentences([0] * 8 + [3] * 8, [1] * 8 + [4] * 8, error=0.1)
    assert "38% (95% interval 18 to 57%) after 0 steps, 62% (95% interval 43 to 82%) after 4 steps" in up
    assert re.search(r"solve their task: \+25 points \(95% interval \+\d+ to \+\d+\)\.$", up)
    level = sentences([0, 4] * 4, [4, 0] * 4)
    assert re.search(r"task: no change is shown, 0 points \(95% interval -\d+ to \+\d+\)\.$", level)
    assert "no change is shown" in sentences([0], [4]), "one task says nothing about others"

    before, best, last = [0] * 8, [3] * 8, [1] * 8
    fell = sentences(before, best, last, best=4)
    assert re.search(
        r"Best of 3 was that after 4 steps, kept in best/; from it to the last -50 points \(95% .*\)\.$", fell
    )
    assert sentences(before, [2] * 8, [3, 0] * 4, best=4).endswith("the last is not shown to be worse.")
    assert "Best of" not in sentences(before, best, best=4)
    assert "Best of" not in sentences(before, last, last, best=4), "the last is as good"
    assert "Best of" not in sentences(best, last, best=-4), "it is of the run that this one goes on from"


def test_tokens_of_an_outcome_are_those_of_all_completions(tmp_path):
    for name, tokens in (("rollouts", 3), ("guided", 4)):
        PredictionSet(tmp_path / name).write_part([Prediction("t", "", 0, 0, n_tokens=tokens)], 0)
    assert TrainingReport(tmp_path / "adapter", 1, 1.0, []).outcome()["tokens"] == 7


def test_only_settings_other_than_asked_are_shown(tmp_path):
    columns = {"setting": ["a", "b"], "asked": ["1", "x"], "effective": ["1", "y"], "reason": ["", "why"]}
    report = TrainingReport(tmp_path, 1, 1.0, [], config=pd.DataFrame(columns))
    assert report.changed_settings().T.to_dict() == {"b": {"asked": "x", "effective": "y", "reason": "why"}}
    report.config = report.config.head(1)
    assert report.changed_settings() is None
