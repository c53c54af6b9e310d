"""Plans and their shards."""

import itertools
from dataclasses import replace

import pytest

from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task_set import load_tasks
from arcnb.models.prompts.chat import count_tokens, prompt_ids
from arcnb.models.prompts.format import prompt_format
from arcnb.models.registry import load_tokenizer
from arcnb.models.sampling.backends import Sampling
from arcnb.search.inference import InferencePlan, counted_tasks
from arcnb.search.sampling.predict import shard_of
from arcnb.search.sampling.rounds import RoundPlan, shard_tasks
from arcnb.search.sampling.sampled_set import SampledSet
from tests.search.canned_engine import CannedEngine

PLAN = RoundPlan(n_predictions=12, per_prompt=4)


@pytest.fixture(scope="module")
def tasks():
    return list(load_tasks("arc-agi-1/training"))[:120]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_shards_hold_every_task_once_and_weigh_nearly_the_same(tasks, count):
    weights = rng(0, "weights").lognormal(7, 1, len(tasks)).tolist()
    weight_of = {task.task_id: weight for task, weight in zip(tasks, weights, strict=True)}
    shards = [shard_tasks(tasks, weights, (index, count)) for index in range(count)]
    assert sorted(task.task_id for shard in shards for task in shard) == sorted(weight_of)
    work = [sum(weight_of[task.task_id] for task in shard) for shard in shards]
    assert max(work) - min(work) <= max(weights)


def test_the_order_of_the_tasks_does_not_matter(tasks):
    weights = [len(task.train) for task in tasks]
    mine = shard_tasks(tasks, weights, (1, 3))
    assert shard_tasks(tasks[::-1], weights[::-1], (1, 3)) == mine[::-1]


def test_more_shards_than_tasks_leave_some_empty(tasks):
    shards = [shard_tasks(tasks[:2], [1, 1], (index, 4)) for index in range(4)]
    assert [len(shard) for shard in shards] == [1, 1, 0, 0]


def test_shards_are_balanced_by_tokens_and_not_by_number(tasks, small_model):
    engine = CannedEngine(load_tokenizer(small_model), None, context=4096)
    format_, sampling = prompt_format(), Sampling(max_tokens=1)
    lengths = [len(format_.prompt_ids(engine.tokenizer, task)) for task in tasks]
    assert count_tokens(engine.tokenizer, [format_.prompt(task) for task in tasks]) == lengths
    length_of = {task.task_id: n for task, n in zip(tasks, lengths, strict=True)}
    plans = [replace(PLAN, shard=index, n_shards=4) for index in range(4)]
    made = SampledSet(tasks, None, format_, sampling)
    shards = [shard_of(made, plan, engine) for plan in plans]
    assert sum(map(len, shards)) == len(tasks)

    def spread(shards, context):
        """Most tokens of a shard, as a share of the fewest, in prompts that fit the context."""
        lengths = [[length_of[task.task_id] for task in shard] for shard in shards]
        tokens = [sum(n for n in shard if n < context) for shard in lengths]
        return max(tokens) / min(tokens)

    by_position = [tasks[index::4] for index in range(4)]
    assert spread(shards, 10**6) < 1.01 < 2 < spread(by_position, 10**6)
    assert spread(shards, engine.context) < 1.1 < 1.8 < spread(by_position, engine.context)
    assert prompt_ids(engine.tokenizer, format_.prompt(tasks[0]))[: lengths[0]]


def test_the_page_of_a_shard_tells_of_its_own_tasks(small_model):
    engine = CannedEngine(load_tokenizer(small_model), None, context=4096)
    some = load_tasks("arc-agi-1/training")[:5]
    sets = {"none": SampledSet(some, None, prompt_format(), Sampling(max_tokens=1))}
    plans = [InferencePlan.of({"shard": n, "n_shards": 2, "output": "x"}) for n in range(2)]
    counted = [counted_tasks(plan, some, sets, engine).ids for plan in plans]
    assert all(counted)
    assert sorted(itertools.chain(*counted)) == sorted(some.ids)
    assert counted_tasks(InferencePlan.of(), some, sets, engine) is some


def test_a_shard_that_is_run_again_with_another_context_has_the_same_tasks(tasks, small_model):
    tokenizer, format_ = load_tokenizer(small_model), prompt_format()
    plan = replace(PLAN, shard=1, n_shards=3)
    made = SampledSet(tasks, None, format_, Sampling(max_tokens=100))
    few, many = (shard_of(made, plan, CannedEngine(tokenizer, None, context)) for context in (2048, 8192))
    assert few == many
