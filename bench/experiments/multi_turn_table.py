"""The table of multi_turn.py from the small files that it leaves, finished or not."""

import json
from pathlib import Path

from solved_counts import HEAD, line_of, n_samples, paired, read_counts, write_json

BASES = {"independent": (), "untrained": ("independent",), "sft": ("independent", "untrained")}
FURTHER = ("independent", "untrained", "sft", "frozen", "onpolicy")  # what a later arm is compared with


def pairs_of(arms) -> list[tuple[str, str]]:
    """(a, b): each arm against independent samples, the untrained refiner, and the trained ones before it."""
    order = [*FURTHER, "onpolicy-warm"]
    known = [arm for arm in order if arm in arms]
    return [(a, b) for i, b in enumerate(known) for a in BASES.get(b, FURTHER) if a in known[:i]]


def table(out: Path) -> str:
    """The table of DIR/results, which is also left there as table.txt and table.json."""
    from arcnb.arc.scores.intervals import holm

    results = out / "results"
    arms = read_counts(results)
    lines = ["what there is:"]
    for arm, seeds in arms.items():
        for seed, counts in sorted(seeds.items()):
            cells = counts["cells"]
            n = sum(map(n_samples, cells.values()))
            solved = sum(any(cell[3] for cell in own) for own in cells.values())
            state = "finished" if counts["finished"] else "UNFINISHED"
            lines.append(
                f"  {arm:<14} seed {seed}: {len(cells)} tasks, {n:,} samples, {solved} solved, {state}"
            )
    found = {}
    for by_tokens in (False, True):
        what = (
            "tokens a task, in whole prompts (study.txt cuts at single samples)"
            if by_tokens
            else "samples a task"
        )
        lines += ["", f"at equal {what}; adjusted: p for all pairs of this table, by Holm's method:", HEAD]
        pairs = {}
        for a, b in pairs_of(arms):
            first, budget = next(iter(arms[b].values()))["first"], next(iter(arms[b].values()))["budget"]
            pairs[f"{b} against {a}"] = paired(arms[a], arms[b], first, first + 1, budget, by_tokens)
        known = [pair for pair in pairs.values() if pair]
        for pair, p in zip(known, holm([pair["p"] for pair in known])):
            pair["p_holm"] = p
        lines += [line_of(name, pair) for name, pair in pairs.items()]
        found |= {
            f"{name}, equal {'tokens' if by_tokens else 'samples'}": pair for name, pair in pairs.items()
        }
    lines += trainings(out)
    text = "\n".join(lines)
    if arms:
        write_json(results / "table.json", found)
        (results / "table.txt").write_text(text + "\n")
    return text


def trainings(out: Path) -> list[str]:
    """A line for each training, from its metrics: steps so far, means of the first and of the last ten."""
    lines = []
    wanted = ("loss", "reward", "turns/solved_by_1", "turns/solved_by_2", "unique_outputs", "kl", "step_time")
    for path in sorted(out.glob("*/metrics.jsonl")):
        rows = []
        for line in path.read_text().splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:  # the last line of a killed process
                continue
        shown = []
        for name in wanted:
            values = [row[name] for row in rows if isinstance(row.get(name), int | float)]
            if values and not (name == "loss" and any("reward" in row for row in rows)):
                ends = values[:10], values[-10:]
                shown.append(name + " {:.3g} -> {:.3g}".format(*(sum(v) / len(v) for v in ends)))
        lines.append(f"{path.parent.name}: {len(rows)} lines; " + ", ".join(shown))
    return ["", "trainings, first ten steps -> last ten:", *lines] if lines else []
