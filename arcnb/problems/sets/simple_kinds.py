# ruff: noqa: E501 (a table)
"""The kinds of simple problems: a sentence, a program, and where its inputs come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Sampler = Callable[[np.random.Generator], object]


def _int(low: int, high: int) -> Sampler:
    return lambda r: int(r.integers(low, high + 1))


def _ints(low: int = -9, high: int = 20, longest: int = 7) -> Sampler:
    return lambda r: [int(v) for v in r.integers(low, high + 1, r.integers(1, longest + 1))]


WORDS = (
    *("red", "green", "apple", "stone", "river", "cloud", "tiger", "maple"),
    *("ocean", "piano", "lemon", "robot", "candle", "window", "garden"),
)


def _word(r: np.random.Generator) -> str:
    return WORDS[int(r.integers(len(WORDS)))]


def _text(r: np.random.Generator) -> str:
    return " ".join(_word(r) for _ in range(r.integers(1, 5)))


def _words(r: np.random.Generator) -> list[str]:
    return [_word(r) for _ in range(r.integers(1, 6))]


@dataclass(frozen=True)
class Kind:
    """signature: the function's head. text, body: {k} and {w} stand for the drawn number and word.

    inputs: one sampler an argument. k: numbers to draw {k} from. difficulty: 1 (one operation) to 3.
    """

    signature: str
    text: str
    body: str
    inputs: tuple[Sampler, ...]
    difficulty: int
    k: tuple[int, ...] = ()


_N, _X, _S, _W = _int(-20, 30), _ints(), _text, _words
_NAT = _int(0, 12)
KINDS = (
    Kind("add{k}(n)", "Return n plus {k}.", "return n + {k}", (_N,), 1, tuple(range(1, 40))),
    Kind("times{k}(n)", "Return n multiplied by {k}.", "return n * {k}", (_N,), 1, tuple(range(2, 30))),
    Kind("minus{k}(n)", "Return n minus {k}.", "return n - {k}", (_N,), 1, tuple(range(1, 40))),
    Kind("modulo{k}(n)", "Return the remainder of n divided by {k}.", "return n % {k}", (_N,), 1, tuple(range(2, 12))),
    Kind("divisible_by{k}(n)", "Return True if n is divisible by {k}, otherwise False.", "return n % {k} == 0",
         (_N,), 1, tuple(range(2, 12))),
    Kind("greater_than{k}(n)", "Return True if n is greater than {k}, otherwise False.", "return n > {k}",
         (_N,), 1, tuple(range(-5, 20))),
    Kind("add_and_{k}(a, b)", "Return the sum of a, b and {k}.", "return a + b + {k}", (_N, _N), 1, tuple(range(1, 30))),
    Kind("product_plus{k}(a, b)", "Return a times b, plus {k}.", "return a * b + {k}", (_N, _N), 1, tuple(range(1, 20))),
    Kind("power{k}(n)", "Return n to the power of {k}.", "return n ** {k}", (_NAT,), 1, (2, 3, 4, 5)),
    Kind("repeat{k}(text)", "Return the text repeated {k} times.", "return text * {k}", (_S,), 1, (2, 3, 4, 5, 6)),
    Kind("first{k}(items)", "Return the first {k} items of the list.", "return items[:{k}]", (_X,), 1, (1, 2, 3, 4, 5)),
    Kind("last{k}(items)", "Return the last {k} items of the list.", "return items[-{k}:]", (_X,), 1, (1, 2, 3, 4, 5)),
    Kind("reverse_text(text)", "Return the text reversed.", "return text[::-1]", (_S,), 1),
    Kind("upper(text)", "Return the text in upper case.", "return text.upper()", (_S,), 1),
    Kind("largest(items)", "Return the largest number in the list.", "return max(items)", (_X,), 1),
    Kind("smallest(items)", "Return the smallest number in the list.", "return min(items)", (_X,), 1),
    Kind("total(items)", "Return the sum of the numbers in the list.", "return sum(items)", (_X,), 1),
    Kind("length(items)", "Return how many items the list has.", "return len(items)", (_X,), 1),
    Kind("total_plus{k}(items)", "Return the sum of the numbers in the list, plus {k}.", "return sum(items) + {k}",
         (_X,), 2, tuple(range(1, 20))),
    Kind("scale{k}(items)", "Return a list with every number multiplied by {k}.", "return [x * {k} for x in items]",
         (_X,), 2, tuple(range(2, 20))),
    Kind("shift{k}(items)", "Return a list with {k} added to every number.", "return [x + {k} for x in items]",
         (_X,), 2, tuple(range(1, 20))),
    Kind("keep_above{k}(items)", "Return a list of the numbers that are greater than {k}.",
         "return [x for x in items if x > {k}]", (_X,), 2, tuple(range(-3, 15))),
    Kind("count_above{k}(items)", "Return how many numbers in the list are greater than {k}.",
         "return sum(x > {k} for x in items)", (_X,), 2, tuple(range(-3, 15))),
    Kind("without{k}(items)", "Return the list without the numbers that equal {k}.",
         "return [x for x in items if x != {k}]", (_ints(0, 6),), 2, tuple(range(7))),
    Kind("count_of{k}(items)", "Return how often {k} occurs in the list.", "return items.count({k})",
         (_ints(0, 6),), 2, tuple(range(7))),
    Kind("contains_{w}(items)", "Return True if the word '{w}' is in the list, otherwise False.",
         "return '{w}' in items", (_W,), 2),
    Kind("longer_than{k}(items)", "Return a list of the words that have more than {k} letters.",
         "return [w for w in items if len(w) > {k}]", (_W,), 2, (3, 4, 5)),
    Kind("evens(items)", "Return a list of the even numbers in the list.", "return [x for x in items if x % 2 == 0]",
         (_X,), 2),
    Kind("squares(items)", "Return a list of the squares of the numbers.", "return [x * x for x in items]", (_X,), 2),
    Kind("sorted_down(items)", "Return the list sorted from largest to smallest.",
         "return sorted(items, reverse=True)", (_X,), 2),
    Kind("clip{k}(items)", "Return the list with every number greater than {k} replaced by {k}.",
         "return [min(x, {k}) for x in items]", (_X,), 3, tuple(range(2, 15))),
    Kind("sum_divisible{k}(items)", "Return the sum of the numbers that are divisible by {k}.",
         "return sum(x for x in items if x % {k} == 0)", (_X,), 3, tuple(range(2, 8))),
    Kind("every{k}(items)", "Return a list of every {k}th item, beginning with the first.",
         "return items[::{k}]", (_ints(longest=12),), 3, (2, 3, 4, 5)),
    Kind("running_total(items)", "Return the list of running totals.",
         "return [sum(items[: i + 1]) for i in range(len(items))]", (_X,), 3),
    Kind("unique(items)", "Return the items without repetitions, in order of first appearance.",
         "return list(dict.fromkeys(items))", (_ints(0, 5),), 3),
    Kind("count_vowels_plus{k}(text)", "Return the number of vowels (a, e, i, o, u) in the text, plus {k}.",
         "return sum(c in 'aeiou' for c in text) + {k}", (_S,), 3, tuple(range(1, 15))),
    Kind("rotate{k}(items)", "Return the list rotated to the left by {k} places.",
         "k = {k} % len(items)\n    return items[k:] + items[:k]", (_X,), 3, (1, 2, 3, 4)),
)  # fmt: skip
