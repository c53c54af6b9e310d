"""Completions are shared out at equal total."""

import pytest

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.rl.rewards.function import ProgramReward
from arcnb.rl.rows.shares import LEAST, places, shares


@pytest.mark.parametrize(
    ("rates", "total", "by_hand"),
    [
        ([0.5, 0.5], 8, [4, 4]),
        ([0.5, None], 9, [5, 4]),
        ([0.5, 0.0], 8, [6, 2]),  # all that is spare
        ([0.1, 0.5, 0.9], 16, [5, 6, 5]),  # spare ten as 0.3, 0.5, 0.3
        ([0.0, 1.0], 9, [5, 4]),  # nothing is worth more than anything else
    ],
)
def test_tasks_near_half_get_more_at_equal_total(rates, total, by_hand):
    assert shares(rates, total) == by_hand


def test_places_keep_groups_together():
    assert places([4, 4, 4, 4, 9, 9, 9, 9], {4: 0.02, 9: 0.5}.get) == [4] * 3 + [9] * 5
    with pytest.raises(ValueError, match="3 completions do not give 2 tasks 2 each"):
        shares([0.5, 0.5], 3)


def test_a_run_draws_more_of_what_is_solved_at_times(train, tmp_path, monkeypatch):
    def one_at_times(self, everyone, rewards):
        for row in dict.fromkeys(one.row for one in everyone):
            task_id = next(one.task_id for one in everyone if one.row == row)
            solved = [task_id == "swap2"] * 4 + [False] * 4
            self.history.record(row, task_id, [0, 1], solved)

    monkeypatch.setattr(ProgramReward, "_remember", one_at_times)
    options = {"max_steps": 6, "num_generations": 6, "prompts_per_step": 3, "adaptive_groups": True}
    report = train(tmp_path, **options, shared_prompt=True)
    drawn = {}
    for one in PredictionSet(tmp_path / "rollouts").iter_predictions():
        drawn.setdefault(one.round, []).append(one.task_id)
    sizes = [{task: tasks.count(task) for task in set(tasks)} for _, tasks in sorted(drawn.items())]
    assert all(sum(size.values()) == 18 and min(size.values()) >= LEAST for size in sizes)
    assert set(sizes[0].values()) == {6}
    assert all(size["swap2"] > max(size["swap0"], size["swap1"]) for size in sizes[3:])
    assert report.status == "done"


def test_what_groups_of_several_sizes_cannot_go_with_is_named(said):
    assert said(adaptive_groups=True) == [
        "adaptive_groups=True does not go with one prompt a round (prompts_per_step)"
    ]
    assert said(adaptive_groups=True, prompts_per_step=2, turns=2, tree=1, num_generations=4) == [
        "adaptive_groups=True does not go with tree=1, whose groups have one size"
    ]
