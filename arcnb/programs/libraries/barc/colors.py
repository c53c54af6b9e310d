"""The ten colors by the names that BARC programs write."""


class Color:
    """Namespace of color numbers; never instantiated.

    GREY, TEAL and MAROON are the names of the human-written seeds; the model was fine-tuned on the same
    programs with GRAY, PURPLE and BROWN in their place, so both spellings exist. The lists hold each number
    once. They are mutable and shared: whoever runs programs gives each its own copy.
    """

    BLACK = 0
    BLUE = 1
    RED = 2
    GREEN = 3
    YELLOW = 4
    GREY = 5
    GRAY = 5
    PINK = 6
    ORANGE = 7
    TEAL = 8
    PURPLE = 8
    MAROON = 9
    BROWN = 9
    TRANSPARENT = 0
    BACKGROUND = 0

    ALL_COLORS = list(range(10))  # noqa: RUF012 (programs index, sample and modify it)
    NOT_BLACK = list(range(1, 10))  # noqa: RUF012
