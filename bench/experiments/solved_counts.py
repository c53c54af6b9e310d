"""Prediction sets reduced to what a comparison needs, in small JSON files, and arms compared from these alone.

A file of counts says, of one arm and seed,

    {"arm", "seed", "finished", "ended": [task, ...],
     "cells": {task: [[turn, round, samples, solved, solved_train, tokens], ...]}}

solved: samples that are right on all train and test pairs. ended: tasks that get no more samples because their train
pairs are solved. Files are written again and again while an arm is at work, whole or not at all, so whatever a fetch
finds can be compared: `paired` cuts both arms of a task to what both have.
"""

import json
import os
import threading
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import numpy as np

READ = ["task_id", "turn", "round", "n_tokens", "train_is_correct", "test_is_correct"]
RESAMPLES = 4000


def write_json(path: Path, value) -> None:
    """Whole or not at all, so that a reader never meets half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    partial.write_text(json.dumps(value, default=_plain))
    partial.replace(path)


def _plain(value):
    return value.item() if isinstance(value, np.generic) else str(value)


def cells_of(frame, task_ids=()) -> dict[str, list[list[int]]]:
    """{task: cells} of rows with the columns READ; tasks of `task_ids` without rows get an empty list."""
    found: dict[str, dict[tuple, list[int]]] = {task_id: {} for task_id in task_ids}
    columns = (
        frame[name].fillna(0) if name.endswith(("correct", "tokens")) else frame[name] for name in READ
    )
    for task_id, turn, round_, tokens, train, test in zip(*columns, strict=True):
        key = (int(turn), int(round_))
        cell = found.setdefault(str(task_id), {}).setdefault(key, [*key, 0, 0, 0, 0])
        cell[2] += 1
        cell[3] += train == 1 and test == 1
        cell[4] += train == 1
        cell[5] += int(tokens)
    return {
        task_id: [list(map(int, cells[key])) for key in sorted(cells)] for task_id, cells in found.items()
    }


@contextmanager
def kept_up_to_date(refresh, seconds: float = 20.0):
    """`refresh` is called at once, every so many seconds, and at the end, also of a block that failed."""
    over = threading.Event()

    def again():
        while not over.wait(seconds):
            refresh()

    refresh()
    thread = threading.Thread(target=again, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        refresh()


def read_counts(folder: Path) -> dict[str, dict[int, dict]]:
    """{arm: {seed: counts}} of every file counts-*.json below the folder."""
    arms: dict[str, dict[int, dict]] = defaultdict(dict)
    for path in sorted(folder.rglob("counts-*.json")):
        counts = json.loads(path.read_text())
        arms[counts["arm"]][counts["seed"]] = counts
    return dict(arms)


# ---------------------------------------------------------------- two arms


def n_samples(cells) -> int:
    return sum(cell[2] for cell in cells)


def first_of(cells, samples: float, tokens: float = np.inf) -> list:
    """The first cells of a task, in the order of turns and rounds, that stay within both."""
    taken, n, spent = [], 0, 0
    for cell in cells:
        n, spent = n + cell[2], spent + cell[5]
        if n > samples or spent > tokens:
            break
        taken.append(cell)
    return taken


def is_solved(cells) -> bool:
    return any(cell[3] for cell in cells)


def equal_cut(a: dict, b: dict, task: str, least: int, most: float, by_tokens: bool):
    """The cells of one task and seed in both arms, cut to what both spent; None where one is still at work and has
    fewer than `least` samples. An arm that ended with the task solved on train keeps what it has."""
    cells = [counts["cells"].get(task, []) for counts in (a, b)]
    going = [c for c, counts in zip(cells, (a, b)) if task not in counts["ended"]]
    for own, counts in zip(cells, (a, b)):
        if not counts["finished"] and task not in counts["ended"] and n_samples(own) < least:
            return None
    samples = min([most, *(n_samples(c) for c in going)])
    cells = [first_of(c, samples) for c in cells]
    if by_tokens:
        spent = [sum(cell[5] for cell in first_of(c, samples)) for c in going]
        cells = [first_of(c, samples, min([np.inf, *spent])) for c in cells]
    return cells


def paired(
    a: dict, b: dict, first: int, least: int, most: float = np.inf, by_tokens: bool = False
) -> dict | None:
    """Arm b against arm a over the tasks and seeds that both have; None where there are none.

    a, b: {seed: counts}, whose cells begin with the `first` samples that the arms share. least, most: samples a task, see
    `equal_cut`. Shares are means over tasks of means over seeds; low, high: 95% by bootstrap over tasks; p: exact
    sign-flip test over tasks; p_seeds: McNemar's of each seed; gain: of the tasks and seeds that the first samples left
    unsolved, what each arm solves.
    """
    from arcnb.arc.scores.intervals import sign_flip_p

    rows, n, p_seeds = defaultdict(list), [], {}
    for seed in sorted(set(a) & set(b)):
        signs = []
        for task in sorted(set(a[seed]["cells"]) & set(b[seed]["cells"])):
            if (cut := equal_cut(a[seed], b[seed], task, least, most, by_tokens)) is None:
                continue
            one, other = map(is_solved, cut)
            rows[task].append((one, other, not is_solved(first_of(cut[0], first))))
            n.append([(n_samples(cells), sum(cell[5] for cell in cells)) for cells in cut])
            signs.append(int(other) - int(one))
        if signs:
            p_seeds[seed] = sign_flip_p(signs)
    if not rows:
        return None
    means = np.array([np.mean(values, axis=0) for values in rows.values()], dtype=float)
    difference = means[:, 1] - means[:, 0]
    picks = np.random.default_rng(0).integers(0, len(difference), (RESAMPLES, len(difference)))
    low, high = np.percentile(difference[picks].mean(axis=1), [2.5, 97.5])
    open_ = [(one, other) for values in rows.values() for one, other, left in values if left]
    spent = np.mean(n, axis=0)
    return {
        "tasks": len(rows),
        "seeds": sorted(p_seeds),
        "finished": all(counts[seed]["finished"] for counts in (a, b) for seed in p_seeds),
        "samples": [float(spent[0][0]), float(spent[1][0])],
        "tokens": [float(spent[0][1]), float(spent[1][1])],
        "a": float(means[:, 0].mean()),
        "b": float(means[:, 1].mean()),
        "difference": float(difference.mean()),
        "low": float(low),
        "high": float(high),
        "p": sign_flip_p([sum(int(b) - int(a) for a, b, _ in values) for values in rows.values()]),
        "p_seeds": list(p_seeds.values()),
        "open": len(open_),
        "gain": [float(x) for x in np.mean(open_, axis=0)] if open_ else [0.0, 0.0],
    }


def paired_rates(a: dict, b: dict, first: int, last: float = np.inf):
    """`paired_shares` of the samples that solve their task, after the `first` ones that the arms share, to the
    `last` or as far as both have come, means over seeds; None where there are none.

    See `later_samples` of arcnb.search.comparing.searches, also for what tasks that ended do to the figures.
    """
    from arcnb.search.comparing.fair_comparison import paired_shares

    rates = defaultdict(list)
    for seed in sorted(set(a) & set(b)):
        for task in sorted(set(a[seed]["cells"]) & set(b[seed]["cells"])):
            cut = equal_cut(a[seed], b[seed], task, first + 1, last, False)
            later = [cells[len(first_of(cells, first)) :] for cells in cut or ()]
            if later and all(later):
                rates[task].append([sum(cell[3] for cell in own) / n_samples(own) for own in later])
    if not rates:
        return None
    return paired_shares(*np.transpose([np.mean(pairs, axis=0) for pairs in rates.values()]))


def line_of(name: str, found: dict | None) -> str:
    """A line of a table; HEAD stands above it."""
    if found is None:
        return f"{name:<46} nothing that both have yet"
    seeds = ",".join(map(str, found["seeds"]))
    p_seeds = " ".join(f"{p:.2g}" for p in found["p_seeds"])
    return (
        f"{name:<46}{found['tasks']:>5} {seeds:>6} {found['samples'][0]:>7.1f}{found['samples'][1]:>7.1f}"
        f"{found['tokens'][0]:>9,.0f}{found['tokens'][1]:>9,.0f}{found['a']:>8.1%}{found['b']:>8.1%}"
        f"{100 * found['difference']:>+7.1f} [{100 * found['low']:+.1f}, {100 * found['high']:+.1f}]"
        f"  {found['p']:<7.2g} {p_seeds:<17} {found['open']:>4} {found['gain'][0]:>6.1%}{found['gain'][1]:>7.1%}"
        + (f"  adjusted {found['p_holm']:.2g}" if "p_holm" in found else "")
        + ("" if found["finished"] else "  UNFINISHED")
    )


HEAD = (
    f"{'b against a':<46}{'tasks':>5} {'seeds':>6} {'samples a':>9}{'b':>5}{'tokens a':>9}{'b':>9}{'a':>8}{'b':>8}"
    "  points [95%]      p       p of each seed    open, of these a, b"
)
