"""Prediction sets side by side, the best programs, submissions from large sets, adapters compared."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from arcnb.arc.predictions.prediction import Prediction, output_fingerprint
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.scores.similarity import score
from arcnb.arc.scores.submission import create_submission, score_submission, validate_submission
from arcnb.arc.tasks.task import Pair
from arcnb.arc.tasks.task_set import TaskSet
from arcnb.errors import ArcnbError
from arcnb.lab.plots.plots import pass_at_k
from arcnb.models.prompts.format import prompt_format
from arcnb.models.registry import load_tokenizer
from arcnb.models.sampling.backends import Sampling
from arcnb.programs.executor.executor import Executor
from arcnb.search import comparing
from arcnb.search.comparing import evaluation
from arcnb.search.comparing.arms import check_arms, read_arms
from arcnb.search.comparing.outcomes import outcomes
from arcnb.search.comparing.showcase import best_predictions, best_programs, show_predictions, write_programs
from arcnb.search.inference import InferencePlan, compared_adapters, highest_rank, sampled_sets
from arcnb.search.sampling.conditions import FILE_NAME
from arcnb.search.sampling.predict import predict
from arcnb.search.sampling.rounds import RoundPlan
from arcnb.search.sampling.sampled_set import SampledSet
from tests.search.canned_engine import CannedEngine


def judged(task, index, outputs, program="def transform(grid): ..."):
    row = Prediction(task.task_id, task.fingerprint, 0, index, program=program, status="ok", outputs=outputs)
    row.fingerprint = output_fingerprint(outputs)
    for name, value in score(outputs, task).items():
        setattr(row, name, value)
    return row


def right(task):
    return [pair.output for pair in (*task.train, *task.test)]


def test_counts_of_predictions_are_written_out(tmp_path, tasks):
    rows = [judged(tasks[0], index, tasks[0].inputs) for index in range(1234)]
    PredictionSet(tmp_path / "many").write_part(rows, 0)
    frames = comparing.sets.read_sets({"many": PredictionSet(tmp_path / "many")})
    assert evaluation.comparison_table(frames, tasks.ids[:1]).loc["many", "n_preds"] == "1234"


@pytest.fixture
def sets(tmp_path, tasks):
    """Set a solves tasks 0 and 1, set b tasks 1 and 2 (task 2 by two programs), nobody task 3."""
    solved = {"a": (0, 1), "b": (1, 2)}
    for name, solves in solved.items():
        rows = []
        for number, task in enumerate(tasks):
            outputs = right(task) if number in solves else task.inputs
            rows += [judged(task, 0, outputs, "long " * 20), judged(task, 1, task.inputs)]
            if (name, number) == ("b", 2):
                rows.append(judged(task, 2, outputs, "short"))
        PredictionSet(tmp_path / name / "predictions").write_part(rows, 0)
    return comparing.sets.open_sets(f"{tmp_path}/a/predictions, {tmp_path}/b/predictions")


def test_sets_are_named_after_their_runs_and_adapters(tmp_path, sets):
    assert list(sets) == ["a", "b"]
    (tmp_path / "run" / "predictions" / "lora").mkdir(parents=True)
    paths = f"{tmp_path}/run/predictions/lora,{tmp_path}/a/predictions"
    assert list(comparing.sets.open_sets(paths)) == ["run/lora", "a"]
    assert list(comparing.sets.open_sets(paths, "x, y")) == ["x", "y"]


def test_a_run_that_no_other_is_called_like_is_named_without_its_time(tmp_path):
    folders = [
        f"{tmp_path}/2026112{day}-120000-{name}/predictions" for day, name in enumerate(("a", "b", "a"))
    ]
    for folder in folders:
        Path(folder).mkdir(parents=True)
    assert list(comparing.sets.open_sets(", ".join(folders[:2]))) == ["a", "b"]
    assert list(comparing.sets.open_sets(", ".join(folders))) == [
        "20261120-120000-a",
        "b",
        "20261122-120000-a",
    ]


def test_a_folder_of_compared_adapters_stands_for_their_sets(tmp_path, sets, tasks):
    folder = tmp_path / "run" / "predictions"
    for adapter in ("none", "lora"):
        PredictionSet(folder / adapter).write_part([judged(tasks[0], 0, tasks[0].inputs)], 0)
    assert list(comparing.sets.open_sets(f"{folder},{tmp_path}/a")) == ["run/lora", "run/none", "a"]
    inner = f"{folder}/none, {folder}/lora"
    assert list(comparing.sets.open_sets(inner, "before, after", "trained.parquet")) == ["before", "after"]
    for ordered in ({"names": "before, after"}, {"trained": "trained.parquet"}):
        refused = rf"{min(ordered)} goes by the order .* holds 2; .*predictions/lora"
        with pytest.raises(ArcnbError, match=refused):
            comparing.sets.open_sets(str(folder), **ordered)
    PredictionSet(folder).write_part([judged(tasks[0], 0, tasks[0].inputs)], 0)
    assert list(comparing.sets.open_sets(str(folder))) == ["run"], "it is a set itself"


@pytest.mark.parametrize(
    ("folders", "names", "sentence"),
    [
        (
            "",
            "",
            "no prediction set is named: `predictions` takes folders, on the command line also names of runs",
        ),
        ("a/predictions", "x,y", "1 prediction sets but 2 names"),
        (
            "missing",
            "",
            "missing does not exist; `predictions` takes folders, on the command line also names",
        ),
        (
            "a/predictions/round00000-shard00-of-01-part00000.parquet",
            "",
            "parquet is a file; name the folder that it is in",
        ),
        ("a/predictions,a/predictions", "", "two prediction sets are called 'a'"),
        (
            "a/predictions,b/predictions,a",
            "a,b,a + b",
            r"two prediction sets pooled are called 'a \+ b', and so is another; give names",
        ),
    ],
)
def test_wrong_sets_are_refused(tmp_path, sets, monkeypatch, folders, names, sentence):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArcnbError, match=sentence):
        comparing.sets.open_sets(folders, names)


def test_an_empty_set_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ArcnbError, match="empty holds no predictions"):
        comparing.sets.read_sets(comparing.sets.open_sets(str(tmp_path / "empty")))


def test_predictions_of_another_version_of_a_task_are_refused(sets, tasks):
    task = tasks[1]
    hidden = replace(task, test=tuple(Pair(pair.input) for pair in task.test))
    assert hidden.fingerprint != task.fingerprint
    assert comparing.sets.tasks_to_count(sets, tasks) == (tasks, "4 of 4 tasks of the set were predicted")
    sets["a"].write_part([Prediction(task.task_id, hidden.fingerprint, 0, 7)], 0)
    assert comparing.sets.tasks_to_count(sets, tasks)[1].startswith("4 of"), "it is the same task"
    turned = replace(task, train=task.train[::-1])
    sets["b"].write_part([Prediction(task.task_id, turned.fingerprint, 0, 7)], 0)
    with pytest.raises(ArcnbError, match=f"version of task {task.task_id}: the fingerprints"):
        comparing.sets.tasks_to_count(sets, tasks)


def test_arms_of_another_version_of_a_task_are_refused(sets, tasks):
    folders = [one.folder for one in sets.values()]
    text = f"first = {folders[0]}; second = {folders[0]}[:1] + {folders[1]}"
    check_arms(text, tasks)
    turned = replace(tasks[1], train=tasks[1].train[::-1])
    sets["b"].write_part([Prediction(turned.task_id, turned.fingerprint, 0, 7)], 0)
    with pytest.raises(ArcnbError, match="b/predictions answers another version of task"):
        check_arms(text, tasks)
    with pytest.raises(ArcnbError, match="at least two arms"):
        check_arms(f"first = {folders[0]}", tasks)


def test_the_tasks_counted_are_those_predicted_unless_all_are_wanted(sets, tasks):
    some = tasks[:3]
    few = {"a": PredictionSet(sets["a"].folder.parent / "few")}
    few["a"].write_part([Prediction(tasks[1].task_id, tasks[1].fingerprint, 0, 0)], 0)
    said = "1 of 3 tasks of the set were predicted"
    counted = comparing.sets.tasks_to_count(few, some)
    assert (counted[0].ids, counted[1]) == ([tasks[1].task_id], said)
    assert comparing.sets.tasks_to_count(few, some, only_predicted=False) == (some, said)
    asked = {"tasks": dict.fromkeys([*some.ids[1:], "elsewhere"], ""), "settings": {}}
    (few["a"].folder / FILE_NAME).write_text(json.dumps(asked))
    counted = comparing.sets.tasks_to_count(few, some)
    assert (counted[0].ids, counted[1]) == (some.ids[1:], said), "asked for, not sampled: it counts"
    shares = comparing.sets.predicted_shares(comparing.sets.read_sets(few | {"b": sets["b"]}), some)
    assert shares.to_dict() == {"a": "1 of 3", "b": "3 of 3"}


def test_parameters_that_name_nothing_are_refused(sets):
    assert comparing.sets.set_to_submit(sets, "", "majority") is sets["a"]
    assert comparing.sets.set_to_submit(sets, "b", "majority") is sets["b"]
    with pytest.raises(ArcnbError, match="'c' is none of the sets; there are a, b"):
        comparing.sets.set_to_submit(sets, "c", "majority")
    with pytest.raises(ArcnbError, match="submission_rule 'most' does not exist; there are"):
        comparing.sets.set_to_submit(sets, "b", "most")


def test_pass_at_k_is_of_first_turns(sets, tasks):
    frames = comparing.sets.read_sets(sets)
    name, frame = next(iter(frames.items()))
    plain = evaluation.curves({name: frame}, tasks.ids)
    refined = pd.concat([frame, frame.assign(turn=1, train_is_correct=1, test_is_correct=1)])
    with_turns = evaluation.curves({name: refined}, tasks.ids)
    assert list(with_turns) == [f"{name}, first turns"]
    pd.testing.assert_frame_equal(with_turns[f"{name}, first turns"], plain[name])
    assert evaluation.curves({name: frame.assign(turn=1)}, tasks.ids) == {}
    assert "svg" in pass_at_k({})._repr_svg_()


def test_pass_at_k_is_of_what_had_not_learned(sets, tasks):
    frames = comparing.sets.read_sets(sets)
    name, frame = next(iter(frames.items()))
    plain = evaluation.curves({name: frame}, tasks.ids)
    learned = frame.assign(round=7, adapter="round00000", train_is_correct=1, test_is_correct=1)
    curves = evaluation.curves({name: pd.concat([learned, frame])}, tasks.ids)
    assert list(curves) == [f"{name}, before learning"]
    pd.testing.assert_frame_equal(curves[f"{name}, before learning"], plain[name])


def test_who_solves_what(sets, tasks):
    frames = comparing.sets.read_sets(sets)
    rates = evaluation.solve_rates(frames, tasks.ids)
    assert rates["a"].tolist() == [0.5, 0.5, 0, 0]
    assert rates["b"].tolist() == pytest.approx([0, 0.5, 2 / 3, 0])
    assert evaluation.solved_by(frames, tasks.ids)["b"].tolist() == [False, True, True, False]
    assert evaluation.means_table(frames, tasks.ids).loc["is_correct"].tolist() == [0.5, 0.5]


def test_a_task_without_known_test_outputs_or_without_predictions_is_no_zero_by_mistake(sets, tasks):
    frames = comparing.sets.read_sets(sets)
    unknown = frames["a"].assign(
        **{name: float("nan") for name in ("test_pixel_score", "test_correct_grids", "test_is_correct")}
    )
    assert evaluation.solve_rates({"a": unknown}, tasks.ids)["a"].isna().all()
    only_first = frames["a"][frames["a"]["task_id"] == tasks.ids[0]]
    rates = evaluation.solve_rates({"a": only_first}, tasks.ids)["a"]
    assert rates.iloc[0] == 0.5
    assert rates.iloc[1:].isna().all(), "no prediction is no share of 0"
    assert evaluation.solved_by({"a": only_first}, tasks.ids)["a"].tolist() == [True, False, False, False]


def test_sets_without_a_task_known_to_both_are_said_not_to_be_compared(sets, tasks):
    frames = comparing.sets.read_sets(sets)
    frames["c"] = frames["b"].assign(
        **dict.fromkeys(("test_pixel_score", "test_correct_grids", "test_is_correct"), float("nan"))
    )
    compared, not_compared = evaluation.paired_table(frames, tasks.ids)
    assert compared.startswith("a -> b: is_correct 50% -> 50%: ")
    assert not_compared == ("b -> c: not compared, as there is no task whose test outputs are known to both")


def test_a_task_that_nobody_can_score_is_called_neither_solved_nor_wrong(tmp_path, tasks):
    hidden = [replace(task, test=tuple(Pair(pair.input) for pair in task.test)) for task in tasks[:2]]
    one = PredictionSet(tmp_path / "unknown")
    one.write_part([judged(hidden[0], 0, right(tasks[0])), judged(hidden[1], 0, tasks[1].inputs)], 0)
    programs = best_programs({"a": one}).set_index("task_id")
    assert programs["solved"].isna().tolist() == [True, False]
    assert programs["test_is_correct"].isna().all()
    assert best_predictions(one, 2, solved=True) == []
    assert [row.task_id for row in best_predictions(one, 2, solved=False)] == tasks.ids[:2]


def test_what_a_headline_says_of_completions_is_over_the_completions(sets, tasks):
    frame = comparing.sets.read_sets(sets)["a"]
    some = frame[frame["task_id"].isin(tasks.ids[:2])]
    (whole,), (part,) = (evaluation.headlines({"a": one}, tasks.ids) for one in (frame, some))
    assert f"of {len(some)} completions 100% hold a program" in part
    assert "2 without predictions count as unsolved" in part
    assert "without predictions" not in whole


def test_outcomes_are_flat_numbers_and_say_over_how_many_tasks(sets, tasks):
    frame = comparing.sets.read_sets(sets)["a"].assign(n_tokens=5)
    came = outcomes({"a": frame}, tasks.ids)["a"]
    assert came == {"solved": 2, "of": 4, "pass@1": 0.25, "pass@2": 0.5, "tokens": 5 * len(frame)}
    assert outcomes({"a": frame.iloc[1:]}, tasks.ids)["a"]["short_tasks"] == 1
    assert "pass@1" not in outcomes({"a": frame}, tasks.ids, stopped=("a",))["a"]
    assert set(outcomes({"a": frame.assign(test_is_correct=None)}, tasks.ids)["a"]) == {"tokens"}


def test_the_best_program_of_each_task_is_the_shortest_of_the_best(tmp_path, sets, tasks):
    programs = best_programs(sets).set_index("task_id")
    assert programs["solved"].sum() == 3
    assert not programs.loc[tasks.ids[3], "solved"]
    assert programs.loc[tasks.ids[2], "program"] == "short"
    assert programs.loc[tasks.ids[2], "prediction"] == f"{tasks.ids[2]}/0/2/0"
    assert programs.loc[tasks.ids[0], "set"] == "a"
    path = tmp_path / "programs.parquet"
    path.write_bytes(b"of an attempt before, when the sets had less")
    write_programs(best_programs(sets), path)
    assert len(pd.read_parquet(path)) == 4


def test_solved_and_nearly_solved_predictions_are_told_apart(sets, tasks):
    both = best_predictions(sets["a"], 10)
    assert [row.task_id for row in best_predictions(sets["a"], 10, solved=True)] == tasks.ids[:2]
    assert [row.task_id for row in best_predictions(sets["a"], 10, task_ids=tasks.ids[2:3])] == tasks.ids[2:3]
    nearly = best_predictions(sets["a"], 1, solved=False)
    assert len(both) == 4
    assert [row.test_is_correct for row in nearly] == [0]
    assert repr(show_predictions(tasks, [])) == "There is no program with valid outputs to show."


def test_a_submission_in_slices_is_the_submission(sets, tasks, monkeypatch):
    monkeypatch.setattr("arcnb.arc.predictions.prediction_set.SLICE", 3)
    submission = comparing.sets.set_submission(sets["a"], tasks)
    whole = create_submission(sets["a"].read(), tasks)
    assert dict(submission) == dict(whole)
    assert submission.padded == whole.padded
    validate_submission(submission, tasks)
    result = score_submission(submission, tasks)
    assert (result.task_mean, result.output_mean) == (0.5, 0.5)


def compared(adapters, folder):
    return compared_adapters(InferencePlan.of({"adapter": adapters}), folder)


def test_one_adapter_fills_the_folder_and_several_get_a_folder_each(tmp_path):
    assert compared("", tmp_path) == {"none": ("", tmp_path)}
    assert compared("some/lora", tmp_path) == {"lora": ("some/lora", tmp_path)}
    several = {"none": ("", tmp_path / "none"), "A": ("x/A", tmp_path / "A"), "B": ("x/B", tmp_path / "B")}
    assert compared("none, x/A ,x/B", tmp_path) == several
    assert list(compared("none, x/A ,x/B", tmp_path)) == list(several)


def test_adapters_of_the_same_name_are_called_by_their_runs(tmp_path):
    runs = compared("none, runs/A/adapter, runs/B/adapter, C", tmp_path)
    assert list(runs) == ["none", "A", "B", "C"]
    assert runs["B"] == ("runs/B/adapter", tmp_path / "B")
    assert list(compared("A/checkpoints/checkpoint-5,B/checkpoints/checkpoint-5", tmp_path)) == ["A", "B"]
    for twice, name in (("x/A,x/A", "A"), ("A/adapter,B/adapter,z/A", "A"), ("adapter,B/adapter", "adapter")):
        with pytest.raises(ArcnbError, match=f"called '{name}'; take one out or rename it"):
            compared(twice, tmp_path)


def test_the_engine_has_to_make_room_for_the_highest_rank(tmp_path, small_model):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    for name, rank in (("A", 2), ("B", 6), ("C", 4)):
        with torch.random.fork_rng():
            config = LoraConfig(r=rank, target_modules=["q_proj"], use_dora=name == "C")
            net = get_peft_model(AutoModelForCausalLM.from_pretrained(small_model.path), config)
        net.save_pretrained(tmp_path / name)
    adapters = {"model": small_model.path, "adapter": f"none,{tmp_path / 'A'},{tmp_path / 'B'}"}
    for backend, asked, rank in (("vllm", {}, 6), ("server", {}, None), ("vllm", {"adapter": "none"}, None)):
        plan = InferencePlan.of({"backend": backend, "output": str(tmp_path / "p")} | adapters | asked)
        assert highest_rank(plan, sampled_sets(plan, [], tmp_path).values()) == rank

    adapters["adapter"] += f",{tmp_path / 'C'}"  # which vLLM could not apply, after those before it
    for backend, refused in (("vllm", True), ("transformers", False)):
        plan = InferencePlan.of({"backend": backend, "output": str(tmp_path / "p")} | adapters)
        said = pytest.raises(ArcnbError, match="C beside the model, since it has use_dora")
        with said if refused else nullcontext():
            assert highest_rank(plan, sampled_sets(plan, [], tmp_path).values()) == 6


def test_compared_adapters_see_the_same_prompts(tmp_path, small_model, tasks):
    engine = CannedEngine(load_tokenizer(small_model), lambda key, index: "pass\n```")
    views = {}
    with Executor(1) as executor:
        for name, (adapter, folder) in compared("none,A", tmp_path).items():
            plan, predictions = RoundPlan(n_predictions=4, per_prompt=2), PredictionSet(folder)
            made = SampledSet(tasks, predictions, prompt_format(), Sampling(), adapter=adapter)
            predict(made, engine, executor, plan)
            rows = list(predictions.iter_predictions())
            views[name] = [(row.key, row.augmentation, tuple(row.pair_order)) for row in rows]
            assert {row.adapter for row in rows} == {adapter}
    assert views["none"] == views["A"]


def test_predictions_sampled_while_test_outputs_were_hidden_are_scored_once_these_are_known(tmp_path, tasks):
    hidden = [replace(task, test=tuple(Pair(pair.input) for pair in task.test)) for task in tasks[:3]]
    rows = [judged(hidden[0], 0, right(tasks[0])), judged(hidden[1], 0, tasks[1].inputs)]
    failed = replace(judged(hidden[2], 0, tasks[2].inputs), outputs=None, status="error")
    sets = {"late": PredictionSet(tmp_path / "late")}
    sets["late"].write_part([*rows, failed], 0)
    arms = read_arms(f"a = {tmp_path}/late; b = {tmp_path}/late", tasks)
    for frame in (comparing.sets.read_sets(sets, tasks)["late"], *arms["a"], *arms["b"]):
        assert frame.set_index("task_id")["test_is_correct"][tasks.ids[:3]].tolist() == [1, 0, 0]
        assert outcomes({"": frame}, tasks[:3].ids)[""]["solved"] == 1
    assert comparing.sets.read_sets(sets, hidden)["late"]["test_is_correct"].isna().all()


def test_a_task_whose_test_outputs_are_unknown_is_not_unsolved_without_scores(sets, tasks):
    """Of task 3 no program runs, and of task 2 there is none."""
    hidden = {n: replace(tasks[n], test=tuple(Pair(pair.input) for pair in tasks[n].test)) for n in (2, 3)}
    mixed = TaskSet("mixed", tuple(hidden.get(n, task) for n, task in enumerate(tasks)))
    frame = comparing.sets.read_sets(sets)["a"]
    frame = frame[frame["task_id"] != tasks.ids[2]].copy()
    of_last = frame["task_id"] == tasks.ids[3]
    frame.loc[of_last, ["fingerprint", "test_pixel_score", "test_correct_grids", "test_is_correct"]] = None
    frame.loc[of_last, "status"] = "error"
    frames = {"a": frame}
    assert outcomes(frames, mixed)["a"]["of"] == 2
    assert evaluation.solve_rates(frames, mixed)["a"].isna().tolist() == [False, False, True, True]
    assert evaluation.curves(frames, mixed)["a"]["n_tasks"].tolist() == [2, 2]
    arms = {name: [frame.assign(place=frame.groupby("task_id").cumcount())] for name in ("x", "y")}
    assert {one.n_tasks for one in comparing.compare_arms(arms, mixed, 1, 2).differences} == {2}
