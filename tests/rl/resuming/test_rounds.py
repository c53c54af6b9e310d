"""Rounds of sampling that serve several steps: a stop inside one changes nothing of what is trained."""

from types import SimpleNamespace

import pytest

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.models.lora.compatibility import WEIGHTS
from arcnb.models.training.checkpoints import newest_complete, step_of
from arcnb.rl.resuming.rounds import SHAPE, restored_round, resuming_inside_rounds, save_round
from tests.rl.stop_at import StopAt

# Rounds of three optimizer steps, two parts a step: rows 0 to 2, then 3 to 5.
ROUNDS = {
    "max_steps": 6,
    "num_generations": 2,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 6,
}


def test_training_that_begins_again_sends_the_engine_its_weights():
    """TRL remembers at which step it sent them; after a rollback they are others at the same step."""

    class Trainer:
        _last_loaded_step = 4

        def train(self, resume_from_checkpoint=None):
            return self._last_loaded_step

    assert resuming_inside_rounds(Trainer)().train() == -1


@pytest.fixture
def trained(monkeypatch):
    """{(step, part): (tokens of its completions, advantages)} of the runs of a test, by their last pass."""
    from trl import GRPOTrainer

    seen: dict = {}
    training_step = GRPOTrainer.training_step

    def noted(self, *arguments, **named):
        place = self.state.global_step, self._step % self.args.gradient_accumulation_steps
        loss = training_step(self, *arguments, **named)
        batch = self._buffered_inputs[(self._step - 1) % self.args.steps_per_generation]
        seen[place] = batch["completion_ids"].tolist(), batch["advantages"].tolist()
        return loss

    monkeypatch.setattr(GRPOTrainer, "training_step", noted)
    return seen


def curve(report):
    names = ("step", "loss", "kl", "grad_norm")
    return [[row[name] for name in names] for row in report.history if "loss" in row]


def rows_by_round(folder):
    """Optimizer step at which a round was sampled -> rows that it sampled."""
    found: dict = {}
    for row in PredictionSet(folder / "rollouts").iter_predictions():
        found.setdefault(row.round, set()).add(row.seed)
    return found


@pytest.mark.parametrize(
    ("options", "stops"),
    [
        ({}, (1, 4)),
        ({"shared_prompt": True}, (1,)),
        ({"learner_skip_silent": True, "learner_reference_part": 0.5}, (4,)),
    ],
    ids=["trl", "shared prompts", "lean"],
)
def test_a_run_that_was_stopped_inside_a_round_goes_on_with_its_samples(
    train, tmp_path, trained, monkeypatch, options, stops
):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "")  # which shared prompts set
    unbroken = train(tmp_path / "unbroken", **ROUNDS, **options)
    expected = dict(trained)
    assert len({str(batch) for batch in expected.values()}) == 12, "12 parts of two completions each"
    for stop in stops:
        folder = tmp_path / f"stopped at {stop}"
        assert train(folder, **ROUNDS, **options, callbacks=[StopAt(stop)]).status == "preempted"
        assert step_of(newest_complete(folder / "checkpoints")) % 3, "it stopped between two rounds"
        trained.clear()
        resumed = train(folder, **ROUNDS, **options)
        assert trained == {place: expected[place] for place in trained}
        assert set(trained) == {place for place in expected if place[0] >= min(trained)[0]}
        assert curve(resumed) == curve(unbroken)
        assert rows_by_round(folder) == {0: {0, 1, 2}, 3: {3, 4, 5}}


def test_without_the_samples_a_round_is_sampled_anew_and_only_its_rest_is_trained(train, tmp_path, trained):
    train(tmp_path, **ROUNDS, callbacks=[StopAt(1)])
    stopped = newest_complete(tmp_path / "checkpoints")
    (kept,) = stopped.glob("round-*")
    kept.unlink()
    trained.clear()
    train(tmp_path, **ROUNDS)
    step = step_of(stopped)
    assert rows_by_round(tmp_path) == {0: {0, 1, 2}, step: {0, 1, 2}, 3: {3, 4, 5}}
    assert sorted(trained) == [(n, part) for n in range(step, 6) for part in (0, 1)]


def test_a_run_that_is_done_inside_a_round_is_not_trained_a_step_more(train, tmp_path):
    options = {"max_steps": 3, "steps_per_generation": 2, "save_steps": 1}
    done = train(tmp_path, **options)
    trained = (done.adapter / WEIGHTS).read_bytes()
    (done.adapter / WEIGHTS).unlink()
    again = train(tmp_path, **options)
    assert (again.status, again.steps, curve(again)) == ("done", 3, curve(done))
    assert (again.adapter / WEIGHTS).read_bytes() == trained


def trainer_of(folder, step=3, process=0, n_processes=2, **changes):
    """A stand-in with what a round is saved from, in the second step of a round of two steps."""
    import torch

    shape = dict.fromkeys(SHAPE, 1) | {"steps_per_generation": 2, "num_iterations": 1} | changes
    arguments = SimpleNamespace(
        output_dir=str(folder), process_index=process, world_size=n_processes, device="cpu", **shape
    )
    inputs = [{"completion_ids": torch.tensor([[process, part]]), "images": None} for part in (0, 1)]
    return SimpleNamespace(args=arguments, state=SimpleNamespace(global_step=step), _buffered_inputs=inputs)


def test_each_process_gets_its_own_samples_back_and_all_or_none_do(tmp_path):
    checkpoint = tmp_path / "checkpoint-3"
    save_round(trainer_of(tmp_path))
    assert restored_round(trainer_of(tmp_path), checkpoint) is None, "those of the other process are missing"
    save_round(trainer_of(tmp_path, process=1))
    for process in (0, 1):
        parts = restored_round(trainer_of(tmp_path, process=process), checkpoint)
        assert [part["completion_ids"].tolist() for part in parts] == [[[process, 0]], [[process, 1]]]
        assert parts[0]["images"] is None
    assert restored_round(trainer_of(tmp_path, n_processes=1), checkpoint) is None


def test_samples_do_not_go_to_a_run_that_samples_or_splits_otherwise(tmp_path):
    save_round(trainer_of(tmp_path, n_processes=1))
    checkpoint = tmp_path / "checkpoint-3"
    assert restored_round(trainer_of(tmp_path, n_processes=1), checkpoint)
    for name in SHAPE:
        other = trainer_of(tmp_path, n_processes=1, **{name: 16})
        assert restored_round(other, checkpoint) is None, name


def test_at_the_end_of_a_round_there_is_nothing_to_keep(tmp_path):
    save_round(trainer_of(tmp_path, step=4))
    save_round(SimpleNamespace(**vars(trainer_of(tmp_path)) | {"_buffered_inputs": None}))
    assert not list(tmp_path.iterdir())


def test_a_training_that_begins_again_samples_anew():
    class Base:
        _step, _buffered_inputs = 3, ["sampled by the policy that was given up"]

        def train(self, resume_from_checkpoint=None):
            return self._step, self._buffered_inputs

    assert resuming_inside_rounds(Base)().train() == (0, None)


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

    resuming_inside_rounds(Base)(3, [{"advantages": torch.ones(1)}])._save_checkpoint(None, None)
    trainer = resuming_inside_rounds(Base)(9, ["sampled by the policy that was given up"])
    step, parts = trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert step == 6
    assert [part["advantages"].tolist() for part in parts] == [[1.0]]
    assert trainer._logs == {"prompt": [], "rewards": {}}
