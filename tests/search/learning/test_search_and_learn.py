"""Rounds of search and learn: budgets, stops, adapters, what is kept, what happens when something breaks."""

import contextlib
import json
import random
import shutil
import signal
import time
from dataclasses import replace

import pytest
import torch

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.predictions.stop_rules import early_stops
from arcnb.arc.scores.submission import validate_submission
from arcnb.arc.tasks.task import Task
from arcnb.arc.tasks.task_set import TaskSet, load_tasks
from arcnb.errors import ArcnbError
from arcnb.models.registry import resolve_model
from arcnb.models.sampling.backends import EngineOptions, open_backend
from arcnb.programs.executor.executor import Executor
from arcnb.search.comparing.searches import training_steps
from arcnb.search.learning.budgets import Clock
from arcnb.search.learning.journal import TIMES, StepJournal
from arcnb.search.learning.learner import learner as learner_module
from arcnb.search.learning.learner.learner import LoraLearner
from arcnb.search.learning.learner.loss import add_answer_gradients
from arcnb.search.learning.learner.settings import LoraSettings, learning_rate_share
from arcnb.search.learning.lessons.demonstrations import Demonstrations
from arcnb.search.learning.lessons.trial import TeacherTrial
from arcnb.search.learning.plan import SearchPlan
from arcnb.search.learning.search_and_learn import SearchAndLearn
from arcnb.search.learning.submission_file import SubmissionFile
from tests.lab.watching import wait_for
from tests.search.learning_engine import Mixing, Programming, padded, program, small_tasks, text_of

ASKED = {
    "n_predictions": 12, "first_round": 4, "per_round": 4, "per_prompt": 2, "stop_after": 0, "seed": 3,
    "adapter": "", "max_completion_length": 6, "programs_per_task": 32, "max_answer_tokens": 512,
    "lora_r": 2, "alpha": 8, "learning_rate": 0.05, "batch_tokens": 16384,
}  # fmt: skip


def asked(**changes) -> SearchPlan:
    """The plan of these tests with some options changed."""
    return SearchPlan.of(ASKED | changes)


PLAN = asked()
LORA = PLAN.lora
SOLVING = program("out = grid.copy(); out[:, 0] = 4; return out")
ALSO_SOLVING = program("out = grid + 0; out[:, 0] = 4; return out")
NOT_SOLVING = program("return grid[::-1]")


def search_on(model, folder):
    """A search on three tasks, to be killed."""
    base = resolve_model(model)
    with (
        open_backend("transformers", base, None, EngineOptions(max_model_len=2048)) as engine,
        Executor(1) as executor,
    ):
        SearchAndLearn(small_tasks(), Programming(engine), executor, folder, PLAN, base=base).run()


@pytest.fixture
def search(tmp_path, engine, executor, small_model):
    """search(plan, pick=..., ...) is a SearchAndLearn below tmp_path."""

    def make(plan=PLAN, pick=None, tasks=None, folder="s", programming=None, **more):
        programming = programming or (Programming(engine, pick) if pick else Programming(engine))
        settings = {"base": small_model, "announce": lambda line: None} | more
        some = tasks or small_tasks()
        return SearchAndLearn(some, programming, executor, tmp_path / folder, plan, **settings)

    return make


@pytest.fixture(scope="module")
def whole(tmp_path_factory, engine, executor, small_model):
    """The folder of an unbroken search, and its report."""
    folder, programming = tmp_path_factory.mktemp("whole") / "s", Programming(engine)
    settings = {"base": small_model, "announce": lambda line: None}
    return folder, SearchAndLearn(small_tasks(), programming, executor, folder, PLAN, **settings).run()


def rows(folder):
    """What decides a row: key, adapter, tokens seen, program, scores."""
    names = ["task_id", "round", "index", "adapter", "completion", "n_tokens", "status", "fingerprint"]
    frame = PredictionSet(folder / "predictions").read(columns=[*names, "train_pixel_score"])
    return frame.fillna("").to_dict("records")


