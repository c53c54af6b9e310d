"""Carriage returns as a terminal takes them, however the text is cut into messages."""

import random

import pytest

from arcnb.lab.execution.terminal_text import printed


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb", "a\nb"),
        ("10%\r50%\r100%\n", "100%\n"),
        ("10%\r50%\r", "50%\r"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("a\n\rb\rc\nd\re", "a\nc\ne"),
        ("a\r\r\rb", "b"),
        ("", ""),
    ],
)
def test_what_is_shown_does_not_depend_on_the_cuts(text, shown):
    assert printed("", text) == shown
    dice = random.Random(0)
    for _ in range(50):
        cuts = sorted(dice.randrange(len(text) + 1) for _ in range(3))
        screen = ""
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            screen = printed(screen, text[start:end])
        assert screen == shown, cuts


def test_long_bars_stay_short():
    screen = ""
    for number in range(10_000):
        screen = printed(screen, f"\r{number}")
    assert screen == "9999"
