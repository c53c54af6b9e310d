"""GRPO on a random two-layer model: rows, guards, a few real steps."""

import inspect
import os
import re
from contextlib import nullcontext

import pytest

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task_set import load_tasks
from arcnb.arc.views import View
from arcnb.errors import ArcnbError
from arcnb.models.prompts.format import prompt_format
from arcnb.models.registry import load_tokenizer
from arcnb.models.training.log import read_metrics
from arcnb.rl.launch import run_grpo
from arcnb.rl.plan.grpo import GrpoPlan
from arcnb.rl.plan.settings import GRPO_CONFIG
from arcnb.rl.resuming.identity import adapter_shape
from arcnb.rl.rows.prompt_rows import prompt_rows, trainer_text


def rows_of(tasks, tokenizer, n, seed=0):
    rows = prompt_rows(tasks, prompt_format(), tokenizer, seed=seed, max_prompt_tokens=1000)
    return list(rows.dataset(n))


def test_a_row_is_a_function_of_seed_and_index(tasks, small_model):
    tokenizer = load_tokenizer(small_model)
    assert rows_of(tasks, tokenizer, 4) == rows_of(tasks, tokenizer, 9)[:4]
    assert rows_of(tasks, tokenizer, 4) != rows_of(tasks, tokenizer, 4, seed=1)


def test_an_epoch_shows_every_task_once(tasks, small_model):
    rows = rows_of(tasks, load_tokenizer(small_model), 6)
    assert {row["task_id"] for row in rows[:3]} == {row["task_id"] for row in rows[3:]} == set(tasks.ids)


def test_the_trainers_tokenizer_sees_exactly_our_prompt_ids(tasks, small_model):
    tokenizer = load_tokenizer(small_model)
    for row in rows_of(tasks, tokenizer, 6):
        task = tasks[row["task_id"]]
        view = View.sample(task, 0, "row", row["row"])
        ids = prompt_format().prompt_ids(tokenizer, view.apply(task))
        assert tokenizer(text=row["prompt"])["input_ids"] == ids


class _AddsBegin:
    """A tokenizer of characters that puts a begin-of-text token in front of everything."""

    bos_token = "^"

    def decode(self, ids, skip_special_tokens):
        return "".join(map(chr, ids))

    def __call__(self, text):
        return {"input_ids": [ord("^"), *map(ord, text)]}


def test_a_begin_of_text_token_is_not_doubled():
    ids = [ord(letter) for letter in "^abc"]
    assert trainer_text(_AddsBegin(), ids) == "abc"


def test_text_that_does_not_give_the_ids_back_is_refused():
    with pytest.raises(ValueError, match="does not give this prompt's token ids back"):
        trainer_text(_AddsBegin(), [ord(letter) for letter in "abc"])


def test_tasks_with_long_prompts_are_left_out_and_named(small_model):
    everything = load_tasks("arc-agi-1/training")[:40]
    rows = prompt_rows(
        everything, prompt_format(), load_tokenizer(small_model), seed=0, max_prompt_tokens=700
    )
    assert rows.too_long
    assert set(rows.too_long).isdisjoint(rows[index]["task_id"] for index in range(40))
    assert min(rows.too_long.values()) > 700


def test_so_many_tasks_are_taken_among_those_that_fit(small_model):
    everything = load_tasks("arc-agi-1/training")[:40]
    arguments = {"seed": 0, "max_prompt_tokens": 700, "n_tasks": 3}
    rows = prompt_rows(everything, prompt_format(), load_tokenizer(small_model), **arguments)
    assert len(rows.tasks) == 3
    assert {rows[index]["task_id"] for index in range(6)} == {task.task_id for task in rows.tasks}
    assert set(rows.too_long).isdisjoint(task.task_id for task in rows.tasks)


@pytest.mark.parametrize(
    "altered", [{"top_p": 0.95}, {"repetition_penalty": 1.02}, {"top_k": 50}, {"min_p": 0.1}]
)
def test_sampling_the_learner_cannot_match_is_refused(said, altered):
    def refused(**options):
        found = said(use_vllm=True, **altered | options)
        return [sentence for sentence in found if "leaves next to no gradient" in sentence]

    (sentence,) = refused()
    assert sentence.startswith(f"{next(iter(altered))}=")
    assert refused(vllm_importance_sampling_mode="token_truncate") == []
    assert refused(vllm_importance_sampling_correction=False) == []


