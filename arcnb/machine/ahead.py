"""Making things a few places ahead of where they are used, in another thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Key = TypeVar("Key")
Made = TypeVar("Made")


def ahead(
    keys: Iterable[Key], make: Callable[[list[Key]], list[Made]], places: int, together: int = 1
) -> Iterator[tuple[Key, Made]]:
    """(key, what `make` has in its place) in the order of keys, made before they are asked for.

    `make` gets up to `together` keys at a time, and the next while fewer than `places` are ready or being
    made. keys is iterated in the caller's thread, no further ahead than that. An error of `make` is raised
    in the place of its key. Leaving the iterator early waits for no more than the batch being made.
    """
    keys, n_ahead = iter(keys), 0
    coming: deque[Future[list[tuple[Key, Made | None, Exception | None]]]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as pool:
        try:
            while True:
                while n_ahead < places and (batch := list(islice(keys, together))):
                    coming.append(pool.submit(_outcomes, make, batch))
                    n_ahead += len(batch)
                if not coming:
                    return
                outcomes = coming.popleft().result()
                for key, made, error in outcomes:
                    n_ahead -= 1
                    if error is not None:
                        raise error
                    yield key, made
        finally:
            for batch in coming:
                batch.cancel()


def _outcomes(make, batch: list) -> list[tuple]:
    """(key, made, error) of a batch; after an error each is made alone, so that the others have theirs."""
    try:
        return [(key, made, None) for key, made in zip(batch, make(batch), strict=True)]
    except Exception as error:
        if len(batch) == 1:
            return [(batch[0], None, error)]
        return [outcome for key in batch for outcome in _outcomes(make, [key])]
