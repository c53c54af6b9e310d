"""A view: how one prompt shows a task (augmentation, order of the train pairs, which test input).

Every prompt of the project, for sampling, fine-tuning or RL, shows a task through a view, and every
prediction records its view, so that a prompt can be rebuilt exactly. A view is a function of
(seed, task, keys): no view depends on what was drawn before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from arcnb.arc.augmentation import Augmentation
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task import Pair, Task
from arcnb.errors import ArcnbError, nearest
from arcnb.plans import option
from arcnb.values import KeysOf

# What a view may change of the grids: each entry keeps a part of a full random augmentation.
AUGMENTATIONS: dict[str, Callable[[Augmentation], Augmentation]] = {
    "none": lambda drawn: Augmentation(),
    "geometry": lambda drawn: replace(drawn, color_map=None),
    "colors": lambda drawn: Augmentation(color_map=drawn.color_map),
    "all": lambda drawn: drawn,
}


def check_augment(name: str) -> str:
    """The name; ArcnbError, with the nearest one, where AUGMENTATIONS has no such entry."""
    if name in AUGMENTATIONS:
        return name
    raise ArcnbError(f"there is no augment {name!r}{nearest(name, AUGMENTATIONS)}")


def augment_option() -> Any:
    """A plan's option of what its views may change."""
    choices = KeysOf("arcnb.arc.views:AUGMENTATIONS")
    return option("all", "what views change: all, geometry, colors or none", within=choices)


COLUMNS = ("hflip", "n_rot90", "color_map", "pair_order", "test_index")  # of a view, in rows and records


@dataclass(frozen=True)
class View:
    """One way to show a task: pair_order holds indices of the train pairs, test_index the shown test pair."""

    augmentation: Augmentation
    pair_order: tuple[int, ...]
    test_index: int

    @classmethod
    def plain(cls, task: Task) -> View:
        """The task as it is stored: no augmentation, pairs in order, the first test input."""
        return cls(Augmentation(), tuple(range(len(task.train))), 0)

    @classmethod
    def sample(
        cls, task: Task, seed: int, *keys: str | int, augment: str = "all", shuffle: bool = True
    ) -> View:
        """Draw the view of (seed, task, keys). `augment` names an entry of AUGMENTATIONS, else ArcnbError."""
        random = rng(seed, "view", task.task_id, *keys)
        augmentation = AUGMENTATIONS[check_augment(augment)](Augmentation.sample(random))
        order = [int(i) for i in random.permutation(len(task.train))]
        test_index = int(random.integers(len(task.test)))
        return cls(augmentation, tuple(order) if shuffle else tuple(sorted(order)), test_index)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> View:
        """The view that a row or record with COLUMNS was shown by."""
        colors = row["color_map"]
        augmentation = Augmentation(
            bool(row["hflip"]), int(row["n_rot90"]), None if colors is None else tuple(colors)
        )
        return cls(augmentation, tuple(row["pair_order"]), int(row["test_index"]))

    def columns(self) -> dict[str, Any]:
        """COLUMNS as plain values; color_map is None for colors as they are."""
        shown = self.augmentation
        colors = None if shown.color_map is None else list(shown.color_map)
        values = (shown.hflip, shown.n_rot90, colors, list(self.pair_order), self.test_index)
        return dict(zip(COLUMNS, values, strict=True))

    def apply(self, task: Task) -> Task:
        """The task as the prompt shows it: train pairs in this order, one test pair, all augmented.

        The shown test pair has no output: a prompt that is built from a view cannot leak it.
        """
        train = tuple(task.train[i] for i in self.pair_order)
        shown = replace(task, train=train, test=(Pair(task.test[self.test_index].input, None),))
        return self.augmentation.apply_task(shown)