def test_altered_sampling_by_transformers_is_let_through_since_nothing_corrects_it(
    train, tmp_path, monkeypatch
):
    from trl import GRPOTrainer

    seen = []
    compute_loss = GRPOTrainer.compute_loss

    def spy(self, model, inputs, *arguments, **named):
        seen.append({name for name in inputs if "sampling" in name})
        return compute_loss(self, model, inputs, *arguments, **named)

    monkeypatch.setattr(GRPOTrainer, "compute_loss", spy)
    assert train(tmp_path, max_steps=1, top_p=0.9, repetition_penalty=1.1).status == "done"
    assert seen, "no loss was computed"
    assert not any(seen), "TRL now has the sampler's log-probabilities, so the guard has to speak"


def test_a_sequence_longer_than_the_model_was_built_for_is_refused(said):
    (sentence,) = said(max_length=4096)
    assert sentence.startswith("max_length=4096, but model")
    (sentence,) = said(max_length=8)
    assert "leaves no room for a prompt in a context of 8 tokens" in sentence


def test_shared_prompts_are_not_for_unsloth(said):
    (sentence,) = said(shared_prompt=True, trainer="unsloth")
    assert sentence.startswith("shared_prompt=True does not go with trainer='unsloth'")


class Opened(Exception):
    """An engine was asked for; holds what with."""


@pytest.mark.long("TRL and vLLM are imported")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, {"quantization": None}),
        ({"vllm_kv_cache_dtype": "fp8"}, {"kv_cache_dtype": "fp8"}),
        ({"vllm_kv_cache_gb": 1.5}, {"kv_cache_memory_bytes": 3 << 29}),
        ({"load_in_4bit": True}, {"quantization": None}),
        ({"vllm_weight_dtype": "fp8"}, {"quantization": "fp8_per_tensor"}),
    ],
    ids=str,
)
def test_how_the_engine_in_the_process_is_opened(train, tmp_path, gpus, monkeypatch, options, expected):
    from trl.generation import vllm_generation

    def asked(**settings):
        raise Opened(settings)

    gpus("0, GPU-1, 81920, 81920")
    # On a CPU another engine would be opened (`test_cpu_generation.py`); this is about a GPU's.
    monkeypatch.setattr("arcnb.rl.engine.cpu_generation.generating_on_cpu", nullcontext)
    monkeypatch.setattr(vllm_generation, "LLM", asked)
    monkeypatch.setattr(vllm_generation, "is_vllm_available", lambda: True)
    before = dict(os.environ)
    try:
        with pytest.raises(Opened) as opened:
            train(tmp_path, use_vllm=True, **options)
    finally:  # TRL writes a rank and a port there, with which all that follows would join a group
        os.environ.clear()
        os.environ.update(before)
    assert opened.value.args[0] == opened.value.args[0] | expected
    for name in ("kv_cache_dtype", "kv_cache_memory_bytes"):
        assert (name in opened.value.args[0]) == (name in expected)
    assert vllm_generation.LLM is asked


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vllm_kv_cache_dtype": "fp8", "trainer": "unsloth"}, "vllm_kv_cache_dtype is for trainer='trl'"),
        ({"vllm_kv_cache_dtype": "fp8"}, "vllm_kv_cache_dtype='fp8' needs use_vllm=True"),
        ({"vllm_kv_cache_gb": 1.5}, "vllm_kv_cache_gb=1.5 does not go with use_vllm=False"),
        ({"vllm_weight_dtype": "fp8"}, "vllm_weight_dtype='fp8' does not go with use_vllm=False"),
        ({"vllm_group_attention": True}, "vllm_group_attention=True does not go with use_vllm=False"),
        (
            {"vllm_group_attention": True, "trainer": "unsloth"},
            "trainer='unsloth', which opens its own engine",
        ),
        ({"vllm_shared_weights": True}, "vllm_shared_weights=True does not go with use_vllm=False"),
        ({"shared_prompt_offload": True}, "shared_prompt_offload=True needs shared_prompt=True"),
        ({"turn_reward": "best"}, "turn_reward='best' needs turns above 1"),
        ({"overlong_buffer": 2}, "overlong_buffer=2 needs an overlong_weight above 0"),
        ({"terms": {"improvement": 0.5}}, "'improvement' needs refine_conversations"),
        ({"signal_weight": 0.5}, r"signal_weight=0\.5 needs signal_visits"),
    ],
)
def test_options_that_would_do_nothing_are_refused(said, options, message):
    assert any(re.search(message, sentence) for sentence in said(**options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vllm_mode": "server"}, "vllm_mode='server', whose engines run elsewhere"),
        ({"vllm_enable_sleep_mode": True}, "vllm_enable_sleep_mode=True, which gives"),
        ({"vllm_tensor_parallel_size": 2}, "vllm_tensor_parallel_size=2"),
        ({"load_in_4bit": True}, "load_in_4bit=True"),
    ],
)
def test_what_one_copy_of_the_weights_does_not_go_with(said, options, message):
    (sentence,) = said(use_vllm=True, vllm_shared_weights=True, **options)
    assert sentence.startswith(f"vllm_shared_weights=True does not go with {message}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vllm_mode": "server"}, "vllm_mode='server', whose engines run elsewhere"),
        ({"vllm_shared_weights": True}, "vllm_shared_weights=True, which has one copy for both"),
        ({"load_in_4bit": True}, "load_in_4bit=True"),
    ],
)
def test_what_a_sampler_in_eight_bits_does_not_go_with(said, options, message):
    found = said(use_vllm=True, vllm_weight_dtype="fp8", **options)
    assert f"vllm_weight_dtype='fp8' does not go with {message}" in found


