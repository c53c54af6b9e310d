"""What limits the tasks that no sample solves? A table of them by cause, and what sets them apart.

    python bench/experiments/unsolved.py TASKS PREDICTIONS [PREDICTIONS ...] [--model default] [--rare 5]

TASKS: with test outputs. PREDICTIONS: samples of them (notebook 03), all sets together, first turns alone. No
program runs here: outputs are what the executor left. The gold program is a task's own, or RE-ARC's for the
ARC-AGI-1 task of its id. Primitives are RE-ARC's functions, rare if fewer than --rare of its programs for
trainable tasks use them; a program is long if it has more tokens than three quarters of these. For `search`
and `best` only samples count that do not solve the task and are not plain (inputs copied, a grid for all, or
one color); 95% of the cells count where a copy of the inputs has at least twice as many wrong.

A task has the first of CAUSES that holds; what holds as often for solved tasks limits nothing. Larger: chance
that of two sampled tasks the unsolved one has more (ties by half), 95% interval by bootstrap over tasks; p by
Mann and Whitney (1947), adjusted by Holm. The smallest effect is a distance from 0.5, for one measure alone.
"""

import argparse
from collections import Counter

import numpy as np
import pandas as pd
from per_hour import print_table
from scipy.stats import mannwhitneyu

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.scores.intervals import holm, interval, percent, resampled_weights, share_text
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task_set import load_tasks
from arcnb.errors import ArcnbError, some
from arcnb.models.prompts.format import prompt_format
from arcnb.models.prompts.lengths import longest_prompt
from arcnb.models.registry import load_tokenizer, resolve_model
from arcnb.programs.usage import program_usage
from arcnb.synth.rearc.tasks import rearc_program, reproduced_ids
from arcnb.synth.splits import training_split

COLUMNS = ["task_id", "task_fingerprint", "turn", "status", "outputs", "train_is_correct", "test_is_correct"]
CAUSES = {
    "not sampled: a longer prompt than any that was": lambda t: (
        (t.n == 0) & (t.prompt > t.prompt[t.n > 0].max())
    ),
    "not sampled": lambda t: t.n == 0,
    "no sample runs": lambda t: (t.n > 0) & (t.ran == 0),
    "never the right shapes": lambda t: (t.n > 0) & (t.shaped == 0),
    "search: half of the train pairs right": lambda t: t.pairs >= 0.5,
    "search: a train pair right": lambda t: t.pairs > 0,
    "search: 95% of cells right": lambda t: (t.cells >= 0.95) & (1 + t.copied <= 2 * t.cells + 1e-9),
    "a rare primitive": lambda t: t.rare != "",
    "a long program": lambda t: t.tokens > t.long,
    "unclear, without a gold program": lambda t: t.tokens.isna(),
    "unclear": lambda t: t.n > 0,
}
MEASURES = {
    "tokens": "tokens of the gold program",
    "rarest": "trainable programs that use its rarest primitive",
    "alike": "primitives shared with the most alike trainable program (Jaccard)",
    "prompt": "tokens of the prompt",
    "grid": "cells of the largest grid",
}


def judged(task, outputs) -> tuple:
    """Of a sample's outputs: all right shapes, plain, the shares of train pairs and of all cells right."""
    pairs = list(zip(outputs, (pair.output for pair in (*task.train, *task.test)), strict=True))
    shaped = all(grid.shape == right.shape for grid, right in pairs)
    cells = np.concatenate([grid == right for grid, right in pairs], axis=None).mean() if shaped else 0.0
    copied = all(map(np.array_equal, outputs, task.inputs))
    fixed = all(np.array_equal(grid, outputs[0]) for grid in outputs)
    plain = copied or fixed or len({color for grid in outputs for color in np.unique(grid)}) == 1
    return shaped, plain, np.mean([np.array_equal(*pair) for pair in pairs[: len(task.train)]]), cells


def sampled(tasks, frame: pd.DataFrame) -> pd.DataFrame:
    """A row a task: shares of all samples, and the best of those that do not solve it and are not plain."""
    ran, by = frame["status"] == "ok", frame["task_id"].astype(object)
    seen = [judged(tasks[id_], outputs) for id_, outputs in zip(by[ran], frame["outputs"][ran], strict=True)]
    seen = pd.DataFrame(seen, frame.index[ran], ["shaped", "plain", "pairs", "cells"], dtype=float)
    right = (frame["train_is_correct"] == 1) & (frame["test_is_correct"] == 1)
    shares = seen[["shaped", "plain"]].reindex(frame.index, fill_value=0.0).assign(ran=ran).groupby(by).mean()
    near = seen[["pairs", "cells"]][(seen["plain"] == 0) & ~right[ran]].groupby(by).max()
    counts = right.groupby(by).agg(n="size", right="sum")
    return pd.concat([counts, shares, near], axis=1).reindex(tasks.ids).fillna(0.0)


