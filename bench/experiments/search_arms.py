"""What the experiments of search and learn are made of: base models, tasks, and the settings of each arm.

`args` are those of search_and_learn.py; --tiny makes everything small enough for a CPU.
"""

import json
import os

ARMS = {"toy": 3, "arc128": 1, "arc512": 1, "eval128": 1, "eval512": 1, "arc128task": 1}  # seeds of each
EVERY_LAYER = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"


def sizes(args):
    if args.tiny:
        return {
            "toy_rungs": 2,
            "toy_budget": 12,
            "toy_round": 4,
            "n_arc": 2,
            "arc_budget": 8,
            "round": 4,
            "prompt": 2,
        }
    return {
        "toy_rungs": 9,
        "toy_budget": 192,
        "toy_round": 24,
        "n_arc": 80,
        "arc_budget": 128,
        "round": args.per_round,
        "prompt": 8,
    }


# ------------------------------------------------------------------ models


# Of the rows that the base of the toy arms is taught by. A first base had seen rungs up to 4 lines and 2 x 2 squares alone:
# it wrote four steps for every higher rung (93% of 4,032 samples, more than four in 0.4%), and learning had nothing to climb on.
RUNGS = {"lines": [2.0**-rung for rung in range(1, 10)], "squares": [3.0**-rung for rung in range(1, 5)]}


def taught_rung(number):
    """Ladder and rung of a row for the toy base: every second one lines, low rungs far more often than high ones."""
    from arcnb.arc.seeds import rng

    ladder = list(RUNGS)[number % len(RUNGS)]
    weights = RUNGS[ladder]
    shares = [weight / sum(weights) for weight in weights]
    return ladder, int(rng(0, "toy base", number).choice(len(weights), p=shares)) + 1


def toy_base(args):
    """Embedded model and shipped adapter, taught ladders, the lower rungs far more often (RUNGS). Returns its ModelPath."""
    from arcnb.arc.views import View
    from arcnb.models.lora.merging import merged_model
    from arcnb.models.prompts.format import prompt_format
    from arcnb.models.registry import load_tokenizer
    from arcnb.models.sft.rows import IGNORED
    from arcnb.search.learning.learner import LoraLearner, LoraSettings
    from arcnb.synth.ladder import ladder_task

    model = arc_base(args)
    folder = args.work / "toy_base"
    if not folder.is_dir():
        steps = 4 if args.tiny else args.toy_steps
        lora = LoraSettings(
            target_modules=EVERY_LAYER,
            learning_rate=5e-4,
            lr_scheduler_type="cosine",
            per_device_train_batch_size=2 if args.tiny else 32,
            batch_tokens=1000 if args.tiny else args.batch_tokens,
        )
        tokenizer, format_ = load_tokenizer(model), prompt_format()
        rows = []
        for i in range(steps * lora.per_device_train_batch_size):
            ladder, rung = taught_rung(i)
            task = ladder_task(ladder, rung, seed=10_000 + i)
            prompt = format_.prompt_ids(tokenizer, View.plain(task).apply(task))
            answer = format_.completion_ids(tokenizer, task.program)
            rows.append({"input_ids": prompt + answer, "labels": [IGNORED] * len(prompt) + answer})
        learner = LoraLearner(model, lora)
        args.work.mkdir(parents=True, exist_ok=True)
        report = learner.learn(rows, None, folder, 0)
        learner.close()
        print(
            f"toy base: {report.steps} steps, {report.tokens:,} tokens in {report.seconds:.0f} s "
            f"({report.tokens / report.seconds:,.0f} tokens/s), loss {report.loss_first:.3f} -> {report.loss_last:.3f}, "
            f"{report.peak_memory_gb:.1f} GB",
            *report.notes,
            sep="\n",
            flush=True,
        )
        (args.work / "toy_base.json").write_text(
            json.dumps(
                {
                    "seconds": report.seconds,
                    "tokens": report.tokens,
                    "loss_first": report.loss_first,
                    "loss_last": report.loss_last,
                }
            )
        )
    return merged_model(model, folder)


