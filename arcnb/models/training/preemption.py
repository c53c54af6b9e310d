"""Stopping a training run so that it can go on: SIGTERM saves a checkpoint, and so does the first Ctrl-C.

transformers' `enable_jit_checkpoint` handles SIGTERM. Under `arcnb run` the kernel is told by SIGINT, which
is passed on to the same handler; a second SIGINT interrupts at once. After a stop `train()` returns normally:
its caller compares the step that was reached with the steps that were asked for.

Of several processes each would save at the step in which it happened to hear the signal, and wait for the
others for ever. There the request is agreed on at the end of a step (`agreed_stop`).

A run that is rolled back calls `train()` several times; `Stop` remembers a request across them.
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager

NOTICE_SECONDS = 0  # transformers waits 3 s between SIGTERM and saving, which short grace times cannot spare


def can_listen() -> bool:
    """Signal handlers can be set in the main thread only."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def saving_on_signals():
    """While active, a first SIGINT asks for a checkpoint and a stop, as SIGTERM does; restores all handlers.

    To be entered before the trainer is made: making it sets the handler of SIGTERM.
    """
    if not can_listen():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    asked = False

    def pass_on(number, frame):
        nonlocal asked
        handler = signal.getsignal(signal.SIGTERM)
        if asked or handler is before[signal.SIGTERM] or not callable(handler):
            raise KeyboardInterrupt
        asked = True
        handler(number, frame)

    signal.signal(signal.SIGINT, pass_on)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Stop:
    """Remembers that a stop was asked for, and is SIGTERM's handler between two `train()` calls.

    transformers forgets the request once it has saved, although a rollback may undo that very step.
    """

    asked = False

    def __call__(self, number, frame):
        self.asked = True


def listen(trainer, stop: Stop) -> None:
    """Let SIGTERM ask this trainer for a checkpoint (again: the end of a `train()` call stops that), and tell
    `stop`, which goes on listening."""
    for callback in trainer.callback_handler.callbacks:
        manager = getattr(callback, "jit_manager", None)
        if manager is not None:
            manager.kill_wait = NOTICE_SECONDS
            signal.signal(signal.SIGTERM, stop)  # which the manager puts back when `train()` ends
            manager.setup_signal_handler()
            signal.signal(signal.SIGTERM, _both(stop, signal.getsignal(signal.SIGTERM)))


def _both(first, second):
    """One signal handler of two."""

    def handle(number, frame):
        first(number, frame)
        second(number, frame)

    return handle


def agreed_stop():
    """A callback for several processes: when one has got SIGTERM, all save and stop after the step."""
    import torch
    from transformers import TrainerCallback

    class AgreedStop(TrainerCallback):
        asked = False

        def on_train_begin(self, args, state, control, **kwargs):
            signal.signal(signal.SIGTERM, self._ask)

        def _ask(self, number, frame):
            self.asked = True

        def on_step_end(self, args, state, control, **kwargs):
            asked = torch.tensor(float(self.asked), device=args.device)
            torch.distributed.all_reduce(asked)
            if asked:
                control.should_save = control.should_training_stop = True

    return AgreedStop()