def described(tasks, model: str, few: int) -> pd.DataFrame:
    """A row a task: its gold program, its sizes, and the cells that a copy of its inputs has right."""
    tokenizer, format_ = load_tokenizer(resolve_model(model)), prompt_format()

    def read(program: str) -> tuple[int, set[str]]:
        names = {*program_usage(program, "rearc_dsl")} - {"as_tuples"}
        return len(format_.completion_ids(tokenizer, program)), names

    trainable = [read(rearc_program(id_)) for id_ in training_split().trainable]
    users = Counter(name for _, names in trainable for name in names)
    unknown = dict.fromkeys(("tokens", "rarest", "alike"), np.nan) | {"rare": ""}
    unknown["long"] = np.quantile([length for length, _ in trainable], 0.75)
    rows = []
    for task in tasks:
        row = unknown | {"prompt": longest_prompt(task, format_, tokenizer)}
        row["grid"] = max(grid.size for _, *grids in task.named_pairs for grid in grids)
        row["copied"] = judged(task, task.inputs)[-1]
        if gold := task.program or (task.task_id in reproduced_ids() and rearc_program(task.task_id)):
            row["tokens"], names = read(gold)
            row["rare"] = ", ".join(sorted(name for name in names if users[name] < few))
            row["rarest"] = min((users[name] for name in names), default=np.nan)
            row["alike"] = max(len(names & others) / len(names | others) for _, others in trainable)
        rows.append(row)
    return pd.DataFrame(rows, index=tasks.ids)


def compared(name: str, unsolved: np.ndarray, solved: np.ndarray) -> list:
    """The row of a measure, its p-value last."""
    larger = (unsolved[:, None] > solved) + 0.5 * (unsolved[:, None] == solved)
    first, second = (resampled_weights(n, rng(0, "unsolved", i)) for i, n in enumerate(larger.shape))
    low, high = interval(((first @ larger) * second).sum(axis=1))
    smallest = 2.8 * np.sqrt((sum(larger.shape) + 1) / (12 * larger.size))  # 2.8 = 1.96 + 0.84 deviations
    said = [f"{np.median(group):.3g} ({len(group)})" for group in (unsolved, solved)]
    said.append(f"{larger.mean():.2f} ({low:.2f} to {high:.2f})")
    said.append(f"{smallest:.2f}" if smallest < 0.5 else "none")
    return [MEASURES[name], *said, float(mannwhitneyu(unsolved, solved).pvalue)]


def task_row(row) -> list:
    tokens = int(row.tokens) if row.tokens >= 0 else ""
    shares = map(percent, (row.pairs, row.cells, row.copied, row.ran, row.shaped, row.plain))
    right = share_text(int(row.right), int(row.n))
    return [row.Index, row.cause, right, tokens, row.rare, row.prompt, *shares]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("tasks")
    parser.add_argument("predictions", nargs="+")
    parser.add_argument("--model", default="default", help="whose tokenizer counts")
    parser.add_argument("--rare", type=int, default=5)
    args = parser.parse_args()
    tasks = load_tasks(args.tasks)
    sets = [PredictionSet(folder).read(COLUMNS, tasks.ids) for folder in args.predictions]
    frame = pd.concat(sets, ignore_index=True).query("turn == 0")
    if frame.empty:
        raise ArcnbError(f"{some(args.predictions)}: no first turns of the tasks of {args.tasks}")
    versions = frame.groupby("task_id", observed=True)["task_fingerprint"].unique()
    if changed := [id_ for id_, known in versions.items() if {*known} != {tasks[id_].fingerprint}]:
        raise ArcnbError(f"{args.tasks}: the samples are of other versions of {some(changed)}")
    if not all(task.has_test_outputs for task in tasks):
        raise ArcnbError(f"{args.tasks}: test outputs are missing; without them nothing says what is right")
    table = pd.concat([sampled(tasks, frame), described(tasks, args.model, args.rare)], axis=1)
    solved = table.right > 0
    holds = pd.DataFrame({cause: rule(table) for cause, rule in CAUSES.items()})
    table["cause"] = holds.idxmax(axis=1).mask(solved, "solved")
    print(share_text(int(solved.sum()), len(table), "tasks are solved by a sample"))
    rows = []
    for cause in CAUSES:
        parts = [share_text(int(holds[cause][part].sum()), int(part.sum())) for part in (~solved, solved)]
        rows.append([cause, (table.cause == cause).sum(), *parts])
    print_table(["cause", "unsolved tasks", "unsolved where it holds at all", "solved where it does"], rows)
    rows = []
    for name in MEASURES:
        pair = [table[name][part & (table.n > 0)].dropna().to_numpy() for part in (~solved, solved)]
        rows += [compared(name, *pair)] if all(map(len, pair)) else []
    rows = [[*row[:-1], f"{p:.2g}"] for row, p in zip(rows, holm([row[-1] for row in rows]), strict=True)]
    print_table(["measure", "median unsolved (tasks)", "solved", "larger", "smallest effect", "p"], rows)
    head = ["task", "cause", "samples right", "program tokens", "rare primitives", "prompt tokens"]
    head += ["best pairs", "best cells", "cells of a copy", "ran", "right shapes", "plain"]
    print_table(head, [task_row(row) for row in table.itertuples()])


if __name__ == "__main__":
    main()
