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
    """function(item) of every item, in their order; at most `ahead` are under way or waiting."""
    source = iter(items)
    waiting = deque(pool.submit(function, item) for item in islice(source, ahead))
    try:
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(function, item) for item in islice(source, 1))
            yield result
    finally:
        for future in waiting:
            future.cancel()
