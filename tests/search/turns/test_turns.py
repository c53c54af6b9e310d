"""Inference with turns: the budget divided, parents named, the same rows after a kill and in any shards."""

import json
from dataclasses import replace

import pytest

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task import Task
from arcnb.arc.tasks.task_set import TaskSet
from arcnb.arc.views import AUGMENTATIONS
from arcnb.errors import ArcnbError
from arcnb.models.prompts.chat import prompts_ids
from arcnb.models.prompts.format import prompt_format
from arcnb.models.registry import load_tokenizer, resolve_model
from arcnb.models.sampling.backends import Sampling
from arcnb.search.comparing.arms import read_arms
from arcnb.search.comparing.evaluation import curves
from arcnb.search.comparing.sets import read_sets
from arcnb.search.refinement.tree import best_trees
from arcnb.search.sampling import predict
from arcnb.search.sampling.questions import FirstTurns
from arcnb.search.sampling.rounds import RoundPlan, shard_tasks
from arcnb.search.sampling.sampled_set import SampledSet
from arcnb.search.turns.budget import TurnPlan
from arcnb.search.turns.report import turn_table
from arcnb.search.turns.turns import check_room, check_turns, predict_turns
from tests.search.canned_engine import CannedEngine

SOLVES = "def transform(grid):\n    return grid[:, ::-1]\n```"
COPIES = "def transform(grid):\n    return grid\n```"
ZEROES = "def transform(grid):\n    return grid * 0\n```"
FAILS = "def transform(grid):\n    return grid[99]\n```"
SAMPLING = Sampling(max_tokens=64)
ROUNDS = RoundPlan(n_predictions=12, per_prompt=2, seed=3, augment="none")
PLAN = TurnPlan(ROUNDS, turns=3, first_share=0.5)


class ReadingEngine(CannedEngine):
    """Answers by what it reads: `policy(text of the prompt, index)`."""

    def __init__(self, tokenizer, policy, **settings):
        super().__init__(tokenizer, None, **settings)
        self.policy, self.read = policy, []

    def completion(self, request, index):
        text = self.tokenizer.decode(request.prompt_ids)
        self.read.append(text)
        self.answer = lambda key, number: self.policy(text, number)
        return super().completion(request, index)


def learns(text, index):
    """Zeroes or a copy; task 0 is solved in a third turn only, task 1 never, task 2 at once; task 3 fails."""
    depth = text.count("<|im_start|>assistant") - 1
    if "222" in text:
        return SOLVES
    if "333" in text:
        return FAILS
    if "111" in text:
        return COPIES
    if depth == 2 and index == 1:
        return SOLVES
    return COPIES if depth or index else ZEROES


@pytest.fixture(scope="module")
def tasks():
    made = []
    for number in range(4):
        train = [
            {"input": [[number] * 3, [4, 5, 6]], "output": [[number] * 3, [6, 5, 4]]},
            {"input": [[1, 2]], "output": [[2, 1]]},
        ]
        made.append(
            Task.from_dict(f"t{number}", {"train": train, "test": [{"input": [[7, 8]], "output": [[8, 7]]}]})
        )
    return TaskSet("mirrors", tuple(made), "1")


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(resolve_model("default"))


@pytest.fixture
def run(tasks, tokenizer, executor, tmp_path):
    """run("name", plan, ...) -> (predictions, report, engine)"""

    def go(name, plan=PLAN, policy=learns, some=None, order=0, **options):
        engine = ReadingEngine(tokenizer, policy, order=order, context=options.pop("context", 8192))
        predictions = PredictionSet(tmp_path / name)
        first = options.pop("refine_from", None)
        made = SampledSet(some or tasks, predictions, prompt_format(), SAMPLING, **options)
        return predictions, predict_turns(made, engine, executor, plan, first), engine

    return go


def keys(predictions):
    return {row.key: (row.parent, row.completion, row.seed) for row in predictions.iter_predictions()}


def test_a_budget_is_divided_whole():
    assert TurnPlan(RoundPlan(128, 8), turns=2).quotas == [64, 64]
    assert TurnPlan(RoundPlan(128, 8), turns=3).quotas == [64, 32, 32]
    assert TurnPlan(RoundPlan(100, per_prompt=8), turns=4, first_share=0.25).quotas == [24, 26, 25, 25]
    for budget in range(3, 40):
        assert sum(TurnPlan(RoundPlan(budget, per_prompt=2), turns=3).quotas) == budget