def test_rounds_predict_relabel_learn_and_keep_everything(whole):
    folder, report = whole
    assert (report.rounds, report.completions, report.trainings) == (3, 36, 6)
    frame = PredictionSet(folder / "predictions").read()
    assert set(frame.groupby("task_id").size()) == {12}
    by_round = frame.assign(learned=frame["round"].map(PLAN.round_of)).groupby(["task_id", "learned"])
    adapters = by_round["adapter"].agg(set)
    for group, task_id in enumerate(small_tasks().ids):
        assert adapters[task_id, 0] == {""}
        assert adapters[task_id, 1] == {f"round00000-group{group:05d}-shard00-of-01"}
        assert adapters[task_id, 2] == {f"round00001-group{group:05d}-shard00-of-01"}
    made = load_tasks(folder / "hindsight")
    assert len(made) == report.hindsight_tasks > 6
    assert all(task.program and task.source == "hindsight" for task in made)
    assert len(list((folder / "adapters").iterdir())) == 6
    assert 0 < report.start_share < 1
    assert "start-up" in str(report)
    json.dumps(report.outcome())


def test_what_was_learned_changes_what_is_sampled(tmp_path, search, whole):
    search(base=None, folder="alone").run()
    learned, alone = rows(whole[0]), rows(tmp_path / "alone")
    first = [row["completion"] for row in learned if PLAN.round_of(row["round"]) == 0]
    assert first == [row["completion"] for row in alone if PLAN.round_of(row["round"]) == 0]
    assert [row["completion"] for row in learned] != [row["completion"] for row in alone]


def test_training_makes_the_answers_likelier(search):
    one = search(asked(n_predictions=8, num_train_epochs=12, group_size=-1, learning_rate=2e-3))
    one.run()
    (line,) = [line for line in one.journal.lines if line["step"] == "learn"]
    assert line["loss_last"] < line["loss_first"] - 0.1  # of a model that cannot tell one token from another


@pytest.fixture
def tried(monkeypatch):
    """tried(gain): every teacher can be tried, and that comes of it. By itself nobody here is ever right."""

    def arranged(gain):
        passed = TeacherTrial.passed
        monkeypatch.setattr(TeacherTrial, "passed", lambda self, probes: passed(self, ["right"]))
        monkeypatch.setattr(LoraLearner, "teacher_gain", lambda *_: gain)

    return arranged


@pytest.mark.parametrize("lessons", ["feedback", "both"])
def test_failed_answers_are_learned_from_by_feedback(tmp_path, search, lessons, tried):
    tried(0.1)
    one = search(asked(n_predictions=8, group_size=-1, lessons=lessons, answers_per_task=2))
    report = one.run()
    assert report.taught_answers == 6  # two of each of three tasks
    assert (tmp_path / "s" / "hindsight").is_dir() == (report.hindsight_tasks > 0) == (lessons == "both")
    (line,) = [line for line in one.journal.lines if line["step"] == "learn"]
    assert (line["error"], line["teacher_gain"]) == (None, 0.1)
    assert line["rows"] > 6 if lessons == "both" else line["rows"] == 6
    assert "6 answers with a teacher" in str(report)
    with pytest.raises(ArcnbError, match="lessons"):
        search(asked(group_size=-1))


@pytest.mark.parametrize("lessons", ["feedback", "both"])
@pytest.mark.parametrize("gain", [-0.1, None])
def test_a_teacher_that_knows_no_more_is_left_out_and_said(tmp_path, search, lessons, gain, tried):
    if gain is not None:
        tried(gain)
    one = search(asked(n_predictions=8, group_size=-1, lessons=lessons, answers_per_task=2))
    report = one.run()
    assert (report.taught_answers, report.dropped["teacher knows no more"]) == (0, 6)
    (note,) = report.notes
    assert ("no right answers to try it on" if gain is None else "0.100 nats a token less likely") in note
    (line,) = [line for line in one.journal.lines if line["step"] == "learn"]
    assert (line["error"], line["teacher_gain"]) == (None, gain)
    trained = lessons == "both"
    assert (line["rows"] > 0) == (report.trainings == 1) == bool(line["adapter"]) == trained
    assert training_steps(tmp_path / "s")[0]["teacher_gain"] == gain
    assert line["learning_seconds"] > 0, "the trial counts as well"


