"""Sampler gap, effective settings, prompts without signal, plans on disk, GPU share."""

import importlib.util
import json
import math
import pickle
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.errors import ArcnbError
from arcnb.models.training.processes import command_line
from arcnb.programs.executor.executor import Executor
from arcnb.rl.checks import gpu_share_problem
from arcnb.rl.engine.options import engine_options, engine_seed, seeded_engines
from arcnb.rl.launch import run_grpo, workers_of
from arcnb.rl.plan import GrpoPlan
from arcnb.rl.resuming.identity import run_notes
from arcnb.rl.resuming.rounds import SHAPE
from arcnb.rl.rewards.function import ProgramReward
from arcnb.rl.rewards.terms import RewardPlan, TermLimits
from arcnb.rl.signal_history import SignalHistory
from arcnb.rl.trainer.callbacks import resuming_callback
from arcnb.rl.trainer.effective_config import check_effective, differences, effective_table
from arcnb.rl.trainer.policies import has_moved
from arcnb.rl.trainer.trainers import vllm_environment
from arcnb.rl.watching.held_out import HeldOut
from arcnb.rl.watching.report import TrainingReport
from arcnb.rl.watching.sampler_gap import SamplerGap, effective_sample_size, measuring
from arcnb.rl.watching.specimens import specimens


def tensors(*rows):
    import torch

    return torch.tensor(rows, dtype=torch.float32)


def test_equal_sampler_and_learner_have_no_gap():
    logps = tensors([-1.0, -2.0], [-0.5, 0.0])
    gap = SamplerGap()
    gap.add(logps, logps, tensors([1, 1], [1, 0]), weights=tensors([1.0, 1.0], [1.0, 1.0]), clip_max=2.0)
    assert gap.metrics() == {
        "sampling/logp_gap": 0,
        "sampling/kl": 0,
        "sampling/importance_ratio": 1,
        "sampling/ess": 1,
        "sampling/clipped_share": 0,
    }
    assert gap.metrics() == {}, "a step's numbers are given once"


def test_a_training_that_begins_again_samples_anew():
    class Base:
        _step, _buffered_inputs = 3, ["sampled by the policy that was given up"]

        def train(self, resume_from_checkpoint=None):
            return self._step, self._buffered_inputs

    assert measuring(Base)().train() == (0, None)


def test_a_training_that_goes_back_into_a_round_has_the_rest_of_it_again(tmp_path):
    import torch

    shape = dict.fromkeys(SHAPE, 1) | {"gradient_accumulation_steps": 2, "steps_per_generation": 8}

    class Base:
        args = SimpleNamespace(output_dir=str(tmp_path), process_index=0, world_size=1, device="cpu", **shape)

        def __init__(self, step, parts):
            self.state = SimpleNamespace(global_step=step)
            self._step, self._buffered_inputs = 2 * step, parts
            self._logs = {"prompt": ["of the policy that was given up"], "rewards": {"solved": [1.0]}}

        def _save_checkpoint(self, model, trial):
            pass

        def train(self, resume_from_checkpoint):
            return self._step, self._buffered_inputs

    measuring(Base)(3, [{"advantages": torch.ones(1)}])._save_checkpoint(None, None)
    trainer = measuring(Base)(9, ["sampled by the policy that was given up"])
    step, parts = trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert step == 6
    assert [part["advantages"].tolist() for part in parts] == [[1.0]]
    assert trainer._logs == {"prompt": [], "rewards": {}}


