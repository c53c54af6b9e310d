"""What cannot run is refused whole, before anything is loaded, and the notebooks declare what the plans
have."""

import subprocess
import sys

import nbformat
import pytest

from arcnb.arc.tasks.task_set import TaskSet, load_tasks
from arcnb.errors import ArcnbError
from arcnb.lab.notebooks.parameters import notebook_parameters
from arcnb.plans import refuse
from arcnb.search.checks import problems
from arcnb.search.inference import InferencePlan, sampled_sets
from arcnb.search.learning.plan import SearchPlan
from tests.paths import NOTEBOOKS

CELL_LINES = {"03": 20, "07": 25}
MODULES = {"inference": "InferencePlan", "learning.plan": "SearchPlan", "checks": "problems"}


@pytest.fixture(scope="module")
def tasks() -> TaskSet:
    return load_tasks("arc-agi-1/training").subset(["007bbfb7"])


@pytest.fixture
def refuse_inference(tasks, tmp_path):
    """refuse_inference(turns=0, ...) raises ArcnbError with every reason."""
    return lambda **asked: refuse(problems(InferencePlan.of(asked), tasks, tmp_path))


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"shard": 2, "n_shards": 2, "output": "x"}, "shard must be from 0 to n_shards - 1, not 2 of 2"),
        ({"n_shards": 2}, "n_shards is 2 and output is empty: give all shards the same output"),
        ({"turns": 3, "n_predictions": 2}, "2 predictions cannot be divided among 3 turns"),
        ({"last_share": 0.5}, "last_share 0.5 of 4 predictions rounds to no whole prompt of 4 (per_prompt)"),
        ({"refine_from": "x"}, "refine_from needs turns of at least 2: there is nothing to refine"),
        ({"turns": 2, "refine_from": "x"}, "refine_from x holds no first turns of these tasks"),
        ({"backend": "vlm"}, "backend='vlm' does not exist; there are auto, vllm, server, transformers"),
        ({"adapter": "x/A,x/A"}, "called 'A'; take one out or rename it"),
        ({"template": "arc_cod"}, "there is no template arc_cod; known are arc_code"),
        ({"encoding": "roman"}, "roman"),
        ({"output": "/proc/new/set"}, "output /proc/new/set takes no files: /proc: "),
    ],
)
def test_an_inference_that_cannot_run_is_refused(refuse_inference, asked, sentence):
    with pytest.raises(ArcnbError) as error:
        refuse_inference(**asked)
    assert sentence in str(error.value)


def test_an_inference_that_can_run_is_not_refused_and_every_reason_is_said_at_once(refuse_inference):
    refuse_inference()
    refuse_inference(turns=2, output="x", n_shards=2, adapter="none, auto")
    with pytest.raises(ArcnbError) as error:
        refuse_inference(n_shards=2, adapter="x/A,x/A", template="arc_cod")
    assert len(str(error.value).splitlines()) == 3


def test_a_set_that_was_begun_otherwise_is_refused_by_the_settings_name(refuse_inference, tasks, tmp_path):
    from arcnb.search.sampling.conditions import conditions, hold_to_conditions

    plan = InferencePlan.of({})
    (made,) = sampled_sets(plan, tasks, tmp_path).values()
    hold_to_conditions(made.predictions, conditions(made, plan.rounds))
    refuse_inference(n_predictions=100, stop_after=3)
    with pytest.raises(ArcnbError, match="was begun with max_completion_length 384, not 512; use a new"):
        refuse_inference(max_completion_length=512)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"arms": "learn, guess"}, "arms are alone and learn, not learn, guess"),
        ({"arms": ""}, "arms are alone and learn, not none"),
        ({"arms": "learn, learn"}, "arms names a search twice: learn, learn"),
        ({"n_predictions": 0}, "the budget of a task needs a limit: n_predictions, budget_tokens or"),
        ({"first_round": 3}, "first_round is 3, it must be a multiple of per_prompt, 4"),
        ({"group_size": 0}, "group_size is 0, it must be positive, or -1 for all tasks"),
        ({"lessons": "both", "keep_adapter": False}, "lessons='both' does not go with keep_adapter=False"),
        ({"warmup_steps": 1.5}, "warmup_steps is 1.5: whole steps, or a share below 1"),
        ({"lora_target_modules": []}, "lora.target_modules names no layer for the adapter"),
        ({"lora_target_modules": "q_proj, v_proj"}, "parameter 'lora_target_modules' must be list[str]"),
        ({"task_ids": "007bbfb7, 007bbfb7"}, "task_ids names task '007bbfb7' twice"),
        ({"task_ids": "0d3d703e"}, "has no task '0d3d703e'; give task_ids"),
        ({"task_ids": "007bbfb7", "n_tasks": 2}, 'n_tasks is 2 and task_ids is "007bbfb7"'),
    ],
)
def test_a_search_that_cannot_run_is_refused(tasks, asked, sentence):
    with pytest.raises(ArcnbError) as error:
        refuse(problems(SearchPlan.of(asked), tasks))
    assert sentence in str(error.value)


