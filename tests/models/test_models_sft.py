"""Fine-tuning on a random two-layer model. Run: pytest tests/models/test_models_sft.py"""

import resource
from dataclasses import replace
from multiprocessing import get_context

import pytest
import torch

from arcnb.arc.tasksets import TaskSet, load_tasks
from arcnb.models.checkpoints import newest_complete
from arcnb.models.launching import LaunchError
from arcnb.models.prompt_format import prompt_format
from arcnb.models.registry import load_tokenizer, resolve_adapter
from arcnb.models.sft import check_training, number_of_steps, train_sft
from arcnb.models.sft_rows import IGNORED, SftError, check_max_tokens, collator, packed_rows, sft_rows
from arcnb.models.training_log import read_metrics
from arcnb.synth.augmented import FreshAugmentations
from arcnb.synth.sources import SourceSettings
from arcnb.synth.task_sets import build_task_set

PROGRAM = "def transform(grid):\n    return grid[::-1]\n"


@pytest.fixture(scope="module")
def tasks():
    everything = load_tasks("arc-agi-1/training")
    small = [t for t in everything if sum(p.input.size + p.output.size for p in t.train) < 250]
    return TaskSet("small", tuple(replace(task, program=PROGRAM) for task in small[:6]))


def rows_of(tasks, model, **changes):
    settings = {"n_rows": 12, "seed": 0, "max_tokens": 1000} | changes
    return sft_rows(tasks, model, prompt_format(), **settings)


def test_a_row_is_the_prompt_then_the_program_and_only_the_program_counts(tasks, small_model):
    tokenizer = load_tokenizer(small_model)
    row = rows_of(tasks, small_model).dataset[0]
    answer = [label for label in row["labels"] if label != IGNORED]
    assert tokenizer.decode(answer) == PROGRAM + "```" + tokenizer.eos_token
    assert row["input_ids"][-len(answer) :] == answer
    assert tokenizer.decode(row["input_ids"][: -len(answer)]).endswith("<|im_start|>assistant\n```python\n")
    assert row["length"] == len(row["input_ids"]) == len(row["labels"])


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_worker_processes_make_the_same_rows_however_they_start(tasks, small_model, start_method):
    alone = rows_of(tasks, small_model).dataset
    together = rows_of(tasks, small_model, workers=2, start_method=start_method).dataset
    assert alone["input_ids"][:] == together["input_ids"][:]


def test_a_task_is_shown_differently_the_next_time(tasks, small_model):
    dataset = rows_of(tasks, small_model, n_rows=4 * len(tasks)).dataset
    shown = {tuple(dataset[i]["input_ids"]) for i in range(0, len(dataset), len(tasks))}
    assert len(shown) > 1


def test_long_rows_are_left_out_and_named_never_cut(tasks, small_model):
    whole = rows_of(tasks, small_model).dataset
    limit = sorted(whole["length"])[6]
    rows = rows_of(tasks, small_model, max_tokens=limit)
    assert 0 < len(rows.dataset) < len(whole)
    assert max(rows.dataset["length"]) <= limit < min(rows.too_long.values())


def test_limits_that_no_row_or_no_model_fits_are_refused(tasks, small_model, tmp_path):
    with pytest.raises(SftError, match="max_tokens=9999 exceeds the 2048 tokens"):
        rows_of(tasks, small_model, max_tokens=9999)
    with pytest.raises(SftError, match=r"no row fits max_tokens=100: .* arc_code .* has 159 tokens"):
        check_max_tokens(small_model, 100, prompt_format())
    check_max_tokens(small_model, 160, prompt_format())
    template = tmp_path / "second.jinja"  # it cannot show a task of one pair
    template.write_text("{% block user %}{{ train[1].input }}{% endblock %}")
    check_max_tokens(small_model, 2, prompt_format(str(template)))


def test_tasks_without_a_program_are_counted_and_none_at_all_is_an_error(tasks, small_model):
    bare = replace(tasks[0], program=None)
    assert rows_of(TaskSet("mixed", (bare, *tasks.tasks[1:])), small_model).n_without_program == 1
    with pytest.raises(SftError, match="none of the 1 tasks has a program"):
        rows_of(TaskSet("bare", (bare,)), small_model)


def test_rank_zero_is_refused(tasks, small_model, tmp_path):
    with pytest.raises(SftError, match="rank must be at least 1, not 0"):
        train_sft(small_model, rows_of(tasks, small_model).dataset, tmp_path, lora={"r": 0})