def test_demonstrations_are_learned_from_in_answers_of_the_model_s_own(tmp_path, search, monkeypatch):
    monkeypatch.setattr(LoraLearner, "teacher_gain", lambda self, probes, *_: len(probes))
    made = [
        search(asked(n_predictions=8, group_size=-1, lessons="demonstrations"), folder=name) for name in "ab"
    ]
    reports = [one.run() for one in made]
    for one, report in zip(made, reports, strict=True):
        (line,) = [line for line in one.journal.lines if line["step"] == "learn"]
        assert line["error"] is None
        assert line["rows"] == report.taught_answers == report.hindsight_tasks == line["teacher_gain"] > 3
    weights = [next((tmp_path / name / "adapters").glob("*/*.safetensors")).read_bytes() for name in "ab"]
    assert weights[0] == weights[1]


def test_nothing_is_sampled_for_a_teacher_that_knows_no_more(search, monkeypatch):
    monkeypatch.setattr(LoraLearner, "teacher_gain", lambda *_: -0.1)
    monkeypatch.setattr(Demonstrations, "rows", None)
    one = search(asked(n_predictions=8, group_size=-1, lessons="demonstrations"))
    report = one.run()
    (line,) = [line for line in one.journal.lines if line["step"] == "learn"]
    assert (line["error"], line["rows"], line["teacher_gain"]) == (None, 0, -0.1)
    assert report.dropped["teacher knows no more"] == report.hindsight_tasks > 3


def test_a_second_start_finds_everything_done(tmp_path, search, whole):
    before = rows(shutil.copytree(whole[0], tmp_path / "s"))
    again = search().run()
    assert (again.completions, again.trainings, again.rounds) == (0, 0, 3)
    assert "after 3 rounds\nmade by this start: 0 completions, 0 hindsight tasks; 0 trainings" in str(again)
    assert rows(tmp_path / "s") == before


def test_killed_at_random_moments_it_ends_with_the_rows_of_an_unbroken_search(
    tmp_path, whole, small_model, forked
):
    steps, moments, killed_at = tmp_path / "killed" / "steps-shard00-of-01.jsonl", random.Random(5), []

    def done():
        return len(steps.read_bytes().splitlines()) if steps.exists() else 0

    for attempt in range(2):  # let it finish a step, then kill it in one of the next
        process, enough = forked(search_on, small_model.path, steps.parent), done() + attempt
        wait_for(lambda: done() > enough or process.exitcode is not None)  # noqa: B023
        time.sleep(moments.uniform(0, 0.15))
        process.kill()
        killed_at.append(done())
    process = forked(search_on, small_model.path, steps.parent)
    process.join(120)
    assert process.exitcode == 0
    assert rows(tmp_path / "killed") == rows(whole[0])
    assert min(killed_at) < 15, "no kill came while there was work to do"


def test_a_journal_line_that_a_kill_cut_off_is_done_again(tmp_path, search, whole):
    wanted = rows(shutil.copytree(whole[0], tmp_path / "s"))
    steps = tmp_path / "s" / "steps-shard00-of-01.jsonl"
    steps.write_bytes(steps.read_bytes()[:-7])
    again = search().run()
    assert again.completions == 0
    assert rows(tmp_path / "s") == wanted
    assert steps.read_bytes().endswith(b"}\n")


@pytest.mark.parametrize("line", ["{", "5", "{}", '{"step": "learn", "round": 0}'])
def test_a_damaged_journal_is_one_sentence(tmp_path, line):
    steps = tmp_path / "steps-shard00-of-01.jsonl"
    steps.write_text(f"{line}\n")
    with pytest.raises(ArcnbError, match=f"{steps.name} is damaged"):
        StepJournal(steps)


def test_two_processes_do_not_work_on_one_shard(search):
    one, other = search(asked(n_predictions=4)), search(asked(n_predictions=4))
    refused = pytest.raises(ArcnbError, match="another process is at work")
    with one.journal.alone(), refused, other.journal.alone(0.1):
        pass
    with other.journal.alone(0.1):
        pass


@pytest.mark.parametrize(("stop_after", "rounds"), [(1, 1), (2, 2), (0, 3)])
def test_a_task_ends_after_so_many_distinct_programs_that_solve_its_train_pairs(
    tmp_path, search, stop_after, rounds
):
    def pick(key, index, ids):  # the first round repeats one solution, the second brings another
        return SOLVING if PLAN.round_of(key[1]) == 0 else ALSO_SOLVING

    search(asked(stop_after=stop_after, augment="none"), pick, small_tasks(1)).run()
    made = PredictionSet(tmp_path / "s" / "predictions")
    assert len(made) == 4 * rounds
    assert bool(early_stops({"s": made})) is (rounds < 3), "pass@k of such a set is too high, so it is said"