def tiny_model(args):
    """A random two-layer model with the embedded model's tokenizer: for rehearsals."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from arcnb.models.registry import load_tokenizer, resolve_model

    folder = args.work / "tiny"
    if not folder.is_dir():
        torch.manual_seed(0)
        tokenizer = load_tokenizer(resolve_model("default"))
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=4096,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            tie_word_embeddings=True,
        )
        work = args.work / f"tiny.{os.getpid()}"
        LlamaForCausalLM(config).save_pretrained(work)
        tokenizer.save_pretrained(work)
        work.rename(folder)  # whole or not at all
    return resolve_model(folder)


def arc_base(args):
    from arcnb.models.lora.merging import merged_model
    from arcnb.models.registry import resolve_adapter, resolve_model

    if args.tiny:
        return tiny_model(args)
    model = resolve_model("default")
    return merged_model(model, resolve_adapter("default", model))


# ------------------------------------------------------------------ arms


def toy_tasks(args, seed):
    from arcnb.arc.tasks.task_set import TaskSet
    from arcnb.synth.ladder import ladder_task

    size = sizes(args)
    tasks = [ladder_task("lines", rung, seed) for rung in range(1, size["toy_rungs"] + 1)]
    tasks += [ladder_task("squares", rung, seed) for rung in range(1, 2 if args.tiny else 5)]
    return TaskSet("ladder", tuple(tasks), f"seed {seed}")


def held_out(args):
    from arcnb.arc.tasks.task_set import load_tasks
    from arcnb.synth.splits import HELD_OUT_TRAINING

    tasks = load_tasks("arc-agi-1/training").subset(list(HELD_OUT_TRAINING))
    if args.tiny:
        short = sorted(tasks, key=lambda t: sum(p.input.size + p.output.size for p in t.train))
        tasks = tasks.subset([t.task_id for t in short[: sizes(args)["n_arc"]]])
    return tasks


def evaluation(args, n_tasks):
    from arcnb.arc.tasks.task_set import load_tasks

    tasks = load_tasks("arc-agi-1/evaluation")
    if args.tiny:
        short = sorted(tasks, key=lambda t: sum(p.input.size + p.output.size for p in t.train))
        return tasks.subset([t.task_id for t in short[:2]])
    return tasks.sample(n_tasks, 0)


def tasks_of(args, arm, seed):
    if arm == "toy":
        return toy_tasks(args, seed)
    n_evaluation = {"eval128": 200, "eval512": 60}.get(arm)
    return evaluation(args, n_evaluation) if n_evaluation else held_out(args)


def plan_of(args, arm, seed=0, model="default"):
    """The plan of an arm, for both of its sides."""
    from arcnb.search.learning.plan import SearchPlan

    size = sizes(args)
    asked = {
        "model": model,
        "adapter": "",
        "seed": seed,
        "n_predictions": size["arc_budget"],
        "first_round": size["round"],
        "per_round": size["round"],
        "per_prompt": size["prompt"],
        "group_size": -1,
        "stop_after": 2,
        "num_train_epochs": args.epochs,
        "adapter_gb": 20,
        "max_length": 4096,
        # Programs of the ladder's highest rung have 426 tokens.
        "max_completion_length": 8 if args.tiny else 448 if arm == "toy" else 384,
        "max_answer_tokens": 512,
        "programs_per_task": args.per_task,
        "lora_target_modules": EVERY_LAYER,
        "learning_rate": args.lr,
        "per_device_train_batch_size": 16,
        "batch_tokens": args.batch_tokens,
    }
    if arm == "toy":
        rounds = dict.fromkeys(("first_round", "per_round"), size["toy_round"])
        asked |= rounds | {"n_predictions": size["toy_budget"], "augment": "colors", "stop_after": 1}
        asked |= {"learning_rate": args.toy_lr, "per_device_train_batch_size": 8}
    if arm == "arc128task":
        asked |= {"group_size": 1, "per_device_train_batch_size": 8}
    if arm in ("arc512", "eval512") and not args.tiny:
        asked |= {"n_predictions": 512, "first_round": 64, "per_round": 64}
    if args.tiny:
        asked |= {"per_device_train_batch_size": 4, "batch_tokens": 1500}
        asked |= {"programs_per_task": 2, "fresh_views": 0}
    return SearchPlan.of(asked)
