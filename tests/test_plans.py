"""Plans: options by several names, `more`, refusals, and a library's settings without importing it."""

from __future__ import annotations

import dataclasses
import importlib
import math
import subprocess
import sys
from dataclasses import dataclass

import pytest

from arcnb.errors import ArcnbError
from arcnb.lab.cli import main
from arcnb.plans import Library, Plan, Settings, branch, library, opened, option, refuse
from arcnb.values import choices

CONFIG = (
    "transformers/training_args.py:TrainingArguments",
    "trl/trainer/base_config.py:_BaseConfig",
    "trl/trainer/grpo_config.py:GRPOConfig",
)


@dataclass(frozen=True)
class Guard:
    action: str = option("warn", "what an alarm does")
    window: int = option(20, "steps that a mean is taken over", "logged steps", free=True)


@dataclass(frozen=True)
class Search:
    action: str = option("best", "what is looked for")


@dataclass(frozen=True)
class Toy(Plan):
    output: str = ""
    seed: int = option(0, "everything derives from it")
    temperature: float = option(1.0, "of sampling")
    guard: Guard = branch(Guard)
    search: Search = branch(Search)
    trl: Settings = library(
        Library(CONFIG, {"beta": 0.01}, frozenset({"output_dir"}), frozenset({"save_steps"}))
    )


@pytest.mark.parametrize("name", ["guard.window", "guard_window", "window"])
def test_an_option_has_a_path_a_flat_name_and_a_word(name):
    assert Toy.of({name: 3}).guard.window == 3
    assert Toy.of({"more": {name: 3}}).guard.window == 3


def test_more_may_be_nested_and_whole_numbers_become_floats():
    plan = Toy.of(
        {"seed": 4, "more": {"guard": {"window": 3}, "temperature": 2, "trl": {"beta": 1}}}, output="here"
    )
    assert (plan.seed, plan.guard.window, plan.output) == (4, 3, "here")
    assert isinstance(plan.temperature, float)
    assert isinstance(plan.trl["beta"], float)


def test_a_mapping_is_the_value_of_an_option_that_takes_one():
    for given in ({"model_init_kwargs": {"a": {"b": 1}}}, {"trl": {"model_init_kwargs": {"a": {"b": 1}}}}):
        assert Toy.of({"more": given}).trl["model_init_kwargs"] == {"a": {"b": 1}}


def test_one_value_for_a_whole_branch_is_told_what_the_branch_has():
    with pytest.raises(
        ArcnbError, match=r"'guard' is no parameter, but has some; say guard\.action, for instance"
    ):
        Toy.of({"guard": 3})


def test_every_problem_is_named_in_one_error():
    with pytest.raises(ArcnbError) as error:
        Toy.of({"sed": 1, "window": "a", "output_dir": "x"})
    assert str(error.value).split(";\n") == [
        "there is no parameter 'sed'; did you mean 'seed'?",
        "parameter 'window' must be int (default 20), got 'a' of type str",
        "output_dir is derived from the other settings and cannot be set",
    ]


PLANS = {
    "arcnb.rl.plan.grpo": "GrpoPlan",
    "arcnb.problems.plan": "ProblemPlan",
    "arcnb.models.sft.plan": "SftPlan",
    "arcnb.search.inference": "InferencePlan",
    "arcnb.search.learning.plan": "SearchPlan",
}


@pytest.mark.parametrize("module", PLANS)
def test_every_number_of_every_plan_has_a_range(module):
    plan = getattr(importlib.import_module(module), PLANS[module])
    for path, known in plan.options().items():
        if "int" not in known.kind and "float" not in known.kind:
            continue
        if known.default is not None and known.ours:
            plan.of({path: known.default})
        wrong = [math.nan, math.inf] if "float" in known.kind else []
        if not known.of_library:
            wrong += [-2, -2.0]
        for value in wrong:
            given = {"a": value} if known.kind.startswith("dict") else value
            with pytest.raises(ArcnbError, match="must be"):
                plan.of({path: given})


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"seed": -1}, "parameter 'seed' must be at least 0 and at most 4294967295 (default 0), got -1"),
        ({"lora_r": 0}, "parameter 'lora_r' must be at least 1 (default 32), got 0"),
        (
            {"learning_rate": math.nan},
            "parameter 'learning_rate' must be finite and at least 0 (default 1e-05)",
        ),
        ({"top_p": 1.5}, "parameter 'top_p' must be above 0 and at most 1 (default 1.0), got 1.5"),
        ({"guard": {"window": 1}}, "parameter 'guard_window' must be at least 2 (default 20), got 1"),
        ({"terms": {"valid_code": -1}}, "'terms' must be at least 0 (default {}), got {'valid_code': -1}"),
        ({"num_generations": 1}, "parameter 'num_generations' must be at least 2 (default 4), got 1"),
    ],
)
def test_a_number_out_of_its_range_is_refused_with_the_range(asked, sentence):
    from arcnb.rl.plan.grpo import GrpoPlan

    with pytest.raises(ArcnbError) as error:
        GrpoPlan.of({"more": asked})
    assert sentence in str(error.value)


