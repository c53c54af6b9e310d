"""Training on problems: rewards, a run, evaluation, memory, dry runs, the notebook."""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.scores.pass_rates import pass_at_k
from arcnb.errors import ArcnbError
from arcnb.lab.notebooks.files import declared_beside
from arcnb.lab.notebooks.profiles import profile_values
from arcnb.models.memory.shape import shape_of
from arcnb.models.memory.training import Layout, check_fit, estimate
from arcnb.models.registry import load_tokenizer
from arcnb.models.sampling.backends import Completion
from arcnb.models.training.log import read_metrics
from arcnb.problems.grading import ProblemJudge
from arcnb.problems.languages.registry import Languages
from arcnb.problems.plan import ProblemPlan
from arcnb.problems.sets.files import ProblemSet, load_problems
from arcnb.problems.sets.problem import Problem
from arcnb.problems.training.dry_run import memory_and_commands
from arcnb.problems.training.examples import examples
from arcnb.problems.training.reward import TestcaseRewards, problem_metrics, problem_rollout
from arcnb.problems.training.sample_evaluation import Evaluation, evaluate, evaluate_model
from arcnb.problems.training.solutions import checked
from arcnb.rl.checks.problems import problems_anywhere
from arcnb.rl.launch import run_grpo
from arcnb.rl.plan.grpo import GrpoPlan
from arcnb.rl.resuming.run_folder import set_aside
from arcnb.rl.rewards.function import ProgramReward
from arcnb.rl.rewards.terms import TermLimits
from tests.in_process import carried_out
from tests.paths import NOTEBOOKS
from tests.problems.problem_examples import ADD
from tests.rl.logged_keys import unknown_keys

RIGHT = "def add(a, b):\n    return a + b\n```"
HALF = "def add(a, b):\n    return 3\n```"
LIMITS = TermLimits(64)


def rewards(languages, texts, max_tests=2, **plan):
    """Rewards of these answers to ADD, and what was logged."""
    logged, problem = {}, Problem.from_row(ADD)
    reward = ProgramReward(
        TestcaseRewards("tests", LIMITS, **plan),
        [problem],
        None,
        detect_cheating=False,
        judge=ProblemJudge(languages, max_tests).judge,
        rollout=problem_rollout,
        logged=problem_metrics,
    )
    n = len(texts)
    columns = {"row": [0] * n, "task_id": ["add"] * n, "prefix": ["```python\n"] * n}
    for name, value in {
        "hflip": False,
        "n_rot90": 0,
        "color_map": None,
        "pair_order": None,
        "test_index": 0,
    }.items():
        columns[name] = [value] * n
    ids = [[1, 2, 3]] * n
    return reward(texts, ids, log_metric=logged.__setitem__, **columns), logged


def test_share_of_tests_and_a_bonus_for_all(languages):
    texts = [RIGHT, HALF, "def add(a, b):\n    return 1/0\n```", "nothing"]
    values, logged = rewards(languages, texts)
    assert values == [2.0, 0.5, 0.0, 0.0]
    assert logged["tests_passed_ratio"] == 1.5 / 4
    assert logged["solved_tasks_ratio"] == 0.25
    assert logged["parse/strict"] == 0.75
    assert logged["parse/lenient"] == 0.25
    assert rewards(languages, texts, base=0.5, perfect=3.0)[0] == [3.5, 0.25, 0.0, 0.0]
    assert rewards(languages, texts, binary=True)[0] == [2.0, 0.0, 0.0, 0.0]
    assert rewards(languages, [RIGHT + "\n```python\nx = 1\n```", RIGHT], format_weight=0.5)[0] == [2.0, 2.5]


def test_only_so_many_tests_count(languages):
    only_first = "def add(a, b):\n    return {1: 3}.get(a, 99)\n```"
    assert rewards(languages, [only_first], max_tests=1)[0] == [2.0]
    assert rewards(languages, [only_first], max_tests=4)[0] == [0.25]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"base_reward_weight": 0.0, "perfect_reward_weight": 0.0}, "both 0: tests would not count"),
        ({"turns": 2}, "trained on in one turn"),
        ({"reward": "solved"}, "reward='solved' is for ARC tasks"),
        ({"augment": "none"}, "augment='none' is for ARC tasks"),
        ({"refine_conversations": "refine.parquet"}, "trained on in one turn"),
    ],
)
def test_what_cannot_work_is_refused(options, sentence):
    (said,) = problems_anywhere(ProblemPlan.of({"eval_steps": 0} | options), [], [])
    assert sentence in said


