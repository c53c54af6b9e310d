"""Fine-tuning on a random two-layer model."""

import resource
import shutil
import signal
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from arcnb.arc.tasks.task_set import TaskSet
from arcnb.errors import ArcnbError
from arcnb.lab.clusters import submitting
from arcnb.models.prompts.format import prompt_format
from arcnb.models.registry import load_tokenizer, resolve_adapter
from arcnb.models.sft import training
from arcnb.models.sft.plan import SftPlan
from arcnb.models.sft.row_stream import RowPlan, RowStream, row_stream
from arcnb.models.sft.rows import IGNORED, RowBuilder, check_max_length, collator, packed_rows, sft_rows
from arcnb.models.sft.training import SftReport, train_sft
from arcnb.models.training.checkpoints import newest_complete
from arcnb.models.training.log import read_metrics
from arcnb.models.training.processes import LaunchError, launch
from arcnb.synth.rearc.augmented import FreshAugmentations
from arcnb.synth.sources import SourceSettings
from arcnb.synth.task_sets import build_task_set
from tests.arc_tasks import PROGRAM, taught_tasks
from tests.lab.watching import interrupted_when
from tests.models.sft.rounds import Rounds
from tests.paths import ROOT
from tests.rl.stop_at import StopAt


@pytest.fixture(scope="module")
def tasks():
    return taught_tasks()


def rows_of(tasks, model, **changes):
    settings = {"n_rows": 12, "seed": 0, "max_length": 1000} | changes
    return sft_rows(tasks, model, prompt_format(), **settings)


def plan_of(model, **changes):
    return SftPlan.of({"model": model.path, "lora_r": 4, "per_device_train_batch_size": 4} | changes)


def losses(report):
    return [row["loss"] for row in report.history if "loss" in row]


def weights(folder):
    return load_file(folder / "adapter_model.safetensors")


@pytest.fixture(scope="module")
def rows(tasks, small_model):
    """Twelve rows."""
    return rows_of(tasks, small_model).dataset


@pytest.fixture(scope="module")
def plan(small_model):
    """Five steps whose loss falls."""
    return plan_of(small_model, max_steps=5, learning_rate=3e-2, warmup_steps=0)


@pytest.fixture(scope="module")
def whole(plan, rows, tmp_path_factory):
    """The report of a training that nothing interrupts."""
    return train_sft(plan, rows, tmp_path_factory.mktemp("whole"))


def test_packing_is_refused_for_a_model_in_which_packed_rows_see_each_other(tasks, small_model, tmp_path):
    from transformers import Lfm2Config, Lfm2ForCausalLM

    shape = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
    layers = ["conv", "full_attention"]
    config = Lfm2Config(vocab_size=2000, num_hidden_layers=2, layer_types=layers, **shape)
    Lfm2ForCausalLM(config).save_pretrained(tmp_path / "model")
    load_tokenizer(small_model).save_pretrained(tmp_path / "model")
    rows = rows_of(tasks, small_model).packed(1000)
    plan = plan_of(small_model, packing=True, max_steps=1)
    train_sft(plan, rows, tmp_path / "blind")
    with pytest.raises(ArcnbError, match="packed together see each other; take packing=False"):
        train_sft(replace(plan, model=str(tmp_path / "model")), rows, tmp_path / "seeing")


def test_a_row_is_the_prompt_then_the_program_and_only_the_program_counts(tasks, small_model):
    tokenizer = load_tokenizer(small_model)
    row = rows_of(tasks, small_model).dataset[0]
    answer = [label for label in row["labels"] if label != IGNORED]
    assert tokenizer.decode(answer) == PROGRAM + "```" + tokenizer.eos_token
    assert row["input_ids"][-len(answer) :] == answer
    assert tokenizer.decode(row["input_ids"][: -len(answer)]).endswith("<|im_start|>assistant\n```python\n")
    assert row["length"] == len(row["input_ids"]) == len(row["labels"])


def test_worker_processes_make_the_same_rows(tasks, small_model):
    alone = rows_of(tasks, small_model).dataset
    together = rows_of(tasks, small_model, workers=2).dataset
    assert alone["input_ids"][:] == together["input_ids"][:]


def test_a_task_is_shown_differently_the_next_time(tasks, small_model):
    dataset = rows_of(tasks, small_model, n_rows=4 * len(tasks)).dataset
    shown = {tuple(dataset[i]["input_ids"]) for i in range(0, len(dataset), len(tasks))}
    assert len(shown) > 1