def test_rows_name_parents_and_tasks_end_when_solved_or_spent(run, tasks):
    predictions, report, _ = run("p")
    rows = {row.id: row for row in predictions.iter_predictions()}
    per_task = {task.task_id: [row for row in rows.values() if row.task_id == task.task_id] for task in tasks}
    for row in rows.values():
        assert (row.parent is None) == (row.turn == 0)
        if row.parent:
            parent = rows[row.parent]
            assert parent.turn == row.turn - 1
            assert parent.pair_order == row.pair_order
            assert not parent.train_is_correct
    assert max(row.turn for row in per_task["t0"]) == 2  # solved in its third turn, then no more
    assert sum(row.train_is_correct for row in per_task["t0"]) == 1
    assert len(per_task["t0"]) < 12
    assert len({row.parent for row in per_task["t0"] if row.turn == 1}) == 2, (
        "copies and zeroes, both refined"
    )
    assert len(per_task["t1"]) == 12  # spent
    assert [row.turn for row in per_task["t2"]] == [0] * 6  # solved by first turns: none refined
    assert len(per_task["t3"]) == 12
    assert [t.n_finished for t in report.turns] == [0, 1, 1]
    assert report.total.made - report.total.dropped == len(rows)
    assert report.outcome()["turns"][2]["tasks"] == 3
    assert "turn 1: 3 tasks asked, 1 solved on train before" in str(report)


def test_a_later_prompt_shows_the_whole_conversation(run):
    _, _, engine = run("p")
    deep = [text for text in engine.read if text.count("<|im_start|>assistant") == 3]
    assert deep
    for text in deep:
        first, second, last = text.split("<|im_start|>assistant\n")[1:]
        assert first.startswith("```python\ndef transform")
        assert "not right yet" in second or "failed with" in second
        assert last == "```python\n"
        assert "87" not in text.split("Test input")[-1].split("<|im_end|>", 1)[1]  # the test output


def test_a_killed_run_ends_with_the_rows_of_an_unbroken_one(run):
    whole, _, _ = run("whole")

    class Killed(Exception):
        pass

    def dies_after(n):
        left = [n]

        def policy(text, index):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return learns(text, index)

        return policy

    for attempt, n in enumerate((5, 20, 9)):
        with pytest.raises(Killed):
            run("killed", policy=dies_after(n), order=attempt, part_rows=1)
    killed, report, _ = run("killed", order=7)
    assert keys(killed) == keys(whole)
    assert report.total.found > 0
    _, again, _ = run("killed")
    assert again.total.made == 0


def test_shards_make_the_rows_of_one_process(run):
    whole, _, _ = run("whole")
    asked = []
    for shard in (1, 0):
        rounds = replace(ROUNDS, shard=shard, n_shards=2)
        shards, report, _ = run("shards", replace(PLAN, rounds=rounds))
        asked.append(report.turns[0].n_tasks)
    assert keys(shards) == keys(whole)
    assert asked == [2, 2]


def test_all_turns_are_divided_among_the_shards_alike(run, tasks, monkeypatch):
    lengths = [250, 350, 1350, 500]  # by first turns alone t0 would be in the other shard
    monkeypatch.setattr(predict, "count_tokens", lambda tokenizer, prompts: lengths)
    plan = TurnPlan(replace(ROUNDS, n_predictions=20, per_prompt=8), turns=2)
    divisions = [divided(part, tasks, lengths, 2) for part in (plan.first, plan.rounds)]
    assert divisions[0] != divisions[1], "else there is nothing to see here"
    whole, _, _ = run("whole", plan, policy=lambda text, index: ZEROES)
    for shard in (1, 0):
        rounds = replace(plan.rounds, shard=shard, n_shards=2)
        shards, _, _ = run("shards", replace(plan, rounds=rounds), policy=lambda text, index: ZEROES)
    assert keys(shards) == keys(whole)
    assert divided(TurnPlan(plan.rounds).first, tasks, lengths, 2) == divisions[1], "of one turn as before"


def divided(plan, tasks, lengths, count):
    """Task ids of each shard of a plan."""
    weights = [plan.n_rounds * length + plan.n_predictions * SAMPLING.max_tokens for length in lengths]
    return [[task.task_id for task in shard_tasks(tasks, weights, (i, count))] for i in range(count)]


