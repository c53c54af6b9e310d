"""One test of a problem."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from arcnb.problems.sets.values import encode


@dataclass(frozen=True)
class TestCase:
    """One test.

    call: an expression of the language, evaluated where the program is defined; "" runs the program as a
    script with `stdin`. expected: a plain value, compared outside as `compare` says: "equal" to it, "is"
    (equal and of its type: 1 is not True), "close" within `tolerance` or the share `relative` of the larger
    one, "true" or "false" (no expected value), "text" (the same words on the same lines).
    setup: import statements that the call needs. loose: lists and tuples are the same, as in JSON.
    """

    __test__ = False  # not one of pytest's

    call: str
    expected: object = None
    compare: str = "equal"
    tolerance: float = 1e-6
    stdin: str = ""
    setup: str = ""
    loose: bool = False
    relative: float = 0.0

    def as_row(self) -> dict:
        """Plain values for JSON, the expected one as arcnb.problems.sets.values.encode writes it."""
        return asdict(self) | {"expected": encode(self.expected)}