def test_steps_are_given_or_follow_from_rounds_which_packing_cannot_know():
    assert number_of_steps(7, 3.0, 100, 10, packing=True) == 7
    assert number_of_steps(-1, 1.5, 100, 10, packing=False) == 15
    with pytest.raises(SftError, match=r"batch_size, .* must be at least 1: their product is 0 rows"):
        number_of_steps(7, 1.0, 100, 0, packing=False)
    with pytest.raises(SftError, match="packing needs max_steps"):
        number_of_steps(-1, 1.0, 100, 10, packing=True)


def test_a_place_to_log_to_that_is_not_there_is_named_before_training(tasks, small_model, tmp_path):
    rows = rows_of(tasks, small_model)
    with pytest.raises(SftError, match="report_to='wandbb' does not exist; there are none, wandb"):
        train_sft(small_model, rows, tmp_path, settings={"report_to": "wandbb"})


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"lora": {"r": 0}}, "lora rank must be at least 1, not 0"),
        ({"settings": {"logging_steps": 0}}, "logging_steps must be at least 1, not 0"),
        ({"settings": {"learning_rate": -1e-4}}, "learning_rate must be positive, not -0.0001"),
        (
            {"settings": {"lr_scheduler_type": "cosin"}},
            "schedule 'cosin' does not exist; there are linear, cos",
        ),
        ({"num_processes": 0}, "num_processes must be at least 1, not 0"),
    ],
)
def test_what_cannot_be_trained_with_is_named_before_rows_are_made(wrong, sentence):
    check_training({"r": 0}, full=True, settings=None)  # without LoRA its rank does not matter
    with pytest.raises(SftError, match=sentence):
        check_training(**{"lora": None, "full": False, "settings": None} | wrong)


@pytest.mark.long("trains, is stopped or fails, and trains again")
def test_training_lowers_the_loss_and_leaves_an_adapter_of_this_model(tasks, small_model, tmp_path):
    rows = rows_of(tasks, small_model).dataset
    settings = {"max_steps": 6, "logging_steps": 1, "learning_rate": 3e-2, "warmup_steps": 0}
    report = train_sft(small_model, rows, tmp_path, lora={"r": 4}, settings=settings)
    losses = [row["loss"] for row in read_metrics(tmp_path / "metrics.jsonl") if "loss" in row]
    assert len(losses) == report.steps == 6
    assert losses[-1] < losses[0] - 0.05
    assert resolve_adapter(report.adapter, small_model) == report.adapter


@pytest.mark.long("trains, is stopped or fails, and trains again")
def test_a_stopped_training_goes_on_from_its_checkpoint_as_if_unbroken(tasks, small_model, tmp_path):
    rows = rows_of(tasks, small_model).dataset
    settings = {"max_steps": 4, "logging_steps": 1, "save_steps": 2, "learning_rate": 1e-2}
    whole = train_sft(small_model, rows, tmp_path / "whole", lora={"r": 4}, settings=settings)
    broken = tmp_path / "broken"
    train_sft(small_model, rows, broken, lora={"r": 4}, settings=settings, stop_after=2)
    resumed = train_sft(small_model, rows, broken, lora={"r": 4}, settings=settings, resume=True)
    last = [[row["loss"] for row in report.history if "loss" in row][-1] for report in (whole, resumed)]
    assert last[0] == pytest.approx(last[1], rel=1e-4)
    asked = torch.load(broken / "checkpoints" / "checkpoint-4" / "training_args.bin", weights_only=False)
    assert (asked.run_name, asked.project) == ("broken", "arcnb")  # what wandb and trackio call it


def test_a_rearc_task_never_comes_round_in_the_same_turn(small_model):
    task = build_task_set("rearc*2", settings=SourceSettings(max_cells=800)).tasks[1]
    rows = rows_of([task], small_model, n_rows=8, max_tokens=2048, augment=FreshAugmentations(0))
    answers = [[label for label in labels if label != IGNORED] for labels in rows.dataset["labels"]]
    assert len({tuple(ids) for ids in rows.dataset["input_ids"]}) == 8
    assert len({tuple(answer) for answer in answers}) > 1
    again = rows_of([task], small_model, n_rows=8, max_tokens=2048, augment=FreshAugmentations(0))
    assert rows.dataset["input_ids"][:] == again.dataset["input_ids"][:]