def test_all_that_is_wrong_is_said_at_once():
    wrong = {"eval_steps": 0, "augment": "none", "turns": 2}
    assert len(problems_anywhere(ProblemPlan.of(wrong), [], [])) == 2
    with pytest.raises(ArcnbError) as error:
        ProblemPlan.of(wrong | {"base_reward_weight": -1.0, "n_predictions": -1})
    assert len(str(error.value).splitlines()) == 2


def test_two_languages_in_one_batch(executor, q):
    double = {
        "problem_id": "double",
        "description": "Double.",
        "language": "q",
        "entry_point": "double",
        "tests": [{"input": "1 2", "expected": "2 4"}, {"input": "3", "expected": "6"}],
    }
    problems = {row["problem_id"]: Problem.from_row(row) for row in (ADD, double)}
    half = "double:{2*x}\n/ says double[1 2] => ok 2 4\n/ says double[3] => err type\n"
    texts = [("double", f"```q\n{half}```"), ("add", f"```python\n{RIGHT}"), ("double", "none")]
    given = [
        Prediction(key, "x", 0, i, completion=text, finish_reason="stop")
        for i, (key, text) in enumerate(texts)
    ]
    judged = list(ProblemJudge(Languages(executor, q=q)).judge(given, problems))
    assert [p.train_correct_grids for p in judged] == [0.5, 1.0, 0.0]
    assert [(p.status, p.error_type) for p in judged] == [("error", "'type"), ("ok", None), ("no_code", None)]


def test_q_problems_without_a_q_are_refused_before_anything_is_loaded(tmp_path, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: find_spec(name) if name != "pykx" else None)
    for name, value in {"HOME": str(tmp_path), "PATH": str(tmp_path), "QHOME": ""}.items():
        monkeypatch.setenv(name, value)
    row = {
        "problem_id": "p",
        "description": "P.",
        "language": "q",
        "tests": [{"input": "1", "expected": "1"}],
    }
    (said,) = problems_anywhere(ProblemPlan.of({"eval_steps": 0}), [Problem.from_row(row)], [])
    assert said.startswith("problems in q need a q interpreter, and none was found; install")


def test_problems_of_the_eval_split_are_not_trained_on_wherever_they_come_from():
    own = load_problems("simple*2")
    asked = {"workers": 1, "check_solutions": False}
    for seed in (0, 7):
        mixed = ProblemSet([*own, *load_problems("simple/held_out*3", seed)])
        with pytest.raises(
            ArcnbError, match=f"3 problems are of the eval split .*, first {mixed[2].problem_id};"
        ):
            checked(ProblemPlan.of(asked), mixed, [])
        assert "not run" in checked(ProblemPlan.of(asked | {"train_on_held_out": True}), mixed, [])
    assert "not run" in checked(ProblemPlan.of(asked), load_problems("simple"), [])


def test_a_problem_in_both_sets_is_refused():
    some = load_problems("simple*3")
    with pytest.raises(ArcnbError, match=f"problem {some[0].problem_id} is in both"):
        checked(ProblemPlan.of({"workers": 1}), some, load_problems("simple*3"))


def test_a_problem_in_both_sets_is_refused_under_another_name_and_with_other_tests():
    more = Problem.from_row(ADD | {"problem_id": "plus", "tests": [{"input": [7, 2], "expected": 9}]})
    asked = ProblemPlan.of({"workers": 1, "check_solutions": False})
    with pytest.raises(ArcnbError, match="problem plus is in both"):
        checked(asked, ProblemSet([Problem.from_row(ADD)]), ProblemSet([more]))
    other = Problem.from_row(ADD | {"description": "Add two other numbers."})
    assert "not run" in checked(asked, ProblemSet([Problem.from_row(ADD)]), ProblemSet([other]))


