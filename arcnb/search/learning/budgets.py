"""What a task may cost, what it has cost, and the clock that ends everything."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from arcnb.models.sampling.backends import Completion, Request, Sampling
from arcnb.plans import option


@dataclass(frozen=True)
class Budget:
    """Of one task; at least one has to be set. A task goes on as long as it is within all of them, in whole
    rounds. Seconds that several tasks share are divided among them."""

    n_predictions: int = option(16, "completions a task, in all; 0 is no limit", free=True)
    tokens: int = option(0, "budget of a task, in tokens written; 0 is no limit", "tokens", free=True)
    seconds: float = option(
        0.0, "budget of a task, in time of sampling and learning; 0 is no limit", "s", free=True
    )


@dataclass
class Spent:
    """What one task has cost so far."""

    n_predictions: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def within(self, budget: Budget) -> bool:
        """Whether another round may begin."""
        return all(not limit or getattr(self, name) < limit for name, limit in vars(budget).items())


class Clock:
    """Seconds left of a time budget; without one there is always time."""

    def __init__(self, seconds: float = float("inf")):
        self._end = time.monotonic() + seconds

    @property
    def is_up(self) -> bool:
        return time.monotonic() >= self._end

    def stop(self) -> None:
        """No time is left from now on."""
        self._end = float("-inf")

    @contextmanager
    def stopping_on_interrupt(self) -> Iterator[None]:
        """Ctrl-C also stops the clock, in the main thread: there are libraries that swallow a
        KeyboardInterrupt, while they are imported above all. It is raised again at the end of the block.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before, interrupted = signal.getsignal(signal.SIGINT), []

        def handle(number: int, frame) -> None:
            interrupted.append(number)
            self.stop()
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGINT, handle)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
        if interrupted:
            raise KeyboardInterrupt


class TimedEngine:
    """A generation backend that stops at the end of a clock: what is under way then is cancelled.

    adapters: task id -> LoRA folder, for requests whose key begins with it (see `Request.adapter`).
    """

    def __init__(self, engine, clock: Clock):
        self._engine, self._clock = engine, clock
        self.adapters: dict[Hashable, Path] = {}

    def __getattr__(self, name: str):
        return getattr(self._engine, name)

    def generate(self, requests: Iterable[Request], sampling: Sampling) -> Iterator[Completion]:
        """As the engine's; ends early when the clock does."""
        under_way: dict[Hashable, int] = {}

        def in_time() -> Iterator[Request]:
            for request in requests:
                if self._clock.is_up:
                    return
                under_way[request.key] = under_way.get(request.key, 0) + request.n
                yield replace(request, adapter=self.adapters.get(request.key[0]))

        for completion in self._engine.generate(in_time(), sampling):
            under_way[completion.key] -= 1
            yield completion
            if self._clock.is_up:
                for key in [key for key, n in under_way.items() if n]:
                    self._engine.cancel(key)
                under_way = dict.fromkeys(under_way, 0)
