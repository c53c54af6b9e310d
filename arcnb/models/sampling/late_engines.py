"""Engines that start in a thread, one after the other, while those before them work already."""

import queue
import threading
from collections.abc import Sequence

from arcnb.models.sampling.vllm_engine import VllmEngine


class LateEngines:
    """Starts the engines, beside `running` others; has to be ended by `end`."""

    def __init__(self, engines: Sequence[VllmEngine], running: int):
        self._engines, self._running = engines, running
        self._ready: queue.SimpleQueue[VllmEngine] = queue.SimpleQueue()
        self._error: Exception | None = None
        self._ending = False
        self._thread = threading.Thread(target=self._start, daemon=True, name="engine-start")
        self._thread.start()

    def take(self, wait: bool = False) -> list[VllmEngine]:
        """The engines that became ready since the last call; `wait` for all that still start.

        When there are no more and one could not start, raises what its `start` raised.
        """
        if wait:
            self._thread.join()
        failed = self._error  # before looking: those before it are in the queue
        ready = [self._ready.get() for _ in range(self._ready.qsize())]
        if failed and not ready:
            raise failed
        return ready

    def end(self) -> None:
        """Ends all of them, also one that is just starting."""
        self._ending = True
        while self._thread.is_alive():
            for engine in self._engines:
                engine.end_start()
            self._thread.join(0.1)
        for engine in self._engines:
            engine.close()

    def _start(self) -> None:
        for number, engine in enumerate(self._engines):
            if self._ending:
                return
            try:
                engine.start(self._running + number)
            except Exception as error:
                self._error = error
                return
            self._ready.put(engine)
