"""Making things a few places ahead of where they are used, in another thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Key = TypeVar("Key")
Made = TypeVar("Made")


def ahead(keys: Iterable[Key], make: Callable[[Key], Made], places: int) -> Iterator[tuple[Key, Made]]:
    """(key, make(key)) in the order of keys; up to `places` of them are made before they are asked for.

    keys is iterated in the caller's thread, no further ahead than that. An error of `make` is raised in the
    place of its key. Leaving the iterator early waits for no more than the one being made.
    """
    keys, coming = iter(keys), deque()
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        try:
            while True:
                coming.extend((key, pool.submit(make, key)) for key in islice(keys, places - len(coming) + 1))
                if not coming:
                    return
                key, made = coming.popleft()
                yield key, made.result()
        finally:
            for _, made in coming:
                made.cancel()
