"""The model and the tasks of toy.yaml: python bench/experiments/toy_base.py OUT [--steps 200]

The embedded model with the shipped adapter folded in is taught ladder tasks, every second row lines, low
rungs far more often than high ones (a base that had never seen more than four figures drew four for every
task). OUT gets rungs-SEED.parquet, 9 rungs of lines and 4 of squares each, and the adapter; printed is the
folder of the model with that folded in.
"""

import argparse
from pathlib import Path

from arcnb.arc.seeds import rng
from arcnb.arc.tasks.task_set import TaskSet, write_tasks
from arcnb.arc.views import View
from arcnb.models.merging import merged_model
from arcnb.models.prompts.format import prompt_format
from arcnb.models.registry import load_tokenizer, resolve_adapter, resolve_model
from arcnb.models.sft.rows import IGNORED
from arcnb.search.learning.learner.learner import LoraLearner
from arcnb.search.learning.learner.settings import LoraSettings
from arcnb.synth.ladder import ladder_task, ladder_tasks

RUNGS = {"lines": [2.0**-rung for rung in range(1, 10)], "squares": [3.0**-rung for rung in range(1, 5)]}
LORA = LoraSettings(
    target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    learning_rate=5e-4,
    lr_scheduler_type="cosine",
    per_device_train_batch_size=32,
    batch_tokens=16384,
)


def row(number: int, tokenizer) -> dict[str, list[int]]:
    ladder = list(RUNGS)[number % len(RUNGS)]
    shares = [weight / sum(RUNGS[ladder]) for weight in RUNGS[ladder]]
    rung = int(rng(0, "toy base", number).choice(len(shares), p=shares)) + 1
    task = ladder_task(ladder, rung, seed=10_000 + number)
    prompt = prompt_format().prompt_ids(tokenizer, View.plain(task).apply(task))
    answer = prompt_format().completion_ids(tokenizer, task.program)
    return {"input_ids": prompt + answer, "labels": [IGNORED] * len(prompt) + answer}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for seed in range(3):
        rungs = [task for ladder in RUNGS for task in ladder_tasks(ladder, len(RUNGS[ladder]), seed)]
        write_tasks(TaskSet("ladder", tuple(rungs), f"seed {seed}"), args.out / f"rungs-{seed}.parquet")
    model = resolve_model("default")
    base = merged_model(model, resolve_adapter("default", model))
    tokenizer = load_tokenizer(base)
    n_rows = args.steps * LORA.per_device_train_batch_size
    learner = LoraLearner(base, LORA)
    report = learner.learn(
        [row(number, tokenizer) for number in range(n_rows)], None, args.out / "adapter", 0
    )
    learner.close()
    print(
        f"loss {report.loss_first:.3f} to {report.loss_last:.3f}, {report.seconds:.0f} s",
        *report.notes,
        sep="\n",
    )
    print(merged_model(base, args.out / "adapter").folder)


if __name__ == "__main__":
    main()
