"""Task sets from recipes."""

import json

import pytest

from arcnb.arc.tasks.task_set import load_tasks, write_tasks
from arcnb.errors import ArcnbError
from arcnb.synth import sources
from arcnb.synth.sources import SourceSettings
from arcnb.synth.splits import HELD_OUT_TRAINING, training_split
from arcnb.synth.task_sets import build_task_set, recipe_problems
from arcnb.synth.validation.reports import TaskReport

RECIPE = "rearc*12 + dsl*140 + dsl/scenes*5"


@pytest.fixture(scope="module")
def built():
    made, settings = {}, SourceSettings(seed=3, diff_ub=0.4, max_cells=1500)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "BATCH", 64)  # several batches of the DSL
        for workers in (1, 2):
            report = TaskReport()
            tasks = build_task_set(RECIPE, settings=settings, augment=True, workers=workers, report=report)
            made[workers] = tasks, report
    return made


def test_a_recipe_gives_the_same_tasks_in_any_number_of_processes(built):
    (one, _), (two, _) = built.values()
    assert [task.fingerprint for task in one] == [task.fingerprint for task in two]
    assert [task.program for task in one] == [task.program for task in two]


def test_what_was_taken_and_rejected_is_counted(built):
    (tasks, report), (_, again) = built.values()
    assert report.accepted == len(tasks) == 12 + 140 + 5
    assert report.rejected == again.rejected
    assert report.rejected["duplicate program"] > 0
    assert report.tasks_per_second_per_core > 0
    table = report.origins()
    assert table["taken"].sum() == report.accepted
    assert table.loc["rearc", "taken"] == 12
    assert "tasks a second and core" in report._repr_html_()


@pytest.mark.parametrize("part", ["all", "held_out", "00d62c1b"])
def test_every_part_of_rearc_is_turned_and_recolored_where_that_is_asked_for(part):
    made = [
        build_task_set(f"rearc/{part}*8", settings=SourceSettings(seed=3), augment=asked)
        for asked in (True, False)
    ]
    turned, plain = ([task for task in tasks if "augmentation" in task.meta] for tasks in made)
    assert turned
    assert not plain


def test_training_data_holds_no_held_out_task(built):
    tasks, _ = built[1]
    originals = {task.meta["original"] for task in tasks if task.source == "rearc"}
    assert originals
    assert originals <= set(training_split().trainable)
    assert {task.meta.get("family") for task in tasks}.isdisjoint({"sorting", "partitions"})


def test_a_recipe_that_cannot_be_read_is_refused():
    with pytest.raises(ArcnbError, match=r"'rearc\*many' in 'dsl\*3 \+ rearc\*many': what follows"):
        build_task_set("dsl*3 + rearc*many")
    for recipe in ("", "dsl*3 + ", "*5"):
        with pytest.raises(ArcnbError, match="has a part without a source"):
            build_task_set(recipe)


def test_a_part_of_no_tasks_takes_none():
    assert {task.source for task in build_task_set("rearc*0 + ladder/lines", 3)} == {"ladder"}
    with pytest.raises(ArcnbError, match=r"dsl\*0 gave no task"):
        build_task_set("dsl*0", 3)


@pytest.mark.parametrize(("part", "n"), [("held_out", 50), ("trainable", 300), ("held_out", 0)])
@pytest.mark.parametrize("seed", [0, 1])
def test_tasks_of_a_split_are_drawn_from_all_of_it(part, n, seed):
    whole = load_tasks("arc-agi-1/training").subset(getattr(training_split(), part))
    report = TaskReport()
    tasks = build_task_set("arc-agi-1/training", n, SourceSettings(seed), split=part, report=report)
    assert tasks.ids == whole.sample(n or len(whole), seed).ids
    assert report.rows() == [("accepted", len(tasks)), ("of the other split", 400 - len(whole))]


def test_a_split_knows_reserved_tasks_of_any_data():
    kept, left_out = (
        build_task_set("arc-agi-2/training", split=part).ids for part in ("trainable", "held_out")
    )
    assert (len(kept), len(left_out)) == (1000 - 453, 376 + 77)
    with pytest.raises(ArcnbError, match=r"dsl/sorting\*2 gave no task of the trainable split"):
        build_task_set("dsl/sorting*2", split="trainable")


