"""Making things ahead of their use."""

import threading

import pytest

from arcnb.machine.pools import prefetched


def each(make):
    """`make` of one key for a list of them."""
    return lambda keys: [make(key) for key in keys]


@pytest.mark.parametrize(("together", "furthest"), [(1, 3), (2, 4), (8, 8)])
def test_everything_comes_in_order_and_no_key_is_taken_too_early(together, furthest):
    taken, batches = [], []

    def keys():
        for number in range(20):
            taken.append(number)
            yield number

    def make(batch):
        batches.append(len(batch))
        return [key * key for key in batch]

    for number, (key, made) in enumerate(prefetched(keys(), make, 3, together)):
        assert (key, made) == (number, number * number)
        assert len(taken) <= number + furthest
    assert taken == list(range(20))
    assert set(batches[:-1]) == {together}


def test_the_next_is_made_while_one_is_in_use():
    begun = threading.Event()

    def make(key):
        if key == 1:
            begun.set()
        return key

    coming = prefetched(range(5), each(make), 2)
    next(coming)
    assert begun.wait(30)  # nobody has asked for it
    coming.close()


@pytest.mark.parametrize("together", [1, 2, 3, 4])
@pytest.mark.parametrize("places", [1, 8])
def test_an_error_comes_in_its_place(places, together):
    coming = prefetched([4, 2, 0, 1], each(lambda key: 8 // key), places, together)
    assert [next(coming), next(coming)] == [(4, 2), (2, 4)]
    with pytest.raises(ZeroDivisionError):
        next(coming)


@pytest.mark.parametrize("together", [1, 4])
def test_leaving_early_makes_no_more(together):
    made = []
    coming = prefetched(range(1000), each(made.append), 10, together)
    next(coming)
    coming.close()
    assert len(made) <= 12
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetched")]
