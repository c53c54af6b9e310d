"""The experiment of several turns: what waits for what, what is resumed, and tables of unfinished arms."""

import importlib
import json
import subprocess
import sys
import time
from types import SimpleNamespace

import pandas as pd
import pytest

from tests.paths import ROOT

FOLDER = ROOT / "bench" / "experiments"
ALL = ("untrained", "sft", "frozen", "onpolicy", "onpolicy-warm")


@pytest.fixture
def modules(monkeypatch):
    """The script's modules by their names; they are no package."""
    names = ["solved_counts", "multi_turn_plan", "multi_turn_table", "multi_turn_stages", "multi_turn"]
    monkeypatch.syspath_prepend(FOLDER)
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    for name in [*names, "one_gpu"]:
        sys.modules.pop(name, None)


@pytest.fixture
def plan(modules, tmp_path):
    return modules.multi_turn_plan.Plan(tmp_path, ALL, 3)


# ---------------------------------------------------------------- the plan


def test_what_needs_no_training_is_ready_first_and_in_this_order(plan):
    assert plan.ready(plan.units) == ["sample", "first@0", "first@1", "first@2"]
    assert plan.ready(plan.trainings) == ["onpolicy-0"]
    plan.finish("first@0", {})
    assert plan.ready(plan.units) == ["sample", "untrained@0", "rest@0", "first@1", "first@2"]


def test_everything_is_done_in_the_end_whatever_order_it_comes_in(plan):
    done = []
    while ready := plan.ready(plan.needs):
        done.append(ready[-1])
        plan.finish(ready[-1], {})
    assert sorted(done) == sorted(plan.needs)
    assert len(plan.units) == 1 + 3 * (2 + len(ALL))
    for name in done:
        assert all(done.index(need) < done.index(name) for need in plan.needs[name])


def test_each_training_seed_is_a_training_and_sampling_seeds_take_turns(modules, tmp_path):
    plan = modules.multi_turn_plan.Plan(tmp_path, ["untrained", "onpolicy-warm"], 3, 2)
    assert list(plan.trainings) == ["data", "sft-0", "sft-1", "onpolicy-warm-0", "onpolicy-warm-1"]
    used = [plan.needs[f"onpolicy-warm@{seed}"][1] for seed in range(3)]
    assert used == ["onpolicy-warm-0", "onpolicy-warm-1", "onpolicy-warm-0"]


def test_without_arms_that_train_on_them_there_are_no_conversations(modules, tmp_path):
    plan = modules.multi_turn_plan.Plan(tmp_path, ["onpolicy"], 1)
    assert list(plan.needs) == ["onpolicy-0", "first@0", "rest@0", "onpolicy@0"]


def test_what_was_skipped_or_failed_twice_holds_up_nothing_else(plan):
    for name in ("sample", "data", "first@0", "first@1", "first@2"):
        plan.finish(name, {})
    plan.finish("sft-0", {"skipped": "no refinement succeeded"})
    plan.fail("frozen-0", "out of memory")
    assert plan.ready(plan.trainings) == ["onpolicy-0", "frozen-0"]  # it is tried once more
    plan.fail("frozen-0", "out of memory")
    assert plan.ready(plan.trainings) == ["onpolicy-0"]
    for name in [*plan.ready(plan.units), "onpolicy-0"]:
        plan.finish(name, {})
    assert not plan.is_settled(plan.needs)
    for seed in range(3):
        plan.finish(f"onpolicy@{seed}", {})
    assert plan.is_settled(plan.needs)
    left = {name.partition("@")[0] for name in plan.units if not plan.is_done(name)}
    assert left == {"sft", "frozen", "onpolicy-warm"}
    plan.forget_failures()  # as the next call does
    assert plan.ready(plan.needs) == ["frozen-0"]


HOLDING = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from multi_turn_plan import Plan
plan = Plan(Path(sys.argv[2]), ["untrained"], 3)
with plan.claim(plan.ready(plan.units)) as name:
    print(name, flush=True)
    time.sleep(60)