def test_gap_ratio_and_clipped_share_count_only_real_tokens():
    sampler = tensors([math.log(0.5), math.log(0.25), -50.0], [math.log(0.5), math.nan, -50.0])
    learner = tensors([math.log(0.25), math.log(0.5), 0.0], [math.log(0.5), -1.0, 0.0])
    mask = tensors([1, 1, 0], [1, 1, 0])
    gap = SamplerGap()
    gap.add(sampler[:1], learner[:1], mask[:1], weights=tensors([0.5, 2.0, 9.0]), clip_max=2.0)
    gap.add(sampler[1:], learner[1:], mask[1:], weights=tensors([1.0]).reshape(1, 1), clip_max=2.0)
    values = gap.metrics()
    assert values["sampling/logp_gap"] == pytest.approx(2 * math.log(2) / 3)
    assert values["sampling/kl"] == pytest.approx(0, abs=1e-6)
    assert values["sampling/importance_ratio"] == pytest.approx((0.5 + 2 + 1) / 3)
    assert values["sampling/clipped_share"] == pytest.approx(1 / 3)
    assert values["sampling/ess"] == pytest.approx(1)


@pytest.mark.parametrize(("weights", "share"), [([0.0, 1.0], 1 / 2), ([2.0, 0.0], 1), ([1.9, 0.1], 0)])
def test_what_a_mask_took_to_nothing_is_clipped_too(weights, share):
    logps, gap = tensors([-1.0, -1.0]), SamplerGap()
    gap.add(logps, logps, tensors([1, 1]), tensors(weights), clip_max=2.0)
    assert gap.metrics()["sampling/clipped_share"] == share


def test_effective_sample_size_falls_as_weights_differ():
    assert effective_sample_size([0.0, 0.0, 0.0, 0.0]) == pytest.approx(1)
    assert effective_sample_size([700.0, 0.0, 0.0, 0.0]) == pytest.approx(1 / 4)
    assert effective_sample_size([math.log(3), 0.0]) == pytest.approx(16 / 20)


def test_the_gap_is_that_of_all_processes_together():
    """Two with two tokens and one with none: means are over tokens, not over processes."""
    gaps = [SamplerGap(), SamplerGap(), SamplerGap()]
    gaps[0].add(tensors([-1.0, -1.0]), tensors([-1.5, -1.0]), tensors([1, 1]), tensors([3.0, 1.0]), 3.0)
    gaps[1].add(tensors([-1.0, -1.0]), tensors([-1.0, -3.0]), tensors([1, 1]), tensors([1.0, 1.0]), 3.0)
    values = gaps[2].metrics(lambda own: [*gaps[:2], *own])
    assert values["sampling/logp_gap"] == pytest.approx((0.5 + 2) / 4)
    assert values["sampling/kl"] == pytest.approx((0.5 + 2) / 4)
    assert values["sampling/importance_ratio"] == pytest.approx((math.exp(-0.5) + 2 + math.exp(-2)) / 4)
    assert values["sampling/ess"] == pytest.approx(effective_sample_size([-0.5, -2.0]))
    assert values["sampling/clipped_share"] == 1 / 4
    assert gaps[2].metrics() == {}


class _Base:
    """The two public methods of a trainer that are extended."""

    def __init__(self):
        self.model = SimpleNamespace(training=True)
        self.args = SimpleNamespace(vllm_importance_sampling_clip_max=3.0)
        self.accelerator = SimpleNamespace(num_processes=1)
        self.logged = []

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return 7.0

    def log(self, logs, start_time=None):
        self.logged.append(logs)


def test_a_measuring_trainer_logs_the_gap_with_the_losses():
    trainer = measuring(_Base)()
    batch = {
        "sampling_per_token_logps": tensors([-1.0, -1.0]),
        "old_per_token_logps": tensors([-1.5, -1.0]),
        "completion_mask": tensors([1, 1]),
    }
    assert trainer.compute_loss(None, batch) == 7.0
    trainer.log({"loss": 0.5})
    trainer.log({"loss": 0.5})
    assert trainer.logged[0]["sampling/logp_gap"] == pytest.approx(0.25)
    assert trainer.logged[1] == {"loss": 0.5}


