"""Rows of the model's own answers to hindsight tasks, and what the teacher reads before them."""

from dataclasses import dataclass, replace

import pytest

from arcnb.models.prompts.format import prompt_format
from arcnb.models.sampling.backends import Completion, Sampling
from arcnb.models.sft.rows import IGNORED
from arcnb.search.learning.lessons.demonstrations import Demonstrations
from arcnb.search.learning.lessons.hindsight import HindsightTask, learning_rows
from tests.search.learning_engine import program, small_tasks

RIGHT = program("out = grid.copy(); out[:, 0] = 4; return out")


@dataclass
class Answering:
    """A backend that answers the last request first; finish: reason by task."""

    tokenizer: object
    finish: dict

    def generate(self, requests, sampling):
        for one in reversed(list(requests)):
            (name,) = one.key
            ids = [one.seed % 97 + 3, 5, self.tokenizer.eos_token_id]
            how = self.finish.get(name, "stop")
            yield Completion(one.key, 0, "x", ids, how, None, len(one.prompt_ids), one.seed)


@pytest.fixture
def rows_of(tokenizer):
    """rows_of(...) is (tasks, format, probes, rows, dropped)."""

    def made(finish=None, seed=0, template="arc_code", max_tokens=4096):
        tasks = [
            HindsightTask(replace(task, task_id=f"{task.task_id}/0"), RIGHT, task.task_id, (1.0, 1.0), 0)
            for task in small_tasks()
        ]
        engine, form = Answering(tokenizer, finish or {}), prompt_format(template)
        told = {"seed": seed, "round_": 1, "max_tokens": max_tokens}
        lesson = Demonstrations(tasks, tokenizer, form, **told)
        return tasks, form, lesson.probes(), *lesson.rows(engine, Sampling())

    return made


@pytest.mark.parametrize("template", ["arc_code", "coder"])
def test_a_task_is_answered_anew_and_the_teacher_has_seen_its_program(rows_of, tokenizer, template):
    tasks, form, probes, rows, dropped = rows_of(template=template)
    assert (len(rows), dropped) == (3, {})
    learned, _ = learning_rows(tasks, tokenizer, form, seed=0, round_=1, max_tokens=4096)
    for row, probe, plain in zip(rows, probes, learned, strict=True):
        n = sum(label != IGNORED for label in row["labels"])
        n_prompt = plain["labels"].count(IGNORED)
        assert row["input_ids"][:-n] == plain["input_ids"][:n_prompt], "as hindsight shows it"
        assert row["labels"][-n:] == row["told"]["labels"][-n:] == row["input_ids"][-n:]
        asked, said = (tokenizer.decode(one["input_ids"][:-n]) for one in (row, row["told"]))
        assert RIGHT.strip() in said
        assert "in your own words" in said
        assert asked[-20:] == said[-20:], "the answer begins as the model's did"
        assert {name: probe[name] for name in plain} == plain, "the teacher is tried on the program itself"
        before = [one["input_ids"][: one["labels"].count(IGNORED)] for one in (probe["told"], row["told"])]
        assert before[0] == before[1]


def test_answers_are_drawn_by_seed_and_task_and_those_without_an_end_are_counted(rows_of):
    first, again, other = (rows_of(seed=seed)[3] for seed in (0, 0, 1))
    assert first == again != other
    assert len({tuple(row["input_ids"][-3:]) for row in first}) == 3
    *_, rows, dropped = rows_of(finish={"odd1/0": "length", "odd2/0": "skipped"})
    assert (len(rows), dropped) == (1, {"cut off": 1, "row too long": 1})
    *_, probes, rows, dropped = rows_of(max_tokens=50)
    assert (probes, rows, dropped) == ([], [], {"row too long": 3})
