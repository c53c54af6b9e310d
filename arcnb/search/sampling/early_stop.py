"""Ending a task early, once enough of its predictions solve all train pairs, in a way that can be repeated.

The engine is asked ahead and its completions come in any order, so what arrives first must not decide. The
rounds of a task count in their order: a round's rows are kept when all rounds before it are known and fewer
than k of their predictions solve the train pairs, and are dropped otherwise. Which rows there are is then a
function of the completions alone, also after a stage was killed and started again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from arcnb.arc.predictions.prediction import Prediction


class EarlyStop:
    """Keeps the count. stopped: tasks that have ended; another thread may look at it, it only grows.

    dropped: predictions that were made and do not count. solving: task id -> predictions of earlier stages
    that solve the train pairs; with k or more a task has ended before it begins.
    """

    def __init__(self, k: int, solving: Mapping[str, int] | None = None):
        self.k = k
        self._solving: Counter[str] = Counter(solving or {})
        self.stopped: set[str] = {task_id for task_id, n in self._solving.items() if n >= k}
        self.dropped = 0
        self._next: Counter[str] = Counter()  # the first round of each task that is not known yet
        self._found: dict[str, dict[int, int]] = defaultdict(dict)
        self._early: dict[str, dict[int, Sequence[Prediction]]] = defaultdict(dict)

    def found(self, task_id: str, round_: int, n_solving: int) -> None:
        """A round is on disk from before, with so many predictions that solve the task's train pairs."""
        self._found[task_id][round_] = n_solving
        self._advance(task_id)

    def keep(self, task_id: str, round_: int, rows: Sequence[Prediction]) -> list[Prediction]:
        """The rows that count now that `round_` is judged: none, its own, or rows of later rounds as well.

        rows: empty for a round without predictions (its prompt was too long).
        """
        self._early[task_id][round_] = rows
        return self._advance(task_id)

    def _advance(self, task_id: str) -> list[Prediction]:
        kept: list[Prediction] = []
        while True:
            round_ = self._next[task_id]
            if round_ in self._found[task_id]:
                self._solving[task_id] += self._found[task_id].pop(round_)
            elif round_ not in self._early[task_id]:
                return kept
            else:
                rows = self._early[task_id].pop(round_)
                if task_id in self.stopped:
                    self.dropped += len(rows)
                else:
                    kept += rows
                    self._solving[task_id] += sum(bool(row.train_is_correct) for row in rows)
            self._next[task_id] += 1
            if self._solving[task_id] >= self.k:
                self.stopped.add(task_id)
