"""Notebooks 03 and 06 with turns, as a user goes: sample, refine the same first turns, compare the arms.

(about forty seconds)
"""

import pytest

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task import Task
from arcnb.arc.tasks.task_set import write_tasks
from tests.road.test_road import done, outcome

pytestmark = pytest.mark.slow


@pytest.mark.long("whole notebooks, each in a kernel of its own")
def test_sampled_refined_and_compared(tmp_path, small_model):
    train = [{"input": [[1, 2]], "output": [[2, 1]]}, {"input": [[3, 4, 5]], "output": [[5, 4, 3]]}]
    tasks = [
        Task.from_dict(f"mirror{n}", {"train": train, "test": [{"input": [[n, 7]], "output": [[7, n]]}]})
        for n in range(2)
    ]
    path = write_tasks(tasks, tmp_path / "tasks.parquet")
    sizes = {"n_predictions": 4, "per_prompt": 2, "max_completion_length": 12, "max_length": 1500}
    model = {"tasks": path, "model": small_model.path, "adapter": "", "backend": "transformers"}
    sampled = done(tmp_path, "03", **model, **sizes) / "predictions"
    run = done(tmp_path, "03", **model, **sizes, turns=2, refine_from=sampled)
    refined = list(PredictionSet(run / "predictions").iter_predictions())
    assert len(refined) == 4
    assert {row.turn for row in refined} == {1}
    first = {row.id for row in PredictionSet(sampled).iter_predictions() if row.round == 0}
    assert {row.parent for row in refined} <= first
    assert outcome(run)["turns"][0]["made"] == 4
    assert (run / "trees-none.html").stat().st_size > 500

    arms = f"sampled = {sampled}; refined = {sampled}[:2] + {run / 'predictions'}"
    table = done(tmp_path, "06", tasks=path, compare=arms, first=2, budget=4)
    compared = outcome(table)["fair_comparison"]
    assert [one["budget"] for one in compared] == ["completions", "tokens"]
    assert {one["verdict"] for one in compared} == {"not shown (1 of at least 3 seeds)"}
