"""The table of unsolved tasks by cause (bench/experiments/unsolved.py), on tasks whose causes are known."""

import importlib
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.scores.similarity import score
from arcnb.arc.tasks.task import Pair, Task
from arcnb.arc.tasks.task_set import TaskSet, write_tasks
from arcnb.errors import ArcnbError

FOLDER = Path(__file__).parents[3] / "bench" / "experiments"
SHORT = "from rearc_dsl import *\n\ndef transform(grid):\n    return vmirror(as_tuples(grid))\n"
LONG = SHORT.replace("as_tuples(grid)", "vmirror(" * 90 + "as_tuples(grid)" + ")" * 90)
RARE = "0d3d703e"  # two programs of trainable tasks use its `switch`


def grid(changed: int, side: int) -> np.ndarray:
    """A square whose last cells are 9."""
    cells = np.arange(side * side, dtype=np.uint8) % 7
    cells[cells.size - changed :] = 9
    return cells.reshape(side, side)


def task(name, program=SHORT, side=2, changed=1, n_train=2):
    """Outputs are the inputs with their last cells changed to 9. The first i cells of pair i have color 8."""
    pairs = []
    for number in range(n_train + 1):
        before, after = grid(0, side), grid(changed, side)
        before.flat[:number] = after.flat[:number] = 8
        pairs.append(Pair(before, after))
    return Task(name, tuple(pairs[:-1]), (pairs[-1],), program=program)


def right(one):
    return [pair.output for pair in (*one.train, *one.test)]


def partly(one, n_right) -> list:
    """So many pairs right, the others all zeros but for a cell."""
    return [
        output if i < n_right else np.eye(len(output), dtype=np.uint8) for i, output in enumerate(right(one))
    ]


TASKS = [
    task("solved"),
    task("fails"),
    task("small"),
    task("half"),
    task("third", n_train=3),
    task("cells", side=10, changed=10),
    task("copied", side=10, changed=1),
    task(RARE, program=None),
    task("long", LONG),
    task("plain", program=None),
    task("absent"),
    task("large", side=30),
]
SOLVED, _, SMALL, HALF, THIRD, CELLS, COPIED, *OTHERS = TASKS
FIXED = [right(COPIED)[0]] * 3  # a train pair is right, by one grid for all
WORSE = [np.where(np.arange(100).reshape(10, 10) == 50, 3, one) for one in COPIED.inputs]  # than a copy
NEARLY = [np.where(abs(np.arange(100).reshape(10, 10) - 7) < 3, 3, output) for output in right(CELLS)]
OUTPUTS = {
    "solved": [right(SOLVED), None, partly(SOLVED, 1), SOLVED.inputs],
    "fails": [None, None],
    "small": [[output[:1] for output in right(SMALL)]],
    "half": [partly(HALF, 1), partly(HALF, 0), None, None],
    "third": [partly(THIRD, 1)],
    "cells": [NEARLY],
    "copied": [COPIED.inputs, FIXED, WORSE, None],
    **{one.task_id: [partly(one, 0), None] for one in OTHERS[:3]},
}


def written(tasks, folder) -> list[str]:
    """Paths of the tasks and of their samples."""
    write_tasks(TaskSet("known", tuple(tasks)), folder / "tasks.parquet")
    rows = []
    for one in tasks:
        for index, outputs in enumerate(OUTPUTS.get(one.task_id, ())):
            row = Prediction(one.task_id, one.fingerprint, 0, index, status="ok" if outputs else "error")
            row.outputs = outputs and [np.asarray(output, np.uint8) for output in outputs]
            for name, value in score(row.outputs, one).items():
                setattr(row, name, value)
            rows.append(row)
    PredictionSet(folder / "predictions").write_part(rows, round=0)
    return [str(folder / "tasks.parquet"), str(folder / "predictions")]


@pytest.fixture
def unsolved(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module("unsolved")


def test_each_unsolved_task_has_the_first_cause_that_holds(unsolved, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["unsolved.py", *written(TASKS, tmp_path)])
    unsolved.main()
    said = capsys.readouterr().out
    assert said.startswith("1 of 12 tasks are solved by a sample")
    rows = [[cell.strip() for cell in line[1:].split("|")] for line in said.splitlines()]
    rows = {first: rest for first, *rest in rows}
    causes = {
        "solved": "solved",
        "fails": "no sample runs",
        "small": "never the right shapes",
        "half": "search: half of the train pairs right",
        "third": "search: a train pair right",
        "cells": "search: 95% of cells right",
        "copied": "unclear",
        RARE: "a rare primitive",
        "long": "a long program",
        "plain": "unclear, without a gold program",
        "absent": "not sampled",
        "large": "not sampled: a longer prompt than any that was",
    }
    assert {name: rows[name][0] for name in causes} == causes
    assert [rows[cause][0] for cause in unsolved.CAUSES] == ["1"] * len(unsolved.CAUSES)
    _, of_unsolved, of_solved, _ = rows["search: a train pair right"]
    assert of_unsolved.startswith("2 of 11 (18%")
    assert of_solved.startswith("1 of 1 (100%"), "by a sample that does not solve it"
    assert rows["solved"][1].startswith("1 of 4 (25%, 95% interval 4.6 to 70%)")
    assert rows["solved"][5:] == ["50%", "33%", "75%", "75%", "75%", "25%", ""]
    assert rows["cells"][5:] == ["0%", "95%", "90%", "100%", "100%", "0%", ""]
    assert rows["copied"][5:] == ["0%", "98%", "99%", "75%", "75%", "50%", ""]
    assert [rows[name][3] for name in (RARE, "long", "plain")] == ["switch", "", ""]
    assert rows["plain"][2] == "", "tokens of no program"
    # of nine unsolved tasks with samples two have larger grids than the solved one, seven as large
    unsolved_median, solved_median, larger, *_ = rows["cells of the largest grid"]
    assert (unsolved_median, solved_median) == ("4 (9)", "4 (1)")
    assert larger.startswith(f"{(2 + 7 / 2) / 9:.2f} (")


def test_a_measure_is_compared_by_pairs_of_tasks(unsolved):
    _, *medians, chance, smallest, p = unsolved.compared("grid", np.arange(65.0), np.arange(15.0))
    assert medians == ["32 (65)", "7 (15)"]
    assert chance.startswith(f"{(50 * 15 + 14 * 15 / 2 + 15 / 2) / (65 * 15):.2f} (0.8")
    assert smallest == f"{(1.96 + 0.84) * math.sqrt(81 / (12 * 65 * 15)):.2f}" == "0.23"
    assert p < 1e-4


def test_samples_of_other_versions_and_tasks_without_outputs_are_refused(unsolved, tmp_path, monkeypatch):
    def run(tasks, of):
        monkeypatch.setattr(sys, "argv", ["unsolved.py", tasks, of])
        unsolved.main()

    tasks, predictions = written([SOLVED], tmp_path)
    written([SMALL], tmp_path / "other")
    with pytest.raises(ArcnbError, match="no first turns of the tasks of"):
        run(tasks, str(tmp_path / "other" / "predictions"))
    Path(tasks).unlink()
    write_tasks(TaskSet("changed", (replace(SOLVED, train=SOLVED.train[:1]),)), tasks)
    with pytest.raises(ArcnbError, match="samples are of other versions of solved"):
        run(tasks, predictions)
    unknown = replace(SOLVED, test=(Pair(SOLVED.test[0].input),))
    with pytest.raises(ArcnbError, match="test outputs are missing"):
        run(*written([unknown], tmp_path / "unknown"))
