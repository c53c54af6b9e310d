"""Which tasks GRPO trains on. To a small model most ARC tasks are silent: all completions fail, and nothing
is learnt. Predictions sampled before training (notebook 03) say which are not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.predictions.stop_rules import ended_early
from arcnb.arc.predictions.tables import other_versions, right_where_known
from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task_set import TaskSet, load_tasks
from arcnb.errors import ArcnbError
from arcnb.plans import refuse
from arcnb.synth.splits import LeftOut, trainable_tasks

if TYPE_CHECKING:
    from arcnb.rl.plan.grpo import GrpoPlan

_JUDGED = ["task_id", "task_fingerprint", "turn", "train_is_correct", "test_is_correct"]


def training_tasks(plan: GrpoPlan) -> tuple[TaskSet, TaskSet]:
    """(tasks to train on, tasks to evaluate on). Raises ArcnbError, also where none is left to train on."""
    refuse(plan.subject.source_problems())
    tasks = load_tasks(plan.tasks)
    named = plan.eval_tasks and not plan.keeps_tasks
    eval_tasks = load_tasks(plan.eval_tasks) if named else tasks.subset([])
    left_out = LeftOut.of(plan.train_on_held_out, eval_tasks if plan.eval_steps else ())
    tasks = trainable_tasks(tasks, left_out)
    if plan.learn_from:
        tasks = tasks_solved_at_most(plan.max_solved, tasks, PredictionSet(plan.learn_from))
    return _with_some_kept(plan, tasks) if plan.keeps_tasks else (tasks, eval_tasks)


def _with_some_kept(plan: GrpoPlan, tasks: TaskSet) -> tuple[TaskSet, TaskSet]:
    """(those to train on, `n_eval_tasks` that are kept from it), drawn from the seed."""
    if len(tasks) <= plan.n_eval_tasks:
        raise ArcnbError(
            f"n_eval_tasks={plan.n_eval_tasks} of the {len(tasks)} tasks of {tasks.name} are to be kept from "
            "training, which leaves none to train on; lower n_eval_tasks, or take more tasks"
        )
    drawn = rng(plan.seed, "kept").permutation(len(tasks))[: plan.n_eval_tasks]
    kept = tasks.subset([tasks.ids[place] for place in sorted(drawn)])
    return trainable_tasks(tasks, LeftOut.of(plan.train_on_held_out, kept)), kept


def tasks_solved_at_most(max_solved: float, tasks: TaskSet, predictions: PredictionSet) -> TaskSet:
    """The tasks, in order, that some of their samples solve, at most this share of them; for 0 those that no
    sample solves.

    A sample solves a task by `right_where_known`. Only first turns count. Tasks without predictions are left
    out, and for 0 those that early stop ended: more samples of them might have solved them. Raises
    ArcnbError for predictions of another version of a task, unless for 0 for tasks that early stop ended
    (their share is too high: see arcnb.arc.predictions.stop_rules), and when no task is left.
    """
    frame = predictions.read(columns=_JUDGED)
    frame = frame[(frame["turn"] == 0) & frame["task_id"].isin(tasks.ids)]
    if frame.empty:
        raise ArcnbError(f"{predictions.folder} holds no first turns of the tasks of {tasks.name}")
    if changed := other_versions(frame, {task.task_id: task.fingerprint for task in tasks}):
        raise ArcnbError(f"{predictions.folder}: predictions of another version of {', '.join(changed[:5])}")
    ended = ended_early(predictions, tasks.ids)
    if ended and max_solved:
        raise ArcnbError(
            f"learn_from {predictions.folder}: tasks of {tasks.name} were stopped by stop_after, so the "
            "share of their samples that solve them is too high; fill the set up with stop_after=0, or name "
            "another"
        )
    shares = right_where_known(frame).groupby(frame["task_id"].astype(object)).mean()
    chosen = shares.index[
        (shares > 0) & (shares <= max_solved) if max_solved else (shares == 0) & ~shares.index.isin(ended)
    ]
    if chosen.empty:
        wanted = f"some and at most {max_solved:g} of its samples" if max_solved else "none of its samples"
        raise ArcnbError(
            f"{predictions.folder}: no task is solved by {wanted}; the shares are {shares.min():.3g} to "
            f"{shares.max():.3g}" + (f", and {len(ended)} tasks ended early" if ended else "")
        )
    kept = set(chosen)
    return tasks.subset([task_id for task_id in tasks.ids if task_id in kept])
