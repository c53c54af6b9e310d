"""Task sources by name."""

import ast
import inspect
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from arcnb.arc.tasks.task_set import load_tasks, write_tasks
from arcnb.errors import ArcnbError
from arcnb.machine.pools import GuessedResults
from arcnb.programs.executor.executor import Executor
from arcnb.synth import sources, task_sets
from arcnb.synth.rearc.augmented import FreshAugmentations
from arcnb.synth.rearc.tasks import UNREPRODUCED
from arcnb.synth.rules import GENERATORS, rule_task
from arcnb.synth.sources import ENOUGH_SEEN, LEAST_ACCEPTANCE, SourceSettings, build_tasks, source_names
from arcnb.synth.splits import HELD_OUT_FAMILIES, HELD_OUT_TRAINING
from arcnb.synth.task_sets import source_tasks
from arcnb.synth.validation.reports import TaskReport


@pytest.mark.parametrize("name", [name for name in source_names() if not name.startswith("dsl/")])
def test_every_source_repeats_itself(name):
    first, again = ([t.fingerprint for t in build_tasks(name, 3)] for _ in range(2))
    assert len(first) == 3
    assert first == again


def test_sources_count_what_they_give():
    report = TaskReport()
    tasks = list(build_tasks("dsl", 10, report=report))
    assert report.accepted == len(tasks) == 10
    assert report.accepted_by["composed"] == 5
    assert TaskReport().accepted == 0


def test_held_out_parts_are_apart():
    small = SourceSettings(diff_ub=0.3)
    seen = {t.meta["original"] for t in build_tasks("rearc", 320, small)}
    assert len(seen) == 320
    assert not seen & set(HELD_OUT_TRAINING)
    assert {t.meta["original"] for t in build_tasks("rearc/held_out", 80, small)} == set(HELD_OUT_TRAINING)
    n = 2 * len(GENERATORS)
    assert not {t.meta["family"] for t in build_tasks("dsl", n)} & set(HELD_OUT_FAMILIES)
    assert {t.meta["family"] for t in build_tasks("dsl/held_out", 30)} == set(HELD_OUT_FAMILIES)


def test_originals_are_the_trainable_tasks_whose_programs_reproduce_them():
    report = TaskReport()
    tasks = list(build_tasks("rearc/originals", report=report))
    assert {t.task_id for t in tasks}.isdisjoint(HELD_OUT_TRAINING)
    rejected = sum(report.rejected.values())
    assert len(tasks) + rejected == 320
    assert 0 < rejected <= len(UNREPRODUCED)
    arc = load_tasks("arc-agi-1/training")
    assert all(t.fingerprint == arc[t.task_id].fingerprint and t.program for t in tasks)
    turned = [FreshAugmentations(0)(task, 1) for task in tasks[:5]]
    assert all(other.train != task.train for task, other in zip(tasks, turned, strict=False))
    assert any(other.program != task.program for task, other in zip(tasks, turned, strict=False))


def test_one_family_one_generator_one_id():
    assert {t.meta["family"] for t in build_tasks("dsl/geometry", 12)} == {"geometry"}
    assert {t.meta["generator"] for t in build_tasks("dsl/fall", 3)} == {"fall"}
    assert {t.meta["original"] for t in build_tasks("rearc/007bbfb7", 3)} == {"007bbfb7"}


def test_a_file_is_a_source(tmp_path):
    tasks = [rule_task("fall", 0, index) for index in range(4)]
    path = write_tasks(tasks, tmp_path / "tasks.parquet")
    read = list(build_tasks(str(path)))
    assert [t.fingerprint for t in read] == [t.fingerprint for t in tasks]
    assert [t.program for t in read] == [t.program for t in tasks]


def test_settings_reach_rearc():
    (task,) = build_tasks("rearc/05f2a901", 1, SourceSettings(max_cells=900, diff_ub=0.3))
    assert sum(p.input.size + p.output.size for p in (*task.train, *task.test)) <= 900


def test_validated_source_ends_when_nothing_is_new():
    report = TaskReport()
    with Executor(workers=2) as executor:
        tasks = list(build_tasks("dsl/turn_grid", 500, executor=executor, report=report))
    assert len(tasks) == 6, "there are six turns"
    assert report.rejected["duplicate program"] > 50


def test_tasks_are_the_same_whatever_their_report_tells_of_earlier_ones():
    report = TaskReport()
    for _ in range(ENOUGH_SEEN):
        report.reject("duplicate program", "turn_grid")
    first, again = (
        [task.fingerprint for task in build_tasks("dsl/turn_grid", 20, report=told)]
        for told in (TaskReport(), report)
    )
    assert len(first) == 20
    assert first == again


def test_generators_are_given_up_alike_in_any_number_of_processes(monkeypatch):
    """What was drawn ahead for a generator that is given up meanwhile changes nothing."""
    made = []
    monkeypatch.setattr(sources, "BATCH", 64)
    for workers in (1, 2):
        report = TaskReport()
        settings = SourceSettings(seed=3, block_size=128)
        tasks = source_tasks("dsl/geometry", 400, settings, workers=workers, report=report)
        made.append(([task.fingerprint for task in tasks], report.rejected, report.rejected_by))
    assert made[0] == made[1]
    assert report.acceptance("turn_grid") < LEAST_ACCEPTANCE, "one of those given up"


def test_wrong_guesses_change_no_result():
    with ThreadPoolExecutor(2) as pool:
        ahead = GuessedResults(pool, lambda item: item**2, chunk=3)
        assert list(ahead(list(range(10)), [10, 11, 40, 12])) == [i**2 for i in range(10)]
        assert list(ahead([12, 10, 20, 11], [])) == [144, 100, 400, 121]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dls", "did you mean 'dsl'"),
        ("dsl/geometri", "did you mean 'dsl/geometry'"),
        ("rearc/007bbfb8", "did you mean 'rearc/"),
        ("arc-agi-1/train", "did you mean 'arc-agi-1/training'"),
    ],
)
def test_unknown_sources_name_the_nearest(name, message):
    with pytest.raises(ArcnbError, match=message):
        build_tasks(name, 1)


def test_unknown_generators_name_the_nearest():
    with pytest.raises(ArcnbError, match="did you mean 'turn_grid'"):
        rule_task("turn_gird", 0, 0)


def test_endless_sources_need_a_number():
    with pytest.raises(ArcnbError, match="never ends"):
        build_tasks("dsl")


@pytest.mark.parametrize("module", [sources, task_sets])
def test_calls_that_a_module_shows_can_be_made(module):
    shown = re.findall(r"build_\w+\(.*\)", module.__doc__)
    assert shown
    for call in (ast.parse(text, mode="eval").body for text in shown):
        named = {keyword.arg: keyword.value for keyword in call.keywords}
        inspect.signature(getattr(module, call.func.id)).bind(*call.args, **named)