def test_a_setting_that_the_trainer_changed_is_refused_and_named():
    asked = {
        "scale_rewards": "group",
        "epsilon_high": 0.2,
        "report_to": "none",
        "learning_rate": 1e-5,
        "bf16": False,
        "top_k": 0,
    }
    same = SimpleNamespace(
        scale_rewards="group", epsilon_high=0.2, report_to=[], learning_rate=1e-5, bf16=False, top_k=-1
    )
    assert [difference.name for difference in check_effective(asked, same)] == ["report_to", "top_k"]
    changed = SimpleNamespace(**vars(same) | {"scale_rewards": False, "epsilon_high": 0.28})
    with pytest.raises(ArcnbError, match=r"scale_rewards was asked as 'group' and is False; epsilon_high"):
        check_effective(asked, changed)
    assert len(check_effective(asked, changed, accept=True)) == 4
    table = effective_table(asked, changed).set_index("setting")
    assert table.loc["epsilon_high"].tolist() == ["0.2", "0.28", "UNEXPLAINED"]
    assert table.loc["learning_rate", "reason"] == ""


def test_a_flag_is_not_the_number_one():
    assert differences({"bf16": True}, SimpleNamespace(bf16=1))[0].reason is None


def test_a_silent_task_gives_its_rows_to_others():
    history = SignalHistory(visits=2, weight=0.0, lag=1)
    for row, (task, rewards, solved) in enumerate(
        [("a", [0, 0], [0, 0]), ("b", [0, 1], [0, 0]), ("a", [0, 0], [0, 0]), ("c", [10, 10], [1, 1])]
    ):
        history.record(row, task, rewards, solved)
    assert history.silent(2) == set()
    assert history.silent(4) == {"a"}, "c was seen only once"
    assert {history.choose(row, "a", ["a", "b", "c"], 0) for row in range(4, 30)} == {"b", "c"}
    assert history.choose(9, "b", ["a", "b", "c"], 0) == "b"
    assert history.choose(2, "a", ["a", "b", "c"], 0) == "a", "a row knows only what came before it"
    again = SignalHistory(visits=2, weight=0.0, lag=1)
    again.restore(history.as_dict())
    assert again.groups == history.groups
    softly = replace(history, weight=0.5)
    kept = sum(softly.choose(row, "a", ["a", "b", "c"], 0) == "a" for row in range(4, 404))
    assert 150 < kept < 250


def test_spread_among_wrong_programs_is_signal_and_equal_half_right_ones_are_too():
    history = SignalHistory(visits=1)
    history.record(0, "spread", [0.0, 1.0], [False, False])
    history.record(1, "same but mixed", [1.0, 1.0], [True, False])
    history.record(2, "all wrong", [1.0, 1.0], [False, False])
    assert history.silent(3) == {"all wrong"}


@pytest.mark.parametrize(("visits", "weight"), [(-1, 0.0), (1, 1.5)])
def test_impossible_choices_of_prompts_are_refused(said, visits, weight):
    with pytest.raises(ValueError, match="signal_visits") as refused:
        SignalHistory(visits, weight)
    assert said(signal_visits=visits, signal_weight=weight) == [str(refused.value)]


def test_completions_are_split_evenly_over_steps_and_processes(said):
    asked = {"num_generations": 16, "gradient_accumulation_steps": 4}
    assert GrpoPlan.of(asked).completions_a_part == 4
    assert GrpoPlan.of(asked | {"num_processes": 2, "prompts_per_step": 3}).completions_a_part == 6
    (sentence,) = said(num_processes=8, **asked)
    assert "gradient_accumulation_steps=4 x num_processes=8; one optimizer step trains the whole" in sentence


def test_steps_come_from_epochs_where_they_are_not_given():
    epochs = GrpoPlan.of({"max_steps": -1})
    assert epochs.number_of_steps(10) == 10
    assert epochs.changed({"num_train_epochs": 2.5, "prompts_per_step": 4}).number_of_steps(10) == 7
    assert epochs.changed({"max_steps": 3, "prompts_per_step": 4}).number_of_steps(10) == 3


