"""Work spread over processes, its results in order, little of it ahead.

    with ProcessPoolExecutor(4) as pool:
        for result in in_order(pool, function, items, ahead=8):
            ...

`Executor.map` would take in all items at once; a source that never ends wants this instead. `guessing`, with
a pool of its own, is for work that may be guessed before it is asked for, `prefetched` for work that a
second thread does while its earlier results are used.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Generic, TypeVar

from arcnb.machine.processes import shared_context

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_order(
    pool: Executor, function: Callable[[Item], Result], items: Iterable[Item], ahead: int
) -> Iterator[Result]:
    """function(item) of every item, in their order; at most `ahead` are under way or waiting.

    A result that is there is not kept back for the sake of items that the source is slow to give.
    """
    source = iter(items)
    waiting: deque = deque()
    ended = False
    try:
        while True:
            while not ended and len(waiting) < ahead and not (waiting and waiting[0].done()):
                for item in islice(source, 1):
                    waiting.append(pool.submit(function, item))
                    break
                else:
                    ended = True
            if not waiting:
                return
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()


class GuessedResults(Generic[Item, Result]):
    """A function's results, some of them worked on before they are asked for.

    function: of the item alone, so that a wrong guess costs time and changes nothing. chunk: items that go to
    a process together.
    """

    def __init__(self, pool: Executor, function: Callable[[Item], Result], chunk: int):
        self._pool = pool
        self._function = function
        self._chunk = chunk
        self._under_way: dict[Item, tuple[Future[list[Result]], int]] = {}

    def __call__(self, items: list[Item], guessed: list[Item]) -> Iterator[Result]:
        """function(item) of every item, in their order; work on the guessed ones begins after the first.

        Not before, so that what others ask of the same pool at that moment comes before our guesses.
        """
        self._begin(items)
        for n, item in enumerate(items):
            if n == 1:
                self._begin(guessed)
            future, i = self._under_way.pop(item)
            yield future.result()[i]

    def _begin(self, items: list[Item]) -> None:
        new = [item for item in items if item not in self._under_way]
        for start in range(0, len(new), self._chunk):
            chunk = new[start : start + self._chunk]
            future = self._pool.submit(_each, self._function, chunk)
            self._under_way.update((item, (future, i)) for i, item in enumerate(chunk))


@contextmanager
def guessing(
    function: Callable[[Item], Result], workers: int, chunk: int
) -> Iterator[Callable[[list[Item], list[Item]], Iterator[Result]]]:
    """`GuessedResults` of a pool of so many processes; one is this process, which guesses nothing."""
    if workers == 1:
        yield lambda items, _: map(function, items)
        return
    # Spawned: a fork could copy a lock that another thread of ours holds.
    pool = ProcessPoolExecutor(workers, mp_context=shared_context())
    try:
        yield GuessedResults(pool, function, chunk)
    finally:
        pool.shutdown(cancel_futures=True)


def _each(function: Callable[[Item], Result], items: list[Item]) -> list[Result]:
    return [function(item) for item in items]


def prefetched(
    items: Iterable[Item], function: Callable[[list[Item]], list[Result]], places: int, together: int = 1
) -> Iterator[tuple[Item, Result]]:
    """(item, its result) in the order of items, worked on in another thread before they are asked for.

    `function` gets up to `together` items at a time, and the next while fewer than `places` are ready or
    under way. items is iterated in the caller's thread, no further ahead than that. An error of `function` is
    raised in the place of its item. Leaving the iterator early waits for no more than the batch under way.
    """
    source, n_ahead = iter(items), 0
    coming: deque[Future[list[tuple[Item, Result | None, Exception | None]]]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="prefetched") as pool:
        try:
            while True:
                while n_ahead < places and (batch := list(islice(source, together))):
                    coming.append(pool.submit(_outcomes, function, batch))
                    n_ahead += len(batch)
                if not coming:
                    return
                for item, result, error in coming.popleft().result():
                    n_ahead -= 1
                    if error is not None:
                        raise error
                    yield item, result
        finally:
            for batch in coming:
                batch.cancel()


def _outcomes(function, batch: list) -> list[tuple]:
    """(item, result, error) of a batch; after an error each is done alone, so that the others have theirs."""
    try:
        return [(item, result, None) for item, result in zip(batch, function(batch), strict=True)]
    except Exception as error:
        if len(batch) == 1:
            return [(batch[0], None, error)]
        return [outcome for item in batch for outcome in _outcomes(function, [item])]
