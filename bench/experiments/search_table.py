"""The table of search and learn, from the counts that its arms leave."""

import numpy as np
from search_arms import ARMS
from solved_counts import (
    HEAD,
    is_solved,
    line_of,
    n_samples,
    paired,
    paired_rates,
    read_counts,
    write_json,
)


def table(out, tag=""):
    """What there is, and learning against search alone at the end of each round that both have reached, paired over the
    tasks and seeds that both have. Left in `out`, too."""
    arms = read_counts(out)
    lines = ["what there is:"]
    for arm, seeds in arms.items():
        for seed, counts in sorted(seeds.items()):
            cells = counts["cells"].values()
            n, solved = sum(map(n_samples, cells)), sum(map(is_solved, cells))
            train = sum(any(cell[4] for cell in own) for own in cells)
            state = "finished" if counts["finished"] else "UNFINISHED"
            seconds = [sum(v for k, v in row.items() if k != "round") for row in counts["seconds_by_round"]]
            learned = [line["loss_last"] for line in counts["learned"] if line.get("loss_last")]
            lines.append(
                f"  {arm:<18} seed {seed}: {len(cells)} tasks, {n:,} samples, {train} solved on train, {solved} on all, "
                f"{state}; {sum(seconds):.0f} s"
                + (f", {counts['start_share']:.1%} of it start-up" if counts["start_share"] else "")
                + (f", last loss {learned[-1]:.3f}" if learned else "")
            )
            lines += [
                f"      learning failed: {line['error']}" for line in counts["learned"] if line.get("error")
            ]
    found = {}
    for arm in [arm for arm in ARMS if f"{arm}/alone" in arms and f"{arm}/learn{tag}" in arms]:
        sides = arms[f"{arm}/alone"], arms[f"{arm}/learn{tag}"]
        facts = next(iter(sides[1].values()))
        lines += ["", f"{arm}: learning (b) against search alone (a)", HEAD]
        sides = [by_rung(side) if arm == "toy" else side for side in sides]
        for budget in range(facts["first"], facts["budget"] + 1, facts["per_round"]):
            pair = paired(*sides, facts["first"], budget, budget)
            if pair:
                found[f"{arm} at {budget}"] = pair
                lines.append(line_of(f"{arm} at {budget}", pair))
        first = facts["first"]
        for name, last in {
            f"to {first + facts['per_round']}": first + facts["per_round"],
            "on": np.inf,
        }.items():
            if rates := paired_rates(*sides, first, last):
                found[f"{arm}, samples from {first + 1} {name}"] = vars(rates)
                lines.append(f"samples from {first + 1} {name} that solve their task: {rates}")
    text = "\n".join(lines)
    if arms:
        write_json(out / f"table{tag}.json", found)
        (out / f"table{tag}.txt").write_text(text + "\n")
    return text


def by_rung(seeds):
    """Counts of toy tasks, whose names carry their seed, by rung: the same rung under another seed is the same task."""
    return {
        seed: counts
        | {
            "cells": {task.rpartition("_")[0]: cells for task, cells in counts["cells"].items()},
            "ended": [task.rpartition("_")[0] for task in counts["ended"]],
        }
        for seed, counts in seeds.items()
    }