def test_a_share_of_gpu_memory_that_is_not_free_is_refused(said, quick, letter_model, tmp_path, gpus):
    gpus("0, GPU-1, 81920, 16384")
    asked = {"use_vllm": True, "vllm_gpu_memory_utilization": 0.5}
    (sentence,) = said(**asked)
    assert sentence.startswith("vllm_gpu_memory_utilization 0.5 asks for 40.0 of 80.0 GiB on GPU 0")
    assert gpu_share_problem(quick(tmp_path, **asked), letter_model) == sentence
    for other in ({"vllm_gpu_memory_utilization": 0.15}, {"vllm_mode": "server"}):
        assert said(**asked | other) == []
        assert gpu_share_problem(quick(tmp_path, **asked | other), letter_model) is None


@pytest.mark.parametrize(
    "address",
    [
        {"vllm_server_base_url": "http://127.0.0.1:9"},
        {"vllm_server_host": "127.0.0.1", "vllm_server_port": 9},
    ],
)
def test_a_server_that_does_not_answer_is_refused(said, address):
    (sentence,) = said(use_vllm=True, vllm_mode="server", **address)
    assert "no vLLM server answers at http://127.0.0.1:9 (" in sentence
    assert "refused" in sentence
    assert said(use_vllm=False, **address | {"vllm_server_base_url": None}) == []


def test_a_server_has_to_be_there_or_to_be_started(said):
    (sentence,) = said(use_vllm=True, vllm_mode="server", vllm_server_gpus=0)
    assert sentence.startswith("vllm_mode='server' needs a vllm_server_base_url, or vllm_server_gpus of at l")


def test_a_place_to_log_to_needs_its_package(said, monkeypatch):
    assert said() == []
    (sentence,) = said(report_to="wandbb")
    assert sentence.startswith("report_to='wandbb' does not exist; there are none, wandb")
    there, packages = importlib.util.find_spec, {"trackio": None, "wandb": "there", "tensorboard": "there"}
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: packages[name] if name in packages else there(name)
    )
    assert said(report_to=["wandb", "tensorboard"]) == []
    assert said(report_to=["wandb", "trackio"]) == [
        "report_to='trackio' needs the package trackio, which is not installed"
    ]


@pytest.fixture
def plan(tmp_path):
    asked = {"max_steps": 2, "overlong_weight": 0.5, "guard_action": "stop", "guard_window": 7}
    return GrpoPlan.of(asked | {"guard.thresholds.kl": 0.3, "beta": 0.02, "use_vllm": False}, output=tmp_path)


def test_a_plan_comes_back_from_disk_as_it_was(plan, tasks):
    back, given, evaluated = GrpoPlan.read(plan.write(tasks, tasks[:1]))
    assert back == plan
    assert [task.fingerprint for task in given] == [task.fingerprint for task in tasks]
    assert [task.task_id for task in evaluated] == [tasks.ids[0]]
    assert GrpoPlan.read(plan.write(tasks, ()))[2] == ()


def test_processes_share_the_processors_that_they_may_use(plan, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(6)))
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    assert workers_of(plan) is None
    assert workers_of(replace(plan, num_processes=2)) == 3
    assert workers_of(replace(plan, num_processes=2, workers=10)) == 5
    assert workers_of(replace(plan, num_processes=8)) == 1


def test_programs_get_the_workers_and_the_memory_asked_for(plan, tasks, monkeypatch):
    class Asked(Exception):
        pass

    def executor(workers, limits):
        raise Asked(workers, limits.memory_mb)

    monkeypatch.setattr("arcnb.rl.launch.Executor", executor)
    with pytest.raises(Asked, match=r"\(3, 700\)"):
        run_grpo(plan.changed({"workers": 3, "program_memory_mb": 700}), tasks, tasks)


@pytest.mark.parametrize(("installed", "told"), [(None, {"VLLM_USE_FLASHINFER_SAMPLER": "0"}), (True, {})])
def test_engines_are_told_what_they_do_not_find_out(monkeypatch, installed, told):
    names = ("UNSLOTH_COMPILE_DISABLE", "VLLM_USE_FLASHINFER_SAMPLER")
    for name in names:
        monkeypatch.setenv(name, "")  # to have it as it was afterwards
        monkeypatch.delenv(name)
    monkeypatch.setattr("arcnb.rl.trainer.trainers.find_spec", lambda name: installed)
    assert vllm_environment() == {"UNSLOTH_COMPILE_DISABLE": "1"} | told
    monkeypatch.setenv(names[0], "0")
    assert vllm_environment() == told, "what is set stays"


