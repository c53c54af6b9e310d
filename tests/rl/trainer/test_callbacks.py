"""What hangs on a trainer."""

from types import SimpleNamespace

from arcnb.rl.trainer.callbacks import resuming_callback


def test_samples_differ_by_seed_step_rollback_and_process():
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