def test_long_rows_are_left_out_and_named_never_cut(tasks, small_model):
    whole = rows_of(tasks, small_model).dataset
    limit = sorted(whole["length"])[6]
    rows = rows_of(tasks, small_model, max_length=limit)
    assert 0 < len(rows.dataset) < len(whole)
    assert max(rows.dataset["length"]) <= limit < min(rows.too_long.values())


def test_limits_that_no_row_or_no_model_fits_are_refused(small_model, tmp_path):
    with pytest.raises(ArcnbError, match="max_length=9999 exceeds the 2048 tokens"):
        check_max_length(small_model, 9999, prompt_format())
    with pytest.raises(ArcnbError, match=r"no row fits max_length=100: .* arc_code .* has 159 tokens"):
        check_max_length(small_model, 100, prompt_format())
    check_max_length(small_model, 160, prompt_format())
    template = tmp_path / "second.jinja"  # it cannot show a task of one pair
    template.write_text("{% block user %}{{ train[1].input }}{% endblock %}")
    check_max_length(small_model, 2, prompt_format(str(template)))


def test_tasks_without_a_program_are_counted_and_none_at_all_is_an_error(tasks, small_model):
    bare = replace(tasks[0], program=None)
    assert rows_of(TaskSet("mixed", (bare, *tasks.tasks[1:])), small_model).n_without_program == 1
    with pytest.raises(ArcnbError, match="tasks: none of 1 task has a program"):
        rows_of(TaskSet("bare", (bare,)), small_model)


def test_steps_are_given_or_follow_from_rounds(small_model):
    assert plan_of(small_model, max_steps=7, num_train_epochs=3.0).steps(100) == 7
    changes = {"max_steps": -1, "num_train_epochs": 1.5, "gradient_accumulation_steps": 2, "num_processes": 2}
    assert plan_of(small_model, **changes).steps(100) == 9


def test_training_lowers_the_loss_and_leaves_an_adapter_of_this_model(whole, small_model):
    assert whole.status == "done"
    curve = losses(whole)
    assert len(curve) == whole.steps == 5
    assert curve[-1] < curve[0] - 0.05
    assert resolve_adapter(whole.adapter, small_model) == whole.adapter


@pytest.mark.long("trains, is stopped, and trains again")
@pytest.mark.parametrize(("number", "step"), [(signal.SIGTERM, 2), (signal.SIGINT, 3)])
def test_a_training_stopped_by_a_signal_goes_on_as_if_unbroken(plan, rows, whole, tmp_path, number, step):
    """A round of the rows is three steps."""
    output = tmp_path / "broken"
    handlers = [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)]
    broken = train_sft(plan, rows, output, callbacks=[StopAt(step, number)])
    assert broken.status == "preempted"
    assert broken.outcome()["training"] == "preempted"
    assert step <= broken.steps < 5
    assert [signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)] == handlers
    resumed = train_sft(plan, rows, output)
    assert resumed.status == "done"
    assert resumed.took.startswith(f"5 steps, {5 - step} of them in ")
    assert losses(resumed) == losses(whole)
    expected = weights(whole.adapter)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(resumed.adapter).items())
    asked = torch.load(output / "checkpoints" / "checkpoint-5" / "training_args.bin", weights_only=False)
    assert (asked.run_name, asked.project) == ("broken", "arcnb")  # what wandb and trackio call it


def test_a_training_that_is_done_is_not_trained_a_step_more(plan, rows, whole, tmp_path):
    output = shutil.copytree(whole.adapter.parent, tmp_path / "whole")
    (output / "adapter" / "adapter_model.safetensors").unlink()
    again = train_sft(plan, rows, output)
    assert (again.status, again.steps, losses(again)) == ("done", 5, losses(whole))
    assert again.took.startswith("5 steps, 0 of them in ")
    expected = weights(whole.adapter)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(again.adapter).items())
    fewer = train_sft(plan.changed({"max_steps": 3, "accept_other_settings": True}), rows, output)
    assert (fewer.status, fewer.steps) == ("done", 5), "the weights are of five steps"


@pytest.mark.long("trains, is stopped, and trains again")
def test_a_resumed_training_saves_as_often_as_it_is_asked_to_now(plan, rows, tmp_path):
    train_sft(plan, rows, tmp_path, callbacks=[StopAt(2)])
    report = train_sft(plan.changed({"save_steps": 1, "save_total_limit": 9}), rows, tmp_path)
    saved = {int(folder.name.rpartition("-")[2]) for folder in tmp_path.glob("checkpoints/checkpoint-*")}
    assert report.status == "done"
    assert saved >= {4, 5}