@pytest.mark.parametrize("held", ['{"a": {"train": [], "test": []}}', '{"a": [[[1]]]}', "half of"])
def test_a_submission_is_not_written_over_a_file_of_another_kind(tasks, tmp_path, held):
    """Tasks, their solutions, and what cannot be read; a submission is written anew."""
    file = tmp_path / "mine.json"
    plan = SearchPlan.of({"submission": True, "submission_file": str(file)})
    assert problems(plan, tasks) == []
    file.write_text(held)
    (problem,) = problems(plan, tasks)
    assert problem == f"submission_file {file} is there already and is no submission; name another file"
    file.write_text('{"a": [{"attempt_1": [[0]], "attempt_2": [[0]]}]}')
    assert problems(plan, tasks) == []


def test_a_search_that_can_run_is_not_refused(tasks):
    for asked in ({}, {"task_ids": "007bbfb7"}, {"arms": "learn", "n_predictions": 0, "budget_tokens": 5}):
        assert problems(SearchPlan.of(asked), tasks) == []


@pytest.mark.parametrize(
    ("model", "adapter", "expected"),
    [
        ("default", "auto", {"default": "default"}),
        ("org/name", "auto", {"none": ""}),
        ("org/name", "", {"none": ""}),
        ("default", "none, auto, x/A", {"none": "", "default": "default", "A": "x/A"}),
    ],
)
def test_auto_is_the_shipped_adapter_for_the_embedded_model(tasks, tmp_path, model, adapter, expected):
    plan = InferencePlan.of({"model": model, "adapter": adapter})
    made = sampled_sets(plan, tasks, tmp_path)
    assert {name: one.adapter for name, one in made.items()} == expected
    assert {one.model for one in made.values()} == {model}


def test_a_search_is_settled_in_its_runs_folder(tmp_path):
    plan = SearchPlan.of({}).settled(tmp_path)
    assert (plan.adapter, plan.output) == ("default", str(tmp_path / "search"))
    assert plan.submission_file == str(tmp_path / "submission.json")
    named = {"model": "org/name", "output": "there", "submission_file": "here.json"}
    plan = SearchPlan.of(named).settled(tmp_path)
    assert (plan.adapter, plan.output, plan.submission_file) == ("", "there", "here.json")


def test_options_reach_the_engine_and_the_sampler_by_its_own_names():
    plan = InferencePlan.of(
        {
            "max_completion_length": 12, "top_k": 5, "seeded": False, "max_length": 99, "tensor_parallel": 2,
            "vllm_gpu_memory_utilization": 0.5, "prefix_caching": False, "server_urls": "a, b,",
            "load_in_4bit": True, "program_memory_mb": 64,
        }
    )  # fmt: skip
    sampling, options = plan.sampling.sampling(), plan.engine.options(max_lora_rank=8)
    assert (sampling.max_tokens, sampling.top_k, sampling.seeded) == (12, 5, False)
    assert (options.max_model_len, options.gpu_memory_utilization, options.max_num_seqs) == (99, 0.5, None)
    assert (options.tensor_parallel_size, options.enable_prefix_caching) == (2, False)
    assert (options.server_urls, options.load_in_4bit, options.max_lora_rank) == (("a", "b"), True, 8)
    assert (plan.programs.limits().memory_mb, plan.made_by) == (64, "default (4 bit)")


@pytest.mark.parametrize("module", MODULES)
def test_plans_and_their_check_load_nothing_heavy(module):
    script = (
        f"import sys; from arcnb.search.{module} import {MODULES[module]}; print([name for name in "
        "('torch', 'transformers', 'vllm', 'trl', 'pandas', 'pyarrow') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("number", CELL_LINES)
def test_the_parameters_cell_says_what_the_plan_says(number):
    (path,) = NOTEBOOKS.glob(f"{number}_*.ipynb")
    notebook = nbformat.read(path, as_version=4)
    (cell,) = (c.source for c in notebook.cells if "parameters" in c.metadata.get("tags", []))
    assert len(cell.splitlines()) <= CELL_LINES[number]
    assert cell.splitlines()[-1].startswith("more: dict = {}")
    declared = notebook_parameters(notebook, path.name)
    in_cell, further = declared.all()
    assert len(in_cell) + len(further) == len(declared.plan.options())
    for name, parameter in in_cell.items():
        known = declared.plan.find(name)
        assert parameter.default == known.default, name
        meaning = f"{known.meaning} ({known.unit})" if known.unit else known.meaning
        assert meaning.startswith(parameter.comment), name