def test_samples_differ_by_seed_step_rollback_and_process(tmp_path):
    import torch

    def drawn(seed=0, step=0, process=0, rollbacks=0):
        state = SimpleNamespace(rollbacks=rollbacks)
        arguments = SimpleNamespace(process_index=process)
        step_ = SimpleNamespace(global_step=step)
        resuming_callback(state, seed).on_step_begin(arguments, step_, None)
        return torch.initial_seed()

    with torch.random.fork_rng(devices=[]):
        assert drawn() == drawn()
        assert len({drawn(), drawn(seed=1), drawn(step=1), drawn(process=1), drawn(rollbacks=1)}) == 5


def test_several_processes_are_started_by_accelerate():
    assert command_line("m", ["x"], 1)[1:] == ["-m", "m", "x"]
    several = command_line("m", ["x"], 4)
    assert several[several.index("--num_processes") + 1] == "4"
    assert "--multi_gpu" in several
    assert several[several.index("--mixed_precision") + 1] == "no"
    zero = command_line("m", ["x"], 4, "zero3", 8)
    assert zero[zero.index("--zero_stage") + 1] == "3"
    assert zero[zero.index("--gradient_accumulation_steps") + 1] == "8"


@pytest.mark.parametrize(("on_gpu", "precision"), [(True, "bf16"), (False, "no")])
def test_zero3_is_told_the_precision_that_the_trainer_has(monkeypatch, on_gpu, precision):
    monkeypatch.setattr("torch.cuda.is_available", lambda: on_gpu)
    zero = command_line("m", ["x"], 4, "zero3", 8)
    assert zero[zero.index("--mixed_precision") + 1] == precision


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_processes": 0}, "num_processes must be at least 1"),
        ({"workers": -1}, "workers must not be negative, it is -1"),
        ({"parallel": "fsdp"}, "'fsdp' does not exist; there are ddp, zero3"),
        ({"num_processes": 2, "parallel": "zero3"}, "needs the package deepspeed"),
    ],
)
def test_processes_that_cannot_be_started_are_refused(plan, tasks, changes, message):
    with pytest.raises(ArcnbError, match=message):
        run_grpo(plan.changed(changes), tasks, tasks)


def test_the_best_and_the_first_truncated_completion_are_shown(tasks, tmp_path):
    task = tasks[0]
    rows = [
        Prediction(
            task.task_id,
            task.fingerprint,
            0,
            0,
            completion="<x>" * 3000,
            status="error",
            finish_reason="length",
        ),
        Prediction(
            task.task_id,
            task.fingerprint,
            1,
            0,
            completion="def transform(grid): ...",
            status="ok",
            outputs=[pair.input for pair in (*task.train, *task.test)],
            train_correct_grids=0.5,
            train_is_correct=0,
            test_is_correct=0,
            test_correct_grids=0.0,
            finish_reason="stop",
        ),
    ]
    rollouts = PredictionSet(tmp_path / "rollouts")
    rollouts.write_part(rows, round=0)
    shown = specimens(rollouts, tasks)
    assert [name for name, _ in shown.chosen] == ["best", "first truncated"]
    page = shown._repr_html_()
    for text in ("<svg", "&lt;x&gt;", "more characters"):
        assert text in page
    assert specimens(PredictionSet(tmp_path / "none"), tasks)._repr_html_() == ""


