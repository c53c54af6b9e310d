"""Predictions in, conversations out: exact first turns, honest feedback, any depth, clear refusals."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from arcnb.arc.augmentation import Augmentation
from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Task
from arcnb.arc.tasks.task_set import TaskSet, write_tasks
from arcnb.arc.views import View
from arcnb.errors import ArcnbError
from arcnb.models.prompts.chat import prompt_ids
from arcnb.models.prompts.conversations import Conversations
from arcnb.models.prompts.format import prompt_format
from arcnb.models.registry import load_tokenizer, resolve_model
from arcnb.models.sft.rows import IGNORED, conversation_rows
from arcnb.programs.executor.executor import Executor
from arcnb.programs.judging import judge
from arcnb.search.refinement.rows import refinement_rows, turn_numbers, write_conversations
from arcnb.search.refinement.successes import successful_rows
from arcnb.search.refinement.tree import ConversationView
from arcnb.search.turns.selection import choose
from arcnb.synth.splits import HELD_OUT_TRAINING, is_held_out
from tests.in_process import carried_out

SOLVES = "def transform(grid):\n    return grid[:, ::-1]\n```"
COPIES = "def transform(grid):\n    return grid\n```"
ZEROES = "def transform(grid):\n    return grid * 0\n```"
SMALL = "def transform(grid):\n    return grid[:1, :1]\n```"
FAILS = "def transform(grid):\n    rows = len(grid)\n    return grid[rows + 7]\n```"
FAILS_ON_TEST = SOLVES.replace("grid[:, ::-1]", "grid[:, ::-1][: (0 if len(grid) == 1 else 2)]")
LOOPS = "def transform(grid):\n    while True:\n        pass\n```"


@pytest.fixture(scope="module")
def tasks():
    """Mirror left-right; the test pair has one row, the train pairs two, and its output holds 9s."""
    made = []
    for number in range(2):
        train = [
            {"input": [[1, 2, number], [3, 4, 5]], "output": [[number, 2, 1], [5, 4, 3]]},
            {"input": [[7, 7], [1, 2]], "output": [[7, 7], [2, 1]]},
            {"input": [[0, 5], [5, 0]], "output": [[5, 0], [0, 5]]},
        ]
        test = [{"input": [[8, 9, 9, 8, 8]], "output": [[8, 8, 9, 9, 8]]}]
        made.append(Task.from_dict(f"mirror{number}", {"train": train, "test": test}))
    return TaskSet("mirrors", tuple(made), "1")


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(resolve_model("default"))


def prediction(task, completion, round_=0, index=0, view=None, **fields):
    view = view or View.sample(task, 5, round_, augment="geometry")
    fields = {"finish_reason": "stop", "completion_prefix": "```python\n"} | fields
    return Prediction(
        task.task_id,
        task.fingerprint,
        round=round_,
        index=index,
        hflip=view.augmentation.hflip,
        n_rot90=view.augmentation.n_rot90,
        color_map=list(view.augmentation.color_map) if view.augmentation.color_map else None,
        pair_order=list(view.pair_order),
        test_index=view.test_index,
        completion=completion,
        **fields,
    )


@pytest.fixture
def written(tmp_path, tasks, executor):
    """written("name", predictions) -> the judged prediction set."""

    def write(name, predictions):
        one = PredictionSet(tmp_path / name)
        judged = judge(predictions, {task.task_id: task for task in tasks}, executor)
        one.write_part(list(judged), 0)
        return one

    return write


PLAIN = View(Augmentation(), (2, 0, 1), 0)


def built(sets, tasks, tokenizer, executor, **options):
    return refinement_rows(sets, tasks, tokenizer, prompt_format(), executor, **options)


def test_the_first_turn_is_the_one_the_model_saw(written, tasks, tokenizer, executor):
    sets = [written("a", [prediction(tasks[0], ZEROES, round_=r) for r in range(4)])]
    dataset = built(sets, tasks, tokenizer, executor, chooser="best")
    assert len(dataset.rows) == 4
    for row, parent in zip(dataset.rows, dataset.parents, strict=True):
        view = View.sample(tasks[0], 5, parent.round, augment="geometry")
        first = prompt_format().prompt(view.apply(tasks[0]))
        assert tuple(row["messages"][: len(first.messages)]) == first.messages
        shown = view.apply(tasks[0]).train[0].output
        wrong = int((shown != 0).sum())
        assert f"({np.argwhere(shown != 0)[0][0]}, " in row["messages"][-1]["content"] or wrong > 8
        assert row["prompt_ids"] == prompt_ids(tokenizer, replace(first, messages=tuple(row["messages"])))
        assert (row["turn"], row["parent"]) == (1, parent.id)


def test_feedback_on_each_train_pair_and_nothing_on_test_pairs(written, tasks, tokenizer, executor):
    sets = [written("a", [prediction(tasks[0], COPIES, view=PLAIN)])]
    text = built(sets, tasks, tokenizer, executor).rows[0]["messages"][-1]["content"]
    assert "Pair 1: wrong, 0.0% similar" in text  # the pairs are numbered as they were shown
    assert "Pair 3: wrong, 50.0% similar" in text
    assert "Pair 4" not in text
    assert "8" not in text
    full = refinement_rows(sets, tasks, tokenizer, prompt_format(refine_template="refine_full"), executor)
    text = full.rows[0]["messages"][-1]["content"]
    assert "Pair 1: wrong, 0.0% similar. Output 2x2, expected 2x2. The output was:\n05\n50" in text
    assert "(0, 0) is 0, should be 5" in text
    sets = [written("b", [prediction(tasks[0], SMALL, view=PLAIN)])]
    text = built(sets, tasks, tokenizer, executor).rows[0]["messages"][-1]["content"]
    assert "The output has size 1x1, it should have 2x2:\n0" in text


@pytest.mark.parametrize(
    ("completion", "said"),
    [
        (FAILS, "failed with IndexError in line 3: index 9 is out of bounds"),
        (FAILS, "Line 3 is: return grid[rows + 7]"),
        (FAILS.replace("\n", '\n    """a\x0cb\u2028c\x85"""\n', 1), "Line 4 is: return grid[rows + 7]"),
        (LOOPS, "The program ran out of time: input 1 of 3 took longer than 0.3 s"),
        ("def transform(grid)\n    return grid\n```", "failed with SyntaxError in line 1: expected ':'"),
        ("def transform(grid):\n    return 'no'\n```", "failed with OutputError: input 1: returned str"),
    ],
)
def test_a_failed_program_is_told_class_message_limit_and_line(tmp_path, tasks, tokenizer, completion, said):
    from arcnb.programs.executor.limits import Limits

    with Executor(1, Limits(seconds_per_input=0.3)) as pool:
        one = PredictionSet(tmp_path / "a")
        judged = judge([prediction(tasks[0], completion, view=PLAIN)], {"mirror0": tasks[0]}, pool)
        one.write_part(list(judged), 0)
        rows = built([one], tasks, tokenizer, pool, chooser="failed").rows
    assert said in rows[0]["messages"][-1]["content"]


def test_a_failure_on_a_test_input_is_never_told(written, tasks, tokenizer, executor):
    failing = prediction(tasks[0], FAILS_ON_TEST, view=PLAIN)
    sets = [written("a", [failing, prediction(tasks[0], COPIES, index=1, view=PLAIN)])]
    dataset = built(sets, tasks, tokenizer, executor, chooser="diverse")
    assert dataset.n_right_on_train == 1
    assert [parent.index for parent in dataset.parents] == [1]
    without = built([written("b", [failing])], tasks, tokenizer, executor, chooser="failed")
    assert "1 programs failed on test inputs only" in without.why_empty


def test_choosing_solved_tasks_turns_and_limits(written, tasks, tokenizer, executor):
    rows = [
        prediction(tasks[0], SOLVES),
        prediction(tasks[0], ZEROES, index=1),
        prediction(tasks[1], ZEROES),
        prediction(tasks[1], COPIES, index=1),
        prediction(tasks[1], COPIES, index=2),
    ]
    sets = [written("a", rows)]
    dataset = built(sets, tasks, tokenizer, executor)
    assert {row["task_id"] for row in dataset.rows} == {"mirror1"}
    assert len(dataset.rows) == 2  # equal outputs count once
    assert dataset.outcome()["tasks_right_on_train"] == 1
    assert dataset.outcome()["parents_without_a_right_pair"] == 2
    assert len(built(sets, tasks, tokenizer, executor, per_task=1).rows) == 1
    assert len(built(sets, tasks, tokenizer, executor, keep_solved=True).rows) == 3
    lengths = sorted(row["n_prompt_tokens"] for row in dataset.rows)
    limited = built(sets, tasks, tokenizer, executor, max_prompt_length=lengths[0])
    assert list(limited.too_long.values()) == lengths[1:]
    assert limited.lengths().loc[1, "max"] == lengths[0]
    without = built(sets, tasks, tokenizer, executor, max_prompt_length=lengths[0] - 1)
    assert f"2 conversations exceed {lengths[0] - 1} tokens" in without.why_empty


def test_a_task_whose_test_pair_is_wrong_is_not_called_solved(written, tasks, tokenizer, executor):
    only_train = SOLVES.replace("[:, ::-1]", "[:, ::-1] * (len(grid) > 1)")
    sets = [written("a", [prediction(tasks[0], only_train), prediction(tasks[0], ZEROES, index=1)])]
    dataset = built(sets, tasks, tokenizer, executor, keep_solved=True)
    assert len(dataset.rows) == 1
    told = f"{dataset.headline(0)} {dataset.outcome()} {built(sets, tasks, tokenizer, executor).why_empty}"
    assert "1 of 1 tasks had all train pairs right" in told
    assert "of 1 tasks 1 have all train pairs right and are left out" in told
    assert "already" not in told


def test_conversations_of_two_sets_that_are_too_long_count_twice(written, tasks, tokenizer, executor):
    """Sets of two seeds have the same ids, and other answers."""
    long = "# " + "long comment " * 60 + "\n"
    one = written("a", [prediction(tasks[0], long + ZEROES), prediction(tasks[0], SMALL, index=1)])
    other = written("b", [prediction(tasks[0], long + COPIES)])
    dataset = built([one, other], tasks, tokenizer, executor, max_prompt_length=600)
    assert len(dataset.rows) == 1
    same = prediction(tasks[0], ZEROES).id
    assert set(dataset.too_long) == {f"{one.folder}/{same}", f"{other.folder}/{same}"}


@pytest.mark.parametrize(
    ("asked", "said"),
    [({"chooser": "bets"}, "chooser 'bets' does not exist"), ({"per_task": 0}, "per_task, .* 1, not 0")],
)
def test_a_choice_that_cannot_be_is_refused_where_nothing_is_chosen(
    written, tasks, tokenizer, executor, asked, said
):
    with pytest.raises(ArcnbError, match=said):
        built([written("solved", [prediction(tasks[0], SOLVES)])], tasks, tokenizer, executor, **asked)


def third_turn_sets(written, tasks):
    """First answers in one set; refinements of them, and of those, in another."""
    first = prediction(tasks[0], ZEROES, view=PLAIN)
    second = prediction(tasks[0], COPIES, view=PLAIN, turn=1, parent=first.id)
    third = prediction(tasks[0], SMALL, view=PLAIN, turn=2, parent=second.id)
    return written("first", [first]), written("later", [second, third])


def test_any_depth_from_several_sets(written, tasks, tokenizer, executor):
    sets = third_turn_sets(written, tasks)
    dataset = built(sets, tasks, tokenizer, executor, turns=[2])
    (row,) = dataset.rows
    assert (row["turn"], row["parent"], row["parent_set"]) == (3, "mirror0/0/0/2", str(sets[1].folder))
    answers = [m["content"] for m in row["messages"] if m["role"] == "assistant"]
    assert answers == ["```python\n" + text for text in (ZEROES, COPIES, SMALL)]
    assert {row["turn"] for row in built(sets, tasks, tokenizer, executor).rows} == {1, 2, 3}
    with pytest.raises(ArcnbError, match="0/0/1 refines mirror0/0/0/0, which no prediction set"):
        built(sets[1:], tasks, tokenizer, executor)


def test_two_sets_with_the_same_keys_keep_their_own_parents(written, tasks, tokenizer, executor):
    one = written("one", [prediction(tasks[0], ZEROES, view=PLAIN)])
    parent = prediction(tasks[0], COPIES, view=PLAIN)
    other = written("other", [parent, replace(parent, completion=SMALL, turn=1, parent=parent.id)])
    rows = built([one, other], tasks, tokenizer, executor, turns=[1]).rows
    answers = [m["content"] for m in rows[0]["messages"] if m["role"] == "assistant"]
    assert answers == ["```python\n" + text for text in (COPIES, SMALL)]


def test_a_refinement_of_another_set_keeps_its_parent_or_is_refused(written, tasks, tokenizer, executor):
    """Sets of two seeds have the same ids in other views, those of two models also the same views."""
    parent = prediction(tasks[0], SMALL, view=PLAIN)
    refined = written("refined", [parent])
    later = written("later", [replace(parent, completion=SOLVES, turn=1, parent=parent.id)])
    other_seed = written("seed", [prediction(tasks[0], ZEROES, view=View(Augmentation(True), (0, 1, 2), 0))])
    for sets in ([other_seed, refined, later], [refined, refined, later]):
        (row,) = successful_rows(sets, tasks, prompt_format(), executor, partners="children")
        answers = [m["content"] for m in row["messages"] if m["role"] == "assistant"]
        assert answers == ["```python\n" + SMALL]
    sets = [written("model", [prediction(tasks[0], ZEROES, view=PLAIN)]), refined, later]
    said = r"0/0/0/1 of \S*later refines mirror0/0/0/0, and \S*model and \S*refined hold different ones"
    with pytest.raises(ArcnbError, match=said):
        successful_rows(sets, tasks, prompt_format(), executor)
    with pytest.raises(ArcnbError, match=said):
        built(sets, tasks, tokenizer, executor, keep_solved=True)


@pytest.mark.parametrize("chooser", ["best", "distinct"])
def test_what_two_sets_hold_is_refined_once_and_counted(written, tasks, tokenizer, executor, chooser):
    first, later = third_turn_sets(written, tasks)
    copied = written("copied", [*first.iter_predictions(), prediction(tasks[1], COPIES, view=PLAIN)])
    once = built([first, later], tasks, tokenizer, executor, chooser=chooser)
    assert once.outcome()["left_out_as_in_two_sets"] == 0
    twice = built([first, later, first, later], tasks, tokenizer, executor, chooser=chooser)
    assert twice.rows == once.rows
    assert twice.outcome()["left_out_as_in_two_sets"] == 3
    partly = built([first, later, copied], tasks, tokenizer, executor, chooser=chooser)
    assert partly.rows[: len(once.rows)] == once.rows
    assert [row["task_id"] for row in partly.rows[len(once.rows) :]] == ["mirror1"]
    assert partly.n_repeated == 1


def test_children_of_different_parents_are_not_the_same_answer(written, tasks, tokenizer, executor):
    sets = []
    for name, completion in (("one", ZEROES), ("other", COPIES)):
        parent = prediction(tasks[0], completion, view=PLAIN)
        sets.append(written(name, [parent, replace(parent, completion=SMALL, turn=1, parent=parent.id)]))
    dataset = built(sets, tasks, tokenizer, executor, chooser="best", turns=[1])
    answers = [[m["content"] for m in r["messages"] if m["role"] == "assistant"] for r in dataset.rows]
    assert answers == [["```python\n" + text for text in (first, SMALL)] for first in (ZEROES, COPIES)]
    assert dataset.n_repeated == 0


def test_predictions_that_do_not_fit_are_refused(written, tasks, tokenizer, executor, tmp_path):
    sets = [written("a", [prediction(tasks[0], ZEROES)])]
    with pytest.raises(
        ArcnbError, match=r"mirror0/0/0/0 answers a task that is not in this task set: `tasks` is to be"
    ):
        built(sets, tasks.subset(["mirror1"]), tokenizer, executor)
    changed = Task.from_dict("mirror0", tasks[1].to_dict())
    with pytest.raises(
        ArcnbError, match=r"mirror0/0/0/0 answers another version of its task: the fingerprints differ"
    ):
        built(sets, TaskSet("changed", (changed,), "1"), tokenizer, executor)
    with pytest.raises(ArcnbError, match="nowhere holds no predictions"):
        built([PredictionSet(tmp_path / "nowhere")], tasks, tokenizer, executor)
    with pytest.raises(ArcnbError, match="holds no completions"):
        built([written("empty", [prediction(tasks[0], "")])], tasks, tokenizer, executor)
    with pytest.raises(ArcnbError, match="no prediction set is named: `predictions` takes"):
        built([], tasks, tokenizer, executor)


def test_answers_that_solved_are_kept_where_nothing_is_left_to_refine(tmp_path, written, tasks):
    asked = {"tasks": write_tasks(tasks, tmp_path / "tasks.parquet"), "workers": 1}
    rows = [prediction(tasks[0], SOLVES, view=PLAIN)]
    with pytest.raises(
        ArcnbError, match="nothing to refine: of 1 tasks 1 have all train pairs right and are left out"
    ):
        carried_out(tmp_path, "04", **asked, predictions=written("right", rows).folder)
    rows.append(prediction(tasks[0], ZEROES, view=PLAIN, index=1))
    run = carried_out(tmp_path, "04", **asked, predictions=written("both", rows).folder)
    assert (run.outcome["conversations"], run.outcome["successes"]) == (0, 1)
    assert len(pq.read_table(run.path / "sft.parquet")) == 1
    assert not (run.path / "refine.parquet").exists()


def test_a_template_that_asks_for_test_outputs_is_refused(tmp_path):
    path = tmp_path / "leaky.jinja"
    for leak in (
        "{{ test_output }}",
        "{% if false %}{{ task.test }}{% endif %}",
        "{{ pairs[0]['solution'] }}",
    ):
        path.write_text("{% block user %}\n" + leak + "{% endblock %}")
        with pytest.raises(ArcnbError, match=r"leaky.jinja, line 2: it mentions .* never show test outputs"):
            prompt_format(refine_template=str(path))
    path.write_text("{% block user %}{{ test_input }} {{ test_size }} predict the test output{% endblock %}")
    prompt_format(template=str(path))


def test_rows_are_written_with_what_rewards_need_and_shown_with_grids(
    written, tasks, tokenizer, executor, tmp_path
):
    dataset = built([written("a", [prediction(tasks[0], COPIES, view=PLAIN)])], tasks, tokenizer, executor)
    (row,) = pq.read_table(write_conversations(dataset.rows, tmp_path / "refine.parquet")).to_pylist()
    parent = dataset.parents[0]
    assert row["parent_train_correct_grids"] == parent.train_correct_grids
    assert row["parent_test_is_correct"] == 0
    assert row["pair_order"] == [2, 0, 1]
    view = ConversationView({t.task_id: t for t in tasks}, dataset.rows, dataset.parents)
    page = view._repr_html_()
    assert page.count("<svg") >= 9  # three pairs, each with input, expected and produced grid
    assert "Pair 1: wrong" in page
    assert "--- assistant" in repr(view)
    assert json.dumps(dataset.outcome())


def test_diverse_takes_other_outputs_and_other_programs():
    base = {"status": "ok", "train_correct_grids": 0.0, "train_pixel_score": 0.5, "train_is_correct": 0}
    near = "def transform(grid):\n    return grid + 1"
    far = "import numpy as np\ndef transform(g):\n    return np.rot90(g, 2)"

    def one(index, program, outputs, **more):
        grids = [np.array(output, np.uint8) for output in outputs]
        fields = base | {"program": program, "outputs": grids, "fingerprint": str(outputs)} | more
        return Prediction("t", "", 0, index, **fields)

    rows = [
        one(0, near, [[[1, 1, 1, 1]]], train_pixel_score=0.9),
        one(1, near, [[[1, 1, 1, 2]]], train_pixel_score=0.8),
        one(2, far, [[[1, 1, 1, 3]]], train_pixel_score=0.3),
        one(3, near, [[[5, 5]]], train_pixel_score=0.2),
    ]
    assert [p.index for p in choose("distinct", rows, 2, rng(0))] == [0, 1]
    assert {p.index for p in choose("diverse", rows, 3, rng(0))} == {0, 2, 3}


def test_successes_become_rows_to_learn_from(written, tasks, executor, small_model, tmp_path):
    first = prediction(tasks[0], ZEROES, view=PLAIN)
    better = prediction(tasks[0], SOLVES, view=PLAIN, turn=1, parent=first.id)
    worse = prediction(tasks[0], COPIES, view=PLAIN, turn=1, parent=first.id, index=1)
    children = written("children", [first, better, worse])
    siblings = written(
        "siblings",
        [prediction(tasks[1], text, index=i, view=PLAIN) for i, text in enumerate((COPIES, SOLVES, FAILS))],
    )
    rows = successful_rows([children, siblings], tasks, prompt_format(), executor, partners="children")
    assert [(row["parent"], row["prediction"]) for row in rows] == [("mirror0/0/0/0", "mirror0/0/0/1")]
    rows = successful_rows([children, siblings], tasks, prompt_format(), executor)
    assert {(row["task_id"], row["source"], row["prediction"]) for row in rows} == {
        ("mirror0", "children", "mirror0/0/0/1"),
        ("mirror0", "siblings", "mirror0/0/0/1"),
        ("mirror1", "siblings", "mirror1/0/1/0"),
    }
    again = successful_rows([children, siblings, siblings, children], tasks, prompt_format(), executor)
    assert again == rows
    path = tmp_path / "sft.parquet"
    path.write_bytes(b"of an attempt before, when the sets had less")
    write_conversations(rows, path)
    learnt = conversation_rows(path, small_model, max_length=2048)
    tokenizer = load_tokenizer(small_model)
    for row, made in zip(rows, learnt.dataset, strict=True):
        counted = [token for token in made["labels"] if token != IGNORED]
        assert tokenizer.decode(counted) == SOLVES + tokenizer.eos_token
        read = made["input_ids"][: -len(counted)]
        assert tokenizer.decode(read).endswith(row["prefix"])
    with pytest.raises(ArcnbError, match=r"none of .* fits max_length=10"):
        conversation_rows(path, small_model, max_length=10)
    with pytest.raises(ArcnbError, match=r"none\.parquet: no such file"):
        conversation_rows(tmp_path / "none.parquet", small_model, max_length=10)


def test_a_first_answer_without_an_opened_fence_becomes_its_program(written, tasks, executor):
    texts = (f"Mirrored.\n```python\n{text}" for text in (COPIES, SOLVES))
    siblings = written(
        "unopened",
        [
            prediction(tasks[1], text, index=i, view=PLAIN, completion_prefix="")
            for i, text in enumerate(texts)
        ],
    )
    (row,) = successful_rows([siblings], tasks, prompt_format("coder"), executor)
    assert (row["prefix"], row["answer"]) == ("```python\n", SOLVES)
    assert row["messages"][2]["content"] == f"Mirrored.\n```python\n{COPIES}"


def test_successes_of_reserved_tasks_are_marked_and_left_out_of_training(
    written, tasks, executor, small_model, tmp_path
):
    reserved = replace(tasks[1], meta={"original": HELD_OUT_TRAINING[0]})
    some = TaskSet("some", (tasks[0], reserved))
    answers = [
        prediction(task, text, index=i, view=PLAIN)
        for task in some
        for i, text in enumerate((COPIES, SOLVES))
    ]
    rows = successful_rows([written("both", answers)], some, prompt_format(), executor)
    assert [(row["task_id"], row["reserved"]) for row in rows] == [("mirror0", False), ("mirror1", True)]
    told, untold = tmp_path / "sft.parquet", tmp_path / "untold.parquet"
    write_conversations(rows, told)
    assert len(conversation_rows(told, small_model, max_length=2048)) == 2
    learnt = conversation_rows(told, small_model, max_length=2048, reserved=is_held_out)
    assert (len(learnt), learnt.counts()["n_reserved"]) == (1, 1)
    by_id = [row | {"task_id": HELD_OUT_TRAINING[0], "reserved": None} for row in rows]
    write_conversations(by_id, untold)
    sentence = r"none of 2 conversations \(reserved or eval tasks left out: 1; train_on_held_out=True"
    with pytest.raises(ArcnbError, match=sentence):
        conversation_rows(untold, small_model, max_length=2048, reserved=is_held_out)
    listed = tmp_path / "listed.jsonl"
    row = rows[0] | {"reserved": None, "original": ["007bbfb7"]}
    listed.write_text(2 * f"{json.dumps(row, default=list)}\n")
    with pytest.raises(ArcnbError, match=r"listed\.jsonl, line 1: task mirror0: original is .*, not text"):
        conversation_rows(listed, small_model, max_length=2048, reserved=is_held_out)


def test_a_child_of_a_parent_that_solved_the_task_is_no_success(written, tasks, executor):
    first = prediction(tasks[0], SOLVES, view=PLAIN)
    again = prediction(tasks[0], SOLVES.replace("grid", "g"), view=PLAIN, turn=1, parent=first.id)
    one = written("solved", [first, again])
    assert [row.train_is_correct for row in one.iter_predictions()] == [1, 1]
    assert successful_rows([one], tasks, prompt_format(), executor, partners="children") == []


def test_answers_to_one_task_in_two_views_are_no_siblings(written, tasks, executor):
    turned = View(Augmentation(n_rot90=1), (2, 0, 1), 0)
    one_step = [
        prediction(tasks[0], COPIES, index=0, view=PLAIN),
        prediction(tasks[0], SOLVES.replace("[:, ::-1]", "[::-1]"), index=1, view=turned),
    ]
    rollouts = written("rollouts", one_step)
    assert [row.train_is_correct for row in rollouts.iter_predictions()] == [0, 1]
    assert successful_rows([rollouts], tasks, prompt_format(), executor) == []


def test_what_a_prediction_answered_is_rebuilt(tasks, executor):
    book = Conversations({task.task_id: task for task in tasks}, prompt_format(), executor)
    first = prediction(tasks[0], "x", view=PLAIN)
    assert book.asked(first, {}) == prompt_format().prompt(PLAIN.apply(tasks[0]))


def test_turns_are_read_from_a_parameter():
    assert turn_numbers("") == []
    assert turn_numbers("0, 2,") == [0, 2]
    for text in ("x", "0,-1", "1.5"):
        with pytest.raises(ArcnbError, match="turns_to_refine takes numbers separated by commas"):
            turn_numbers(text)