def test_a_base_in_four_bits_stays_as_it_is_and_its_adapter_learns(train, tmp_path, monkeypatch):
    from bitsandbytes.nn import Linear4bit
    from trl import GRPOTrainer

    seen, training_step = [], GRPOTrainer.training_step

    def noted(self, model, *arguments, **named):
        bases = [part for part in model.modules() if isinstance(part, Linear4bit)]
        weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        seen.append(
            (
                [base.weight.detach().clone() for base in bases],
                {n: p.detach().clone() for n, p in weights.items()},
            )
        )
        return training_step(self, model, *arguments, **named)

    monkeypatch.setattr(GRPOTrainer, "training_step", noted)
    train(tmp_path, max_steps=2, load_in_4bit=True)
    (first, before), (second, after) = seen
    assert len(first) == 14  # two layers of seven
    assert all((a == b).all() for a, b in zip(first, second, strict=True))
    assert all("lora_" in name for name in before)
    assert any((before[name] != after[name]).any() for name in before)


def test_four_bits_need_their_package(said, monkeypatch):
    monkeypatch.setattr("arcnb.models.lora.precision.find_spec", lambda name: None)
    (sentence,) = said(load_in_4bit=True)
    assert sentence.startswith("load_in_4bit=True needs the package bitsandbytes")


def test_four_bits_in_unsloths_vllm_need_what_vllm_asks_for(said, monkeypatch):
    monkeypatch.setattr("arcnb.models.lora.precision.find_spec", lambda name: name != "humming" or None)
    monkeypatch.setattr("arcnb.models.lora.precision.requires", lambda name: ["humming-kernels[cu13]==0.1.4"])
    (sentence,) = said(load_in_4bit=True, trainer="unsloth", use_vllm=True)
    assert "in vllm needs vLLM's package humming-kernels, which is not" in sentence
    (sentence,) = said(load_in_4bit=True, trainer="unsloth", use_vllm=False)
    assert "needs the package unsloth" in sentence


def test_eight_bits_in_vllm_need_what_vllm_asks_for(said, monkeypatch):
    monkeypatch.setattr("arcnb.models.lora.precision.find_spec", lambda name: name != "humming" or None)
    monkeypatch.setattr("arcnb.models.lora.precision.requires", lambda name: ["humming-kernels[cu13]==0.1.4"])
    assert "vllm_weight_dtype='fp8' needs vLLM's package humming-kernels, which is not installed" in said(
        use_vllm=True, vllm_weight_dtype="fp8"
    )
    assert not any("humming" in sentence for sentence in said(use_vllm=True))