@pytest.mark.long("trains, is stopped or fails, and trains again")
def test_lines_after_the_checkpoint_and_tries_not_gone_on_from_are_set_aside(rows, small_model, tmp_path):
    plan = plan_of(small_model, max_steps=3, save_steps=1)
    whole = train_sft(plan, rows, tmp_path)
    shutil.rmtree(tmp_path / "checkpoints" / "checkpoint-3")
    again = train_sft(plan, rows, tmp_path)
    assert losses(again) == losses(whole)
    assert len(read_metrics(tmp_path / "abandoned" / "1" / "metrics.jsonl")) >= 1
    (tmp_path / "predictions").mkdir()
    anew = train_sft(plan_of(small_model, max_steps=1, seed=1, resume="never"), rows, tmp_path)
    assert (anew.steps, len(losses(anew))) == (1, 1)
    assert (tmp_path / "abandoned" / "2" / "predictions").is_dir()


@pytest.mark.long("trains, is stopped, and trains again")
def test_accepted_other_settings_of_the_optimizer_hold(rows, small_model, tmp_path):
    asked = {"max_steps": 4, "lr_scheduler_type": "constant", "learning_rate": 1e-2}
    train_sft(plan_of(small_model, **asked), rows, tmp_path, callbacks=[StopAt(2)])
    other = {"learning_rate": 1e-4, "weight_decay": 0.5, "accept_other_settings": True}
    report = train_sft(plan_of(small_model, **asked | other), rows, tmp_path)
    rates = [row["learning_rate"] for row in report.history if "loss" in row]
    assert (rates[0], rates[-1]) == (1e-2, pytest.approx(1e-4))
    state = torch.load(tmp_path / "checkpoints" / "checkpoint-4" / "optimizer.pt", weights_only=True)
    assert [group["weight_decay"] for group in state["param_groups"]] == [0.5, 0.0]


def test_an_evaluation_is_a_mean_over_tokens_whatever_the_batches(tasks, rows, small_model, tmp_path):
    longer = [replace(task, program=PROGRAM + "    #" * n) for n, task in enumerate(tasks)]
    eval_rows = rows_of(TaskSet("longer", tuple(longer)), small_model, n_rows=6).dataset
    found = []
    for size in (1, 4):
        plan = plan_of(small_model, max_steps=2, learning_rate=3e-2, per_device_eval_batch_size=size)
        report = train_sft(plan, rows, tmp_path / str(size), eval_rows=eval_rows)
        (row,) = [row for row in report.history if "eval_loss" in row]
        found.append([row[f"eval_{name}"] for name in ("loss", "entropy", "mean_token_accuracy")])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_a_training_that_diverges_ends_before_its_weights_are_saved(rows, small_model, tmp_path):
    plan = plan_of(small_model, max_steps=4, learning_rate=1e30, warmup_steps=0, save_steps=1)
    with pytest.raises(
        ArcnbError, match=r"^a trained weight of step 2 is no .* lower learning_rate, which is 1e\+30"
    ):
        train_sft(plan, rows, tmp_path / "long")
    assert newest_complete(tmp_path / "long" / "checkpoints").name == "checkpoint-1"
    assert not (tmp_path / "long" / "adapter").exists()
    last = replace(plan, trl=plan.trl | {"max_steps": 1})  # finite weights whose loss is not
    with pytest.raises(ArcnbError, match=r"^eval_loss of step 1 is nan"):
        train_sft(last, rows, tmp_path / "short", eval_rows=rows)
    assert not (tmp_path / "short" / "adapter").exists()


def test_a_rearc_task_never_comes_round_in_the_same_turn(small_model):
    task = build_task_set("rearc*2", settings=SourceSettings(max_cells=800)).tasks[1]
    rows = rows_of([task], small_model, n_rows=8, max_length=2048, augment=FreshAugmentations(0))
    answers = [[label for label in labels if label != IGNORED] for labels in rows.dataset["labels"]]
    assert len({tuple(ids) for ids in rows.dataset["input_ids"]}) == 8
    assert len({tuple(answer) for answer in answers}) > 1
    again = rows_of([task], small_model, n_rows=8, max_length=2048, augment=FreshAugmentations(0))
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
@pytest.mark.parametrize("kind", [{"use_dora": True}, {"full": True}])
def test_dora_and_all_weights_train_too(tasks, small_model, tmp_path, kind):
    rows = packed_rows(rows_of(tasks, small_model).dataset, 2000)
    report = train_sft(plan_of(small_model, max_steps=1, **kind), rows, tmp_path)
    assert report.steps == 1
    assert any(report.adapter.glob("*.safetensors"))


class Waits(Exception):
    """The job is written, to be carried out with the next one."""