def test_a_task_that_a_budget_ends_with_copies_of_one_solution_did_not_end_early(tmp_path, search):
    plan = asked(stop_after=2, n_predictions=0, budget_tokens=1, augment="none")
    search(plan, lambda key, index, ids: SOLVING, small_tasks(1)).run()
    made = PredictionSet(tmp_path / "s" / "predictions")
    assert made.read(["train_is_correct"])["train_is_correct"].sum() == 4
    assert early_stops({"s": made}) == {}


@pytest.mark.parametrize(
    ("budget", "rounds"),
    [
        ({"n_predictions": 6}, 1.5),
        ({"n_predictions": 0, "budget_tokens": 30}, 2),
        ({"n_predictions": 0, "budget_seconds": 1e-6}, 1),
        ({"n_predictions": 100, "budget_tokens": 1}, 1),
    ],
)
def test_budgets_of_a_task(tmp_path, search, budget, rounds):
    report = search(asked(**budget), lambda key, index, ids: NOT_SOLVING, small_tasks(2)).run()
    frame = PredictionSet(tmp_path / "s" / "predictions").read(columns=["task_id", "n_tokens"])
    assert set(frame.groupby("task_id").size()) == {int(4 * rounds)}
    assert report.rounds == -(-rounds // 1)


class Broken(LoraLearner):
    """Fails in the second round of the first group, by what `error` is."""

    error: Exception = ArcnbError("the loss of step 1 is nan")
    calls = 0

    def learn(self, *arguments):
        type(self).calls += 1
        if type(self).calls == 3:
            raise self.error
        return super().learn(*arguments)


@pytest.mark.parametrize("error", [ArcnbError("the loss of step 1 is nan"), RuntimeError("out of luck")])
def test_an_error_in_learning_falls_back_to_the_adapter_before_and_says_so(tmp_path, search, error):
    learner = type("Broken", (Broken,), {"calls": 0, "error": error})
    said = []
    plan = asked(n_predictions=12)
    report = search(plan, tasks=small_tasks(2), open_learner=learner, announce=said.append).run()
    assert report.failures == said
    assert str(error) in said[0]
    assert "it goes on with adapter round00000-group00000" in said[0]
    last = {row["task_id"]: row["adapter"][:21] for row in rows(tmp_path / "s") if row["round"] >= 4}
    assert last == {"fill4": "round00000-group00000", "odd1": "round00001-group00001"}


@pytest.mark.parametrize("keep", [True, False])
def test_a_training_goes_on_from_the_last_adapter_or_starts_anew(search, keep):
    starts = []

    class Watched(LoraLearner):
        def learn(self, rows, start, *arguments):
            starts.append(start and start.name)
            return super().learn(rows, start, *arguments)

    search(asked(keep_adapter=keep, group_size=-1), open_learner=Watched).run()
    assert starts == [None, "round00000-group00000-shard00-of-01" if keep else None]


def test_one_trainer_serves_all_rounds_and_groups(search):
    opened = []

    class Counted(LoraLearner):
        def __init__(self, *arguments):
            opened.append(1)
            super().__init__(*arguments)

    report = search(open_learner=Counted).run()
    assert (report.trainings, len(opened)) == (6, 1)


def test_the_closest_program_of_a_round_is_learned_from_last(search, engine):
    answers = []

    class Watched(LoraLearner):
        def learn(self, rows, *arguments):
            labels = [[label for label in row["labels"] if label >= 0] for row in rows]
            answers.append([engine.tokenizer.decode(of_row, skip_special_tokens=True) for of_row in labels])
            return super().learn(rows, *arguments)

    def pick(key, index, ids):
        return SOLVING if key[1] == index == 0 else text_of([*ids, index])

    plan = asked(first_round=8, augment="none")
    search(plan, pick, small_tasks(1), open_learner=Watched).run()
    assert len(set(answers[0])) > 2
    assert answers[0][-1] == SOLVING
    assert answers[0][0] != SOLVING


def test_schedules_of_the_learning_rate():
    def rates(schedule, n=10, warmup=0.2):
        settings = LoraSettings(lr_scheduler_type=schedule, warmup_steps=warmup)
        return [round(learning_rate_share(settings, step, n), 3) for step in range(n)]

    assert rates("constant") == [0.333, 0.667] + [1] * 8
    assert rates("linear") == [0.333, 0.667, 1, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125]
    assert rates("cosine")[2::4] == [1, 0.5]
    assert rates("linear", n=1) == [1]
    assert rates("constant", warmup=2) == rates("constant")
    assert rates("constant", n=3, warmup=5) == [0.167, 0.333, 0.5]


def test_a_loss_that_is_not_finite_leaves_no_adapter(tmp_path, small_model):
    bad = replace(LORA, learning_rate=1e30, max_grad_norm=1e30, per_device_train_batch_size=1)
    row = {"input_ids": list(range(5, 25)), "labels": [-100] * 10 + list(range(15, 25))}
    with LoraLearner(small_model, bad) as learner:
        with pytest.raises(ArcnbError, match=r"not finite|is nan|is inf"):
            learner.learn([row] * 4, None, tmp_path / "a", 0)
        assert not (tmp_path / "a").exists()
        with pytest.raises(ArcnbError, match="nothing to learn from"):
            learner.learn([], None, tmp_path / "a", 0)


def test_training_is_a_function_of_its_arguments(tmp_path, small_model):
    labels = [[-100] * 10 + list(range(n + 10, n + 20)) for n in range(9)]
    rows = [{"input_ids": list(range(n, n + 20)), "labels": labels[n]} for n in range(9)]
    with LoraLearner(small_model, LORA) as learner:
        learner.learn(rows, None, tmp_path / "a", 7)
        learner.learn(rows, tmp_path / "a", tmp_path / "b", 7)
        learner.learn(rows, None, tmp_path / "c", 7)
        learner.learn(rows, tmp_path / "a", tmp_path / "d", 7)
    with LoraLearner(small_model, replace(LORA, batch_tokens=25)) as learner:
        small = learner.learn(rows, None, tmp_path / "e", 7)
    read = {name: (tmp_path / name / "adapter_model.safetensors").read_bytes() for name in "abcd"}
    assert read["a"] == read["c"] != read["b"] == read["d"]
    assert small.steps == 3


def test_adapters_keep_to_their_disk_budget(tmp_path, search):
    report = search(asked(adapter_gb=1e-9)).run()
    left = sorted(path.name for path in (tmp_path / "s" / "adapters").iterdir())
    assert report.adapters_deleted == 6 - len(left)
    assert [name[:10] for name in left] == ["round00001"] * 3
    assert search(asked(adapter_gb=1e-9)).run().completions == 0
    assert sorted(path.name for path in (tmp_path / "s" / "adapters").iterdir()) == left, "rounds read again"
    assert search(asked(n_predictions=16, adapter_gb=1e-9)).run().completions == 12


def test_a_round_that_a_smaller_budget_cut_is_completed_with_its_own_adapter(tmp_path, search, whole):
    search(asked(n_predictions=6)).run()
    grown = search()
    grown.run()
    assert rows(tmp_path / "s") == rows(whole[0])
    assert {state.spent.n_predictions for state in grown.states.values()} == {12}
    again = search()
    assert again.run().completions == 0
    for task_id, state in grown.states.items():
        assert again.states[task_id].spent.seconds == pytest.approx(state.spent.seconds)


def test_a_solution_in_the_missing_part_of_a_cut_round_ends_its_task(tmp_path, search):
    def pick(key, index, ids):
        return SOLVING if key == ("fill4", 3) else NOT_SOLVING

    ends = {"stop_after": 1, "augment": "none"}
    search(asked(n_predictions=6, **ends), pick, base=None).run()
    grown = search(asked(n_predictions=20, **ends), pick, base=None)
    grown.run()
    assert [task_id for task_id, state in grown.states.items() if state.solving] == ["fill4"]
    assert sum(row["task_id"] == "fill4" for row in rows(tmp_path / "s")) == 8


def test_a_training_on_a_cut_round_is_done_again(tmp_path, search, engine, monkeypatch):
    monkeypatch.setattr(engine, "context", 700)  # the skipped prompts keep the task below its budget
    tasks, folder = two_test_inputs(3), "s"
    for name, budgets in (("whole", (12,)), (folder, (6, 12))):
        for budget in budgets:
            search(asked(n_predictions=budget, group_size=-1), tasks=tasks, folder=name).run()
    assert rows(tmp_path / folder) == rows(tmp_path / "whole")
    made = [load_tasks(tmp_path / name / "hindsight").ids for name in ("whole", folder)]
    assert made[0] == made[1]


def test_groups_share_an_adapter(tmp_path, search):
    report = search(asked(group_size=2)).run()
    assert report.trainings == 4
    last = {row["task_id"]: row["adapter"][11:21] for row in rows(tmp_path / "s") if row["round"] == 5}
    assert last == {"fill4": "group00000", "odd1": "group00000", "odd2": "group00001"}


def test_an_engine_that_mixes_adapters_samples_all_groups_in_one_call(tmp_path, search, engine, whole):
    mixing = Mixing(engine)
    search(programming=mixing).run()
    assert rows(tmp_path / "s") == rows(whole[0])
    assert [len(adapters) for adapters in mixing.calls] == [1, 3, 3]


def test_shards_fill_one_set_and_leave_it_whole(tmp_path, search):
    for shard in range(2):
        search(shard=(shard, 2)).run()
    frame = PredictionSet(tmp_path / "s" / "predictions").read(columns=["task_id"])
    assert dict(frame.groupby("task_id").size()) == dict.fromkeys(small_tasks().ids, 12)


def test_another_number_of_processes_leaves_nothing_of_the_trainings_before(tmp_path, search, whole):
    for shard in range(2):
        search(shard=(shard, 2)).run()
    before = rows(tmp_path / "s")
    again = search().run()
    assert (again.completions, again.trainings) == (0, 6)
    assert rows(tmp_path / "s") == before
    left, unbroken = (load_tasks(folder / "hindsight").ids for folder in (tmp_path / "s", whole[0]))
    assert sorted(left) == sorted(unbroken)
    assert len(training_steps(tmp_path / "s")) == 6
    assert len(list((tmp_path / "s" / "adapters").iterdir())) == 6


def test_search_alone_can_hand_on_its_first_round(tmp_path, search):
    search(base=None, folder="alone").run()
    alone = PredictionSet(tmp_path / "alone" / "predictions")
    report = search(shared=alone).run()
    assert report.completions == 24
    shared = [row for row in rows(tmp_path / "s") if PLAN.round_of(row["round"]) == 0]
    assert shared == [row for row in rows(tmp_path / "alone") if PLAN.round_of(row["round"]) == 0]


def test_what_a_shared_first_round_took_counts_against_both_budgets(tmp_path, search):
    alone = search(asked(n_predictions=4), base=None, folder="alone")
    alone.run()
    for _ in range(2):  # the second time it is read again
        other = search(asked(n_predictions=4), shared=PredictionSet(tmp_path / "alone" / "predictions"))
        assert other.run().completions == 0
        for task_id, state in alone.states.items():
            assert other.states[task_id].spent.seconds > state.spent.seconds > 0


def test_what_a_shared_first_round_lacked_is_taken_over_when_it_is_there(tmp_path, search):
    shared = PredictionSet(tmp_path / "alone" / "predictions")
    for budget in (2, 12):
        alone = search(asked(n_predictions=budget), base=None, folder="alone")
        alone.run()
        other = search(asked(n_predictions=budget), shared=shared)
        made = other.run().completions
    assert made == 24, "the second and third round of three tasks"
    took = [one.journal.find("predict", 0, 0)["seconds_per_task"] for one in (alone, other)]
    assert took[1] > took[0], "what the rest of the first round took counts, too"


def test_other_settings_are_refused_when_resuming(search):
    search(asked(n_predictions=4)).run()
    for name, value in {"keep_adapter": False, "per_round": 8, "seed": 4}.items():
        with pytest.raises(ArcnbError, match=name):
            search(asked(**{name: value}))
    with pytest.raises(ArcnbError, match="begun with lora_r 2, not 4"):
        search(asked(lora_r=4))
    assert search(PLAN).run().completions == 24  # a larger budget is welcome


def test_time_ends_it_with_a_submission_and_the_rest_is_done_later(tmp_path, search):
    tasks, path = small_tasks(), tmp_path / "submission.json"
    predictions = PredictionSet(tmp_path / "s" / "predictions")
    clock = Clock(1e-9)
    report = search(clock=clock, submission=SubmissionFile(path, tasks, predictions)).run()
    assert report.out_of_time
    validate_submission(json.loads(path.read_bytes()), tasks)
    file = SubmissionFile(path, tasks, predictions)
    assert padded(file) == 3
    assert search(submission=file).run().completions == 36
    validate_submission(json.loads(path.read_bytes()), tasks)
    assert padded(file) == 0


def test_time_that_is_up_within_a_round_keeps_and_submits_what_was_made(tmp_path, search):
    plan = asked(augment="none")
    search(plan, lambda key, index, ids: SOLVING, folder="unbroken").run()
    tasks, path, clock, made = small_tasks(), tmp_path / "submission.json", Clock(), []
    file = SubmissionFile(path, tasks, PredictionSet(tmp_path / "s" / "predictions"))

    def pick(key, index, ids):
        made.append(key)
        if len(made) == 3:
            clock.stop()
        return SOLVING

    assert search(plan, pick, clock=clock, submission=file).run().out_of_time
    assert 0 < len(rows(tmp_path / "s")) < 12
    assert json.loads(path.read_bytes())["fill4"][0]["attempt_1"] == [[4, 1], [4, 0], [4, 0]]
    search(plan, lambda key, index, ids: SOLVING).run()
    assert rows(tmp_path / "s") == rows(tmp_path / "unbroken")


def test_an_interrupt_that_a_library_swallows_ends_it_all_the_same(tmp_path, search):
    class Greedy(LoraLearner):
        def __init__(self, *arguments):
            with contextlib.suppress(BaseException):
                signal.raise_signal(signal.SIGINT)
            super().__init__(*arguments)

    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        search(open_learner=Greedy).run()
    assert signal.getsignal(signal.SIGINT) is handler
    assert len(rows(tmp_path / "s")) == 12
    assert search().run().completions == 24


class Cut(Exception):
    pass


def test_the_submission_is_valid_at_every_moment_and_takes_what_was_found(tmp_path, search):
    tasks, path = small_tasks(), tmp_path / "submission.json"
    file = SubmissionFile(path, tasks, PredictionSet(tmp_path / "s" / "predictions"))
    seen = []

    def pick(key, index, ids):
        seen.append(json.loads(path.read_bytes()))
        if PLAN.round_of(key[1]) == 2:
            raise Cut
        return SOLVING

    with pytest.raises(Cut):
        search(asked(augment="none"), pick, submission=file).run()
    seen.append(json.loads(path.read_bytes()))
    for submission in seen:
        validate_submission(submission, tasks)
    assert seen[0]["fill4"][0]["attempt_1"] == [[0]]
    assert seen[-1]["fill4"][0]["attempt_1"] == [[4, 1], [4, 0], [4, 0]]
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_prompt_that_does_not_fit_ends_its_task_and_no_other(search):
    longest = max(load_tasks("arc-agi-1/training"), key=lambda t: sum(p.input.size for p in t.train))
    tasks = [longest, *small_tasks(1)]
    report = search(tasks=tasks).run()
    assert list(report.too_long) == [longest.task_id]
    assert report.completions == 12
    shares = [search(shard=(i, 2), tasks=tasks, folder="halves").run() for i in range(2)]
    assert sorted(report.completions for report in shares) == [0, 12]


def two_test_inputs(n):
    """Tasks with a second test input that is long; which one a prompt shows is drawn."""
    big = [[(i * j) % 10 for i in range(22)] for j in range(22)]
    pairs = [{"input": [[1, 0], [0, k]], "output": [[4, 0], [4, k]]} for k in (2, 3)]
    tests = [{"input": [[5, 0], [0, 5]], "output": [[4, 0], [4, 5]]}, {"input": big, "output": big}]
    return TaskSet(
        "two", tuple(Task.from_dict(f"m{i}", {"train": pairs, "test": tests}) for i in range(n)), "1"
    )


@pytest.mark.parametrize("budget", [{"n_predictions": 12}, {"n_predictions": 0, "budget_tokens": 30}])
def test_a_task_ends_only_when_no_prompt_to_come_fits(tmp_path, search, engine, monkeypatch, budget):
    monkeypatch.setattr(engine, "context", 700)
    plan = asked(first_round=2, per_round=2, **budget)
    tasks = two_test_inputs(4)
    report = search(plan, tasks=tasks, base=None).run()
    fitting = {task.task_id: fits(plan, task, range(6)) for task in tasks}
    assert any(not shown[0] for shown in fitting.values()), "of some the first prompt is too long"
    made = PredictionSet(tmp_path / "s" / "predictions").read(columns=["task_id", "n_tokens"])
    counts, tokens = made.groupby("task_id").size(), made.groupby("task_id")["n_tokens"].sum()
    if plan.budget.n_predictions:
        assert {id_: int(counts[id_]) for id_ in tasks.ids} == {k: 2 * sum(v) for k, v in fitting.items()}
    else:
        assert tokens.reindex(tasks.ids).min() >= 30
    assert set(report.too_long) <= set(tasks.ids)
    monkeypatch.setattr(engine, "context", 100)
    assert search(plan, tasks=tasks, folder="none", base=None).run().rounds == 1, "no endless loop"


def fits(plan, task, numbers):
    """Of each prompt, whether it shows the short test input."""
    return [plan.prompts(0).view(task, number).test_index == 0 for number in numbers]


def test_an_adapter_without_a_layer_of_the_model_is_refused(small_model):
    with pytest.raises(ArcnbError, match="nowhere_proj"):
        LoraLearner(small_model, LoraSettings(target_modules=["nowhere_proj"]))


def test_a_search_says_once_that_it_trains_in_smaller_parts(search, monkeypatch):
    def memory_of_600_tokens(model, batch, n_answer, teacher):
        loss = add_answer_gradients(model, batch, n_answer, teacher)
        if batch["input_ids"].numel() > 600:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return loss

    monkeypatch.setattr(learner_module, "add_answer_gradients", memory_of_600_tokens)
    said = []
    report = search(asked(group_size=-1, batch_tokens=20000), announce=said.append).run()
    assert (report.trainings, report.failures) == (2, [])
    assert len(said) == 1
    assert said[0].startswith("round 0, group 0: training ran out of GPU memory with 20,000 tokens")
    assert report.notes[0] in said[0]
    assert report.notes[0] in str(report)


def test_seconds_of_every_round_are_kept_over_restarts(search):
    first = search(asked(n_predictions=8)).run()
    whole = search().run()
    assert [row["round"] for row in whole.by_round] == [0, 1, 2]
    assert whole.by_round[0] == first.by_round[0]
    assert whole.by_round[1]["sampling_seconds"] == first.by_round[1]["sampling_seconds"]
    assert first.by_round[1]["learning_seconds"] == 0 < whole.by_round[1]["learning_seconds"]
    for row in first.by_round:
        assert min(row["sampling_seconds"], row["start_seconds"]) > 0
    totals = {name: sum(row[name] for row in first.by_round) for name in TIMES}
    assert totals == pytest.approx(first.times())
    assert min(totals.values()) > 0
    assert json.loads(json.dumps(whole.outcome()))["by_round"] == whole.by_round


def test_the_report_says_where_the_time_went(search):
    slept = 0.0

    def pick(key, index, ids):
        nonlocal slept
        slept += 0.02
        time.sleep(0.02)
        return text_of(ids)

    report = search(pick=pick).run()
    assert report.sampling_seconds > slept > 0.5
    others = (report.relabelling_seconds, report.learning_seconds, report.opening_seconds)
    others += (report.switching_seconds,)
    assert min(others) > 0
    assert report.sampling_seconds + sum(others) <= report.seconds + 0.1


def test_before_each_round_the_predictions_of_those_before_it_are_on_disk(tmp_path, search):
    seen = {}

    def pick(key, index, ids):
        round_ = PLAN.round_of(key[1])
        if round_ not in seen:
            frame = PredictionSet(tmp_path / "s" / "predictions").read(columns=["task_id", "round"])
            seen[round_] = frame["round"].map(PLAN.round_of).groupby(frame["task_id"]).max().to_dict()
        return SOLVING if key[0] == "fill4" else text_of(ids)

    search(asked(stop_after=1, augment="none"), pick=pick).run()
    assert seen == {0: {}} | {last + 1: {"fill4": 0, "odd1": last, "odd2": last} for last in range(2)}
