"""What tests of training share: small tasks, and a reward term that a random model can earn."""

import stat

import pytest

from arcnb.arc.tasks.task import Task
from arcnb.arc.tasks.task_set import TaskSet
from arcnb.plans import refuse
from arcnb.rl.checks.problems import problems
from arcnb.rl.launch import decided, train_here
from arcnb.rl.plan.grpo import GrpoPlan
from arcnb.rl.rewards.terms import TERMS
from tests.random_llama import random_llama


@pytest.fixture(scope="session")
def tasks():
    """Three tasks with prompts of about 120 tokens: TRL's loss takes time by prompt and vocabulary."""
    everything = []
    for number, (a, b) in enumerate([(1, 2), (3, 4), (5, 6)]):
        train = [{"input": [[a, b]], "output": [[b, a]]}, {"input": [[b], [a]], "output": [[b], [a]]}]
        test = [{"input": [[a, 0]], "output": [[0, a]]}]
        everything.append(Task.from_dict(f"swap{number}", {"train": train, "test": test}))
    return TaskSet("swaps", tuple(everything), "1")


@pytest.fixture
def gpus(tmp_path_factory, monkeypatch):
    """gpus("0, GPU-1, 81920, 16384", ...): a stand-in for nvidia-smi tells of these, with the GPU's MiB in
    all and the free ones."""

    def say(*lines):
        folder = tmp_path_factory.mktemp("bin")
        program = folder / "nvidia-smi"
        program.write_text("\n".join(["#!/bin/sh", *(f"echo '{line}'" for line in lines), ""]))
        program.chmod(program.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    return say


CHAT = (
    "{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="session")
def letter_model(tmp_path_factory):
    """A random two-layer Llama over a hundred characters: steps of training take a tenth of a second, and its
    policy is quick to learn and to spoil."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<unk>", "<|im_start|>", "<|im_end|>"]
    letters = ["\n", *(chr(code) for code in range(32, 127))]
    plain = Tokenizer(models.BPE({c: i for i, c in enumerate(special + letters)}, [], unk_token="<unk>"))
    plain.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=plain,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHAT,
    )
    folder = tmp_path_factory.mktemp("letter_model")
    return random_llama(folder, tokenizer, initializer_range=0.4, bos_token_id=None)


def even_tokens(group, limits):
    """Share of even token ids minus 1: a random model writes no programs, but this it can learn."""
    return [sum(token % 2 == 0 for token in rollout.tokens) / len(rollout.tokens) - 1 for rollout in group]


QUICK = {
    "max_steps": 5,
    "n_tasks": 0,
    "num_generations": 3,
    "max_completion_length": 8,
    "max_prompt_length": 0,
    "learning_rate": 1e-2,
    "warmup_steps": 0,
    "max_grad_norm": 1.0,
    "eval_steps": 0,
    "n_eval_tasks": 0,
    "num_generations_eval": 8,
    "adapter": "",
    "lora.r": 2,
    "use_vllm": False,
    "rewards.terms": {"even_tokens": 1.0},
}


@pytest.fixture(scope="module")
def quick(letter_model):
    """quick(output, max_steps=3, ...): a plan for the letter model, as QUICK and these options say."""

    def plan(output, **options):
        chosen = GrpoPlan.of(QUICK | {"model": str(letter_model.folder), "workers": 1}, output=output)
        return decided(chosen.changed(options))

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(TERMS, "even_tokens", even_tokens)
        yield plan


@pytest.fixture
def said(quick, tasks, tmp_path):
    """said(top_p=2.0): why a quick run with these options cannot be, a sentence each."""

    def sentences(tasks=tasks, eval_tasks=(), **options):
        return problems(quick(tmp_path, **options), tasks, eval_tasks)

    return sentences


@pytest.fixture(scope="module")
def train(quick, tasks):
    """train(output, max_steps=3, ...) trains the letter model in this process, as QUICK and the options say.

    Beside options by their flat names: tasks, eval_tasks (task sets), callbacks, more.
    """
    import torch

    # Threads that wait for each other on a busy machine take ten times as long as one that does not.
    before = torch.get_num_threads()
    torch.set_num_threads(1)

    def run(output, tasks=tasks, eval_tasks=(), callbacks=(), **options):
        plan = quick(output, **options)
        refuse(problems(plan, tasks, eval_tasks))
        return train_here(plan, tasks, eval_tasks, callbacks)

    yield run
    torch.set_num_threads(before)