@pytest.mark.parametrize("module", PLANS)
def test_a_choice_that_does_not_exist_is_refused_with_those_that_do(module):
    plan = getattr(importlib.import_module(module), PLANS[module])
    chosen = {path: known for path, known in plan.options().items() if choices(known.within)}
    assert chosen
    for path, known in chosen.items():
        there = choices(known.within)
        assert known.default in there or (known.of_library and known.default is None), (
            "its own, not a literal"
        )
        for value in there:
            plan.of({path: value})
        with pytest.raises(ArcnbError, match=f"='nonsense' does not exist; there are {there[0]}, "):
            plan.of({path: "nonsense"})


@pytest.mark.parametrize(
    ("notebook", "asked", "sentence"),
    [
        ("05", ("reward", "arc-v3"), "reward='arc-v3' does not exist; there are arc-v1, simplified, "),
        ("05", ("trl.optim", "adam"), "optim='adam' does not exist; there are adamw_torch, "),
        ("02", ("trl.optim", "adam"), "optim='adam' does not exist; there are adamw_torch, "),
        ("02", ("trl.loss_type", "dpo"), "loss_type='dpo' does not exist; there are nll, dft, chunked_nll"),
        ("05", ("trl.loss_type", "dpo"), "loss_type='dpo' does not exist; there are grpo, dr_grpo, dapo, "),
        (
            "02",
            ("lr_scheduler_type", "cosin"),
            "lr_scheduler_type='cosin' does not exist; there are linear, ",
        ),
        ("03", ("chooser", "bets"), "chooser='bets' does not exist; there are best, distinct, "),
        ("07", ("submission_rule", "most"), "submission_rule='most' does not exist; there are train-score, "),
        ("09", ("tests.answer_format", "xml"), "answer_format='xml' does not exist; there are plain, rea"),
    ],
)
def test_a_misspelt_choice_is_found_before_anything_runs(capsys, notebook, asked, sentence):
    assert main(["run", notebook, "-p", *asked, "--dry-run"]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(("notebook", "name"), [("02", "sft_conversations"), ("05", "refine_conversations")])
def test_a_file_of_conversations_is_looked_into_before_anything_runs(capsys, tmp_path, notebook, name):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"messages": []}\n')
    for path, sentence in (
        (tmp_path / "none.parquet", "no such file"),
        (rows, "no file of such conversations"),
    ):
        assert main(["run", notebook, "-p", name, str(path), "--dry-run"]) == 2
        said = capsys.readouterr().err
        assert f"{name}: {path}" in said
        assert sentence in said


def test_a_word_of_two_branches_has_to_say_which():
    with pytest.raises(ArcnbError, match=r"say guard\.action or search\.action"):
        Toy.of({"action": "stop"})
    assert Toy.of({"guard_action": "stop"}).guard.action == "stop"


def test_the_same_option_cannot_be_given_twice():
    with pytest.raises(ArcnbError, match="given twice"):
        Toy.of({"guard.window": 3, "window": 4})
    with pytest.raises(ArcnbError, match="a line of its own"):
        opened({"seed": 1, "more": {"seed": 2}})
    with pytest.raises(ArcnbError, match="more must be a dictionary"):
        opened({"more": 3})


def test_the_library_has_all_fields_of_the_installed_class_with_their_defaults():
    from trl import GRPOConfig

    known = {known.word: known for path, known in Toy.options().items() if path.startswith("trl.")}
    fields = {entry.name: entry for entry in dataclasses.fields(GRPOConfig)}
    assert {*known, "output_dir"} == set(fields)
    for name in ("epsilon_high", "importance_sampling_level", "cast_lm_head_to_fp32", "entropy_coef", "fp16"):
        assert known[name].default == fields[name].default, name
        assert known[name].meaning, name
    assert known["beta"].default == 0.01


def test_reading_the_library_loads_nothing_heavy():
    script = (
        "import sys, tests.test_plans as t; t.Toy.of({'epsilon_high': 0.3}); "
        "print([name for name in ('torch', 'trl', 'transformers', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_values_make_the_same_plan_again_and_leave_out_what_may_differ():
    plan = Toy.of({"seed": 4, "beta": 0.5, "epsilon_high": 0.3, "save_steps": 10.0})
    assert Toy.of(plan.values()) == plan
    fixed = plan.identity()
    assert fixed["epsilon_high"] == 0.3
    assert not {"guard_window", "save_steps"} & set(fixed)


def test_the_table_says_what_was_given():
    table = Toy.of({"beta": 0.5}).table()
    assert table.loc["trl.beta", "from"] == "given"
    assert table.loc["guard.window", "from"] == "default"
    assert "logged steps" in table.loc["guard.window", "meaning"]
    assert "guard.window" in Toy.of({})._repr_html_()


def test_refuse_joins_problems_and_is_silent_without_any():
    refuse([])
    with pytest.raises(ArcnbError, match="a;\nb"):
        refuse(["a", "b", "a"])