def test_held_out_samples_are_summed_up_as_pass_at_k():
    held_out = HeldOut(["a", "b"], 4, 1, *[None] * 4)
    rows = [  # task, solved, valid outputs, their fingerprint, truncated
        *[("a", True, True, "x", False), ("a", False, True, "y", False), ("a", False, True, "y", False)],
        *[("a", False, False, None, True)],
        *[("b", False, True, "z", False)] * 4,
    ]
    assert held_out._metrics(rows) == {
        "held_out/pass@1": pytest.approx(1 / 8),
        "held_out/pass@1_error": pytest.approx(1 / 8),
        "held_out/pass@2": pytest.approx(1 / 4),
        "held_out/pass@4": pytest.approx(1 / 2),
        "held_out/valid_outputs": 7 / 8,
        "held_out/truncated": 1 / 8,
        "held_out/unique_outputs": pytest.approx((2 / 4 + 1 / 4) / 2),
    }


def test_a_report_has_tables_of_whatever_was_logged(tmp_path):
    empty = TrainingReport(tmp_path, 0, 0.0, [], status="preempted")
    assert empty.table().empty
    assert empty.held_out_table().empty
    assert empty.outcome()["training"] == "preempted"
    rows = [{"step": 0, "held_out/pass@1": 0.0}, {"step": 1, "reward": 2.0, "loss": 0.1}]
    rows.append({"step": 1, "held_out/pass@1": 0.5, "held_out/turns/solved_by_2": 0.5})
    report = TrainingReport(tmp_path, 1, 1.0, rows)
    assert report.table()["reward"].tolist() == [2.0]
    assert report.held_out_table()["held_out/turns/solved_by_2"].tolist()[1:] == [0.5]


def test_a_report_says_when_nothing_was_learnt_and_where_reward_went(tmp_path):
    def headline(without, rewards, moved=True):
        rows = [
            {"step": n, "reward": reward, "groups_without_spread": share}
            for n, (share, reward) in enumerate(zip(without, rewards, strict=True))
        ]
        return TrainingReport(tmp_path, len(rows), 1.0, rows, adapter_moved=moved).headline

    silent = headline([1.0] * 4, [10, 0, 0, 0], moved=False)
    assert silent == "no group differed in 4 of 4 steps; the adapter is unchanged"
    assert headline([1.0] * 4, [10, 0, 0, 0]) == "no group differed in 4 of 4 steps"
    assert headline([0.5] * 4, [1, 2, 3, 4], moved=False).endswith("; the adapter is unchanged")
    learnt = headline([0.0, 1.0, 0.5, 0.0] * 2, [1, 2, 3, 4, 5, 6, 7, 8])
    assert learnt.startswith(
        "reward 1.50 in the first quarter of the steps, 7.50 in the last; groups differed in 6 of 8"
    )
    assert headline([], [], moved=False) == "the adapter is unchanged"


def test_an_adapter_has_moved_when_a_weight_is_another_whatever_its_type(tmp_path):
    import torch
    from safetensors.torch import save_file

    def saved(name, **tensors):
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "adapter_model.safetensors")
        return tmp_path / name

    weights = {"a.lora_A.weight": torch.ones(2, 2), "a.lora_B.weight": torch.zeros(2, 2)}
    start = saved("start", **{name: tensor.bfloat16() for name, tensor in weights.items()})
    same = saved("same", **weights)
    other = saved("other", **weights | {"a.lora_B.weight": torch.full((2, 2), 1e-9)})
    assert not has_moved(same, start)
    assert has_moved(other, start)
    assert not has_moved(same, None)
    assert has_moved(other, None)


def test_notes_say_what_was_not_held_out_and_what_shape_counts(tasks, tmp_path):
    def notes(held_out=(), adapter=None, **lora):
        return run_notes(GrpoPlan.of(lora), list(tasks)[:2], held_out, adapter)

    assert notes(list(tasks)[2:]) == []
    (note,) = notes(list(tasks))
    assert note.startswith("2 of 3 held-out tasks are trained on, too")
    config = {"r": 8, "lora_alpha": 16, "use_rslora": True, "target_modules": ["q_proj"]}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    assert notes(adapter=tmp_path) == [], "a shape that nobody asked for"
    assert notes(adapter=tmp_path, lora_r=8, lora_alpha=16) == []
    (note,) = notes(adapter=tmp_path, lora_r=16, lora_alpha=16)
    assert "(r=8) and not r=16" in note