"""


def test_a_unit_is_of_one_process_and_free_again_when_that_is_killed(modules, tmp_path):
    plan = modules.multi_turn_plan.Plan(tmp_path, ["untrained"], 3)
    command = [sys.executable, "-c", HOLDING, str(FOLDER), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "first@0\n"
            with plan.claim(plan.ready(plan.units)) as name:
                assert name == "first@1"
            with plan.claim(["first@0"]) as name:
                assert name is None
        finally:
            other.kill()
    with plan.claim(plan.ready(plan.units)) as name:
        assert name == "first@0"


def test_an_error_in_a_unit_comes_out_of_its_claim(plan):
    with pytest.raises(OSError, match="disk"), plan.claim(["first@0"]):
        raise OSError("disk is full")


def test_a_training_that_another_process_just_finished_is_not_done_again(modules, plan, monkeypatch):
    monkeypatch.setattr(modules.multi_turn_stages, "reinforce", None)
    monkeypatch.setattr(modules.multi_turn_stages, "on_gpu", lambda: False)
    plan.finish("onpolicy-0", {"steps": 7})
    args = SimpleNamespace(out=plan.out, arms="onpolicy", seeds=1, train_seeds=1)
    assert modules.multi_turn_stages.train(args, "onpolicy-0") == 0
    assert plan.facts("onpolicy-0") == {"steps": 7}


def test_an_engine_asks_for_a_small_share_since_others_are_on_the_gpu(modules, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "arcnb.models.sampling.backends.open_backend",
        lambda kind, model, adapter, options: seen.append((kind, options)),
    )
    monkeypatch.setattr(modules.multi_turn_stages, "on_gpu", lambda: True)
    monkeypatch.setattr(modules.multi_turn_stages, "splits", lambda args: (None, None))
    monkeypatch.setattr(modules.multi_turn_stages, "executor", lambda args: None)
    args = modules.multi_turn.arguments(["--out", str(tmp_path)])
    modules.multi_turn_stages.Sampling(args)
    ((kind, options),) = seen
    assert (kind, options.max_lora_rank, options.max_num_seqs) == ("vllm", 32, 512)
    others = args.trainers * modules.multi_turn.Driver(args, None, {}).fraction()
    assert options.gpu_memory_utilization < 1 - others - 2 * (args.sampler_kv_gb + 5) / 141


@pytest.mark.parametrize("first", [False, True])
def test_trainings_have_the_gpu_to_themselves_where_that_is_asked(modules, plan, monkeypatch, first):
    begun = []
    for name in ("sample", "data", "sft-0"):
        plan.finish(name, {})
    args = modules.multi_turn.arguments(["--out", str(plan.out)] + ["--trainings-first"] * first)
    driver = modules.multi_turn.Driver(args, plan, {})

    def start(name):
        begun.append(name)
        driver.running.append(SimpleNamespace(name=name, samples=name.startswith("sampler-")))
        return True

    monkeypatch.setattr(driver, "start", start)
    trainings = ["onpolicy-0", "frozen-0", "onpolicy-warm-0"]
    samplers = ["sampler-0", "sampler-1"]
    driver.begin()
    assert begun == (trainings if first else samplers + trainings)
    for name in trainings:
        plan.finish(name, {})
    driver.running[:] = [one for one in driver.running if one.samples]
    driver.begin()
    assert begun == (trainings + samplers if first else samplers + trainings)


# ---------------------------------------------------------------- counts and comparisons


def test_rows_become_cells_of_prompts(modules):
    rows = [
        # task, turn, round, tokens, train, test
        ("a", 0, 1, 5, 1, 1),
        ("a", 0, 0, 7, 0, None),
        ("a", 0, 0, 7, 1, 0),
        ("a", 1, 0, 9, None, None),
    ]
    frame = pd.DataFrame(
        rows, columns=["task_id", "turn", "round", "n_tokens", "train_is_correct", "test_is_correct"]
    )
    assert modules.solved_counts.cells_of(frame, ["a", "b"]) == {
        "a": [[0, 0, 2, 0, 1, 14], [0, 1, 1, 1, 1, 5], [1, 0, 1, 0, 0, 9]],
        "b": [],
    }


def arm(per_task, finished=True, ended=(), tokens=10):
    """Counts of one seed: {task: samples solved in each prompt of 2}."""
    cells = {
        task: [[0, i, 2, n, n, 2 * tokens] for i, n in enumerate(solved)] for task, solved in per_task.items()
    }
    return {"finished": finished, "ended": list(ended), "cells": cells}


def test_finished_arms_are_compared_whole_with_exact_p(modules):
    a = {
        0: arm({"x": [0, 0, 0], "y": [0, 0, 1], "z": [1, 0, 0]}),
        1: arm({"x": [0, 0, 0], "y": [0, 0, 0], "z": [0, 0, 1]}),
    }
    b = {
        0: arm({"x": [0, 0, 1], "y": [0, 0, 0], "z": [1]}, ended=["z"]),
        1: arm({"x": [0, 1], "y": [0, 1], "z": [0, 1]}),
    }
    found = modules.solved_counts.paired(a, b, first=2, least=3)
    assert (found["tasks"], found["seeds"], found["finished"]) == (3, [0, 1], True)
    # seed 1 of b has but two prompts, so a is cut there as well: its z is lost
    assert (found["a"], found["b"]) == (pytest.approx((0 + 0.5 + 0.5) / 3), pytest.approx((1 + 0.5 + 1) / 3))
    assert found["difference"] == pytest.approx(0.5)
    assert found["p_seeds"] == [1.0, 0.25]
    assert found["p"] == 0.5  # x: +2, y: 0 (one of each), z: +1; +-3 is 2 of 4 sums
    assert found["open"] == 5  # z is solved by the first prompt in seed 0
    assert found["gain"] == [pytest.approx(1 / 5), pytest.approx(4 / 5)]


def test_shares_of_later_samples_are_compared_over_tasks_that_have_some_in_both(modules):
    names = [f"t{number}" for number in range(10)]
    a = {0: arm({name: [0, 0, 1, 0] for name in names} | {"done": [1]}, ended=["done"])}
    b = {0: arm({name: [0, 1, 1, 2] for name in names} | {"done": [1]}, ended=["done"])}
    found = modules.solved_counts.paired_rates(a, b, first=2)
    assert (found.n_tasks, found.n_more, found.n_fewer) == (10, 10, 0)
    assert (found.a, found.b) == (pytest.approx(1 / 6), pytest.approx(4 / 6))
    assert modules.solved_counts.paired_rates(a, {0: arm({"t0": [0]})}, first=2) is None


def test_an_arm_at_work_is_compared_at_what_both_have(modules):
    whole = {0: arm({"x": [0, 0, 0, 1], "y": [0, 1, 0, 0], "z": [0, 0, 0, 0]})}
    begun = {0: arm({"x": [0, 0], "y": [0], "z": [0, 1, 0]}, finished=False)}
    found = modules.solved_counts.paired(whole, begun, first=2, least=3)
    assert (found["tasks"], found["finished"]) == (2, False)  # y has not got beyond what is shared
    assert found["samples"] == [5, 5]
    assert (found["a"], found["b"]) == (0, 0.5)
    assert modules.solved_counts.paired(whole, {1: begun[0]}, first=2, least=3) is None


def test_equal_tokens_cut_the_arm_that_writes_more(modules):
    a, b = {0: arm({"x": [0, 0, 1]}, tokens=10)}, {0: arm({"x": [0, 0, 1]}, tokens=20)}
    assert modules.solved_counts.paired(a, b, 2, 3)["b"] == 1
    found = modules.solved_counts.paired(a, b, 2, 3, by_tokens=True)
    assert (found["a"], found["b"], found["tokens"]) == (1, 0, [60, 40])


def test_counts_are_kept_up_to_date_and_the_last_ones_too_when_it_fails(modules):
    made = []

    def work():
        with modules.solved_counts.kept_up_to_date(lambda: made.append(len(made)), 0.01):
            while len(made) < 4:
                time.sleep(0.01)
            raise KeyError("the engine died")

    with pytest.raises(KeyError):
        work()
    n = len(made)
    time.sleep(0.05)
    assert len(made) == n >= 5


def leave(folder, name, seed, counts, **more):
    facts = {"arm": name, "seed": seed, "first": 2, "budget": 6} | counts | more
    (folder / "results").mkdir(exist_ok=True)
    (folder / "results" / f"counts-{name}-{seed}.json").write_text(json.dumps(facts))


def test_the_table_says_what_is_unfinished_and_compares_the_rest(modules, tmp_path):
    assert modules.multi_turn_table.table(tmp_path).startswith("what there is:\n\nat equal samples a task;")
    assert not (tmp_path / "results").exists()
    leave(tmp_path, "independent", 0, arm({"x": [0, 0, 0], "y": [0, 0, 0]}))
    leave(tmp_path, "untrained", 0, arm({"x": [0, 0, 1], "y": [0, 0, 0]}))
    leave(tmp_path, "onpolicy", 0, arm({"x": [0, 1], "y": [0]}, finished=False))
    metrics = tmp_path / "onpolicy-0" / "metrics.jsonl"
    metrics.parent.mkdir()
    metrics.write_text('{"step": 1, "reward": 0.5, "loss": 9}\n{"step": 2, "reward": 1.5}\n{"ste')
    text = modules.multi_turn_table.table(tmp_path)
    assert "onpolicy       seed 0: 2 tasks, 6 samples, 1 solved, UNFINISHED" in text
    assert "onpolicy-0: 2 lines; reward 1 -> 1\n" in text + "\n"
    found = json.loads((tmp_path / "results" / "table.json").read_text())
    names = ["untrained against independent", "onpolicy against independent", "onpolicy against untrained"]
    assert list(found) == [f"{name}, equal {what}" for what in ("samples", "tokens") for name in names]
    assert [found[f"{name}, equal samples"]["tasks"] for name in names] == [2, 1, 1]
    assert [found[f"{name}, equal samples"]["difference"] for name in names] == [0.5, 1, 1]
    assert "  adjusted 1" in text


def test_the_grpo_table_counts_the_seeds_that_ended_and_hides_no_infinite_ratio(monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    table = importlib.import_module("grpo_table")

    def look(solved):  # of 4 samples each: [samples, solved, distinct, valid, truncated, tokens]
        return {f"t{n}": [4, k, 1, 4, 0, 9] for n, k in enumerate(solved)}

    def run(seed, after, steps):
        start = {which: look([1, 0, 0, 0, 0]) for which in table.SETS}
        ended = {} if after is None else {"end": dict.fromkeys(table.SETS, look(after))}
        curve = [{"step": step, "per_sample": 0.1, "any": 0.2, "unique": 1.0} for step in steps]
        return {"arm": "a", "seed": seed, "steps": steps[-1], "status": "done", "rollbacks": 0,
                "evaluations": {"start": start} | ended, "curve": curve, "curves": {}}  # fmt: skip

    text = table.table([run(0, [2, 2, 0, 0, 0], [25, 50]), run(1, None, [25])])
    row = next(line for line in text.splitlines() if line.startswith("| a | 1 of 2 | 50 |"))
    assert "2.00 [" not in row
    assert "4.00 [" in row
    assert ", inf]" in row, "a third of the draws have no task that was solved before"
    assert "10.0 (20) 1.00, 1 of 2 seeds" in text
    later = run(0, [4, 2, 0, 0, 0], [50]) | {"arm": "b"}
    del later["evaluations"]["start"]
    text = table.table([run(0, [2, 2, 0, 0, 0], [25, 50]), later])
    row = next(line for line in text.splitlines() if line.startswith("| b | 1 | 50 |"))
    assert "| 5.0 -> 30.0 [" in row, "the start that the other arm evaluated"
    assert "| a -> b | a sampler that matches the learner | +10.0 [" in text
    assert "| b | 1 | 50 | - -> 30.0 [" in table.table([later])
    middle, low, high = table.ratio([look([0, 0])], [look([0, 0])])
    assert (low, high) == (0, float("inf"))
    assert middle != middle
    middle, low, high = table.ratio([look([2, 2, 2])], [look([4, 4, 4])])
    assert (middle, low, high) == (2, 2, 2)


# ---------------------------------------------------------------- the driver


@pytest.fixture
def driver(modules, tmp_path, monkeypatch):
    """driver(words, script=...): a Driver whose processes are what script(name) returns, run by sh."""

    def make(*words, script):
        args = modules.multi_turn.arguments(["--out", str(tmp_path), "--seconds", "600", *words])
        monkeypatch.setattr(sys, "argv", ["multi_turn.py"])
        began = []

        def start(command, **how):
            name = command[command.index("--stage") + 1]
            began.append((name, how["env"].get("CUDA_VISIBLE_DEVICES"), float(how["env"]["EXP_FRACTION"])))
            how.pop("preexec_fn")
            return popen(["sh", "-c", script(name)], **how)

        popen = subprocess.Popen
        monkeypatch.setattr(modules.multi_turn.subprocess, "Popen", start)
        monkeypatch.setattr(modules.multi_turn, "on_gpu", lambda: True)
        monkeypatch.setattr(modules.multi_turn.time, "sleep", lambda seconds: time_sleep(0.02))
        one = modules.multi_turn.Driver(args, modules.multi_turn_stages.plan_of(args), {})
        one.began = began
        return one

    time_sleep = time.sleep
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return make


def test_trainings_and_samplers_are_spread_over_the_gpus(driver, tmp_path):
    one = driver("--gpus", "2", "--train-seeds", "3", "--trainers", "1", script=lambda name: "sleep 30")
    one.begin()
    one.begin()
    assert [began[:2] for began in one.began] == [
        ("sampler-0", "0"), ("sampler-1", "1"), ("onpolicy-0", "0"), ("onpolicy-1", "1"),
    ]  # fmt: skip
    one.stop()
    assert all(running.process.returncode for running in one.running)


def test_trainers_and_samplers_fit_on_a_gpu_together(driver):
    for words in ([], ["--gpus", "4"], ["--trainers", "5"]):
        one = driver(*words, script=lambda name: "true")
        samplers = 17 * -(-one.args.samplers // one.args.gpus) / 141
        assert 0.8 < samplers + one.fraction() * one.args.trainers < 0.95


def test_a_training_that_fails_twice_is_given_up_and_the_rest_is_done(driver, tmp_path, capsys):
    done = 'mkdir -p done; for n in {}; do echo "{{}}" > done/$n.json; done'

    def script(name):
        if name == "onpolicy-0":
            return "echo no memory; exit 3"
        return f"cd {tmp_path}; " + done.format("first@0 rest@0")

    one = driver("--arms", "onpolicy", "--seeds", "1", script=script)
    assert one.run() == 1
    assert [name for name, *_ in one.began].count("onpolicy-0") == 2
    out = capsys.readouterr().out
    assert "onpolicy-0 ended with 3" in out
    assert out.endswith("NOT all done, failed: onpolicy-0\n")


def test_samplers_that_cannot_start_are_not_started_for_ever(driver, capsys):
    one = driver("--arms", "untrained", "--seeds", "1", "--samplers", "1", script=lambda name: "exit 1")
    assert one.run() == 1
    assert len(one.began) == 3
    assert "run the same command again" in capsys.readouterr().out


def test_units_that_fail_do_not_keep_the_others_from_being_done(driver, tmp_path, capsys):
    """Each sampler does one unit; those of untrained fail, as they would with a damaged set."""

    def script(name):
        for unit in one.plan.ready(one.plan.units):
            if unit.startswith("untrained"):
                one.plan.fail(unit, "damaged")
                return "exit 1"
            one.plan.finish(unit, {})
            return "exit 0"

    one = driver("--arms", "untrained", "--seeds", "4", "--samplers", "1", script=script)
    assert one.run() == 1
    left = [name for name in one.plan.units if not one.plan.is_done(name)]
    assert left == [f"untrained@{seed}" for seed in range(4)]
    assert capsys.readouterr().out.endswith(f"NOT all done, failed: {', '.join(left)}\n")


def test_time_that_is_up_is_75(driver):
    one = driver("--seconds", "20", script=lambda name: "true")
    assert one.run() == 75
    assert one.began == []
