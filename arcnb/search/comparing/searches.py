"""Search alone beside search and learn: what each had solved after how many completions, and task by task.

The completions of a search that learns are no exchangeable draws, so pass@k does not apply: what counts is
what the first n completions of a task, in the order in which they were made, had found. Frames come from
`arcnb.search.comparing.sets.read_sets`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from arcnb.arc.predictions.prediction import Prediction
from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.scores.intervals import FEWEST_TASKS, difference_text
from arcnb.arc.scores.pass_rates import paired_difference
from arcnb.arc.scores.submission import SubmissionScore, score_submission
from arcnb.arc.scores.tables import aggregate
from arcnb.arc.tasks.task_set import TaskSet, load_tasks
from arcnb.errors import number_of
from arcnb.machine.reading import naming, read_object
from arcnb.programs.usage import main_library, usage_counts
from arcnb.search.comparing.fair_comparison import PairedShares, paired_shares
from arcnb.search.comparing.sets import set_submission
from arcnb.search.learning.job import arm_predictions, task_file
from arcnb.search.learning.journal import StepJournal
from arcnb.search.learning.plan import SearchPlan

if TYPE_CHECKING:
    import pandas as pd


def first_completions(frame: pd.DataFrame, n: int) -> pd.DataFrame:
    """The rows of the first n completions of each task, in the order of rounds."""
    return _numbered(frame)[lambda rows: rows["completion"] <= n]


def _numbered(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows in the order in which they were made, with "completion": 1, 2, ... of each task."""
    ordered = frame.sort_values(["task_id", "round", "index"], kind="stable")
    return ordered.assign(completion=ordered.groupby("task_id", observed=True).cumcount() + 1)


def budgets_to_compare(plan: SearchPlan, frames: Mapping[str, pd.DataFrame]) -> list[int]:
    """Completions a task at the end of each round that was reached."""
    most = max(int(frame.groupby("task_id", observed=True).size().max()) for frame in frames.values())
    ends = [plan.rounds.first_round]
    while ends[-1] < most:
        ends.append(ends[-1] + plan.rounds.per_round)
    return [min(end, most) for end in ends]


def solved_curve(
    frame: pd.DataFrame, task_ids: Sequence[str], budgets: Sequence[int], column: str = "is_correct"
) -> pd.DataFrame:
    """Columns completions, solved (share of tasks), n_solved; a task that ended early keeps what it has.

    column: "is_correct" (one program solves train and test) or "train_is_correct".
    """
    import pandas as pd

    rows = []
    for budget in budgets:
        solved = aggregate(first_completions(frame, budget), task_ids)[column].dropna()
        rows.append((budget, float(solved.mean()), int(solved.sum())))
    return pd.DataFrame(rows, columns=["completions", "solved", "n_solved"])


def paired_curve(
    alone: pd.DataFrame,
    learned: pd.DataFrame,
    task_ids: Sequence[str],
    budgets: Sequence[int],
    column: str = "is_correct",
    seed: int = 0,
) -> pd.DataFrame:
    """The two at equal budgets, a row each: completions, tasks (how many), alone, learned, difference with
    its 95% interval by bootstrap over tasks (low, high), the tasks that only one of them solves (in the sense
    of `column`), and McNemar's exact p. used_alone, used_learned: completions that the tasks really had, on
    average.
    """
    import pandas as pd

    rows = []
    for budget in budgets:
        cut = [first_completions(frame, budget) for frame in (alone, learned)]
        pair = paired_difference(*cut, column, seed, task_ids)
        rows.append(
            {
                "completions": budget,
                "tasks": pair.n_tasks,
                "alone": pair.mean_a,
                "learned": pair.mean_b,
                "difference": pair.difference,
                "low": pair.low,
                "high": pair.high,
                "only_alone": pair.only_a,
                "only_learned": pair.only_b,
                "p_value": pair.p_value,
                "used_alone": pair.n_preds_a,
                "used_learned": pair.n_preds_b,
            }
        )
    return pd.DataFrame(rows)


def later_samples(
    alone: pd.DataFrame,
    learned: pd.DataFrame,
    plan: SearchPlan,
    column: str = "is_correct",
    seed: int = 0,
) -> pd.DataFrame:
    """Shares of a task's samples that solve it, after the first round, which both have in common: a row for
    the samples of the round after it, and one for all that follow, as `PairedShares`
    has them.

    Over the tasks that have such samples in both; no row without any, and "unknown" where no test outputs of
    them are known. Says more than solved tasks where most that can be solved are solved by the first samples.
    In the round after the first both have equal numbers of samples. Later a task that ended has its share
    from few, which flatters both alike: how far apart they are then comes out too large.
    """
    import pandas as pd

    first, rows = plan.rounds.first_round, []
    for last, end in ((1, first + plan.rounds.per_round), (math.inf, "the end")):
        shares = [_share_that_solves(frame, plan, last, column) for frame in (alone, learned)]
        both = shares[0].index.intersection(shares[1].index)
        samples = {"samples": f"{first + 1} to {end}"}
        known = both[shares[0][both].notna() & shares[1][both].notna()]
        if len(known):
            rows.append(samples | vars(paired_shares(shares[0][known], shares[1][known], seed)))
        elif len(both):
            unknown = dict.fromkeys((field.name for field in fields(PairedShares)), "unknown")
            rows.append(samples | unknown | {"n_tasks": 0})
    return pd.DataFrame(rows).rename(columns={"a": "alone", "b": "learned"})


