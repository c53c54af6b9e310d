"""A tiny random model that seems to write programs: its tokens are real, the text is chosen by them.

What a completion says is a function of the tokens that were sampled, so a trained adapter changes what comes,
and two runs give the same rows only if their adapters are equal.
"""

import hashlib
import json
from dataclasses import replace

from arcnb.arc.tasks.task import Task
from arcnb.arc.tasks.task_set import TaskSet

BODIES = [
    "return grid",
    "return np.zeros_like(grid)",
    "return grid[::-1]",
    "return grid.T",
    "return np.where(grid == 0, 5, grid)",
    "return grid + missing",
    "return np.hstack([grid, grid])",
    "return (grid + 1) % 10",
    "return np.rot90(grid)",
    "return np.vstack([grid, grid[::-1]])",
    "out = grid.copy(); out[0] = 3; return out",
    "out = grid.copy(); out[:, 0] = 4; return out",
]


def program(body: str) -> str:
    return f"import numpy as np\n\ndef transform(grid):\n    {body}\n```"


def text_of(token_ids) -> str:
    digest = hashlib.sha256(str(list(token_ids)).encode()).digest()
    return program(BODIES[digest[0] % len(BODIES)])


class Programming:
    """A backend whose completions read as programs. pick: (key, index, token ids) -> text."""

    def __init__(self, engine, pick=lambda key, index, ids: text_of(ids)):
        self._engine, self._pick = engine, pick
        self.adapters = []

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def use_adapter(self, adapter):
        self.adapters.append(adapter)
        self._engine.use_adapter(adapter)

    def generate(self, requests, sampling):
        for made in self._engine.generate(requests, sampling):
            text = self._pick(made.key, made.index, made.token_ids)
            yield replace(made, text=text, finish_reason="stop")


def small_tasks(n: int = 3) -> TaskSet:
    """Tasks with short prompts; "fill4" colors the first column, the others cannot be solved."""
    tasks = []
    for number in range(n):
        inputs = [[[number + 1, 0], [0, 2]], [[0, 3, 0], [number + 1, 0, 0]], [[0, 1], [2, 0], [0, 0]]]
        fill = [[[4, *row[1:]] for row in grid] for grid in inputs]
        odd = [[[9]], [[8, 8]], [[7], [7]]]
        outputs = fill if number == 0 else odd
        pairs = [{"input": i, "output": o} for i, o in zip(inputs, outputs, strict=True)]
        name = "fill4" if number == 0 else f"odd{number}"
        tasks.append(Task.from_dict(name, {"train": pairs[:2], "test": pairs[2:]}))
    return TaskSet("small", tuple(tasks), "1")


class Mixing(Programming):
    """An engine that takes requests for several adapters in one call."""

    adapters_at_once = 4

    def __init__(self, engine):
        super().__init__(engine)
        self.calls = []

    def generate(self, requests, sampling):
        requests, standard = list(requests), self.adapters[-1]
        self.calls.append({request.adapter for request in requests})
        for adapter in dict.fromkeys(request.adapter for request in requests):
            self._engine.use_adapter(adapter or standard)
            yield from super().generate([one for one in requests if one.adapter == adapter], sampling)


def padded(submission) -> int:
    """How many tasks of a submission file have only [[0]] to show."""
    entries = json.loads(submission.path.read_bytes())
    return sum(all(grid == [[0]] for entry in task for grid in entry.values()) for task in entries.values())
