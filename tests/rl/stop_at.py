"""A stop in the middle of a run, as a cluster or a user sends it."""

import os
import signal

from transformers import TrainerCallback


class StopAt(TrainerCallback):
    """Sends this process a signal when a step begins (counted from 0)."""

    def __init__(self, step, number=signal.SIGTERM):
        self.step, self.number = step, number

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), self.number)