def test_vllm_in_the_process_needs_a_gpu(quick, tasks, tmp_path, gpus, monkeypatch):
    gpus()
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("arcnb.models.sampling.vllm_engine.on_cpu", lambda: False)
    with pytest.raises(ArcnbError, match=r"^use_vllm=True needs a GPU with this vLLM"):
        run_grpo(quick(tmp_path, use_vllm=True), tasks)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"num_generations": 8, "gradient_accumulation_steps": 3},
            "not divisible by gradient_accumulation_steps=3",
        ),
        (
            {"num_generations": 4, "gradient_accumulation_steps": 2, "steps_per_generation": 3},
            "steps_per_generation=3 is not a multiple of gradient_accumulation_steps=2",
        ),
        ({"max_completion_length": 2048}, "leaves no room for a prompt in a context of 2048"),
        ({"vllm_mode": "server"}, "vllm_mode='server' needs use_vllm=True"),
        ({"use_vllm": True, "vllm_server_base_url": "http://a"}, "vllm_server_base_url needs vllm_mode='se"),
    ],
)
def test_settings_that_cannot_work_are_named(said, options, message):
    (sentence,) = said(**options)
    assert re.search(message, sentence)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rat": 1.0}, "there is no parameter 'learning_rat'; did you mean 'learning_rate'"),
        ({"output_dir": "x"}, "output_dir is derived from the other settings and cannot be set"),
        ({"save_only_model": True}, "save_only_model is derived"),
        ({"reward_weights": [1.0]}, "reward_weights is derived"),
        ({"dataloader_num_workers": 2}, "dataloader_num_workers is derived"),
    ],
)
def test_names_that_a_plan_does_not_have_are_refused(options, message):
    with pytest.raises(ArcnbError, match=message):
        GrpoPlan.of(options)


def test_evaluations_without_samples_are_refused_before_a_model_is_looked_for(tasks, tmp_path):
    asked = {"eval_steps": 5, "num_generations_eval": 0, "model": "/no/such/model", "use_vllm": False}
    plan = GrpoPlan.of(asked, output=tmp_path)
    with pytest.raises(ArcnbError, match=r"^num_generations_eval is 0, but an evaluation every 5 st"):
        run_grpo(plan, tasks, tasks)
    with pytest.raises(ArcnbError, match=r"^model folder /no/such/model does not exist"):
        run_grpo(plan.changed({"eval_steps": 0}), tasks, tasks)


def test_the_choices_are_those_of_the_trainer():
    from trl import GRPOTrainer

    source = inspect.getsource(GRPOTrainer)
    values = [value for known in GRPO_CONFIG.within.values() if isinstance(known, tuple) for value in known]
    assert [f'"{value}"' in source for value in values] == [True] * 16


def test_steps_are_trained_logged_and_every_rollout_kept(train, tasks, tmp_path, monkeypatch):
    printed = []
    monkeypatch.setattr(
        "trl.trainer.grpo_trainer.print_prompt_completions_sample",
        lambda *shown, **extra: printed.append(shown[-1]),
    )
    report = train(tmp_path, max_steps=3, num_generations=4, gradient_accumulation_steps=2)
    assert report.steps == 3
    steps = [row for row in read_metrics(tmp_path / "metrics.jsonl") if "reward" in row]
    assert [row["step"] for row in steps] == [1, 2, 3]
    for name in ("kl", "reward", "truncated_completions_ratio", "solved_tasks_ratio", "executor_seconds"):
        assert all(name in row for row in steps), name
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    shape = adapter_shape(tmp_path / "adapter")
    assert (shape["r"], shape["lora_alpha"], shape["use_rslora"]) == (2, 64, True)
    rollouts = list(PredictionSet(tmp_path / "rollouts").iter_predictions())
    assert len(rollouts) == 3 * 4
    assert {(row.round, row.seed) for row in rollouts} == {(0, 0), (1, 1), (2, 2)}, "rows in their order"
    assert {row.task_id for row in rollouts} == set(tasks.ids)
    assert all(row.status for row in rollouts)
    assert any(row.n_tokens == 8 for row in rollouts)
    assert all((row.finish_reason == "length") == (row.n_tokens == 8) for row in rollouts)
    assert report.table().shape[0] == 3
    assert set(printed) == {0}, "completions go to a table, none to the page"
