"""Evaluations of the eval tasks beside each other."""

import pandas as pd

from arcnb.rl.watching.evaluations import Evaluations


def of(rates: dict[int, dict[str, int]], samples: int = 8) -> Evaluations:
    """rates: step -> task -> samples that solve it."""
    counts = {
        (step, task): (right, samples) for step, tasks in rates.items() for task, right in tasks.items()
    }
    frame = pd.DataFrame(list(counts.values()), columns=["right", "of"])
    return Evaluations(frame.set_axis(pd.MultiIndex.from_tuples(counts)))


def test_an_evaluation_is_compared_with_the_best_before_it_on_its_own_tasks():
    easy, hard = [f"easy {i}" for i in range(6)], [f"hard {i}" for i in range(6)]
    said = of(
        {
            0: {**dict.fromkeys(easy, 7), **dict.fromkeys(hard, 0)},
            25: dict.fromkeys([*easy, *hard], 5),
            50: dict.fromkeys(easy, 1),
            75: dict.fromkeys([*easy, *hard], 8),
        }
    )
    fall = said.change_from_best(50)  # at 25 more were solved, but not of these tasks
    assert (fall.before, fall.after) == (7 / 8, 1 / 8)
    assert fall.high < 0
    assert said.change_from_best(0) is None


def test_the_fall_of_few_tasks_that_fall_together_is_seen():
    """Rates that differ from task to task hide it from errors of the two means."""
    before = dict(zip("abcdefgh", (8, 8, 7, 7, 2, 1, 1, 1), strict=True))
    after = {task: max(0, right - 4) for task, right in before.items()}
    assert of({0: before, 25: after}).change_from_best(25).high < 0
