"""Runs side by side: differences, outcomes, curves, cost."""

import dataclasses
import json

import pytest

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.errors import ArcnbError
from arcnb.lab import cli
from arcnb.lab.batch.parameter_sets import ParameterSet
from arcnb.lab.batch.sweeps import plan_sweep
from arcnb.lab.plots import comparison, plots
from arcnb.lab.runs.finding import find_run
from arcnb.lab.runs.run import new_run

SEARCH = {"notebook": "07_search_and_learn.ipynb"}


def prediction(task_id, index, right, tokens=100):
    scores = {name: int(right) for name in ("train_is_correct", "test_is_correct")}
    scores |= {
        f"{part}_{name}": float(right)
        for part in ("train", "test")
        for name in ("correct_grids", "pixel_score")
    }
    return Prediction(
        task_id,
        "f",
        0,
        index,
        status="ok",
        n_tokens=tokens,
        fingerprint=f"{right}",
        finish_reason="stop",
        **scores,
    )


@pytest.fixture
def runs():
    """Two samplings of partly the same tasks, and a training with rollouts."""
    first = new_run("first", {"temperature": 1.0, "n": 2, "tensor_parallel": 2})
    second = new_run("second", {"temperature": 0.5, "n": 2})
    PredictionSet(first.path / "predictions").write_part(
        [prediction(task, index, task == "a" and index == 0) for task in "ab" for index in range(2)], 0
    )
    PredictionSet(second.path / "predictions" / "none").write_part(
        [prediction("a", 0, False), prediction("c", 0, True)], 0
    )
    trained = new_run("trained", {"n": 2, "learning_rate": 1e-5})
    PredictionSet(trained.path / "rollouts").write_part([prediction("d", 0, True, 7)], 0)
    lines = [{"step": step, "reward": step / 10} for step in range(1, 5)]
    (trained.path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for run, seconds in ((first, 1800), (second, 60), (trained, 36)):
        run.record({"solved": 1, "inner": {"rate": 0.5}, "name": "x", "rows": [{"a": 1}]})
        run.update(seconds=seconds)
    gpus = [{"name": "G", "memory_gb": 80, "driver": "1"}] * 4
    first.update(
        hardware=first.manifest["hardware"] | {"gpus": gpus},
        attempts=[
            {"status": "preempted", "start": "2026-01-01T00:00:00+00:00", "end": "2026-01-01T00:30:00+00:00"}
        ],
    )
    return comparison.open_runs("first, second, trained")


def test_runs_are_named_and_wrong_names_are_refused(runs):
    assert list(runs) == ["first", "second", "trained"]
    assert list(comparison.open_runs()) == ["first", "second", "trained"], "the last that are done"
    assert list(comparison.open_runs("first, trained", "A, B")) == ["A", "B"]
    again = new_run("first")
    assert list(comparison.open_runs(f"{runs['first'].path}, {again.path}")) == [
        runs["first"].path.name,
        again.path.name,
    ]
    for references, names, message in (
        ("nothing", "", "there is no run 'nothing'"),
        ("first, second", "A, A", "two of the runs to compare are called"),
        ("first, second", "A", "2 runs but 1 names"),
    ):
        with pytest.raises(ArcnbError, match=message):
            comparison.open_runs(references, names)


def test_only_what_differs_is_shown(runs):
    table = comparison.parameter_differences(runs)
    assert table.T.to_dict() == {
        "temperature": {"first": "1", "second": "0.5", "trained": ""},
        "tensor_parallel": {"first": "2", "second": "", "trained": ""},
        "learning_rate": {"first": "", "second": "", "trained": "1e-05"},
    }


def test_outcomes_are_numbers_by_name(runs):
    table = comparison.outcome_table(runs)
    assert table.loc["inner/rate"].tolist() == [0.5, 0.5, 0.5]
    assert set(table.index) == {"solved", "inner/rate"}
    assert comparison.readable(table).loc["solved", "first"] == "1"


def test_counts_of_tokens_are_written_out(runs):
    runs["trained"].record({"tokens": 10944, "seconds": 1693.5, "rate": 1e-05})
    shown = comparison.readable(comparison.outcome_table(runs))["trained"]
    assert [shown[name] for name in ("tokens", "seconds", "rate")] == ["10944", "1694", "1e-05"]


def test_flat_numbers_stand_first_whichever_run_has_them(runs):
    runs["trained"].record({"tokens": 9, "pass@1": 0.5, "of": 4})
    assert list(comparison.outcome_table(runs).index) == ["solved", "of", "pass@1", "tokens", "inner/rate"]


def test_which_run_was_best_is_said_at_equal_predictions_and_with_its_doubt(runs):
    frames, shared, _ = comparison.on_shared_tasks(comparison.prediction_frames(runs))
    ranked = comparison.ranking(frames, shared)
    assert ranked["k"].tolist() == [1, 1]
    assert ranked["mean"].to_dict() == {"first": 0.5, "second/none": 0.0}
    table = comparison.standing(ranked)
    assert table.loc["second/none"].tolist() == ["0%", "+50 (+50 to +50)", "1"]
    said = comparison.which_was_best(ranked, runs)
    assert said.startswith("Best is first: of 1 shared task it solves 50%")
    assert said.endswith("That it is better is not shown by these tasks: +50 to +50 points."), "of one task"
    many = ranked.assign(n_tasks=6)
    assert "is shown: +50 to +50 points" in comparison.which_was_best(many, runs)
    same = comparison.ranking({"a": frames["first"], "b": frames["first"]}, shared)
    assert comparison.which_was_best(same, runs).startswith("None is best: of 1 shared task a and b solve")
    three = comparison.ranking(dict.fromkeys("abc", frames["first"]), shared)
    assert "1 shared task a and b and c solve" in comparison.which_was_best(three, runs)
    close = same.assign(mean=[0.5, 0.4], behind_low=[0.0, -0.1], behind_high=[0.0, 0.3])
    assert "is not shown by these tasks: -10 to +30" in comparison.which_was_best(close, runs)


def test_runs_without_predictions_are_ranked_by_what_all_recorded(runs):
    two = {name: runs[name] for name in ("first", "trained")}
    nothing = comparison.ranking({}, [])
    equal = "None is best by solved: first and trained have 1."
    assert comparison.which_was_best(nothing, two) == equal
    assert comparison.which_was_best(nothing, runs | {"last": new_run("last").record({"solved": 0})}) == (
        "None is best by solved: first and second and trained have 1; last 0."
    )
    for loss, run in enumerate(two.values(), start=2):
        run.record({"solved": None, "eval_loss": loss})
    assert comparison.which_was_best(nothing, two) == "Best by eval_loss is first: 2; trained 3."
    assert comparison.which_was_best(nothing, runs).startswith("These runs recorded no number in common")


def test_runs_without_an_outcome_yet_are_told_apart_by_nothing():
    runs = {name: new_run(name, {"n": n}) for n, name in enumerate(("first", "second"))}
    assert comparison.which_was_best(comparison.ranking({}, []), runs) == (
        "These runs recorded no number in common that says which is best."
    )
    assert comparison.readable(comparison.outcome_table(runs)).empty


def unscored(task_id, index, status="ok"):
    scores = dict.fromkeys(("test_is_correct", "test_correct_grids", "test_pixel_score"))
    return dataclasses.replace(prediction(task_id, index, False), status=status, **scores)


def test_sets_are_ranked_on_tasks_whose_test_outputs_are_known_to_all_of_them(tmp_path):
    """Task x has no known test outputs, which a set without a valid program for it does not tell."""
    rows = {
        "failed": [unscored("x", index, "error") for index in range(2)],
        "ran": [unscored("x", index) for index in range(2)],
    }
    for name, told in rows.items():
        right = int(name == "ran")
        scored = [prediction(task, index, index < right) for task in "ab" for index in range(2)]
        PredictionSet(tmp_path / name).write_part([*scored, *told], 0)
    frames = {name: comparison.table_frame(PredictionSet(tmp_path / name)) for name in rows}
    ranked = comparison.ranking(frames, ["a", "b", "x"])
    assert list(ranked.index) == ["ran", "failed"]
    assert ranked["n_tasks"].tolist() == [2, 2]
    assert ranked["behind"].tolist() == [0, 1]
    said = comparison.which_was_best(ranked, {})
    assert said.startswith("Best is ran: of 2 shared tasks it solves 100%")
    apart = {"a": frames["ran"][frames["ran"]["task_id"] != "b"], "x": frames["failed"]}
    apart["x"] = apart["x"].assign(task_id=apart["x"]["task_id"].replace({"a": "x", "x": "a"}), status="ok")
    assert comparison.ranking(apart, ["a", "b", "x"]).empty, "no task is known to both"


def test_a_set_that_was_cut_short_is_ranked_at_the_predictions_that_all_its_tasks_have(tmp_path):
    for name, n in {"whole": 8, "cut": 2}.items():
        rows = [prediction(f"t{t}", i, i == t) for t in range(8) for i in range(8 if t == 7 else n)]
        PredictionSet(tmp_path / name).write_part(rows, 0)
    frames = {name: comparison.table_frame(PredictionSet(tmp_path / name)) for name in ("whole", "cut")}
    ranked = comparison.ranking(frames, [f"t{t}" for t in range(8)])
    assert ranked["k"].tolist() == [2, 2]
    assert ranked.loc["whole", "mean"] == 0.25
    assert ranked.loc["cut", "mean"] == pytest.approx((1 + 1 + 0.25) / 8)


def test_a_sweep_stands_for_its_runs(notebook):
    path = notebook("run.record({'n': n})")
    values = {"n": 1, "seconds": 0.0, "label": "x"}
    plan_sweep("rates", path, values, [ParameterSet({"n": n}, {"n": n}) for n in (1, 2)])
    assert list(comparison.open_runs("rates")) == ["rates.n_1", "rates.n_2"]


def test_predictions_are_compared_on_the_tasks_they_share(runs):
    frames = comparison.prediction_frames(runs)
    assert list(frames) == ["first", "second/none"]
    kept, shared, left_out = comparison.on_shared_tasks(frames)
    assert (shared, left_out) == (["a"], "")
    assert [len(frame) for frame in kept.values()] == [2, 1]
    assert comparison.on_shared_tasks({}) == ({}, [], "")


def test_tasks_of_another_version_are_no_shared_tasks(tmp_path):
    for name, version in {"one": "f", "other": "g"}.items():
        rows = [
            prediction("same", 0, True),
            dataclasses.replace(prediction("a", 0, True), task_fingerprint=version),
        ]
        PredictionSet(tmp_path / name).write_part(rows, 0)
    frames = {name: comparison.table_frame(PredictionSet(tmp_path / name)) for name in ("one", "other")}
    kept, shared, left_out = comparison.on_shared_tasks(frames)
    assert shared == ["same"]
    assert [set(frame["task_id"]) for frame in kept.values()] == [{"same"}, {"same"}]
    assert left_out == "Left out, as the sets answer different versions of them: 1 task, a."


def test_cost_counts_attempts_gpus_and_tokens_for_each_solved_task(runs):
    cost = comparison.cost_table(runs)
    assert cost["hours"].tolist() == pytest.approx([1.0, 1 / 60, 0.01])
    assert cost.loc["first", "GPU hours"] == pytest.approx(2.0), "two of the four GPUs, both attempts"
    assert cost.loc["first", "completion tokens"] == 400
    assert cost.loc["first", "tokens per solved task"] == 400
    assert cost.loc["first", "GPU seconds per solved task"] == pytest.approx(7200)
    assert cost.loc["second", ["tasks", "solved", "tokens per solved task"]].tolist() == [2, 1, 200]
    assert cost.loc["trained", ["completion tokens", "tokens per solved task"]].tolist() == [7, 7]


@pytest.mark.parametrize(
    ("parameters", "n_gpus"),
    [
        ({}, 1),
        ({"num_processes": 2, "tensor_parallel": 2}, 4),
        ({"num_processes": 0, **SEARCH}, 8),
        ({"num_processes": 4, **SEARCH}, 4),
        ({"num_processes": 2, "trl.vllm_mode": "server", "vllm.server_gpus": 2}, 4),
        ({"num_processes": 1, "engine.tensor_parallel": 2}, 2),
        ({"num_processes": 4, "vllm_mode": "server", "vllm_server_gpus": 4, "vllm_server_base_url": ""}, 8),
        ({"num_processes": 2, "vllm_mode": "server", "vllm_server_gpus": 1}, 3),
        ({"num_processes": 4, "vllm_mode": "server", "vllm_server_base_url": "http://other"}, 4),
        ({"num_processes": 4, "vllm_mode": "colocate", "vllm_server_gpus": 1}, 4),
    ],
)
def test_cost_counts_the_gpus_of_searches_and_servers(parameters, n_gpus):
    notebook = {"path": parameters.pop("notebook", "05_grpo.ipynb"), "sha256": "0"}
    run = new_run("run", parameters, notebook)
    gpus = [{"name": "G", "memory_gb": 80, "driver": "1"}] * 8
    run.update(hardware=run.manifest["hardware"] | {"gpus": gpus}, seconds=3600.0)
    assert comparison.cost_table({"run": run}).loc["run", ["GPUs", "GPU hours"]].tolist() == [n_gpus, n_gpus]


@pytest.mark.parametrize(("shards", "n_gpus"), [([""], 1), ([" 0", " 1"], 2)])
def test_a_search_costs_the_gpus_of_the_shards_that_it_reports(shards, n_gpus):
    run = new_run("search", {"num_processes": 0}, {"path": SEARCH["notebook"], "sha256": "0"})
    reports = {f"{arm}{shard}": {} for arm in ("alone", "learn") for shard in shards}
    gpus = [{"name": "G", "memory_gb": 80, "driver": "1"}] * 8
    run.update(hardware=run.manifest["hardware"] | {"gpus": gpus}, outcome={"reports": reports})
    assert comparison.cost_table({"run": run}).loc["run", "GPUs"] == n_gpus


@pytest.mark.parametrize("output", ["", "made"])
def test_a_search_has_a_set_for_each_arm_and_their_first_round_once(output, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    notebook = {"path": SEARCH["notebook"], "sha256": "0"}
    run = new_run("search", {"num_processes": 0, "output": output}, notebook)
    folder = tmp_path / output if output else run.path / "search"
    for arm in ("alone", "learn"):
        rows = [prediction("a", index, False) for index in range(2)]
        rows += [prediction("a", 2, True, tokens=10 if arm == "learn" else 30)]
        rows[2].adapter = "round1" if arm == "learn" else None
        PredictionSet(folder / arm / "predictions").write_part(rows, 0)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    cost = comparison.cost_table({"s": run})
    assert cost.loc["s", ["completion tokens", "tasks", "solved"]].tolist() == [240, 1, 1]
    assert list(comparison.prediction_frames({"s": run})) == ["s/alone", "s/learn"]


def test_a_shard_costs_what_it_sampled_itself(tmp_path):
    shared = tmp_path / "predictions"
    runs = {}
    for shard, task in enumerate("ab"):
        PredictionSet(shared).write_part([prediction(task, 0, task == "a", 100 + shard)], 0, shard, 2)
        runs[task] = new_run("big", {"shard": shard, "n_shards": 2, "output": str(shared)})
    cost = comparison.cost_table(runs)
    assert cost["completion tokens"].tolist() == [100, 101]
    assert cost["solved"].tolist() == [1, 0]
    assert cost["tasks"].tolist() == [1, 1]
    assert [len(frame) for frame in comparison.prediction_frames(runs).values()] == [2, 2], "the whole set"


def test_curves_of_several_runs_share_a_panel(runs):
    logs = comparison.metric_logs(runs)
    assert list(logs) == ["trained"]
    figure = plots.compared_curves(logs | {"other": [{"step": 1, "loss": 2.0}]}, ["reward", "loss", "kl"])
    reward, loss = figure.axes
    assert reward.lines[0].get_label() == "trained"
    assert list(reward.lines[0].get_xdata()) == [1, 2, 3, 4]
    assert loss.get_title(loc="left") == "loss"
    with pytest.raises(ValueError, match="none of kl has values in the logs of trained"):
        plots.compared_curves(logs, ["kl"])


def test_the_notebook_runs_on_them(runs):
    assert cli.main(["run", "08", "--quiet", "-p", "runs", "first, second, trained"]) == 0
    made = find_run("08_compare_runs")
    assert made.manifest["outcome"]["shared_tasks"] == 1
    assert {row["run"] for row in made.manifest["outcome"]["cost"]} == {"first", "second", "trained"}
    assert sorted(item["path"] for item in made.manifest["artifacts"]) == [
        "curves.svg", "highlights.html", "pass_at_k.svg",
    ]  # fmt: skip
    assert made.manifest["outcome"]["headline"].startswith("Best is first: of 1 shared task ")
    assert set(made.manifest["parents"]) == {str(run.path) for run in runs.values()}
    page = made.page_path.read_text()
    assert "tokens per solved task" in page