def _share_that_solves(frame: pd.DataFrame, plan: SearchPlan, last: float, column: str) -> pd.Series:
    """Of each task that has samples of rounds 1 to `last`; NaN where their test outputs are unknown. Where a
    prompt did not fit, a sample's number is below that of its round."""
    later = frame[frame["round"].map(plan.round_of).between(1, last)]
    right = later["train_is_correct"].astype(float)
    if column == "is_correct":
        right *= later["test_is_correct"].astype(float)
    return right.groupby(later["task_id"].astype(object)).mean()


def verdict(pairs: pd.DataFrame | None, plan: SearchPlan) -> str:
    """What learning added to search alone, of `paired_curve`, and what the submission file holds.

    plan: settled, as the search was run.
    """
    said = []
    if pairs is not None and len(pairs):
        last = pairs.iloc[-1]
        found = difference_text(last["difference"], last["low"], last["high"])
        enough = last["tasks"] >= FEWEST_TASKS and (last["low"] > 0 or last["high"] < 0)
        shown = "" if enough else ": no difference is shown"
        said.append(f"Learning added {found} to search alone{shown}.")
    if plan.submission:
        entries = read_object(plan.submission_file).values()
        # The file does not tell padding from an answer that is [[0]].
        last, tasks = arm_predictions(plan, plan.searches[-1]), load_tasks(task_file(plan))
        padded = sum(set_submission(last, tasks, plan.submission_rule).padded.values())
        name, n_outputs = Path(plan.submission_file).name, sum(map(len, entries))
        said.append(
            f"{name}: {number_of(len(entries), 'task')}, {number_of(n_outputs, 'test output')}, "
            f"{number_of(padded, 'attempt')} padded with [[0]]."
        )
    return " ".join(said)


def unfinished(reports: Mapping[str, Mapping]) -> str:
    """One sentence on searches whose time was up, empty where none was: their tasks had fewer completions.

    reports: outcomes by search, as `arcnb.search.learning.job.run_shards` gives them.
    """
    late = [name for name, report in reports.items() if report["out_of_time"]]
    if not late:
        return ""
    return (
        f"The time was up for {', '.join(late)}: tasks have fewer completions than asked for, and the "
        "comparison is not at equal budgets (see used_alone, used_learned)."
    )


def evolution(frame: pd.DataFrame, plan: SearchPlan) -> pd.DataFrame:
    """The rows with "learned" (how often their adapter had learned) and "completion" (1, 2, ... a task)."""
    return _numbered(frame).assign(learned=lambda rows: rows["round"].map(plan.round_of))


def rounds_table(frame: pd.DataFrame, plan: SearchPlan) -> pd.DataFrame:
    """A row a round, over all tasks: completions, and shares and means of what came of them."""
    rows = evolution(frame, plan).assign(valid=lambda rows: rows["status"] == "ok")
    table = rows.groupby("learned").agg(
        completions=("completion", "size"),
        valid=("valid", "mean"),
        train_pixel_score=("train_pixel_score", "mean"),
        train_correct_grids=("train_correct_grids", "mean"),
        train_solved=("train_is_correct", "mean"),
    )
    distinct = rows[rows["valid"]].groupby(["learned", "task_id"], observed=True)["fingerprint"].nunique()
    total = rows.groupby(["learned", "task_id"], observed=True).size()
    table["distinct_outputs"] = (distinct / total).fillna(0).groupby("learned").mean()
    return table.rename_axis("round")


def best_of_rounds(predictions: PredictionSet, task_id: str, plan: SearchPlan) -> list[Prediction]:
    """The best valid prediction of each round of one task, by its train pairs alone; earliest round first."""
    best: dict[int, Prediction] = {}
    for row in predictions.iter_predictions([task_id]):
        if row.status == "ok":
            round_ = plan.round_of(row.round)
            if round_ not in best or _rank(row) > _rank(best[round_]):
                best[round_] = row
    return [best[round_] for round_ in sorted(best)]


def _rank(row: Prediction) -> tuple[float, float, int]:
    return *row.closeness, -len(row.program)


def usage_by_round(predictions: PredictionSet, task_ids: Sequence[str], plan: SearchPlan) -> pd.DataFrame:
    """Share of a round's programs (0..1) that use a name, for the 15 most used names of the library that most
    programs import."""
    import pandas as pd

    frame = predictions.read(columns=["task_id", "round", "program"], task_ids=task_ids)
    frame = frame[frame["program"].notna()].reset_index(drop=True)
    programs = frame["program"].to_dict()
    used = usage_counts(programs, main_library(programs.values())) > 0
    by_round = used.groupby(frame["round"].map(plan.round_of).reindex(used.index)).mean()
    ordered = used.mean().sort_values(ascending=False, kind="stable")
    table = pd.DataFrame(by_round.T.loc[ordered[ordered > 0].index[:15]])
    return table.rename_axis("name").rename_axis("round", axis=1)


def training_steps(folder: Path) -> list[dict]:
    """The trainings of a search, of all shards: round, group, rows, steps, tokens, losses in nats, error.

    Of lessons with a teacher also teacher_gain: how much likelier, in nats a token, right answers are where
    the model reads what the teacher reads; from one that is not above 0 nothing was learned.
    """
    names = ["round", "group", "rows", "steps", "tokens", "loss_first", "loss_last", "seconds", "error"]
    lines = [line for path in sorted(folder.glob("steps-*.jsonl")) for line in StepJournal(path).lines]
    lines = [line for line in lines if line["step"] == "learn"]
    names += ["teacher_gain"] * any("teacher_gain" in line for line in lines)
    return [{name: line.get(name) for name in names} for line in lines]


def submission_score(path: Path, tasks: TaskSet) -> SubmissionScore:
    """What a submission file earns on tasks whose test outputs are known. ArcnbError names file and task."""
    submission = read_object(path)
    with naming(path):
        return score_submission(submission, tasks)
