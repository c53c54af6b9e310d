"""Making things ahead of their use.

Run: pytest tests/search/test_search_ahead.py
"""

import threading

import pytest

from arcnb.search.ahead import ahead


def test_everything_comes_in_order_and_no_key_is_taken_too_early():
    taken = []

    def keys():
        for number in range(20):
            taken.append(number)
            yield number

    for number, (key, made) in enumerate(ahead(keys(), lambda key: key * key, 3)):
        assert (key, made) == (number, number * number)
        assert len(taken) <= number + 4
    assert taken == list(range(20))


def test_the_next_is_made_while_one_is_in_use():
    begun = threading.Event()

    def make(key):
        if key == 1:
            begun.set()
        return key

    coming = ahead(range(5), make, 2)
    next(coming)
    assert begun.wait(30)  # nobody has asked for it
    coming.close()


@pytest.mark.parametrize("places", [1, 8])
def test_an_error_comes_in_its_place(places):
    coming = ahead([4, 2, 0, 1], lambda key: 8 // key, places)
    assert [next(coming), next(coming)] == [(4, 2), (2, 4)]
    with pytest.raises(ZeroDivisionError):
        next(coming)


def test_leaving_early_makes_no_more():
    made = []
    coming = ahead(range(1000), made.append, 10)
    next(coming)
    coming.close()
    assert len(made) <= 12
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ahead")]