# ---------------------------------------------------------------- a run


@pytest.fixture
def plan(small_model, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    asked = {
        "model": str(small_model.folder),
        "max_prompt_length": 256,
        "max_completion_length": 6,
        "num_generations": 2,
        "prompts_per_step": 1,
        "max_steps": 2,
        "save_steps": 2,
        "lora_r": 2,
        "eval_steps": 2,
        "n_eval_tasks": 2,
        "num_generations_eval": 2,
        "n_predictions": 2,
        "max_tests_per_problem": 2,
        "seconds_per_input": 2.0,
        "use_vllm": False,
        "backend": "transformers",
        "workers": 1,
    }
    return ProblemPlan.of(asked, output=tmp_path)


@pytest.fixture
def problem_sets():
    """(problems to train on, problems to evaluate on)"""
    return load_problems("simple*3"), load_problems("simple/held_out*3")


def test_a_run_trains_evaluates_and_leaves_its_files(plan, problem_sets, tmp_path, monkeypatch):
    report = run_grpo(plan, *problem_sets)
    assert (report.status, report.steps) == ("done", 2)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    steps = [row for row in rows if "reward" in row]
    assert {"tests_passed_ratio", "parse/strict", "parse/lenient", "parse/none", "status/ok"} <= set(steps[0])
    assert [row["step"] for row in rows if "held_out/pass@1" in row] == [0, 2]
    assert {"held_out/pass@1", "held_out/pass@2"} <= set(rows[0])
    assert unknown_keys(tmp_path) == []
    rollouts = PredictionSet(tmp_path / "rollouts").read()
    assert set(rollouts["task_id"]) <= {problem.problem_id for problem in problem_sets[0]}
    assert rollouts["status"].notna().all()
    held_out = PredictionSet(tmp_path / "held_out").read()
    assert held_out.groupby("round").size().to_dict() == {0: 4, 2: 4}
    assert held_out["test_correct_grids"].notna().all(), "the evaluation runs all tests"
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()

    other = plan.changed({"max_steps": 3, "max_tests_per_problem": 1})
    with pytest.raises(ValueError, match="max_tests_per_problem was 2 and is 1"):
        run_grpo(other, *problem_sets)

    closed = []
    monkeypatch.setattr(
        "arcnb.problems.languages.python.PythonLanguage.close", lambda self: closed.append(self)
    )
    result = evaluate_model(plan, problem_sets[1], report.adapter, 2)
    assert closed, "the evaluation leaves no language open"
    values = json.loads((tmp_path / "evaluation.json").read_text())
    assert values["n_predictions"] == 6
    assert [row["k"] for row in values["pass_at_k"]] == [1, 2]
    assert "Python in the sandbox" in values["judged_by"]["python"]
    assert result.table().index[-1] == "all"


def test_another_process_reads_the_same_plan(plan, problem_sets):
    back, *sets = GrpoPlan.read(plan.write(*problem_sets))
    assert [[p.fingerprint for p in one] for one in sets] == [
        [p.fingerprint for p in one] for one in problem_sets
    ]
    assert type(back) is ProblemPlan
    assert back.values() == plan.values()


class Parrot:
    """A backend that answers as it was told: {problem: texts}."""

    def __init__(self, tokenizer, texts):
        self.tokenizer, self.texts, self.asked = tokenizer, texts, []

    def generate(self, requests, sampling):
        for request in requests:
            self.asked.append(request.key)
            for i, text in enumerate(self.texts[request.key]):
                end = "stop" if text else "skipped"
                yield Completion(request.key, i, text, (1,), end, None, len(request.prompt_ids), i)


def test_final_evaluation_is_unbiased_and_goes_on_where_it_stood(languages, small_model, tmp_path):
    rows = [ADD, ADD | {"problem_id": "other", "difficulty": "2", "description": "Other."}]
    problems = [Problem.from_row(row) for row in rows]
    texts = {"add": [RIGHT, HALF, HALF, HALF], "other": [HALF] * 4}
    parrot = Parrot(load_tokenizer(small_model), texts)
    plan, judge = ProblemPlan.of({"n_predictions": 4}, output=tmp_path), ProblemJudge(languages)
    right = Parrot(parrot.tokenizer, dict.fromkeys(texts, [RIGHT] * 4))
    evaluate(plan, problems, right, judge, step=1)
    evaluate(plan, problems[:1], parrot, judge, step=2)
    result = evaluate(plan, problems, parrot, judge, step=2)
    assert parrot.asked == ["add", "other"], "what is done of this step is not done again"
    curve = result.pass_at_k().set_index("k")["mean"]
    assert curve[1] == pytest.approx(pass_at_k(4, 1, 1) / 2)
    assert curve[2] == pytest.approx(pass_at_k(4, 1, 2) / 2)
    assert result.table().loc["2", "pass@1"] == 0
    assert result.as_dict()["parse"]["parse/strict"] == 1


def test_prompts_too_long_are_counted_after_a_resume_too(languages, small_model, tmp_path):
    problems = [Problem.from_row(ADD | {"problem_id": name}) for name in ("add", "long")]
    parrot = Parrot(load_tokenizer(small_model), {"add": [RIGHT] * 2, "long": [""] * 2})
    plan, judge = ProblemPlan.of({"n_predictions": 2}, output=tmp_path), ProblemJudge(languages)
    for _ in range(2):
        assert evaluate(plan, problems, parrot, judge).as_dict()["prompts_too_long"] == 1
    assert parrot.asked == ["add", "long"]


def test_an_evaluation_of_an_edited_problem_is_refused(languages, small_model, tmp_path):
    parrot = Parrot(load_tokenizer(small_model), {"add": [RIGHT] * 2})
    plan, judge = ProblemPlan.of({"n_predictions": 2}, output=tmp_path), ProblemJudge(languages)
    evaluate(plan, [Problem.from_row(ADD)], parrot, judge)
    for change in ({"tests": [{"input": [1, 2], "expected": 4}]}, {"preamble": "from math import *"}):
        edited = [Problem.from_row(ADD | change)]
        with pytest.raises(
            ArcnbError, match=r"evaluation holds answers to another version of add; .* a new run"
        ):
            evaluate(plan, edited, parrot, judge)
    assert evaluate(plan, edited, parrot, judge, step=1).as_dict()["status"], "another step has none of it"


def test_an_evaluation_made_otherwise_is_refused(languages, small_model, tmp_path):
    parrot = Parrot(load_tokenizer(small_model), {"add": [RIGHT] * 2})
    plan, judge = ProblemPlan.of({"n_predictions": 2}, output=tmp_path), ProblemJudge(languages)
    first, second = tmp_path / "first", tmp_path / "second"
    for adapter in (first, second):
        adapter.mkdir()
        (adapter / "adapter_model.safetensors").write_text(adapter.name)
    problems = [Problem.from_row(ADD)]
    evaluate(plan, problems, parrot, judge, first)
    evaluate(plan.changed({"n_predictions": 1}), problems, parrot, judge, first)
    with pytest.raises(
        ArcnbError, match=r"evaluation .* step 0 .* adapter_sha256 '\w+', not '\w+'; .* new run"
    ):
        evaluate(plan, problems, parrot, judge, second)
    for changes, sentence in (
        ({"temperature": 0.5}, r"temperature 1\.0, not 0\.5"),
        ({"model": small_model.path}, "model 'default', not '/"),
        ({"shown_tests": 1}, "shown_tests 0, not 1"),
    ):
        with pytest.raises(ArcnbError, match=sentence):
            evaluate(plan.changed(changes), problems, parrot, judge, first)
    assert parrot.asked == ["add"]
    evaluate(plan, problems, parrot, judge, second, step=1)
    (record,) = (tmp_path / "evaluation").glob("*round00001.json")
    record.write_text("{")
    with pytest.raises(ArcnbError, match=f"^{record}: .* damaged"):
        evaluate(plan, problems, parrot, judge, second, step=1)


def test_a_training_that_begins_again_is_evaluated_anew(languages, small_model, tmp_path):
    parrot = Parrot(load_tokenizer(small_model), {"add": [RIGHT] * 2})
    plan, judge = ProblemPlan.of({"n_predictions": 2}, output=tmp_path), ProblemJudge(languages)
    for step in (2, 4):
        evaluate(plan, [Problem.from_row(ADD)], parrot, judge, step=step)
    aside = set_aside(tmp_path, 2)
    assert PredictionSet(tmp_path / "evaluation").read()["round"].unique().tolist() == [2]
    assert PredictionSet(aside / "evaluation").read()["round"].unique().tolist() == [4]
    set_aside(tmp_path, -1)
    evaluate(plan.changed({"model": small_model.path}), [Problem.from_row(ADD)], parrot, judge, step=2)
    assert parrot.asked == ["add"] * 3


# ---------------------------------------------------------------- memory and dry runs


QWEN = {"Qwen/Qwen2.5-1.5B": 1.54e9, "Qwen/Qwen2.5-7B": 7.62e9, "Qwen/Qwen2.5-32B": 32.8e9}


@pytest.mark.parametrize("model", QWEN)
def test_shapes_have_the_published_sizes(model):
    assert shape_of(model).parameters == pytest.approx(QWEN[model], rel=0.01)


def test_shape_of_a_folder_is_that_of_its_config(small_model):
    from safetensors import safe_open

    with safe_open(small_model.folder / "model.safetensors", "pt") as file:
        n = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    assert shape_of("x", small_model.folder).parameters == pytest.approx(n, rel=0.01)
    with pytest.raises(ArcnbError, match="size of model 'x/y' is not known"):
        shape_of("x/y")


def layout(**changes):
    values = {
        "processes": 7,
        "zero3": True,
        "rank": 32,
        "batch": 1,
        "prompt": 1024,
        "completion": 2048,
        "context": 8192,
    }
    return Layout(**(values | {"server_share": 0.9} | changes))


def test_memory_says_no_to_what_cannot_fit():
    large = shape_of("Qwen2.5-32B")
    check_fit("32B", large, layout(), 80.0)
    with pytest.raises(ArcnbError, match=r"32B cannot fit: each training GPU needs about .*optimizer"):
        check_fit("32B", large, layout(rank=0), 80.0)
    with pytest.raises(ArcnbError, match=r"each training GPU .*weights: 61"):
        check_fit("32B", large, layout(zero3=False, completion=8192), 80.0)
    with pytest.raises(ArcnbError, match="each server GPU"):
        check_fit("32B", large, layout(), 60.0)
    beside = layout(server_share=None, colocated_share=0.3)
    with pytest.raises(ArcnbError, match="each training GPU"):
        check_fit("7B", shape_of("Qwen2.5-7B"), replace(beside, processes=1, zero3=False), 32.0)
    check_fit("7B", shape_of("Qwen2.5-7B"), replace(beside, processes=1, zero3=False), 80.0)
    table = estimate(large, replace(beside, colocated_cache=4.0), 80.0)
    (engine,) = table[table.what == "vLLM beside it"]["GiB"]
    assert engine == pytest.approx(2 * large.parameters / 2**30 + 4, abs=0.01)
    one, seven = (estimate(large, layout(processes=n), 80.0) for n in (1, 7))
    weights = [table[table.what == "weights"]["GiB"].iloc[0] for table in (one, seven)]
    assert weights[0] == pytest.approx(7 * weights[1], rel=0.01)


def preset(name):
    """What a profile says of notebook 09."""
    declared = declared_beside(NOTEBOOKS / "09_testcase_rl.ipynb", name)
    return profile_values(NOTEBOOKS / "profiles" / f"{name}.yaml", "09_testcase_rl", declared)


@pytest.mark.parametrize(
    ("size", "name"),
    [
        *(("1.5B", "testcase_7b"), ("3B", "testcase_7b"), ("7B", "testcase_7b")),
        *(("14B", "testcase_32b"), ("32B", "testcase_32b")),
    ],
)
def test_presets_fit_eight_gpus_and_show_their_commands(size, name, tmp_path):
    chosen = preset(name)
    assert chosen["learning_rate"] == 2e-6
    assert chosen["answer_format"] == ("reasoning" if name == "testcase_32b" else "plain")
    assert chosen["model"].lower() == f"qwen/qwen2.5-{name.removeprefix('testcase_')}-instruct"
    chosen |= {"model": f"Qwen/Qwen2.5-{size}-Instruct", "gpu_memory_gib": 80.0}
    plan = ProblemPlan.of(chosen, output=tmp_path)
    assert (plan.num_processes, plan.parallel) == (7, "zero3")
    planned = memory_and_commands(plan, load_problems("simple*3"), load_problems("simple/held_out*3"))
    server, training = planned.commands
    assert f"serve {chosen['model']}" in server
    assert "CUDA_VISIBLE_DEVICES=7 " in server
    assert "arcnb.models.training.launcher" in training
    assert "--num_processes 7 --use_deepspeed --zero_stage 3" in training
    assert plan.completions_a_part == 1
    assert {"training", "server"} == set(planned.memory["GPU of"])


def test_the_estimate_counts_what_is_in_eight_bits_by_half(tmp_path):
    def sizes(**changes):
        chosen = (
            preset("testcase_7b") | {"model": "Qwen/Qwen2.5-7B-Instruct", "gpu_memory_gib": 80.0} | changes
        )
        plan = ProblemPlan.of(chosen, output=tmp_path)
        table = memory_and_commands(
            plan, load_problems("simple*3"), load_problems("simple/held_out*3")
        ).memory
        return table.set_index("what")["GiB"]

    cache = [sizes(vllm_kv_cache_dtype=kind)["KV cache of one sequence"] for kind in ("auto", "fp8")]
    assert cache[1] == pytest.approx(cache[0] / 2, abs=0.01)
    alone = {"vllm_mode": "colocate", "vllm_kv_cache_gb": 4.0, "parallel": "ddp", "num_processes": 1}
    weights = [sizes(**alone, vllm_weight_dtype=kind)["vLLM beside it"] - 4 for kind in ("auto", "fp8")]
    assert weights[1] == pytest.approx(weights[0] / 2, abs=0.01)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"augment": "none"}, "augment='none' is for ARC tasks"),
        ({"template": "nosuch.jinja"}, "there is no template nosuch.jinja"),
    ],
)
def test_a_dry_run_refuses_what_the_run_would(changes, sentence, plan, problem_sets):
    with pytest.raises(ArcnbError, match=sentence):
        memory_and_commands(plan.changed(changes), *problem_sets)


