"""What a terminal would show of a text with carriage returns, so that a progress bar's thousand states are
one line.

nbclient can do this too (`coalesce_streams`), but only when a cell ends, and in time that grows with the
square of the longest line: a printed line of 90,000 characters took 9 seconds.
"""


def printed(before: str, text: str) -> str:
    """The text on screen after `text` is written behind `before`. A carriage return goes back to the line's
    start; at the very end it is kept, because what comes next decides what it does."""
    head, newline, line = before.rpartition("\n")
    lines = (line + text).replace("\r\n", "\n").split("\n")
    whole = [line.rstrip("\r").rpartition("\r")[2] for line in lines[:-1]]
    last = lines[-1].rstrip("\r")
    pending = lines[-1][len(last) :][:1]
    return head + newline + "\n".join([*whole, last.rpartition("\r")[2] + pending])