def test_two_arms_refine_the_first_turns_of_a_third(run, tasks):
    first, _, _ = run("first", TurnPlan(replace(ROUNDS, n_predictions=6)))
    both, _, _ = run("both")
    arm, report, _ = run("arm", refine_from=first)
    assert {key: value for key, value in keys(both).items() if key[3] > 0} == keys(arm)
    assert report.turns[0].turn == 1
    assert best_trees([arm, first], tasks, 1).trees[0].roots[0].prediction.turn == 0
    table = turn_table(arm, first)
    assert list(table.index) == [1, 2]
    assert table.loc[2, "newly_solved_train"] == 1
    assert table.loc[1, "copied"] > 0
    assert table.loc[1, ["better", "same", "worse"]].sum() == pytest.approx(1)
    alone = turn_table(arm)  # parents in a set that was not given tell nothing
    assert "better" not in alone or alone["better"].isna()[1]
    more, _, _ = run("more", TurnPlan(ROUNDS))
    with pytest.raises(ArcnbError, match="holds no first turns"):
        run("other", refine_from=arm)
    _, report, _ = run("arm", refine_from=more)  # a longer set with the same first turns is the same
    assert report.total.made == 0
    _, report, _ = run("arm", some=tasks[:2], refine_from=first)  # fewer tasks are welcome
    assert report.total.made == 0
    others, _, _ = run("others", TurnPlan(ROUNDS), policy=lambda text, index: ZEROES)
    with pytest.raises(ArcnbError, match="was begun with refine_from"):
        run("arm", some=tasks[:2], refine_from=others)


def test_what_else_became_of_shared_first_turns_is_not_counted(run, tasks):
    plain, _, _ = run("plain", TurnPlan(replace(ROUNDS, n_predictions=6)))
    refining, _, _ = run("refining")  # solves t0 in its third turn
    longer, _, _ = run("longer", TurnPlan(ROUNDS))
    row = next(plain.iter_predictions(["t0"]))
    longer.write_part([replace(row, round=6, train_correct_grids=1.0, train_is_correct=1)], 6)
    for policy in (learns, lambda text, index: COPIES):
        tables, trees = [], []
        for first in (plain, refining, longer):
            arm, _, _ = run(f"{policy.__name__} {first.folder.name}", policy=policy, refine_from=first)
            tables.append(turn_table(arm, first))
            trees.append(repr(best_trees([arm, first], tasks, 3)))
        assert tables[0].equals(tables[1])
        assert tables[0].equals(tables[2])
        assert trees[0] == trees[1] == trees[2]


def test_where_nothing_can_be_refined_first_turns_take_the_budget(run, tasks):
    def never(text, index):
        return "```"  # the fence that the prompt opened is closed at once: no program

    predictions, report, _ = run("p", policy=never, some=tasks.subset(["t0"]))
    rows = list(predictions.iter_predictions())
    assert len(rows) == 12
    assert {row.turn for row in rows} == {0}
    assert [t.n_fresh for t in report.turns] == [0, 2, 2]
    assert len({(row.round, row.index) for row in rows}) == 12
    assert "had nothing to refine" in str(report)


NO_CODE = "```"  # the fence that the prompt opened is closed at once


def sparse(text, index):
    """Task 1 has no program to refine, task 0 one until its second turn."""
    first = text.count("<|im_start|>assistant") == 1
    return NO_CODE if "111" in text or not first else ZEROES


def test_stand_ins_are_in_no_pass_at_k_curve(run, tasks):
    some = tasks.subset(["t0", "t1"])
    first, _, _ = run("first", TurnPlan(replace(ROUNDS, n_predictions=6)), some=some)
    arm, _, _ = run("arm", policy=sparse, some=some, refine_from=first)
    own, _, _ = run("own", policy=sparse, some=some)
    frames = read_sets({"first": first, "arm": arm, "own": own})
    assert (frames["arm"]["turn"] == 0).any(), "stand-ins"
    drawn = curves(frames, some.ids)
    assert list(drawn) == ["first", "own, first turns"]
    assert drawn["own, first turns"]["k"].max() <= 6
    bare = {name: frame.drop(columns="stage") for name, frame in frames.items()}
    assert list(curves(bare, some.ids)) == list(drawn), "of another's first turns a frame tells without it"