# ---------------------------------------------------------------- the notebook


def run_notebook(runs, *arguments):
    command = [sys.executable, "-m", "arcnb.lab.cli", "run", "09", "--quiet", *map(str, arguments)]
    environment = os.environ | {"ARCNB_RUNS": str(runs), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
@pytest.mark.long("a notebook trains and evaluates in a kernel of its own")
def test_the_notebook_trains_and_evaluates(small_model, tmp_path):
    values = {
        **{"model": small_model.folder, "tasks": "simple*4", "eval_tasks": "simple/held_out*2"},
        **{"max_steps": 2, "prompts_per_step": 1, "num_generations": 2, "max_completion_length": 6},
        **{"n_eval_tasks": 1, "num_generations_eval": 3, "n_predictions": 2, "lora_r": 2},
        **{"use_vllm": False, "backend": "transformers"},
    }
    result = run_notebook(tmp_path, *(item for pair in values.items() for item in ("-p", *pair)))
    assert result.returncode == 0, result.stderr[-2000:]
    run = Path(result.stdout.strip().splitlines()[-1])
    assert {"adapter", "metrics.jsonl", "rollouts", "evaluation.json", "manifest.json"} <= {
        path.name for path in run.iterdir()
    }
    outcome = json.loads((run / "manifest.json").read_text())["outcome"]
    assert (outcome["training"], outcome["steps"]) == ("done", 2)
    assert [name for name in outcome if "@" in name] == ["pass@1", "pass@2"], "of the evaluation alone"
    assert list(outcome)[:5] == ["headline", "solved", "of", "pass@1", "pass@2"]
    values |= {"evaluate_only": True, "adapter": run / "adapter", "tasks": "nothing/here.jsonl"}
    alone = carried_out(tmp_path, "09", **values)
    same, other = (json.loads((one / "evaluation.json").read_text()) for one in (run, alone.path))
    assert [outcome["pass@1"], outcome["pass@2"]] == [row["mean"] for row in same["pass_at_k"]], "of all"
    assert same.keys() == other.keys()
    assert other["step"] == 0
    assert not (alone.path / "adapter").exists()
    assert alone.outcome["of"] == 2


def test_an_evaluation_alone_is_refused_for_what_it_would_end_on(plan, problem_sets):
    alone = plan.changed({"evaluate_only": True})
    assert memory_and_commands(alone, [], problem_sets[1]).commands == []
    for changes, sentence in (
        ({"n_predictions": 0}, "evaluate_only needs n_predictions above 0"),
        ({"adapter": "no/adapter"}, "no/adapter"),
        ({"model": "no/model/here"}, "no/model/here"),
    ):
        with pytest.raises(ArcnbError, match=sentence):
            memory_and_commands(alone.changed(changes), [], problem_sets[1])


def test_a_dry_run_finds_a_problem_that_stands_in_both_sets(plan, problem_sets):
    train, _ = problem_sets
    dry = plan.changed({"dry_run": True, "check_solutions": False})
    with pytest.raises(ArcnbError, match="is in both the training and the evaluation set"):
        checked(dry, train, train)
    assert "not run" in checked(dry, train, problem_sets[1])
    cells = json.loads((NOTEBOOKS / "09_testcase_rl.ipynb").read_text())["cells"]
    (called,) = [line for cell in cells for line in cell["source"] if "checked(plan" in line]
    assert called.startswith("print("), "in every run, dry ones too"


def test_a_dry_run_that_cannot_fit_fails_with_its_sentence(tmp_path):
    asked = preset("testcase_32b") | {"dry_run": True, "gpu_memory_gib": 40.0}
    with pytest.raises(ArcnbError, match=r"Qwen/Qwen2\.5-32B-Instruct cannot fit: each"):
        carried_out(tmp_path, "09", **asked)


def test_examples_say_what_is_right_and_show_the_program_that_ran(tmp_path):
    def made(name, share, **other):
        scores = {"train_correct_grids": share, "test_correct_grids": share}
        right = {"train_is_correct": int(share == 1), "test_is_correct": int(share == 1)}
        return Prediction(
            name, "v", 0, 0, completion="so ```x = 1``` and on", status="ok", **scores, **right, **other
        )

    problems = [Problem.from_row(ADD | {"problem_id": name}) for name in "abc"]
    made_set = PredictionSet(tmp_path / "p")
    made_set.write_part(
        [made("a", 1.0, program="x = 1"), made("b", 0.5), made("c", 0.0, error_message="NameError")], 0
    )
    page = examples(made_set, problems, 4)._repr_html_()
    assert "<b>Right, a</b>" in page
    assert "<b>Wrong, b: 50% of the first tests passed, 50% of the others</b>" in page
    assert "<b>Wrong, c: NameError</b>" in page
    assert 'anywhere">x = 1</pre>' in page
    assert page.count("so ```x = 1``` and on") == 2, "where there is no program, what it wrote"


def test_examples_and_counts_are_of_the_problems_asked_after_the_last_step(tmp_path):
    folder = PredictionSet(tmp_path / "p")
    shares = {f"{part}_{name}": 0 for part in ("train", "test") for name in ("correct_grids", "is_correct")}
    for name, step in (("add", 4), ("add", 8), ("other", 8)):
        folder.write_part(
            [Prediction(name, "v", step, 0, completion=f"{name} at {step}", status="ok", **shares)], step
        )
    asked = [Problem.from_row(ADD)]
    assert [answer.completion for _, answer in examples(folder, asked)] == ["add at 8"]
    assert Evaluation(asked, folder, {}, 8).as_dict()["n_predictions"] == 1
