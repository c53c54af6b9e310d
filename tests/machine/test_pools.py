"""Work in processes, in order."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice

import pytest

from arcnb.machine.pools import in_order


def test_results_come_in_the_order_of_the_items():
    with ThreadPoolExecutor(4) as pool:
        assert list(in_order(pool, lambda i: i * i, range(50), ahead=7)) == [i * i for i in range(50)]


def test_an_endless_source_is_read_a_little_ahead_only():
    drawn = []
    with ThreadPoolExecutor(2) as pool:
        results = in_order(pool, lambda i: i, (drawn.append(i) or i for i in count()), ahead=5)
        assert list(islice(results, 10)) == list(range(10))
        results.close()
    assert len(drawn) <= 15


def test_a_result_does_not_wait_for_items_that_are_slow_to_come():
    taken, worked = threading.Event(), threading.Semaphore(0)

    def work(item):
        worked.release()
        return item

    def slow():
        yield 0
        yield 1
        assert taken.wait(20), "the first result was held back"
        yield 2

    with ThreadPoolExecutor(1) as pool:
        results = in_order(pool, work, _until_done(slow(), worked), ahead=100)
        assert next(results) == 0
        taken.set()
        assert list(results) == [1, 2]


def _until_done(items, worked):
    """The items, each when the work on the one before is done, and a moment later."""
    for item in items:
        yield item
        assert worked.acquire(timeout=20)
        threading.Event().wait(0.1)


def test_what_an_item_raises_is_raised():
    with ThreadPoolExecutor(2) as pool, pytest.raises(ZeroDivisionError):
        list(in_order(pool, lambda i: 1 // i, [1, 0, 2], ahead=2))