def test_rows_of_an_arm_stand_in_the_order_in_which_its_budget_was_spent(run, tasks):
    predictions, _, _ = run("p", policy=sparse, some=tasks.subset(["t0"]))
    folder = predictions.folder
    rows = read_arms(f"a = {folder}; b = {folder}", ["t0"])["a"][0].sort_values("place")
    assert rows["turn"].tolist() == [0] * 6 + [1] * 3 + [0] * 3, "turn 2 had nothing to refine"
    assert rows["stage"].tolist() == [0] * 6 + [1] * 3 + [2] * 3
    cut = read_arms(f"a = {folder}[:8]; b = {folder}", ["t0"])["a"][0]
    assert cut["stage"].tolist() == [0] * 6, "what took the place of a refinement is no first turn"


@pytest.mark.parametrize("changed", [{"n_predictions": None}, {"turns": "many"}])
def test_a_set_whose_plan_is_not_wholly_on_record_has_none(run, tasks, changed):
    predictions, _, _ = run("p", some=tasks.subset(["t0"]))
    path = predictions.folder / "_conditions.json"
    begun = json.loads(path.read_text())
    settings = {name: value for name, value in (begun["settings"] | changed).items() if value is not None}
    path.write_text(json.dumps(begun | {"settings": settings}))
    frame = read_sets({"p": predictions})["p"]
    assert frame["stage"].tolist() == frame["turn"].tolist()


def test_a_program_that_fails_on_test_inputs_alone_is_not_refined(run, tasks):
    silent = "def transform(grid):\n    return grid[99] if 7 in grid else grid[:, ::-1]\n```"

    def policy(text, index):
        return silent if index == 0 else ZEROES

    predictions, report, _ = run("p", policy=policy, some=tasks.subset(["t0"]))
    rows = {row.id: row for row in predictions.iter_predictions()}
    assert report.turns[1].n_right_on_train
    refined = [rows[row.parent] for row in rows.values() if row.parent]
    assert refined
    assert all(row.completion == ZEROES for row in refined)


def test_first_turns_of_another_version_of_a_task_are_refused(run, tasks):
    first, _, _ = run("first", TurnPlan(replace(ROUNDS, n_predictions=6)))
    pairs = [{"input": [[2, 1]], "output": [[1, 2]]}] * 2
    changed = Task.from_dict("t1", {"train": pairs, "test": [{"input": [[7, 8]], "output": [[8, 7]]}]})
    others = TaskSet("mirrors", tuple(changed if task.task_id == "t1" else task for task in tasks), "1")
    with pytest.raises(ArcnbError, match="another version of task t1: the fingerprints differ"):
        run("arm", some=others, refine_from=first)


def test_a_conversation_that_fills_the_context_is_counted_and_left_out(run, tasks):
    predictions, report, _ = run("p", some=tasks.subset(["t1"]), context=330)
    assert report.turns[1].too_long
    assert all(row.n_prompt_tokens + 64 <= 330 for row in predictions.iter_predictions())
    assert len(predictions) == 12


@pytest.mark.parametrize("turns", [1, 2])
def test_tasks_of_which_no_prompt_fits_are_refused(run, tasks, turns):
    plan, one = TurnPlan(ROUNDS, turns), tasks.subset(["t1"])
    said = r"no prompt fits: the prompts of 1 task have \d+ tokens and more, .* 64 leave 36 of the context"
    with pytest.raises(ArcnbError, match=said):
        run("p", plan, some=one, context=100)
    share = replace(plan, rounds=replace(ROUNDS, shard=0, n_shards=2))  # another may have some that fit
    predictions, _, _ = run("q", share, some=one, context=100)
    assert not len(predictions)


def test_that_no_prompt_fits_is_known_without_an_engine(run, tasks, tmp_path):
    tokenizer = load_tokenizer(resolve_model("default"))
    made = SampledSet(tasks, PredictionSet(tmp_path / "new"), prompt_format(), SAMPLING)
    for augment in AUGMENTATIONS:
        plan = TurnPlan(replace(ROUNDS, n_predictions=40, augment=augment))
        questions = FirstTurns(plan.first, made.prompt_format)
        prompts = [questions.question(task, slot).prompt for task in tasks for slot in range(20)]
        needed = min(map(len, prompts_ids(tokenizer, prompts))) + SAMPLING.max_tokens
        check_room(made, plan, tokenizer, needed)
        with pytest.raises(
            ArcnbError, match=f"the prompts of {len(tasks)} tasks have {needed - 64:,} tokens"
        ):
            check_room(made, plan, tokenizer, needed - 1)
    begun, _, _ = run("p")
    check_room(replace(made, predictions=begun), PLAN, tokenizer, 100)  # goes on with what was sampled
    check_room(made, replace(PLAN, rounds=replace(ROUNDS, n_shards=2)), tokenizer, 100)


