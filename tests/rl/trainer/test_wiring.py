"""That a run really goes through its checks and parts, which other tests try by themselves."""

import os

import pytest

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.errors import ArcnbError
from arcnb.rl.rewards.function import ProgramReward
from arcnb.rl.trainer import trainer as making
from tests.rl.stop_at import StopAt


def test_a_trainer_that_changes_a_setting_is_refused_unless_accepted(train, tmp_path, monkeypatch):
    measuring = making.measuring

    def silently_other(base):
        class Other(measuring(base)):
            def __init__(self, *arguments, **named):
                super().__init__(*arguments, **named)
                self.args.epsilon_high = 0.28

        return Other

    monkeypatch.setattr(making, "measuring", silently_other)
    with pytest.raises(ArcnbError, match=r"epsilon_high was asked as 0\.2 and is 0\.28; ask for"):
        train(tmp_path / "refused", max_steps=1)
    report = train(tmp_path / "accepted", max_steps=1, accept_other_config=True)
    row = report.config.set_index("setting").loc["epsilon_high"]
    assert row.tolist() == ["0.2", "0.28", "UNEXPLAINED"]


def test_a_run_sets_what_engines_have_to_be_told(train, tmp_path, monkeypatch):
    monkeypatch.setenv("UNSLOTH_COMPILE_DISABLE", "")  # to have it as it was afterwards
    monkeypatch.delenv("UNSLOTH_COMPILE_DISABLE")
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    train(tmp_path, max_steps=1)
    assert os.environ["UNSLOTH_COMPILE_DISABLE"] == "1"
    assert "PYTORCH_CUDA_ALLOC_CONF" not in os.environ, "which prompts that are shared need"


def test_the_trainer_draws_by_the_runs_seed(train, tmp_path):
    def drawn(name, seed):
        report = train(tmp_path / name, max_steps=1, seed=seed)
        assert report.config.set_index("setting").loc["seed"].tolist()[:2] == [str(seed)] * 2
        rows = PredictionSet(tmp_path / name / "rollouts").iter_predictions()
        return [(row.task_id, row.completion) for row in rows]

    first = drawn("first", 5)
    assert drawn("again", 5) == first
    assert drawn("other", 6) != first


def test_a_run_is_refused_sampling_that_its_correction_cannot_follow(train, tmp_path):
    with pytest.raises(ArcnbError, match=r"top_p=0\.9 with vllm_importance_sampling_mode='sequence_mask'"):
        train(tmp_path, use_vllm=True, top_p=0.9)


def test_a_run_is_refused_a_share_of_gpu_memory_that_is_not_free(train, tmp_path, gpus):
    gpus("0, GPU-1, 81920, 16384")
    with pytest.raises(ArcnbError, match=r"vllm_gpu_memory_utilization 0\.5 asks for 40\.0 of 80\.0 GiB"):
        train(tmp_path / "run", use_vllm=True, vllm_gpu_memory_utilization=0.5)


def test_checkpoints_of_a_run_are_pruned_to_its_budget(train, tmp_path):
    """Without one all are kept: test_resume.py's `checkpoint` has an older one beside it."""
    train(tmp_path, max_steps=2, save_steps=1, disk_budget_gb=1e-9)
    assert [path.name for path in (tmp_path / "checkpoints").glob("checkpoint-*")] == ["checkpoint-2"]


def test_a_checkpoint_that_a_signal_asked_for_is_within_the_budget_too(train, tmp_path):
    report = train(tmp_path, max_steps=6, save_steps=3, disk_budget_gb=1e-9, callbacks=[StopAt(4)])
    assert report.status == "preempted"
    assert [path.name for path in (tmp_path / "checkpoints").glob("checkpoint-*")] == ["checkpoint-4"]


def test_a_group_is_all_completions_of_a_prompt_whatever_the_accumulation(train, tmp_path):
    """Split into parts, a step has the samples, rewards and loss that it has in one piece."""
    options = {"max_steps": 3, "num_generations": 4, "max_completion_length": 8}
    whole, *split = (
        [
            (row["loss"], row["reward"], row["reward_std"], row["grad_norm"])
            for row in train(tmp_path / str(n), **options, gradient_accumulation_steps=n).history
            if "reward" in row
        ]
        for n in (1, 2, 4)
    )
    assert len(whole) == 3
    for parts in split:
        for one, other in zip(whole, parts, strict=True):
            assert other == pytest.approx(one, rel=1e-3, abs=1e-6)


def test_silent_tasks_give_their_turns_to_others_after_a_resume_too(train, tmp_path, monkeypatch):
    def only_one_speaks(self, everyone, rewards):
        signal_ = [0.0, 1.0] if everyone[0].task_id == "swap2" else [0.0, 0.0]
        self.history.record(everyone[0].row, everyone[0].task_id, signal_, [False, False])

    monkeypatch.setattr(ProgramReward, "_remember", only_one_speaks)
    options = {"max_steps": 9, "signal_visits": 1, "signal_weight": 0.0}

    def shown(folder):
        rows = PredictionSet(folder / "rollouts").iter_predictions()
        return [task for _, task in sorted({(row.round, row.task_id) for row in rows})]

    train(tmp_path / "unbroken", **options)
    unbroken = shown(tmp_path / "unbroken")
    assert set(unbroken[:3]) == {"swap0", "swap1", "swap2"}
    assert unbroken[5:] == ["swap2"] * 4
    train(tmp_path / "broken", **options, callbacks=[StopAt(5)])
    assert train(tmp_path / "broken", **options).status == "done"
    assert shown(tmp_path / "broken") == unbroken