def test_a_group_is_one_however_many_processes_share_it(tasks, monkeypatch):
    """Right answers of 20, 30, 40 and 50 tokens and two equal wrong ones, for one process and for two."""
    import accelerate.utils

    right, wrong = (
        "def transform(grid):\n    return grid[:, ::-1]\n```",
        "def transform(grid):\n    return grid\n```",
    )
    asked = [(right, 20, 0), (right, 30, 0), (right, 40, 0), (right, 50, 0), (wrong, 10, 1), (wrong, 10, 1)]
    view = {"hflip": False, "n_rot90": 0, "color_map": None, "pair_order": [0, 1], "test_index": 0}
    view |= {"task_id": tasks[0].task_id, "prefix": "```python\n"}

    def judged(mine, process=0, n_processes=1):
        plan, logged = RewardPlan("solved", TermLimits(100), {"shortest_of_solved": 1.0}), {}
        history = SignalHistory(visits=1)
        with Executor(1) as executor:
            reward = ProgramReward(
                plan, tasks, executor, history=history, process=process, n_processes=n_processes
            )
            columns = {name: [value] * len(mine) for name, value in view.items()}
            ids = [list(range(n)) for _, n, _ in mine]
            columns["row"] = [row for *_, row in mine]
            values = reward([text for text, *_ in mine], ids, log_metric=logged.__setitem__, **columns)
        logged.pop("executor_seconds")
        return values, logged, history.groups

    alone = judged(asked)
    assert alone[0] == pytest.approx([1, 2 / 3, 1 / 3, 0, 0, 0])
    barrier, sent, calls = threading.Barrier(2, timeout=60), {}, []

    def gather(entries):
        """As accelerate's: what each process has, pickled, one after another."""
        calls.append(threading.current_thread().name)
        sent[threading.current_thread().name] = pickle.dumps(entries)
        barrier.wait()
        everything = [*pickle.loads(sent["0"]), *pickle.loads(sent["1"])]
        barrier.wait()
        return everything

    monkeypatch.setattr(accelerate.utils, "gather_object", gather)
    found = {}

    def work(process):
        found[process] = judged(asked[3 * process : 3 * process + 3], process, 2)

    threads = [threading.Thread(target=work, args=(n,), name=str(n)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0][0] + found[1][0] == pytest.approx(alone[0])
    assert found[0][1:] == found[1][1:] == alone[1:]
    assert sorted(calls) == ["0", "1"], "rewards, history and metrics are of one exchange"


def test_an_engine_in_this_process_samples_ids_alone_unless_text_ends_a_sample():
    from types import SimpleNamespace

    from arcnb.rl.engine.options import sample_ids_alone

    def sampled(mode, **asked):
        trainer = SimpleNamespace(vllm_generation=SimpleNamespace(mode=mode, generation_kwargs=asked))
        sample_ids_alone(trainer)
        return trainer.vllm_generation.generation_kwargs

    assert sampled("colocate") == {"detokenize": False}
    assert sampled("colocate", stop=["x"]) == {"stop": ["x"]}
    assert sampled("colocate", detokenize=True) == {"detokenize": True}
    assert sampled("server") == {}
    sample_ids_alone(SimpleNamespace())


def test_engines_draw_by_the_seed_of_the_run(monkeypatch):
    """TRL's own module opens them, and says the number of the engine alone."""
    generation = pytest.importorskip("trl.generation.vllm_generation")
    monkeypatch.setattr(generation, "LLM", lambda **settings: settings, raising=False)
    opened = []
    for seed, number in ((0, 0), (1, 0), (0, 1), (0, 0)):
        with engine_options(kv_cache_dtype="fp8"), seeded_engines(seed):
            opened.append(generation.LLM(model="m", seed=number))
    assert all(one | {"seed": 0} == {"model": "m", "kv_cache_dtype": "fp8", "seed": 0} for one in opened)
    seeds = [one["seed"] for one in opened]
    assert seeds[0] == seeds[3] == engine_seed(0, 0)
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert generation.LLM(seed=5) == {"seed": 5}