@pytest.fixture
def in_turn(monkeypatch):
    """in_turn() -> from now on the job of a first training waits for a second one's: one pair of processes
    carries out both."""
    folders = []

    def later(module, arguments, *others, **more):
        folders.extend(arguments)
        if len(folders) == 1:
            raise Waits
        more["environment"] = {"PYTHONPATH": str(ROOT)}
        return launch("tests.models.sft.in_turn", folders, *others, **more)

    return lambda: monkeypatch.setattr(training, "launch", later)


@pytest.mark.long("two processes are interrupted, and two others go on and train once more")
def test_two_processes_learn_what_one_does_with_batches_twice_as_large_also_after_an_interrupt(
    tasks, small_model, tmp_path, in_turn
):
    rows = rows_of(tasks, small_model, n_rows=8).dataset
    settings = {
        "max_steps": 25,
        "learning_rate": 0.2,  # steps so large that gradients which differ would show, and rounding does not
        "optim": "sgd",  # Adam turns the rounding errors of zero gradients into full steps
    }
    halves = {"per_device_train_batch_size": 1, "num_processes": 2}
    alone = train_sft(plan_of(small_model, **settings, per_device_train_batch_size=2), rows, tmp_path / "1")
    plan = plan_of(small_model, **settings, **halves)
    two = tmp_path / "2"
    log = two / "metrics.jsonl"
    with interrupted_when(lambda: log.is_file() and log.stat().st_size):
        stopped = train_sft(plan, rows, two)
    assert stopped.status == "preempted"
    assert newest_complete(two / "checkpoints").name == f"checkpoint-{stopped.steps}"

    in_turn()
    with pytest.raises(Waits):
        train_sft(plan, rows, two)
    settings |= {"max_steps": 2, "lr_scheduler_type": "constant", "warmup_steps": 0}
    builder, made = RowBuilder(small_model, prompt_format(), seed=0), RowPlan(16, 1000, block_rows=16)
    with row_stream(Rounds(tasks.tasks), builder, tmp_path / "rows", made) as coming:
        shared = train_sft(plan_of(small_model, **settings, **halves), coming, tmp_path / "3")
    resumed = SftReport.read(two)
    assert resumed.status == alone.status == "done"
    assert len(losses(alone)) == 25
    assert losses(resumed) == pytest.approx(losses(alone), rel=1e-4)
    expected = weights(alone.adapter)
    for name, tensor in weights(resumed.adapter).items():
        assert torch.allclose(tensor, expected[name], rtol=1e-4, atol=1e-5), name

    whole = plan_of(small_model, **settings, per_device_train_batch_size=2)
    read = train_sft(whole, RowStream(tmp_path / "rows"), tmp_path / "4")
    assert len(losses(read)) == 2
    assert losses(shared) == pytest.approx(losses(read), rel=1e-4), "rows that are made meanwhile"


def test_processes_leave_alone_what_a_scheduler_needs_to_start_the_run_again(
    tasks, small_model, tmp_path, in_turn
):
    script = tmp_path / submitting.JOB_FOLDER / "task.sh"
    script.parent.mkdir()
    script.touch()
    in_turn()
    with pytest.raises(Waits):
        train_sft(plan_of(small_model, num_processes=2), rows_of(tasks, small_model).dataset, tmp_path)
    assert list(script.parent.iterdir()) == [script]


def test_a_process_that_fails_is_quoted(tmp_path):
    """Here for want of the job that it was to read."""
    with pytest.raises(LaunchError, match=r"failed in one of 2 processes .*FileNotFoundError: .*/launch/"):
        launch("arcnb.models.sft.training", [str(tmp_path)], 2, tmp_path / "processes.log")


@contextmanager
def small_files():
    """Files of this process cannot grow beyond 20,000 bytes, as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_the_checkpoint_before_survives_a_disk_that_fills_up(rows, small_model, tmp_path):
    plan = plan_of(small_model, max_steps=3, save_steps=1, save_total_limit=1)
    ended = replace(plan, max_seconds=1e-6)
    assert train_sft(ended, rows, tmp_path).status == "done", "it had all the time that it was given"
    with pytest.raises(ArcnbError, match="checkpoint-1 is complete"), small_files():
        train_sft(plan, rows, tmp_path)
    assert newest_complete(tmp_path / "checkpoints").name == "checkpoint-1"
    assert train_sft(plan, rows, tmp_path).steps == 3


def test_an_adapter_that_cannot_be_saved_leaves_the_last_checkpoint(rows, small_model, tmp_path):
    (tmp_path / "adapter").write_text("in the way")
    with pytest.raises(ArcnbError, match=r"ended at step 1: .*checkpoint-1 is complete, resume from it"):
        train_sft(plan_of(small_model, max_steps=1, save_steps=1), rows, tmp_path)
