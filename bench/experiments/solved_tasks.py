"""The tasks of the GRPO experiments: those that an adapter solves at times, some of them kept from training.

    python bench/experiments/solved_tasks.py PREDICTIONS OUT [--more tasks.parquet --more-predictions FOLDER]
    python bench/experiments/solved_tasks.py PREDICTIONS OUT --tasks mine.json --keep 10

PREDICTIONS are samples of the tasks. OUT gets kept.parquet and trained.parquet; with --more, tasks that
notebook 01 made, also wide.parquet: trained.parquet and those of the generated ones that their own
predictions solve at times and that no generator of a kept task made. Reserved tasks are left out, and those
with a prompt of more than 1,000 tokens, which model, template and encoding decide.
"""

import argparse
from pathlib import Path

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task_set import TaskSet, load_tasks, write_tasks
from arcnb.errors import ArcnbError
from arcnb.models.prompts.format import PromptFormat, prompt_format
from arcnb.models.prompts.rendering import DEFAULT_TEMPLATE
from arcnb.models.registry import load_tokenizer, resolve_model
from arcnb.rl.rows.choice import tasks_solved_at_most
from arcnb.rl.rows.prompt_rows import prompt_rows
from arcnb.synth.splits import trainable_tasks
from arcnb.synth.task_sets import build_task_set

MAX_SOLVED = 0.9
MAX_PROMPT_TOKENS = 1000


def solved_at_times(tasks: TaskSet, predictions: Path, format_: PromptFormat, tokenizer) -> list:
    """Those that fit, in an order drawn from seed 0. ArcnbError when there is none."""
    if not predictions.is_dir():
        raise ArcnbError(f"{predictions}: no such folder of predictions")
    solved = tasks_solved_at_most(MAX_SOLVED, tasks, PredictionSet(predictions))
    asked = {"seed": 0, "n_tasks": len(solved), "max_prompt_tokens": MAX_PROMPT_TOKENS}
    try:
        return list(prompt_rows(solved, format_, tokenizer, **asked).tasks)
    except ValueError as error:
        raise ArcnbError(f"{predictions}: {error}") from error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("predictions", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tasks", default="arc-agi-1/training", help="a file, a source or a recipe")
    parser.add_argument("--keep", type=int, default=36, metavar="N", help="tasks kept from training")
    parser.add_argument("--model", default="default", help="whose tokens are counted")
    parser.add_argument("--template", default=DEFAULT_TEMPLATE)
    parser.add_argument("--encoding", default="")
    parser.add_argument("--more", help="generated tasks")
    parser.add_argument("--more-predictions", type=Path, help="samples of them")
    args = parser.parse_args()
    if bool(args.more) != bool(args.more_predictions):
        parser.error("--more and --more-predictions go together")
    if args.keep < 0:
        parser.error(f"--keep must not be negative, it is {args.keep}")
    try:
        parts = chosen(args)
        args.out.mkdir(parents=True, exist_ok=True)
        for name, tasks in parts.items():
            if tasks:
                write_tasks(TaskSet(name, tuple(tasks)), args.out / f"{name}.parquet")
            print(f"{name}: {len(tasks)} tasks")
    except (ArcnbError, OSError) as error:
        raise SystemExit(str(error)) from None


def chosen(args: argparse.Namespace) -> dict[str, list]:
    """The tasks of each file, by its name. ArcnbError when none is left to train on."""
    format_ = prompt_format(args.template, args.encoding)
    tokenizer = load_tokenizer(resolve_model(args.model))
    tasks = trainable_tasks(build_task_set(args.tasks))
    fitting = solved_at_times(tasks, args.predictions, format_, tokenizer)
    kept, trained = fitting[: args.keep], fitting[args.keep :]
    if not trained:
        raise ArcnbError(
            f"{args.predictions}: {len(fitting)} tasks are solved at times, of which {args.keep} are kept "
            "from training; sample more tasks, or more completions of each, or keep fewer (--keep)"
        )
    parts = {"kept": kept, "trained": trained}
    if args.more:
        originals = {task.task_id for task in kept}
        more = solved_at_times(load_tasks(args.more), args.more_predictions, format_, tokenizer)
        parts["wide"] = trained + [task for task in more if task.meta.get("original") not in originals]
    return parts


if __name__ == "__main__":
    main()