def test_what_would_be_refused_is_known_without_an_engine(run, tasks, tmp_path):
    made, _, _ = run("p")
    asked = SampledSet(tasks, made, prompt_format(), Sampling(max_tokens=1))
    with pytest.raises(ArcnbError, match="was begun with max_completion_length 64, not 1"):
        check_turns(asked, PLAN)
    with pytest.raises(ArcnbError, match="holds no first turns of these tasks"):
        check_turns(asked, PLAN, PredictionSet(tmp_path / "none"))
    new = PredictionSet(tmp_path / "new")
    check_turns(replace(asked, predictions=new), PLAN)
    assert not new.folder.exists()


def test_another_budget_or_chooser_is_refused(run):
    run("p")
    with pytest.raises(ArcnbError, match="begun with chooser 'promising', not 'weighted'"):
        run("p", replace(PLAN, chooser="weighted"))
    with pytest.raises(ArcnbError, match="begun with n_predictions 12, not 16"):
        run("p", replace(PLAN, rounds=replace(ROUNDS, n_predictions=16)))
    run("one", TurnPlan(ROUNDS))
    with pytest.raises(ArcnbError, match="begun with turns 1, not 3"):
        run("one")
    run("one", TurnPlan(replace(ROUNDS, n_predictions=16)))


def test_trees_show_the_best_attempts_with_grids(run, tasks):
    predictions, _, _ = run("p")
    trees = best_trees([predictions], tasks, 2)
    assert "t0" not in repr(best_trees([predictions], tasks[1:], 2)), "the set may be of more tasks"
    assert trees.trees[0].task.task_id == "t0"  # solved by refinement
    page = trees._repr_html_()
    assert page.count("<svg") > 4
    assert "t0/" in page
    assert "t0" in repr(trees)


SHARED = TurnPlan(ROUNDS, last_share=0.5)


def test_a_last_share_goes_to_the_tasks_whose_selection_is_least_certain(run, tasks):
    def policy(text, index):  # t2 is solved; programs of t0 disagree; t1 copies, right on no pair; t3 fails
        return SOLVES if "222" in text or ("000" in text and index) else learns(text, 0)

    predictions, report, _ = run("p", SHARED, policy)
    frame = read_sets({"p": predictions})["p"]
    assert dict(frame.groupby("task_id").size()) == {"t0": 6, "t1": 18, "t2": 6, "t3": 18}
    assert SHARED.quotas == [6, 12]
    assert len(frame) == 12 * len(tasks), "the budget of them all"
    assert "last share: the 2 least certain tasks, certainty up to 0.00" in str(report)
    assert set(frame.loc[frame["round"] >= 3, "stage"]) == {1}, "chosen for what came before: no plain draws"
    assert curves({"p": frame}, tasks.ids)["p, first turns"]["k"].max() == 6
    killed, _, _ = run("killed", SHARED, policy, part_rows=1)
    for path in sorted(killed.folder.glob("round*.parquet"))[-3:]:
        path.unlink()
    killed, again, _ = run("killed", SHARED, policy, order=5)
    assert keys(killed) == keys(predictions)
    assert 0 < again.total.made < 48
    with pytest.raises(ArcnbError, match=r"begun with last_share 0\.5, not 0\.25"):
        run("p", replace(SHARED, last_share=0.25), policy)
    with pytest.raises(ArcnbError, match=r"was begun with .*t1.*, too; a last share goes to half"):
        run("p", SHARED, policy, some=tasks.subset(["t0", "t2"]))
    assert len(predictions) == len(frame), "t0, say, was not among the least certain of them all"


@pytest.mark.parametrize(
    ("begun", "sentence"), [(PLAN, "turns 3, not 1"), (SHARED, r"last_share 0\.5, not 0\.0")]
)
def test_first_turns_of_another_budget_do_not_join_a_set(run, begun, sentence):
    made = len(run("p", begun)[0])
    with pytest.raises(ArcnbError, match=f"begun with {sentence}"):
        run("p", TurnPlan(ROUNDS))
    assert len(run("p", begun)[0]) == made