def test_packed_rows_do_not_see_each_other(tasks, small_model):
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(small_model.path).eval()
    collate = collator(load_tokenizer(small_model).pad_token_id)
    rows = rows_of(tasks, small_model, n_rows=4).dataset
    packed = packed_rows(rows, 4 * max(rows["length"]))
    assert len(packed) == 1
    assert sorted(packed[0]["seq_lengths"]) == sorted(rows["length"])

    def losses(examples):
        batch = collate(examples)
        labels = batch.pop("labels")
        with torch.no_grad():
            logits = model(**batch, use_cache=False).logits[:, :-1]  # as TRL calls it
        each = torch.nn.functional.cross_entropy(
            logits.transpose(1, 2), labels[:, 1:], ignore_index=IGNORED, reduction="none"
        )
        return each[labels[:, 1:] != IGNORED].sort().values

    alone = torch.cat([losses([rows[i]]) for i in range(4)]).sort().values
    assert torch.allclose(losses([packed[0]]), alone, atol=1e-5)
    assert torch.allclose(losses([rows[i] for i in range(4)]), alone, atol=1e-5)


@pytest.mark.long("trains, is stopped or fails, and trains again")
@pytest.mark.parametrize("kind", [{"lora": {"r": 4, "use_dora": True}}, {"full": True}])
def test_dora_and_all_weights_train_too(tasks, small_model, tmp_path, kind):
    rows = packed_rows(rows_of(tasks, small_model).dataset, 2000)
    report = train_sft(small_model, rows, tmp_path, settings={"max_steps": 1, "logging_steps": 1}, **kind)
    assert report.steps == 1
    assert any(report.adapter.glob("*.safetensors"))


@pytest.mark.long("trains, is stopped or fails, and trains again")
def test_two_processes_learn_what_one_does_with_batches_twice_as_large(tasks, small_model, tmp_path):
    rows = rows_of(tasks, small_model, n_rows=8).dataset
    settings = {
        "max_steps": 3,
        "logging_steps": 1,
        "learning_rate": 1.0,  # steps so large that gradients which differ would show
        "lr_scheduler_type": "constant",
        "train_sampling_strategy": "sequential",  # grouping by length depends on the batch size
        "optim": "sgd",  # Adam turns the rounding errors of zero gradients into full steps
    }
    curves = []
    for processes, batch in ((1, 2), (2, 1)):
        report = train_sft(
            small_model,
            rows,
            tmp_path / str(processes),
            lora={"r": 4},
            settings=settings | {"per_device_train_batch_size": batch},
            num_processes=processes,
        )
        curves.append([row["loss"] for row in report.history if "loss" in row])
    assert len(curves[0]) == 3
    assert curves[1] == pytest.approx(curves[0], rel=1e-4)


@pytest.mark.long("trains, is stopped or fails, and trains again")
def test_a_process_that_fails_is_quoted(tasks, small_model, tmp_path):
    rows = rows_of(tasks, small_model, n_rows=4).dataset
    settings = {"max_steps": 1, "optim": "no_such_optimizer"}
    with pytest.raises(LaunchError, match="no_such_optimizer"):
        train_sft(small_model, rows, tmp_path, settings=settings, num_processes=2)


def _train_with_small_files(arguments, settings):
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    model, rows, folder = arguments
    try:
        train_sft(model, rows, folder, lora={"r": 4}, settings=settings, resume=True)
    except SftError as error:
        (folder / "said").write_text(str(error))


@pytest.mark.long("trains, is stopped or fails, and trains again")
def test_the_checkpoint_before_survives_a_disk_that_fills_up(tasks, small_model, tmp_path):
    rows = rows_of(tasks, small_model).dataset
    settings = {"max_steps": 3, "save_steps": 1, "save_total_limit": 1}
    train_sft(small_model, rows, tmp_path, lora={"r": 4}, settings=settings, stop_after=1)
    process = get_context("spawn").Process(
        target=_train_with_small_files, args=((small_model, rows, tmp_path), settings)
    )
    process.start()
    process.join()
    assert "checkpoint-1 is complete" in (tmp_path / "said").read_text()
    assert newest_complete(tmp_path / "checkpoints").name == "checkpoint-1"
    report = train_sft(small_model, rows, tmp_path, lora={"r": 4}, settings=settings, resume=True)
    assert report.steps == 3


def test_an_adapter_that_cannot_be_saved_leaves_the_last_checkpoint(tasks, small_model, tmp_path):
    rows = rows_of(tasks, small_model).dataset
    (tmp_path / "adapter").write_text("in the way")
    with pytest.raises(SftError, match=r"ended at step 1: .*checkpoint-1 is complete, resume from it"):
        train_sft(small_model, rows, tmp_path, lora={"r": 4}, settings={"max_steps": 1, "save_steps": 1})
