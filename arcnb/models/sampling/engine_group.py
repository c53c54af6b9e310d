"""The vLLM engines of one backend, side by side on the same GPUs: number, start, turns, restart, end.

The engine of a small model is limited by its own process, which leaves the GPU idle part of the time; further
engines use that time. They are independent of each other: each has a process, weights and a cache of its own,
in an equal part of the memory that the backend may take. With one engine the group adds nothing to it.
"""

import threading
import warnings
from collections.abc import Sequence
from dataclasses import replace

from arcnb.errors import ArcnbError
from arcnb.models.memory.fitting import memory_problem
from arcnb.models.memory.gpu_choice import GpuChoice
from arcnb.models.sampling.late_engines import LateEngines
from arcnb.models.sampling.vllm_engine import EngineSettings, VllmEngine, is_small, on_cpu
from arcnb.programs.executor.service import usable_processors

_PROCESSORS = 6  # that two engines want: one each, one for this process, the others run programs


def chosen_engines(settings: EngineSettings, gpus: GpuChoice) -> int:
    """What `engines` 0 means: 2 for a small model on one GPU, with processors and memory for both; else 1."""
    options, folder = settings.options, settings.model.folder
    if on_cpu() or options.tensor_parallel_size > 1 or not is_small(folder):
        return 1
    gpus.take()  # their memory is asked for
    no_room = memory_problem(folder, settings.context, replace(options, engines=2))
    return 1 if no_room or usable_processors() < _PROCESSORS else 2


class EngineGroup(Sequence[VllmEngine]):
    """The running ones of `settings.options.engines` engines, 0 for `chosen_engines`; on return the first.

    They start one after the other, because vLLM takes memory that another one is about to claim for free: the
    further ones in a thread, and `admit` takes them in. ArcnbError says why the first cannot start.
    """

    def __init__(self, settings: EngineSettings):
        self._gpus = GpuChoice(settings.options.tensor_parallel_size)
        self._engines: list[VllmEngine] = []
        self._late: LateEngines | None = None
        self._chosen = not settings.options.engines
        try:
            if self._chosen:
                chosen = chosen_engines(settings, self._gpus)
                settings = replace(settings, options=replace(settings.options, engines=chosen))
            self.wanted = settings.options.engines
            self._arrived = threading.Event() if self.wanted > 1 else None  # set by outputs of any engine
            first, *others = (VllmEngine(settings, self._gpus, self._arrived) for _ in range(self.wanted))
            first.start()
            self._engines.append(first)
            if others:
                self._late = LateEngines(others, running=1)
        except BaseException:
            self.close()
            raise
        self._turns = list(self._engines)  # the one that was asked longest ago first

    def __getitem__(self, number):
        return self._engines[number]

    def __len__(self) -> int:
        return len(self._engines)

    @property
    def device(self) -> str:
        """Where the engines run, in words."""
        return "CPU" if on_cpu() else self._gpus.description

    @property
    def number(self) -> str:
        """How many engines run, in words."""
        of_all = f" of {self.wanted}" if len(self) < self.wanted else ""
        return f"{len(self)}{of_all} engine" + "s" * (self.wanted > 1)

    @property
    def running(self) -> bool:
        """Whether all of them run."""
        return all(engine.running for engine in self._engines)

    def admit(self, wait: bool = False) -> None:
        """Takes in the engines that became ready; `wait` for all that still start.

        When one cannot start, that is the ArcnbError of this and every later call if the number was
        asked for; if it was chosen, a warning says so once, and those that run go on.
        """
        if self._late is None or len(self) == self.wanted:
            return
        try:
            while ready := self._late.take(wait):
                self._engines += ready
                self._turns += ready
        except ArcnbError as error:
            if not self._chosen:
                raise
            warnings.warn(f"sampling goes on with {self.number}: {error}", stacklevel=2)
            self.wanted = len(self)

    def next_ready(self, busy: Sequence[VllmEngine]) -> VllmEngine:
        """One of the `busy` engines that has outputs, each in its turn; waits until there is one.

        If only one is busy it is returned at once: the wait is then that of its `step`.
        """
        if len(busy) == 1:
            return busy[0]
        while True:
            self._arrived.clear()  # before looking: what arrives from here on ends the wait below
            for engine in self._turns:
                if engine in busy and engine.ready:
                    self._turns.remove(engine)
                    self._turns.append(engine)
                    return engine
            self._arrived.wait()

    def restart(self, engine: VllmEngine) -> None:
        """A new engine in the place of a dead one; the others go on. If it cannot start, all are closed.

        Waits for engines that just start: only one at a time may.
        """
        try:
            self.admit(wait=True)
            engine.restart()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the engines, also those that just start, frees their memory and gives the GPUs back."""
        if self._late is not None:
            self._late.end()
        for engine in self._engines:
            engine.close()
        self._gpus.release()
