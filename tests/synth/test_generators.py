"""A contract that every task generator keeps."""

import ast
import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from arcnb.arc.seeds import rng
from arcnb.programs.checks import static_checks
from arcnb.programs.libraries import dsl
from arcnb.synth import inputs
from arcnb.synth.rules import compiled, rule_task
from arcnb.synth.sources import GENERATORS
from arcnb.synth.splits import HELD_OUT_FAMILIES

N = 4


@pytest.fixture(scope="module", params=sorted(GENERATORS))
def tasks(request):
    return [rule_task(request.param, seed=11, index=index) for index in range(N)]


def test_tasks_are_worth_showing(tasks):
    for task in tasks:
        pairs = [*task.train, *task.test]
        assert 2 <= len(task.train) <= 10
        assert len({pair.input.tobytes() + bytes(pair.input.shape) for pair in pairs}) == len(pairs)
        assert all(not np.array_equal(pair.input, pair.output) for pair in pairs)
        assert any(not np.array_equal(pair.output, pairs[0].output) for pair in pairs)


def test_programs_have_no_hints_and_use_known_names(tasks):
    for task in tasks:
        assert static_checks(task.program) == []
        assert task.program.startswith("from dsl import *\n")


def test_a_task_is_a_function_of_seed_and_index(tasks):
    again = rule_task(tasks[1].meta["generator"], 11, 1)
    assert again.fingerprint == tasks[1].fingerprint
    assert again.program == tasks[1].program
    other = rule_task(tasks[1].meta["generator"], 12, 1)
    assert other.fingerprint != tasks[1].fingerprint


def test_the_program_alone_makes_the_outputs(tasks):
    transform = compiled(tasks[0].program)
    for pair in tasks[0].train:
        assert np.array_equal(transform(pair.input.astype(np.int64)), pair.output)


def test_there_are_enough_generators_of_every_family():
    families = {generator.family for generator in GENERATORS.values()}
    assert len(GENERATORS) >= 60
    assert len(families) >= 12
    assert set(HELD_OUT_FAMILIES) < families


def test_generators_between_them_use_the_whole_dsl():
    text = "".join(rule_task(name, 0, index).program for name in GENERATORS for index in range(6))
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    assert set(dsl.__all__) - used <= {"DslError", "Object", "draw_pixel"}


def test_composed_programs_have_one_to_four_steps_and_vary():
    programs = {rule_task("composed", 0, index).program for index in range(60)}
    assert len(programs) > 50
    assert len({program.count("\n") for program in programs}) >= 4


def test_generators_repeat_under_another_hash_seed():
    code = (
        "import json\n"
        "from arcnb.synth.sources import GENERATORS, rule_task\n"
        "print(json.dumps([rule_task(name, 5, 3).fingerprint for name in sorted(GENERATORS)]))\n"
    )
    environment = os.environ | {"PYTHONHASHSEED": "77"}
    other = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert json.loads(other.stdout) == [rule_task(name, 5, 3).fingerprint for name in sorted(GENERATORS)]


# --------------------------------------------------------------------------- inputs


def test_objects_of_a_scene_do_not_touch():
    for seed in range(20):
        grid = inputs.objects(rng(seed), (3, 6), palette=[1], side=4, low=12, high=16)
        found = dsl.find_objects(grid, diagonal=True)
        boxes = dsl.find_objects(grid, diagonal=True, single_color=False)
        assert len(found) == len(boxes)


def test_blobs_are_connected_and_fill_their_box():
    for seed in range(50):
        mask = inputs.blob(rng(seed), 2, 6)
        assert len(dsl.find_objects(mask)) == 1
        assert dsl.crop_to_content(mask).shape == mask.shape


def test_symmetric_sprites_and_grids_are_symmetric():
    for seed in range(20):
        assert dsl.is_symmetric_horizontal(inputs.symmetric_sprite(rng(seed), 5, [1, 2]))
        grid = inputs.symmetric(rng(seed))
        assert dsl.is_symmetric_horizontal(grid)
        assert dsl.is_symmetric_vertical(grid)


def test_patterns_repeat_and_partitions_split():
    grid = inputs.pattern(rng(0), [1, 2, 3], 9, 12)
    assert np.array_equal(dsl.complete_tiling(inputs.hide(rng(1), grid, 9, 3), 9), grid)
    parts = [[np.full((2, 3), 1), np.full((2, 3), 2)]]
    split = dsl.split_grid(inputs.partition(parts, 5), 5)
    assert [part.tolist() for part in split[0]] == [part.tolist() for part in parts[0]]


def test_tasks_are_the_recorded_ones():
    """Pins every generator: a change of one makes other data under the same seeds, and says so here."""
    text = "".join(rule_task(name, 0, 1).fingerprint for name in sorted(GENERATORS))
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "ce419a68d8041a50"
