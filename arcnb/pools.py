"""Work spread over processes, its results in order, little of it ahead.

    with ProcessPoolExecutor(4) as pool:
        for result in in_order(pool, function, items, ahead=8):
            ...

`Executor.map` would take in all items at once; a source that never ends wants this instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from itertools import islice
from typing import TypeVar

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
