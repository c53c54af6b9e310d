"""Sampling ahead: vLLM draws the next round while the learner trains on this one.

On one GPU the sampler is bound by memory and the learner by arithmetic, and each waits for the other. Here a
thread samples round r + 1 with the policy that round r begins with, so its samples are one round older than
the policy that trains on them. The sampler's own log-probabilities come with them: TRL's correction by
importance ratios weighs them as samples of an older policy (asynchronous GRPO; Noukhovitch et al.,
arXiv:2410.18252, show that one step of staleness costs little).
"""

from __future__ import annotations

import json
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from arcnb.machine.files import write_whole
from arcnb.machine.reading import read_object

FILE = "ahead.json"


@dataclass
class DrawnRound:
    """prompts: token ids, one list a completion. made: what TRL's `generate` returned for them. drawn_at: the
    optimizer step whose policy drew them."""

    prompts: list[list[int]]
    made: list
    drawn_at: int


class AsyncSampling:
    """Takes the place of `sync_weights` and `generate` of the trainer's `vllm_generation`. Whoever else asks
    the engine, as an evaluation does, waits until it is free."""

    def __init__(self, trainer):
        """trainer: of `arcnb.rl.trainer.lean`, whose `_round` says that a training round is being sampled."""
        import torch

        generation = trainer.vllm_generation
        self.trainer = trainer
        self.drawn_at = 0
        self._sync, self._generate = generation.sync_weights, generation.generate
        self._generate_at = getattr(generation, "generate_at", None)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="arcnb-ahead")
        self._pending: Future[DrawnRound] | None = None
        # One for all rounds: what the engine still has under way of the last one comes before the next, and
        # memory that one stream has freed is not there for another.
        self._stream = torch.cuda.Stream() if torch.cuda.is_available() else None
        generation.sync_weights, generation.generate = self.sync_weights, self.generate

    def sync_weights(self) -> None:
        self._wait()
        self._sync()

    def generate(self, prompts, images=None, num_generations=1, profiler=None) -> tuple:
        drawn = self._wait()
        if self.trainer._round is None:
            return self._generate(prompts, images, num_generations, profiler)
        if drawn is None or drawn.prompts != prompts:
            made = self._generate(prompts, images, num_generations, profiler)
            drawn = DrawnRound(prompts, made, self.trainer.state.global_step)
        self.drawn_at = drawn.drawn_at
        self._begin(num_generations)
        return tuple(drawn.made)

    def start(self, checkpoint: Path | None) -> None:
        """To be called before each `train()`: what was drawn belongs to the policy of a checkpoint or to
        none."""
        self.drop()
        path = checkpoint and checkpoint / FILE
        if path and path.is_file():
            self._pending = Future()
            self._pending.set_result(DrawnRound(**read_object(path)))

    def save(self, checkpoint: Path) -> None:
        """The next round beside the weights, so that a resumed run trains on the samples of an unbroken
        one."""
        if drawn := self._wait():
            checkpoint.mkdir(parents=True, exist_ok=True)
            write_whole(checkpoint / FILE, json.dumps(asdict(drawn)))

    def drop(self) -> None:
        """Wait for what is being drawn and forget it."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.exception()

    def _wait(self) -> DrawnRound | None:
        """The round that was drawn, if one was; this thread's stream then comes behind the sampler's."""
        import torch

        drawn = self._pending.result() if self._pending else None
        if self._stream:
            torch.cuda.current_stream().wait_stream(self._stream)
        return drawn

    def _begin(self, num_generations: int) -> None:
        """Have the thread draw the round behind the one that the trainer is at, if there is one."""
        import torch

        trainer, args, self._pending = self.trainer, self.trainer.args, None
        parts = args.steps_per_generation * trainer.num_iterations
        number, size = trainer._step // parts + 1, args.generation_batch_size // num_generations
        rows = range(number * size, (number + 1) * size)
        if rows.stop > len(trainer.train_dataset):
            return
        wanted = [row for row in rows for _ in range(num_generations)]
        prompts, *_ = trainer._tokenize_prompts(trainer.train_dataset[wanted]["prompt"])
        generate = self._generate
        if self._generate_at:
            generate = partial(self._generate_at, number * parts // args.gradient_accumulation_steps)
        if self._stream:
            self._stream.wait_stream(torch.cuda.current_stream())  # on which the weights were loaded
        drawn_at = trainer.state.global_step

        def draw() -> DrawnRound:
            with torch.cuda.stream(self._stream):
                made = generate(prompts, images=None, num_generations=num_generations)
            return DrawnRound(prompts, list(made), drawn_at)

        self._pending = self._thread.submit(draw)
