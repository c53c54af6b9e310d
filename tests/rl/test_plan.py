"""The plan of a GRPO run: one thing for notebook, checks, launcher and checkpoints."""

import sys
from pathlib import Path

import pytest

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.errors import ArcnbError
from arcnb.problems.plan import ProblemPlan
from arcnb.rl.launch import decided, run_grpo
from arcnb.rl.plan.grpo import GrpoPlan


def test_settings_of_the_literature_are_options_by_their_own_names():
    asked = {
        "epsilon_high": 0.28,
        "importance_sampling_level": "sequence",
        "cast_lm_head_to_fp32": True,
        "off_policy_mask_threshold": 0.5,
        "entropy_coef": 0.01,
        "fp16": True,
    }
    plan = GrpoPlan.of({"more": asked})
    assert asked.items() <= plan.settings.items()
    with pytest.raises(ArcnbError, match="did you mean 'epsilon_high'"):
        GrpoPlan.of({"epsilon_hig": 0.28})


def test_every_problem_of_a_plan_is_said_at_once(said):
    sentences = said(
        max_length=10**7,
        adapter="/nowhere",
        report_to="wandbb",
    )
    assert len(sentences) == 3
    for word in (
        "was built for",
        "/nowhere",
        "wandbb",
    ):
        assert any(word in sentence for sentence in sentences), word


@pytest.mark.parametrize("kind", [GrpoPlan, ProblemPlan])
def test_what_another_process_reads_is_the_same_plan(kind, tmp_path, tasks):
    asked = {"guard.thresholds.kl": 0.5, "lora_r": 4, "epsilon_high": 0.3, "seed": 7, "use_vllm": True}
    plan = kind.of(asked, output=tmp_path)
    written = plan.write([], [])
    assert kind.read(written) == (plan, (), ())
    if kind is GrpoPlan:
        again, read, evaluation = GrpoPlan.read(plan.write(tasks, tasks[:1]))
        assert again == plan
        assert [task.fingerprint for task in read] == [task.fingerprint for task in tasks]
        assert [task.task_id for task in evaluation] == [tasks[0].task_id]
        assert GrpoPlan.read(plan.write(tasks, ()))[2] == ()


def test_auto_samples_by_vllm_where_there_is_a_gpu(gpus, monkeypatch):
    plan = GrpoPlan.of({})
    gpus("0, GPU-1, 81920, 81920")
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: object())
    assert decided(plan).use_vllm is True
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    assert decided(plan).use_vllm is False
    assert decided(plan.changed({"use_vllm": True})).use_vllm is True


def test_no_gpu_is_no_vllm(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert decided(GrpoPlan.of({})).use_vllm is False


def test_the_way_from_a_plan_to_its_trainer_is_short(quick, tasks, tmp_path, monkeypatch):
    """Files of the project on the stack when TRL's trainer is made."""
    import trl

    way = []

    def made(self, *arguments, **named):
        frame = sys._getframe(1)
        while frame:
            way.append(frame.f_code.co_filename)
            frame = frame.f_back
        raise KeyboardInterrupt

    monkeypatch.setattr(trl.GRPOTrainer, "__init__", made)
    with pytest.raises(KeyboardInterrupt):
        run_grpo(quick(tmp_path), tasks)
    names = {Path(name).name for name in way if "/arcnb/" in name}
    assert names == {"launch.py", "training.py", "trainer.py"}


def test_completions_are_split_evenly_over_steps_and_processes(said):
    asked = {"num_generations": 16, "gradient_accumulation_steps": 4}
    assert GrpoPlan.of(asked).completions_a_part == 4
    assert GrpoPlan.of(asked | {"num_processes": 2, "prompts_per_step": 3}).completions_a_part == 6
    (sentence,) = said(num_processes=8, **asked)
    assert "gradient_accumulation_steps=4 x num_processes=8; one optimizer step trains the whole" in sentence


def test_a_largest_ratio_below_1_is_refused(said):
    """It would scale down the loss of samples that are on policy."""
    (sentence,) = said(loss_type="cispo")
    assert "epsilon_high=0.2 cuts every ratio to that, 1 as well" in sentence
    assert not said(loss_type="cispo", epsilon_high=5.0)


def test_a_fresh_lora_of_layers_that_the_model_lacks_is_refused(said):
    """peft passes over such a name as long as another one fits."""
    (sentence,) = said(target_modules=["q_proj", "nowhere"])
    assert "has no layer 'nowhere'; there are" in sentence
    assert not said(target_modules=["self_attn.q_proj"])
    (sentence,) = said(target_modules=["q_proj", "lm_head"])
    assert "a LoRA of lm_head cannot be used later" in sentence


def test_an_adapter_that_would_be_taken_for_another_is_refused_before_it_is_loaded(
    said, letter_model, tmp_path
):
    """unsloth and vLLM take one rank and scale for all layers; TRL's learner takes the adapter as it is."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    def adapter(**lora):
        folder = tmp_path / "-".join(lora)
        net = AutoModelForCausalLM.from_pretrained(letter_model.path)
        asked = LoraConfig(**{"target_modules": ["q_proj", "v_proj"]} | lora)
        get_peft_model(net, asked).save_pretrained(folder)
        return {"adapter": str(folder)}

    special = adapter(alpha_pattern={"q_proj": 64})
    assert said(**special) == []
    for asked in ({"trainer": "unsloth"}, {"vllm_adapter_alone": True, "use_vllm": True}):
        assert any(one.endswith("has alpha_pattern") for one in said(**special | asked))
    (sentence,) = said(**adapter(target_modules=["lm_head"]))
    assert "changes lm_head, which training cannot go on with" in sentence
    whole = adapter(modules_to_save=["embed_tokens"])
    assert said(**whole, use_vllm=False) == []
    (sentence,) = [one for one in said(**whole, use_vllm=True) if "GPU" not in one]
    assert "changes embed_tokens, which training cannot go on with" in sentence


def test_steps_come_from_epochs_where_they_are_not_given():
    epochs = GrpoPlan.of({"max_steps": -1})
    assert epochs.number_of_steps(10) == 10
    assert epochs.changed({"num_train_epochs": 2.5, "prompts_per_step": 4}).number_of_steps(10) == 7
    assert epochs.changed({"max_steps": 3, "prompts_per_step": 4}).number_of_steps(10) == 3


def test_every_iteration_over_a_rounds_samples_is_steps_of_its_own(train, tmp_path, tasks):
    rounds = GrpoPlan.of(
        {
            "max_steps": -1,
            "num_iterations": 3,
            "prompts_per_step": 2,
            "gradient_accumulation_steps": 2,
            "steps_per_generation": 4,
        }
    )
    assert (rounds.prompts_a_round, rounds.steps_a_round) == (4, 6)
    assert rounds.number_of_steps(8) == 12
    report = train(tmp_path, max_steps=-1, num_iterations=2)
    rollouts = PredictionSet(tmp_path / "rollouts").read(["task_id", "round"])
    assert (report.steps, set(rollouts["round"])) == (6, {0, 2, 4})
    assert set(rollouts["task_id"]) == set(tasks.ids), "one pass shows every task"
