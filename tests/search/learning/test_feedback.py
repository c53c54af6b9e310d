"""Rows of failed answers with feedback: which, in what order, and what the teacher reads."""

import pytest

from arcnb.arc.augmentation import Augmentation
from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.views import View
from arcnb.models.prompts.chat import answer_ids, prompt_ids
from arcnb.models.prompts.format import prompt_format
from arcnb.models.sft.rows import IGNORED
from arcnb.programs.judging import judge
from arcnb.search.learning.lessons.feedback import FeedbackSettings, feedback_rows
from tests.search.learning_engine import program, small_tasks

RIGHT = program("out = grid.copy(); out[:, 0] = 4; return out")
ON_TRAIN = program("out = grid.copy(); out[:, 0] = 4; return grid if len(grid) == 3 else out")
NEAR = program("out = grid.copy(); out[0, 0] = 4; return out")
FAR = program("return grid[::-1]")
ERROR = program("return grid.nothing")


@pytest.fixture
def rows_of(executor, tokenizer):
    """rows_of(answers, ...) is what is made of answers of the first task; cut: index of one cut off."""

    def made(answers, cut=None, n=0, max_tokens=4096, seed=0, template="arc_code", views=()):
        task = small_tasks()[0]
        views = views or [View.plain(task)] * len(answers)
        predictions = [
            Prediction(
                task.task_id,
                task.fingerprint,
                0,
                i,
                completion=text,
                finish_reason="length" if i == cut else "stop",
                hflip=view.augmentation.hflip,
                n_rot90=view.augmentation.n_rot90,
                color_map=view.augmentation.color_map,
                pair_order=view.pair_order,
                test_index=view.test_index,
            )
            for i, (text, view) in enumerate(zip(answers, views, strict=True))
        ]
        judged = list(judge(predictions, {task.task_id: task}, executor))
        settings = FeedbackSettings(answers_per_task=n)
        told = {"seed": seed, "round_": 0, "max_tokens": max_tokens}
        return feedback_rows([(task, judged)], executor, tokenizer, prompt_format(template), settings, **told)

    return made


def test_failed_answers_come_once_closest_last_and_the_teacher_reads_the_feedback(rows_of, tokenizer):
    made = rows_of([NEAR, RIGHT, ON_TRAIN, ERROR, FAR, FAR, "no program"], cut=None)
    rows = made.rows
    assert made.dropped == {"right on the train pairs": 2, "the same answer": 1}
    assert len(rows) == 4
    for row in (*rows, *(row["told"] for row in rows)):
        n = sum(label != IGNORED for label in row["labels"])
        assert row["labels"] == [IGNORED] * (len(row["labels"]) - n) + row["input_ids"][-n:]
    assert rows[-1]["input_ids"][-len(answer_ids(tokenizer, NEAR)) :] == answer_ids(tokenizer, NEAR)
    for row in rows:
        n = sum(label != IGNORED for label in row["labels"])
        told = row["told"]
        assert told["input_ids"][-n:] == row["input_ids"][-n:]
        said = tokenizer.decode(told["input_ids"][:-n])
        answer = tokenizer.decode(row["input_ids"][-n:-1])
        assert "An answer was tried before" in said
        assert answer.strip() not in said, "what is there can be copied"
        assert len(told["input_ids"]) > len(row["input_ids"])
    texts = [tokenizer.decode(row["told"]["input_ids"]) for row in rows]
    assert sum("AttributeError" in text for text in texts) == 1


def test_cut_off_overlong_and_surplus_answers_are_counted(rows_of):
    made = rows_of([NEAR, FAR, ERROR], cut=1, n=1)
    assert made.dropped == {"cut off": 1, "not among the closest": 1}
    assert len(made.rows) == 1
    made = rows_of([NEAR], max_tokens=20)
    assert (made.rows, made.dropped) == ([], {"row too long": 1})


def test_the_teacher_is_tried_on_right_answers_to_the_prompts_of_failed_ones(rows_of, tokenizer):
    plain = View.plain(small_tasks()[0])
    other = View(Augmentation(hflip=True), (1, 0), 0)
    made = rows_of([FAR, NEAR, RIGHT, ERROR], views=[plain, plain, plain, other])
    assert len(made.rows) == 3
    assert len(made.probes) == 2, "nobody was right about the other prompt"
    for probe in made.probes:
        n = sum(label != IGNORED for label in probe["labels"])
        assert tokenizer.decode(probe["labels"][-n:-1]).strip() == RIGHT.strip()
    tried = {tuple(probe["told"]["input_ids"]) for probe in made.probes}
    right = len(answer_ids(tokenizer, RIGHT))
    before = {ids[:-right] for ids in tried}
    told = [row["told"] for row in made.rows]
    assert before <= {tuple(one["input_ids"][: one["labels"].count(IGNORED)]) for one in told}


def test_the_teacher_s_answer_begins_as_the_model_s_did(rows_of, tokenizer):
    """The template coder begins answers with nothing, that of the feedback with a fence."""
    answer = (
        "The first column.\n\n```python\nimport numpy as np\n\ndef transform(grid):\n    return grid\n```"
    )
    (row,) = rows_of([answer], template="coder").rows
    n = sum(label != IGNORED for label in row["labels"])
    before = [tokenizer.decode(one["input_ids"][:-n]) for one in (row, row["told"])]
    assert [text.endswith("assistant\n") for text in before] == [True, True]


def test_the_same_answer_to_another_prompt_is_another_answer(rows_of):
    plain = small_tasks()[0]
    other = View(Augmentation(hflip=True), (1, 0), 0)
    made = rows_of([FAR, FAR, FAR], views=[View.plain(plain), other, other])
    assert (len(made.rows), made.dropped) == (2, {"the same answer": 1})


def test_equals_are_drawn_by_the_seed(rows_of):
    answers = [program(f"return grid * 0 + {n}") for n in range(5, 9)]
    drawn = [tuple(rows_of(answers, n=2, seed=seed).rows[0]["input_ids"]) for seed in (0, 0, 1, 2, 3, 4)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1


def test_the_prompt_is_the_one_that_was_answered(rows_of, tokenizer):
    task = small_tasks()[0]
    (row,) = rows_of([FAR]).rows
    shown = View.plain(task).apply(task)
    prompt = prompt_ids(tokenizer, prompt_format().prompt(shown))
    assert row["input_ids"] == prompt + answer_ids(tokenizer, FAR)
