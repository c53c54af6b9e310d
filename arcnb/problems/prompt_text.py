"""Problems as prompts: a template of this room, or a Jinja file of the same blocks, and a chat template."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from arcnb.errors import ArcnbError
from arcnb.models.prompts import chat
from arcnb.models.prompts.rendering import Prompt, render_prompt
from arcnb.problems.answers import FORMATS
from arcnb.problems.sets.problem import LANGUAGES, Problem
from arcnb.problems.sets.test_case import TestCase

TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True)
class ProblemFormat:
    """How problems become prompts. template: a name of `answers.FORMATS` or a path; see `problem_format`.

    shown_tests: how many of a problem's first tests the prompt shows as examples.
    """

    template: str
    shown_tests: int = 0

    def prompt(self, problem: Problem) -> Prompt:
        """The chat and the beginning of the answer."""
        variables = {
            "description": problem.description,
            "language": LANGUAGES[problem.language],
            "fence": problem.language,
            "entry_point": problem.entry_point,
            "examples": [_example(test, problem) for test in problem.tests[: self.shown_tests] if test.call],
        }
        return render_prompt(self.template, variables)

    def prompt_ids(self, tokenizer, problem: Problem) -> list[int]:
        """Token ids of the prompt, the beginning of the answer included."""
        return chat.prompt_ids(tokenizer, self.prompt(problem))


def problem_format(template: str = "plain", shown_tests: int = 0) -> ProblemFormat:
    """The checked format: a name of this room's templates or the path of a file. ArcnbError otherwise."""
    path = TEMPLATES / f"{template}.jinja" if template in FORMATS else Path(template).expanduser()
    if not path.is_file():
        raise ArcnbError(f"there is no template {template}; known are {', '.join(FORMATS)}, or give a path")
    return ProblemFormat(str(path), shown_tests)


def _example(test: TestCase, problem: Problem) -> str:
    """A test as people write it: what is called and what comes out."""
    expected = test.compare == "true" if test.compare in ("true", "false") else test.expected
    return f"{test.call} -> {expected if problem.language == 'q' else repr(expected)}"
