"""Gold must score full marks: known programs for real tasks through the whole judging path.

RE-ARC has a program for each of the 400 ARC-AGI-1 training tasks. As fenced completions they go through
extraction, sandbox, scoring and reward; 391 must come out solved. The nine others are the verifiers'
disagreement with the original data, named below. Any other loss is a bug of ours.
"""

import pytest

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.tasks.task_set import load_tasks
from arcnb.programs.executor.executor import Executor
from arcnb.programs.executor.limits import Limits
from arcnb.programs.judging import judge
from arcnb.rl.rewards.rollout import Scores
from arcnb.rl.rewards.schemes import reward_scheme
from arcnb.synth.rearc.programs import rearc_ids
from arcnb.synth.rearc.tasks import rearc_program

# Task -> partitions that the verifier gets wrong. Four of them correct errors of the original data.
EXCEPTIONS = {
    "29ec7d0e": {"train"},
    "4290ef0e": {"test"},
    "53b68214": {"test"},
    "6cf79266": {"train"},
    "7e0986d6": {"train"},
    "97a05b5b": {"train"},
    "a64e4611": {"train"},
    "a8d7556c": {"train"},
    "e5062a87": {"train"},
}


@pytest.fixture(scope="module")
def tasks():
    return load_tasks("arc-agi-1/training")


@pytest.fixture(scope="module")
def judged(tasks):
    """Judged gold predictions by task id."""
    gold = (
        Prediction(
            task_id=task_id,
            task_fingerprint=tasks[task_id].fingerprint,
            round=0,
            index=0,
            completion=f"The rule is known.\n\n```python\n{rearc_program(task_id)}```\n",
            finish_reason="stop",
        )
        for task_id in rearc_ids()
    )
    roomy = Limits(seconds=30, seconds_per_input=10)  # what is asked is whether programs are right, not fast
    with Executor(workers=2, limits=roomy) as executor:
        return {prediction.task_id: prediction for prediction in judge(gold, tasks, executor)}


def test_every_training_task_has_a_program(tasks):
    assert sorted(tasks.ids) == sorted(rearc_ids())
    assert len(rearc_ids()) == 400


def test_every_gold_program_gives_valid_outputs(judged):
    assert {p.task_id: (p.status, p.error_message) for p in judged.values() if p.status != "ok"} == {}
    assert {p.extraction for p in judged.values()} == {"fenced"}


def test_391_of_400_are_solved_and_the_others_are_the_documented_ones(judged):
    unsolved = {p.task_id for p in judged.values() if not (p.train_is_correct and p.test_is_correct)}
    assert unsolved == set(EXCEPTIONS)
    assert len(judged) - len(unsolved) == 391


@pytest.mark.parametrize("task_id", EXCEPTIONS)
def test_an_exception_fails_where_it_is_said_to(judged, task_id):
    prediction = judged[task_id]
    wrong = {part for part in ("train", "test") if not getattr(prediction, f"{part}_is_correct")}
    assert wrong == EXCEPTIONS[task_id]


@pytest.mark.parametrize(
    ("scheme", "top"), [("arc-v1", 10), ("arc-v2-no-pixel-score", 10), ("legacy-sum", 2), ("known-grids", 1)]
)
def test_a_solved_task_earns_the_top_reward_and_no_other_does(judged, tasks, scheme, top):
    reward = reward_scheme(scheme)
    for task_id, prediction in judged.items():
        task = tasks[task_id]
        earned = reward(Scores.of(prediction, len(task.train), len(task.test)))
        assert prediction.solved == (task_id not in EXCEPTIONS)
        assert (earned == pytest.approx(top)) == (task_id not in EXCEPTIONS)
