"""The tasks of the GRPO experiments: those that an adapter solves at times, some of them kept from training.

    python bench/experiments/solved_tasks.py PREDICTIONS OUT [--more tasks.parquet --more-predictions FOLDER]

PREDICTIONS are samples of the ARC-AGI-1 training tasks. OUT gets kept.parquet (36 tasks) and trained.parquet;
with --more, tasks that notebook 01 made, also wide.parquet: trained.parquet and those of the generated ones
that their own predictions solve at times and that no generator of a kept task made.
"""

import argparse
from pathlib import Path

from arcnb.arc.predictions.prediction_set import PredictionSet
from arcnb.arc.tasks.task_set import TaskSet, load_tasks, write_tasks
from arcnb.models.prompts.format import prompt_format
from arcnb.models.registry import load_tokenizer, resolve_model
from arcnb.rl.rows import prompt_rows, tasks_solved_at_most
from arcnb.synth.splits import trainable_tasks

N_KEPT = 36
MAX_SOLVED = 0.9
MAX_PROMPT_TOKENS = 1000


def solved_at_times(tasks: TaskSet, predictions: Path, tokenizer) -> list:
    """Those that fit, in an order drawn from seed 0."""
    solved = tasks_solved_at_most(MAX_SOLVED, tasks, PredictionSet(predictions))
    asked = {"seed": 0, "n_tasks": len(solved), "max_prompt_tokens": MAX_PROMPT_TOKENS}
    return list(prompt_rows(solved, prompt_format(), tokenizer, **asked).tasks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("predictions", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--more", help="generated tasks")
    parser.add_argument("--more-predictions", type=Path, help="samples of them")
    args = parser.parse_args()
    if bool(args.more) != bool(args.more_predictions):
        parser.error("--more and --more-predictions go together")
    tokenizer = load_tokenizer(resolve_model("default"))
    fitting = solved_at_times(trainable_tasks(load_tasks("arc-agi-1/training")), args.predictions, tokenizer)
    kept, trained = fitting[:N_KEPT], fitting[N_KEPT:]
    if not trained:
        raise SystemExit(
            f"{args.predictions}: {len(fitting)} tasks are solved at times, of which {N_KEPT} are kept from "
            "training; sample more tasks, or more completions of each"
        )
    parts = {"kept": kept, "trained": trained}
    if args.more:
        originals = {task.task_id for task in kept}
        more = solved_at_times(load_tasks(args.more), args.more_predictions, tokenizer)
        parts["wide"] = trained + [task for task in more if task.meta.get("original") not in originals]
    args.out.mkdir(parents=True, exist_ok=True)
    for name, tasks in parts.items():
        if tasks:
            write_tasks(TaskSet(name, tuple(tasks)), args.out / f"{name}.parquet")
        print(f"{name}: {len(tasks)} tasks")


if __name__ == "__main__":
    main()
