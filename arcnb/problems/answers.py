"""Reading a program out of an answer: as strictly as it was asked for, and as leniently as is sensible.

Formats: "plain" asks for one code block, "reasoning" for `<reasoning>…</reasoning><answer>…</answer>`. The
program that is run comes from the lenient reading; the strict one only says whether the format was kept.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from arcnb.problems.languages.language import Language
from arcnb.problems.sets.problem import Problem
from arcnb.programs.extraction import FENCE, Extraction

FORMATS = ("plain", "reasoning")
_REASONING = re.compile(
    r"\s*<reasoning>(?P<thought>.*?)</reasoning>\s*<answer>(?P<answer>.*?)</answer>\s*", re.DOTALL
)
_ANSWER = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL)


@dataclass(frozen=True)
class Reading:
    """found: the program of the lenient reading, or why there is none. strict: the format was kept."""

    found: Extraction
    strict: bool

    @property
    def note(self) -> str:
        """For the prediction record: strict or lenient, and how the program was found."""
        kind = "strict" if self.strict else "lenient" if self.found.program is not None else "none"
        reason = f": {self.found.reason}" if self.found.reason else ""
        return f"{kind}, {self.found.how}{reason}"


def read_answer(
    text: str, problem: Problem, language: Language, answer_format: str = "plain", truncated: bool = False
) -> Reading:
    """Read an answer, the prompt's prefix included; its program stands behind the problem's preamble.

    Of several blocks the last that can be the program counts, which is lenient; strict takes exactly one
    block (plain), or the two tags, each once and in order, with at most one block in the answer (reasoning).
    """
    strict = False
    if answer_format == "reasoning":
        once = all(text.count(f"<{tag}>") == text.count(f"</{tag}>") == 1 for tag in ("reasoning", "answer"))
        kept = _REASONING.fullmatch(text) if once else None  # many tags would be tried in all their pairs
        answers = _ANSWER.findall(text)
        body = answers[-1] if answers else text
        cut = truncated and (not answers or not text.rstrip().endswith("</answer>"))
        found = language.extract(body, problem, cut)
        if kept:
            strict = _is_whole(found) and len(FENCE.findall(kept["answer"])) in (0, 2)
        if found.program is None and answers:
            found = language.extract(text, problem, cut)
    else:
        found = language.extract(text, problem, truncated)
        strict = _is_whole(found) and found.how == "fenced" and len(FENCE.findall(text)) == 2
    if found.program is not None:
        found = replace(found, program=problem.behind_preamble(found.program))
    return Reading(found, strict)


def _is_whole(found: Extraction) -> bool:
    return found.program is not None and found.reason is None