def test_what_a_source_lacks_the_next_one_gives(tmp_path):
    few = load_tasks("arc-agi-1/training")[:3]
    path = write_tasks(few, tmp_path / "few.parquet")
    tasks = build_task_set(f"{path} + ladder/lines*9", 5)
    assert tasks.ids[:3] == few.ids
    assert len(tasks) == 5
    assert tasks.version == load_tasks(path).version, "an own file is known by its hash"


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        ("rearc*3 + rearx*2", "no task source 'rearx', and no such file; did you mean 'rearc'?"),
        ("rearc*3 + dsl", r"source dsl never ends: say how many tasks, for instance dsl\*1000"),
    ],
)
def test_a_wrong_part_is_refused_before_those_before_it_are_made(recipe, sentence):
    report = TaskReport()
    with pytest.raises(ArcnbError, match=sentence):
        build_task_set(recipe, report=report)
    assert report.seen == 0


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        ("rearc*3 + dsl*1 + rearc*2", r"^rearc stands 2 times in the recipe .*; name it once$"),
        ("dsl*3 + composed*2", "^dsl and composed would give the same tasks, of composed; take only one"),
        ("rearc/all*3 + rearc/00d62c1b*2", "^rearc/all and rearc/00d62c1b would give .*, of 00d62c1b;"),
        ("barc:{0}/a.jsonl + {0}/b/a.jsonl", r"a\.jsonl and \S*/b/a\.jsonl would give the same task ids"),
    ],
)
@pytest.mark.parametrize("n_tasks", [0, 2])
def test_a_recipe_that_repeats_itself_is_refused_before_a_task_is_made(recipe, sentence, n_tasks, tmp_path):
    barc_files(tmp_path, "a.jsonl", "b/a.jsonl")
    report = TaskReport()
    with pytest.raises(ArcnbError, match=sentence):
        build_task_set(recipe.format(tmp_path), n_tasks, report=report)
    assert report.seen == 0


def test_sources_of_one_kind_that_give_other_tasks_go_together():
    assert not recipe_problems("rearc*3 + rearc/007bbfb7*2 + dsl*3 + dsl/scenes*2 + dsl/held_out*2")


def test_an_id_of_two_sources_is_refused_at_its_task():
    report = TaskReport()
    with pytest.raises(ArcnbError, match=r"is in arc-agi-1/training and in arc-agi-2/training; take only"):
        build_task_set("arc-agi-1/training*9 + arc-agi-2/training + rearc*2000", report=report)
    assert report.seen < 1009


def test_barc_files_of_one_recipe_have_ids_of_their_own(tmp_path):
    one, two = barc_files(tmp_path, "one.jsonl", "two.jsonl")
    assert build_task_set(f"barc:{one}").ids == ["barc_000000"]
    assert build_task_set(f"barc:{one} + ladder/lines*1").ids[0] == "barc_000000"
    assert build_task_set(f"barc:{one} + {two}").ids == ["barc_one_000000", "barc_two_000000"]


@pytest.mark.parametrize("split", ["", "trainable", "held_out"])
def test_as_many_tasks_are_counted_as_accepted_as_there_are(tmp_path, split):
    """Tasks of the other split are counted as such, and generators are not given up for them."""
    ids = (HELD_OUT_TRAINING[0], *training_split().trainable[:2])
    originals = load_tasks("arc-agi-1/training").subset(ids)
    pairs = [[*one.train, *one.test] for one in originals]
    rows = [{"examples": [[p.input.tolist(), p.output.tolist()] for p in some]} for some in [*pairs, []]]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    report = TaskReport()
    recipe = f"barc:{tmp_path}/a.jsonl + composed*70 + dsl/choose_part*3"
    tasks = build_task_set(recipe, split=split, report=report)
    assert len(tasks) == {"": 3 + 70 + 3, "trainable": 2 + 70, "held_out": 1 + 3}[split] == report.accepted
    assert report.rejected["of the other split"] == {"": 0, "trainable": 1 + 3, "held_out": 2 + 70}[split]
    table = report.origins()
    assert set(table.index) == {"a.jsonl", "composed", "choose_part"}
    assert table["taken"].sum() == report.accepted
    assert table["rejected"]["a.jsonl"] == 1 + {"": 0, "trainable": 1, "held_out": 2}[split]


def barc_files(folder, *names):
    """Files of one BARC-style row each."""
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        examples = [[[[n, 1]], [[1, n]]] for n in (2, 3, 4, 5)]
        (folder / name).write_text(json.dumps({"examples": examples}))
    return [folder / name for name in names]


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"n_tasks": -1}, "n_tasks must not be negative, it is -1"),
        ({"split": "test"}, "split is 'test', it must be one of trainable, held_out or empty"),
        ({"workers": 0}, "workers must be at least 1, not 0"),
    ],
)
def test_wrong_numbers_are_refused_by_name_before_a_task_is_made(asked, sentence):
    report = TaskReport()
    with pytest.raises(ArcnbError, match=sentence):
        build_task_set("rearc*3", report=report, **asked)
    assert report.seen == 0


@pytest.mark.parametrize("bounds", [{"diff_ub": 3.0}, {"diff_ub": -1.0}])
def test_a_difficulty_outside_its_range_is_refused(bounds):
    with pytest.raises(ArcnbError, match=r"^difficulty \(diff_ub\) is within 0\.\.1, not "):
        SourceSettings(**bounds)


def test_a_source_without_a_task_says_what_it_rejected(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text('{"examples": [[[[1]], [[2]]]]}\nnonsense\n')
    with pytest.raises(ArcnbError, match=r"gave no task; rejected: few examples 1, unreadable 1$"):
        build_task_set(f"barc:{file}")


def test_rearc_gives_up_when_nothing_fits(monkeypatch):
    monkeypatch.setattr(sources, "MAX_REJECTED", 3)
    with pytest.raises(ArcnbError, match=r"4 tasks in a row were rejected.*'too large', with max_cells 5, "):
        build_task_set("rearc*3", settings=SourceSettings(max_cells=5))
